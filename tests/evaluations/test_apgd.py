"""APGD: its laws, its losses by hand, and the images of the authors' code from the same start."""

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted

from attacked import border_images, five_classes, smooth, source
from gmmc.evaluations.attacks import apgd as module
from gmmc.evaluations.attacks.apgd import apgd, cross_entropy, targeted_dlr, window_ends
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat

THREATS = [Threat("linf", 0.06), Threat("l2", 0.4)]
LOSSES = ["ce", "dlr"]


def make_loss(name, y, goal):
    return cross_entropy(y) if name == "ce" else targeted_dlr(y, goal)


@pytest.fixture
def case():
    """A network, images, their labels and the class with the second largest logit."""
    network, x = smooth(), torch.cat([border_images(), torch.rand(14, 1, 8, 8, generator=source(5))])
    second, y = network(x).topk(2).indices.flip(1).unbind(1)
    return Target(network), x, y, second


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("threat", THREATS, ids=lambda threat: threat.norm)
class TestLaws:
    def test_the_loss_is_never_below_that_of_the_start(self, case, threat, name):
        target, x, y, goal = case
        loss, start = make_loss(name, y, goal), threat.random_edge(x, source())
        moved, broken = apgd(target, loss, x, y, threat, start)
        assert threat.allows(moved, x).all()
        assert not broken.all()
        assert (loss(target(moved)) >= loss(target(start)))[~broken].all()
        assert torch.equal(target(moved).argmax(1) != y, broken)

    def test_an_image_does_not_depend_on_the_others(self, case, threat, name):
        target, x, y, goal = case
        start = threat.random_edge(x, source())
        whole, broken = apgd(target, make_loss(name, y, goal), x, y, threat, start)
        # Not only broken ones: a batch of those ends early.
        part = torch.cat([broken.nonzero()[:2], (~broken).nonzero()[:2]]).flatten()
        alone, again = apgd(
            target, make_loss(name, y[part], goal[part]), x[part], y[part], threat, start[part]
        )
        assert torch.equal(again, broken[part])
        torch.testing.assert_close(alone, whole[part], rtol=0, atol=1e-3)

    # In L2 the losses near a maximum differ by rounding only, and the step sizes follow them.
    @pytest.mark.parametrize(("steps", "tolerance"), [(10, 1e-5), (100, {"linf": 1e-5, "l2": 1e-3})])
    def test_has_the_images_of_the_authors_code(self, case, threat, name, steps, tolerance):
        target, x, y, goal = case
        start = threat.random_edge(x, source())
        moved, broken = apgd(target, make_loss(name, y, goal), x, y, threat, start, steps)
        settings = {"norm": {"linf": "Linf", "l2": "L2"}[threat.norm], "eps": threat.eps, "n_iter": steps}
        if name == "ce":
            theirs = APGDAttack(target, loss="ce", **settings)
        else:
            theirs = APGDAttack_targeted(target, **settings)
            theirs.y_target = goal
        theirs.init_hyperparam(x)
        best, right, _, adversarial = theirs.attack_single_run(x, y, x_init=start)
        assert 0 < broken.sum() < len(x)
        assert torch.equal(broken, ~right.bool())
        expected = torch.where(broken[:, None, None, None], adversarial, best).detach()
        atol = tolerance if steps == 10 else tolerance[threat.norm]
        torch.testing.assert_close(moved, expected, rtol=0, atol=atol)


def test_reviews_step_sizes_at_the_checkpoints_of_the_paper():
    assert list(window_ends(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert window_ends(100)[99] == 6
    assert list(window_ends(3)) == [1, 2, 3]


@pytest.mark.parametrize("threat", THREATS, ids=lambda threat: threat.norm)
def test_steps_shrink_to_the_best_image_of_a_linear_network(threat):
    """Nothing of ε is left unused, and no pixel that matters lags behind."""
    network, x, y, _ = five_classes()
    goal = (y + 1) % 5
    small = Threat(threat.norm, threat.eps / 100)

    def gap(logits):
        return (logits.gather(1, goal[:, None]) - logits.gather(1, y[:, None])).squeeze(1)

    start = small.random_edge(x, source())
    moved, broken = apgd(Target(network), gap, x, y, small, start)
    weight = network[1].weight.detach()
    slope = weight[goal] - weight[y]
    most = small.eps * (slope.abs().sum(1) if threat.norm == "linf" else slope.norm(dim=1))
    assert not broken.any()
    torch.testing.assert_close(gap(network(moved)) - gap(network(x)), most, rtol=1e-3, atol=0)


def test_targeted_dlr_by_hand():
    logits = torch.tensor([[5.0, 1.0, 3.0, 2.0, -4.0], [0.0, 8.0, 4.0, 6.0, 2.0]])
    values = targeted_dlr(torch.tensor([0, 1]), torch.tensor([2, 4]))(logits)
    assert values.tolist() == pytest.approx([-2 / (5 - 1.5), -6 / (8 - 3)])
    shifted = targeted_dlr(torch.tensor([0, 1]), torch.tensor([2, 4]))(10 * logits + 3)
    torch.testing.assert_close(shifted, values)


def test_stops_at_a_review_once_all_are_broken(monkeypatch, case):
    target, x, y, _ = case
    calls = []
    differentiate = module.differentiate
    monkeypatch.setattr(module, "differentiate", lambda *given: (calls.append(0), differentiate(*given))[1])
    _, broken = apgd(target, cross_entropy(y), x, y, Threat("linf", 0.5), x)
    assert broken.all()
    assert len(calls) < module.STEPS
