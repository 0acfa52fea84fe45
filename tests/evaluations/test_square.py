"""Square: bounds, budget and schedule of its search; as often successful as the authors' code."""

import pytest
import torch
from pyautoattack.square import SquareAttack
from torch import nn

from attacked import NORMS, border_images, smooth, source
from gmmc.evaluations.attacks import square as module
from gmmc.evaluations.attacks.square import (
    bump,
    observe,
    paint,
    shift,
    side_at,
    square,
    stripes,
    tiles,
    window_at_random,
)
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat

EPS = {"linf": 0.06, "l2": 0.4}


class Counting(nn.Module):
    """Records how many images each call evaluates."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network, self.batches = network, []

    def forward(self, x):
        self.batches.append(len(x))
        return self.network(x)


@pytest.mark.parametrize("norm", NORMS)
class TestSearch:
    def test_keeps_to_its_budget_and_leaves_broken_images_alone(self, norm):
        network, x = Counting(smooth()), border_images()
        target, y = Target(network), smooth()(border_images()).argmax(1)
        moved = square(target, x, y, Threat(norm, EPS[norm]), 40, source())
        broken = smooth()(moved).argmax(1) != y
        assert 0 < broken.sum() < len(x)
        assert network.batches == sorted(network.batches, reverse=True)
        assert len(network.batches) == 40
        assert network.batches[-1] < len(x)

    def test_more_queries_never_lower_the_margin(self, norm):
        target, x = Target(smooth()), border_images()
        y, threat = target(x).argmax(1), Threat(norm, EPS[norm] / 4)
        margins = [observe(target, square(target, x, y, threat, n, source()), y) for n in (1, 10, 40)]
        assert (margins[1] >= margins[0]).all()
        assert (margins[2] >= margins[1]).all()
        assert margins[2].mean() > margins[0].mean()

    def test_goes_on_where_two_classes_tie(self, norm):
        """A tie is no misclassification: the other class needs an image that is brighter than grey."""

        class Flat(nn.Module):
            def forward(self, x):
                light = (x.mean((1, 2, 3)) - 0.53).relu()
                return torch.stack([torch.zeros_like(light), light], 1)

        x, y = torch.full((8, 1, 8, 8), 0.5), torch.zeros(8).long()
        target, threat = Target(Flat()), Threat(norm, {"linf": 0.2, "l2": 1.6}[norm])
        first, last = (observe(target, square(target, x, y, threat, n, source()), y) for n in (1, 150))
        assert (first == 0).any()
        assert (last > 0).sum() > (first > 0).sum()

    def test_stays_in_the_ball_and_uses_all_of_it(self, norm):
        x, threat = torch.full((3, 2, 9, 7), 0.5), Threat(norm, 0.1)
        begin, change = (stripes, paint) if norm == "linf" else (tiles, shift)
        moved, chance = begin(x, 0.1, source()), source(1)
        for side in (7, 5, 3):
            torch.testing.assert_close(threat.distance(moved, x), torch.full((3,), 0.1).double())
            changed = change(x, moved, 0.1, side, chance)
            assert not torch.equal(changed, moved)
            moved = changed
        if norm == "linf":
            assert ((moved - x).abs() - 0.1).abs().max() < 1e-6

    @pytest.mark.parametrize("shape", [(1, 1, 1), (1, 2, 5), (3, 4, 4), (3, 33, 20)])
    def test_takes_images_of_any_size(self, norm, shape):
        network = nn.Sequential(nn.Flatten(), nn.LazyLinear(3))
        x = torch.rand(2, *shape, generator=source())
        y, threat = network(x).argmax(1), Threat(norm, 0.1)
        moved = square(Target(network), x, y, threat, 30, source())
        assert threat.allows(moved, x).all()


def test_a_window_may_lie_at_every_edge():
    chance, x = source(), torch.zeros(1, 1, 6, 5)
    windows = [window_at_random(x, 2, chance) for _ in range(300)]
    places = {(rows.start, columns.start) for _, _, rows, columns in windows}
    assert places == {(row, column) for row in range(5) for column in range(4)}


def test_squares_shrink_by_the_schedule_of_the_paper():
    x = torch.zeros(1, 3, 32, 32)
    queries = 0, 11, 51, 201, 501, 1001, 2001, 4001, 6001, 8001
    linf = [side_at(query, Threat("linf", 1), x) for query in queries]
    assert linf == [29, 20, 14, 10, 7, 5, 4, 3, 2, 1]
    assert [side_at(query, Threat("linf", 1), x) for query in (10, 50, 200)] == [29, 20, 14]
    assert [side_at(query, Threat("l2", 1), x) for query in queries] == [29, 21, 15, 11, 7, 5, 5, 3, 3, 3]
    assert side_at(0, Threat("l2", 1), torch.zeros(1, 1, 8, 8)) == 7
    assert side_at(0, Threat("l2", 1), torch.zeros(1, 1, 2, 8)) == 2


@pytest.mark.parametrize("side", [1, 2, 3, 7, 8])
def test_bumps_are_those_of_the_authors_code(side):
    theirs = SquareAttack(None, norm="L2", eps=1.0, device="cpu")
    expected = theirs.eta(side)
    shape = bump(side)
    assert shape.norm().item() == pytest.approx(1)
    same = [torch.allclose(turned, expected, atol=1e-6) for turned in (shape, shape.T)]
    assert any(same)


@pytest.mark.parametrize("norm", NORMS)
def test_breaks_as_many_images_as_the_authors_code(monkeypatch, digits, norm):
    """The authors' windows never touch the last row and column; ours may, as in the paper."""

    def shorter(x, side, chance):
        top, left = (int(torch.randint(max(size - side, 1), (), generator=chance)) for size in x.shape[2:])
        return (slice(None), slice(None), slice(top, top + side), slice(left, left + side))

    model, data = digits
    target = Target(model.at("fitted"))
    x, y = data.test.images[:90] / 255, data.test.labels[:90]
    threat, queries, seeds = Threat(norm, {"linf": 0.08, "l2": 0.5}[norm]), 50, range(3)
    with target.exposed():
        right = target.names(x, y)
        x, y = x[right], y[right]

        def count(moved) -> int:
            return int((~target.names(moved, y)).sum())

        def theirs(seed) -> int:
            attack = SquareAttack(
                target,
                norm={"linf": "Linf", "l2": "L2"}[norm],
                eps=threat.eps,
                n_queries=queries,
                seed=seed,
                resc_schedule=False,
            )
            with torch.random.fork_rng():
                return count(attack.perturb(x, y))

        def ours() -> int:
            return sum(count(square(target, x, y, threat, queries, source(seed))) for seed in seeds)

        expected = sum(map(theirs, seeds))
        everywhere = ours()
        monkeypatch.setattr(module, "window_at_random", shorter)
        assert 0.2 < expected / len(seeds) / len(x) < 0.8
        assert ours() == pytest.approx(expected, rel=0.12)
        assert everywhere > 0.95 * expected
