import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gmmc import core
from gmmc.errors import InputError


@st.composite
def classes_and_dim(draw):
    classes = draw(st.integers(2, 60))
    return classes, draw(st.integers(classes - 1, classes + 40))


@given(classes_and_dim(), st.floats(1e-2, 1e3))
@settings(max_examples=60)
def test_means_form_a_simplex(sizes, scale):
    classes, dim = sizes
    means = core.simplex_means(classes, dim, scale, torch.float64)
    gram = means @ means.T
    expected = torch.full_like(gram, -(scale**2) / (classes - 1))
    expected.fill_diagonal_(scale**2)
    assert means.shape == (classes, dim)
    assert torch.allclose(gram, expected, rtol=0, atol=1e-12 * scale**2 * classes)
    assert torch.allclose(means.sum(0), torch.zeros(dim, dtype=torch.float64), atol=1e-11 * scale * classes)


@pytest.mark.parametrize(("classes", "dim"), [(2, 1), (2, 5), (3, 2), (10, 9), (10, 64), (17, 40)])
def test_means_equal_algorithm_2_taken_literally(classes, dim):
    mu = [[0.0] * (dim + 1) for _ in range(classes)]  # one spare coordinate: the last mean's own is 0
    mu[0][0] = 1.0
    for i in range(1, classes):
        for j in range(i):
            inner = sum(a * b for a, b in zip(mu[i], mu[j], strict=True))
            mu[i][j] = -(1 + inner * (classes - 1)) / (mu[j][j] * (classes - 1))
        mu[i][i] = math.sqrt(max(0.0, 1 - sum(a * a for a in mu[i])))
    literal = 10 * torch.tensor(mu, dtype=torch.float64)
    ours = core.simplex_means(classes, dim, 10.0, torch.float64)
    assert torch.allclose(ours, literal[:, :dim], atol=1e-6)  # sqrt of a rounding error near 0


def test_means_of_a_thousand_classes_keep_their_precision_in_float32():
    means = core.simplex_means(1000, 999).double()
    assert (means.norm(dim=1) - 10).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 4, 10.0), "num_classes >= 2, got num_classes=1"),
        ((11, 9, 10.0), "11 equiangular means need dim >= 10, got dim=9"),
        ((3, 4, 0.0), "scale=0.0"),
        ((3, 4, -1.0), "scale=-1.0"),
        ((3, 4, math.nan), "scale=nan"),
    ],
)
def test_impossible_means_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        core.simplex_means(*arguments)


@given(st.integers(2, 12), st.floats(0.05, 50), st.integers(0, 1000))
@settings(max_examples=40)
def test_the_posterior_is_a_linear_softmax_with_weights_mu_over_gamma2(classes, gamma2, seed):
    features = torch.randn(7, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 5
    means = core.simplex_means(classes, 16, 10.0, torch.float64)
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    logits = core.mahalanobis_logits(core.unit_energies(features, means), gamma2, uniform)
    linear = (features @ means.T / gamma2).softmax(-1)
    assert torch.allclose(core.log_posterior(logits).exp(), linear, atol=1e-9)
    assert torch.equal(logits.argmax(-1), (features @ means.T).argmax(-1))


def test_energies_density_and_posterior_fit_together():
    logits = torch.randn(5, 4, dtype=torch.float64)
    y = torch.tensor([0, 3, 1, 2, 2])
    joint = -core.energy(logits, y)  # log p(x, y) = log p(x) + log p(y|x)
    split = core.log_density(logits) + core.log_posterior(logits).gather(1, y[:, None]).squeeze(1)
    assert torch.allclose(joint, split)


def test_on_a_hand_placed_point():
    means = core.simplex_means(2, 1, 10.0)  # +10 and −10
    assert means.tolist() == [[10.0], [-10.0]]
    energies = core.unit_energies(torch.tensor([[9.0]]), means)
    assert energies.tolist() == [[0.5, 180.5]]
    logits = core.mahalanobis_logits(energies, 0.25, torch.tensor([0.5, 0.5]))
    assert core.energy(logits, torch.tensor([0])).tolist() == [2.0]
    assert core.log_density(logits).tolist() == [-2.0]


def test_log_density_of_far_features_neither_underflows_nor_ties():
    means = core.simplex_means(10, 64)
    far = torch.zeros(3, 64) + torch.tensor([[1e3], [1.001e3], [1.002e3]])
    logits = core.mahalanobis_logits(core.unit_energies(far, means), 0.01, torch.full((10,), 0.1))
    density = core.log_density(logits)
    assert torch.isfinite(density).all()
    assert density[0] > density[1] > density[2]


def test_empirical_priors_shift_the_posterior_by_their_ratio():
    means = core.simplex_means(2, 1, 10.0)
    energies = core.unit_energies(torch.zeros(1, 1), means)  # half way
    logits = core.mahalanobis_logits(energies, 1.0, torch.tensor([0.8, 0.2]))
    assert torch.allclose(core.log_posterior(logits).exp(), torch.tensor([[0.8, 0.2]]))


def test_gradients_of_the_energies():
    features = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    means = core.simplex_means(3, 5, 2.0, torch.float64)
    priors = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 1])

    def logits(f):
        return core.mahalanobis_logits(core.unit_energies(f, means), 0.7, priors)

    assert torch.autograd.gradcheck(lambda f: core.unit_energy(f, means[y]), features)
    assert torch.autograd.gradcheck(lambda f: core.energy(logits(f), y), features)
    assert torch.autograd.gradcheck(lambda f: core.log_density(logits(f)), features)
    assert torch.autograd.gradcheck(lambda f: core.log_posterior(logits(f)), features)


def test_half_precision_features_do_not_lose_a_small_energy():
    means = core.simplex_means(10, 64)
    features = (means[3] + 0.1).bfloat16()
    exact = 0.5 * (features.double() - means[3].double()).square().sum().item()
    assert core.unit_energy(features, means[3]).item() == pytest.approx(exact, rel=1e-5)


def test_gamma2_is_recovered_from_gaussian_features():
    dim, gamma2 = 50, 0.36
    noise = torch.randn(4000, dim, generator=torch.Generator().manual_seed(0)) * gamma2**0.5
    energies = core.unit_energy(noise, torch.zeros(dim))
    assert core.estimate_gamma2(energies, dim) == pytest.approx(gamma2, rel=0.01)
    with pytest.raises(InputError):
        core.estimate_gamma2(torch.empty(0), dim)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=12))
def test_evenly_spaced_quantiles_give_every_class_its_share(weights):
    priors = torch.tensor(weights, dtype=torch.float64)
    priors /= priors.sum()
    labels = core.labels_at((torch.arange(1000) + 0.5) / 1000, priors)
    shares = labels.bincount(minlength=len(weights)) / 1000
    assert (shares - priors).abs().max() <= 1.01e-3
