"""Targeted FAB: projections compared with solvers, distances compared with the authors' code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyautoattack.fab_projections import projection_l2, projection_linf
from pyautoattack.fab_pt import FABAttack_PT
from scipy.optimize import linprog, minimize

from attacked import NORMS, border_images, five_classes, smooth, source
from gmmc.evaluations.attacks.fab import fab, step_to_boundary
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat


@st.composite
def hyperplanes(draw):
    """Pixels x, a normal with some zeros, and ⟨normal, d⟩ that some d in the box attains."""
    count = draw(st.integers(1, 5))

    def numbers(low, high):
        return np.array(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), dtype=float)

    x, normal, other = numbers(0, 8) / 8, numbers(-4, 4), numbers(0, 8) / 8
    return x, normal, float(normal @ (other - x))


def step(x, normal, missing, norm) -> np.ndarray:
    shape = (1, 1, 1, len(x))
    given = (torch.tensor(x).view(shape), torch.tensor(normal).view(shape), torch.tensor([missing]))
    return step_to_boundary(*given, Threat(norm, 1.0)).flatten().numpy()


def shortest(x, normal, missing, norm) -> float:
    """Length of the shortest step by a general solver."""
    count = len(x)
    if norm == "linf":  # the variables are d and r, with |d| ≤ r
        sides = np.block([[np.eye(count), -np.ones((count, 1))], [-np.eye(count), -np.ones((count, 1))]])
        solved = linprog(
            np.r_[np.zeros(count), 1],
            A_ub=sides,
            b_ub=np.zeros(2 * count),
            A_eq=np.r_[normal, 0][None],
            b_eq=[missing],
            bounds=[*zip(-x, 1 - x, strict=True), (0, None)],
        )
        return solved.fun
    solved = minimize(
        lambda d: d @ d,
        np.zeros(count),
        jac=lambda d: 2 * d,
        method="SLSQP",
        bounds=list(zip(-x, 1 - x, strict=True)),
        constraints={"type": "eq", "fun": lambda d: normal @ d - missing, "jac": lambda d: normal},
        options={"ftol": 1e-12, "maxiter": 200},
    )
    return solved.fun**0.5


@pytest.mark.parametrize("norm", NORMS)
class TestStepToBoundary:
    @given(hyperplanes())
    @settings(max_examples=60)
    def test_is_the_shortest_that_ends_there(self, norm, hyperplane):
        x, normal, missing = hyperplane
        d = step(x, normal, missing, norm)
        assert normal @ d == pytest.approx(missing, abs=1e-9)
        assert (x + d >= -1e-12).all()
        assert (x + d <= 1 + 1e-12).all()
        length = np.abs(d).max() if norm == "linf" else np.linalg.norm(d)
        assert length == pytest.approx(shortest(x, normal, missing, norm), abs=1e-5)

    def test_goes_as_far_as_the_box_allows(self, norm):
        x, normal = np.array([0.25, 0.5, 0.75]), np.array([2.0, 0.0, -1.0])
        assert step(x, normal, 100.0, norm).tolist() == [0.75, 0, -0.75]
        assert step(x, normal, -100.0, norm).tolist() == [-0.25, 0, 0.25]
        assert step(x, 0 * normal, 1.0, norm).tolist() == [0, 0, 0]

    def test_is_that_of_the_authors_code(self, norm):
        x, normal = (torch.rand(40, 1, 8, 8, generator=source(seed)) for seed in (0, 1))
        normal, missing = normal - 0.5, torch.linspace(-8, 8, 40)
        ours = step_to_boundary(x, normal, missing, Threat(norm, 1.0)).flatten(1)
        flat, slopes = x.flatten(1), normal.flatten(1)
        theirs = projection_linf if norm == "linf" else projection_l2
        expected = theirs(flat, slopes, (flat * slopes).sum(1) + missing)
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)


@pytest.fixture
def case():
    network, x = smooth(), torch.cat([border_images(), torch.rand(6, 1, 8, 8, generator=source(5))])
    second, y = network(x).topk(2).indices.flip(1).unbind(1)
    return Target(network), x, y, second


@pytest.mark.parametrize("norm", NORMS)
class TestFab:
    def test_finds_the_exact_distance_of_a_linear_network(self, norm):
        network, x, y, exact = five_classes()
        threat = Threat(norm, 1.0)
        moved, distances = fab(Target(network), x, y, (y + 1) % 5, threat)
        assert (network(moved).argmax(1) != y).all()
        assert (distances / exact[norm]).min() > 1
        assert (distances / exact[norm]).max() < 1.02

    def test_returns_misclassified_images_at_the_distances_it_names(self, case, norm):
        target, x, y, goal = case
        threat = Threat(norm, 1.0)
        moved, distances = fab(target, x, y, goal, threat, steps=20)
        assert (target(moved).argmax(1) != y).all()
        assert moved.min() >= 0
        assert moved.max() <= 1
        assert torch.equal(threat.distance(moved, x), distances)

    def test_returns_the_images_where_it_finds_none(self, norm):
        network, x, y, _ = five_classes()

        class Stubborn(torch.nn.Module):
            def forward(self, x):
                return network(x).scatter_add(1, y[:, None], torch.full((len(y), 1), 1e6))

        moved, distances = fab(Target(Stubborn()), x, y, (y + 1) % 5, Threat(norm, 1.0), steps=3)
        assert torch.equal(moved, x)
        assert distances.isinf().all()

    def test_has_the_distances_of_the_authors_code(self, case, norm):
        target, x, y, goal = case
        threat = Threat(norm, 1.0)
        _, distances = fab(target, x, y, goal, threat)
        theirs = FABAttack_PT(target, norm={"linf": "Linf", "l2": "L2"}[norm], eps=1.0)
        theirs.target_class = 2
        expected = threat.distance(theirs.attack_single_run(x, y, is_targeted=True), x)
        torch.testing.assert_close(distances, expected, rtol=1e-3, atol=0)
