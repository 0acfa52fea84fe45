import random
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attacked import (
    CLASSES,
    LINEAR_GAP,
    NORMS,
    border_images,
    five_classes,
    linear,
    smooth,
    source,
    two_classes,
)
from conftest import make_model
from gmmc.evaluations.attacks import autoattack
from gmmc.evaluations.attacks import gradient as gradients
from gmmc.evaluations.attacks.autoattack import PARTS, AutoAttackPart, towards_each
from gmmc.evaluations.attacks.carlini_wagner import CarliniWagner
from gmmc.evaluations.attacks.gradient import (
    Attack,
    FeatureMatch,
    Margin,
    PaperPGD,
    Pull,
    Temperatures,
    Transfer,
)
from gmmc.evaluations.attacks.target import ROUNDING, Target, margin
from gmmc.evaluations.attacks.threats import Threat

NAMES = ["paper_pgd", "margin", "pull", "temperatures", "features", "transfer", *PARTS]


def broken_by(attack: Attack, module: nn.Module, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """(N,): those that one of the attempts got misnamed; each attempt is within the threat."""
    target, broken = Target(module), torch.zeros(len(x), dtype=torch.bool)
    with target.exposed():
        for number in range(attack.tries):
            moved = attack.attempt(target, x, y, threat, number, source(number))
            assert threat.allows(moved, x).all()
            broken |= ~target.names(moved, y)
    return broken


def guides_of(module: nn.Module) -> tuple[Tensor, Tensor]:
    """Features of random images, of a foreign module its logits, and what it names them."""
    logits = module(torch.rand(40, 1, 8, 8, generator=source(7))).detach()
    return logits, logits.argmax(1)


def make_attack(name: str, module: nn.Module, classes: int = CLASSES) -> Attack:
    if name in PARTS:
        return AutoAttackPart(name, classes, queries=60)
    return {
        "paper_pgd": PaperPGD(),
        "margin": Margin(20, 2),
        "pull": Pull(20, classes - 1),
        "temperatures": Temperatures(20, 4),
        "features": FeatureMatch(20, 2, *guides_of(module)),
        "transfer": Transfer(Target(smooth(seed=1)), Margin(20, 2)),
    }[name]


def random_states() -> tuple:
    """Of all that draw for everybody."""
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002


@pytest.mark.parametrize("norm", NORMS)
class TestThreat:
    def test_projecting_twice_is_projecting_once(self, norm):
        threat, x = Threat(norm, 0.3), border_images()
        far = x + torch.randn(x.shape, generator=source())
        once = threat.project(far, x)
        assert threat.allows(once, x).all()
        assert not threat.allows(far, x).any()
        torch.testing.assert_close(threat.project(once, x), once, rtol=0, atol=1e-6)
        torch.testing.assert_close(threat.project(x, x), x, rtol=0, atol=0)

    def test_a_random_start_is_inside_and_somewhere_else_each_time(self, norm):
        threat, x = Threat(norm, 0.1), torch.full((50, 1, 8, 8), 0.5)
        first, second = (threat.random(x, source(seed)) for seed in (0, 1))
        assert threat.allows(first, x).all()
        assert threat.allows(threat.random(border_images(), source()), border_images()).all()
        assert torch.equal(first, threat.random(x, source(0)))
        assert (first - second).flatten(1).abs().amax(1).min() > 1e-3
        assert (
            threat.distance(first, x).min() > 0.08
        )  # in 64 dimensions nearly all of a ball is near its edge
        assert abs((first - x).mean()) < 0.01

    def test_a_start_at_the_edge_has_the_whole_distance(self, norm):
        threat, x = Threat(norm, 0.1), torch.full((5, 1, 8, 8), 0.5)
        moved = threat.random_edge(x, source())
        torch.testing.assert_close(threat.distance(moved, x), torch.full((5,), 0.1).double())
        assert threat.allows(threat.random_edge(border_images(), source()), border_images()).all()
        assert not torch.equal(moved, threat.random_edge(x, source(1)))

    def test_a_step_has_its_size_and_none_without_a_gradient(self, norm):
        threat, x = Threat(norm, 0.1), torch.full((3, 1, 8, 8), 0.5)
        gradient = torch.randn(x.shape, generator=source())
        gradient[1] *= 1e-30
        gradient[2] = 0
        moved = threat.ascend(x, gradient, 0.05)
        assert threat.distance(moved, x).tolist() == pytest.approx([0.05, 0.05, 0], abs=1e-6)
        sizes = torch.tensor([0.01, 0.02, 0.03])[:, None, None, None]
        moved = threat.ascend(x, gradient, sizes)
        assert threat.distance(moved, x).tolist() == pytest.approx([0.01, 0.02, 0], abs=1e-6)

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -0.001, 1.001])
    def test_what_is_no_image_is_not_allowed(self, norm, wrong):
        threat, x = Threat(norm, 10), torch.full((2, 1, 8, 8), 0.5)
        moved = x.clone()
        moved[1, 0, 3, 3] = wrong
        assert threat.allows(moved, x).tolist() == [True, False]

    def test_the_edge_is_allowed_and_no_further(self, norm):
        threat, x = Threat(norm, 0.1), torch.full((1, 1, 8, 8), 0.5)
        direction = torch.ones_like(x) if norm == "linf" else torch.full_like(x, 1 / 8)
        assert threat.allows(x + 0.1 * direction, x).all()
        assert not threat.allows(x + 0.1001 * direction, x).any()


def test_threats_are_named_as_the_literature_counts():
    names = [Threat.linf(pixels).name for pixels in (1, 2, 4, 8, 16, 32, 64)]
    assert names == ["linf_1", "linf_2", "linf_4", "linf_8", "linf_16", "linf_32", "linf_64"]
    assert [Threat("l2", eps).name for eps in (0.25, 0.5, 1.0)] == ["l2_0.25", "l2_0.5", "l2_1"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("part", PARTS)
def test_autoattack_moves_images_alike_on_a_gpu(part, norm):
    module, x = smooth(), border_images()
    threat, y = Threat(norm, {"linf": 0.03, "l2": 0.2}[norm]), module(x).argmax(1)
    margins = []
    for device in ("cpu", "cuda"):
        target = Target(module.to(device))
        with target.exposed():
            given = target, x.to(device), y.to(device), threat, 0, source()
            moved = AutoAttackPart(part, CLASSES, queries=60).attempt(*given)
            assert threat.allows(moved, x.to(device)).all()
            margins.append(margin(target(moved), y.to(device)).detach().cpu())
    torch.testing.assert_close(margins[0] > 0, margins[1] > 0)


@pytest.mark.parametrize("norm", NORMS)
class TestLinearModel:
    """Where the smallest perturbation that changes the class is known."""

    @pytest.mark.parametrize("name", ["margin", "pull", "temperatures", "features", "apgd-ce", "fab-t"])
    def test_two_classes(self, name, norm):
        module, x, y, exact = two_classes()
        attack = make_attack(name, module, 2)
        assert not broken_by(attack, module, x, y, Threat(norm, 0.99 * exact[norm])).any()
        assert broken_by(attack, module, x, y, Threat(norm, 1.02 * exact[norm])).all()

    @pytest.mark.parametrize("name", ["margin", "temperatures", "apgd-t", "fab-t"])
    def test_five_classes(self, name, norm):
        module, x, y, exact = five_classes()
        attack = make_attack(name, module)
        assert not broken_by(attack, module, x, y, Threat(norm, 0.99 * exact[norm])).any()
        assert broken_by(attack, module, x, y, Threat(norm, 1.02 * exact[norm])).all()

    def test_the_papers_steps_reach_a_third_further_than_the_edge(self, norm):
        module, x, y, exact = two_classes()
        assert not broken_by(PaperPGD(), module, x, y, Threat(norm, 0.99 * exact[norm])).any()
        assert broken_by(PaperPGD(), module, x, y, Threat(norm, 1.4 * exact[norm])).all()

    def test_square_sees_no_gradient_and_comes_less_close(self, norm):
        module, x, y, exact = two_classes()
        square = AutoAttackPart("square", 2, queries=300)
        far = {"linf": 2, "l2": 6}[norm]
        assert not broken_by(square, module, x, y, Threat(norm, 0.99 * exact[norm])).any()
        assert broken_by(square, module, x, y, Threat(norm, far * exact[norm])).any()


@pytest.mark.parametrize("targeted", [False, True])
def test_carlini_and_wagner_find_the_nearest_image(targeted):
    module, x, y, exact = five_classes()
    goals = (y + 2) % 5 if targeted else y
    # The nearest class has a gap of LINEAR_GAP, all others one and a half times that.
    wanted = exact["l2"] * (1.5 if targeted else 1)
    target = Target(module)
    with target.exposed():
        moved = CarliniWagner(100, targeted).attack(target, x, y, goals)
        named = target(moved).argmax(1)
    assert torch.equal(named, goals) if targeted else (named != y).all()
    distances = (moved - x).flatten(1).norm(dim=1)
    assert distances.min() / wanted > 0.999
    assert distances.max() / wanted < 1.02


def test_of_all_images_that_carlini_and_wagner_try_the_nearest_success_is_kept():
    module, x = smooth(), border_images()[:3]
    y, tried = module(x).argmax(1), []

    class Watched(Target):
        def view(self, images):
            tried.append(images.detach().clone())
            return super().view(images)

    target = Watched(module)
    with target.exposed():
        moved = CarliniWagner(40, False, search_steps=4).attack(target, x, y, y)
        points = torch.stack(tried)
        logits = target(points.flatten(0, 1)).double().unflatten(0, points.shape[:2])
    over = torch.stack([margin(row, y) for row in logits])
    distances = (points - x).double().flatten(2).norm(dim=2)
    nearest = distances.where(over > ROUNDING * logits.abs().amax(2), torch.inf).amin(0)
    assert nearest.isfinite().all()
    torch.testing.assert_close((moved - x).double().flatten(1).norm(dim=1), nearest, rtol=1e-4, atol=1e-6)


def test_carlini_and_wagner_search_for_the_least_c_that_succeeds(monkeypatch):
    needed, used = torch.tensor([0.05, 3.0]), []

    def descend(self, target, x, y, goals, c, nearest, found):
        used.append(c)
        return c >= needed

    monkeypatch.setattr(CarliniWagner, "_descend", descend)
    x, y = torch.zeros(2, 1, 8, 8), torch.zeros(2).long()
    CarliniWagner(1, False, search_steps=16).attack(Target(smooth()), x, y, y)
    torch.testing.assert_close(used[-1], needed, rtol=1e-3, atol=0)


def test_carlini_and_wagner_give_back_what_they_cannot_move():
    module, x, y, _ = two_classes(scale=0)
    moved = CarliniWagner(10, False, search_steps=3).attack(Target(module), x, y, y)
    assert torch.equal(moved, x)


@pytest.mark.parametrize("name", NAMES)
class TestEveryAttack:
    @pytest.mark.parametrize("norm", NORMS)
    def test_stays_within_its_bounds_also_at_the_border(self, name, norm):
        module, x = smooth(), border_images()
        target, threat = Target(module), Threat(norm, {"linf": 0.1, "l2": 0.8}[norm])
        with target.exposed():
            y = target(x).argmax(1)
            for number in (0, 1):
                moved = make_attack(name, module).attempt(target, x, y, threat, number, source())
                assert threat.allows(moved, x).all()

    def test_is_the_same_again_and_leaves_all_else_as_it_was(self, name):
        module, x = smooth().train(), border_images()
        module[1].eval().bias.requires_grad_(False)
        before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        modes = [part.training for part in module.modules()]
        wanted = [parameter.requires_grad for parameter in module.parameters()]
        target = Target(module)
        states = random_states()
        with target.exposed():
            y = target(x).argmax(1)
            attack = make_attack(name, module)
            first, again = (attack.attempt(target, x, y, Threat("linf", 0.1), 1, source()) for _ in range(2))
        assert torch.equal(first, again)
        assert random_states() == states
        assert [part.training for part in module.modules()] == modes
        assert [parameter.requires_grad for parameter in module.parameters()] == wanted
        assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())
        assert all(parameter.grad is None for parameter in module.parameters())


def test_restarts_begin_elsewhere():
    module, x = smooth(), border_images()
    target = Target(module)
    y = target(x).argmax(1)
    tiny = Threat("linf", 0.01)  # too little to break anything early
    attempts = [Margin(3, 3).attempt(target, x, y, tiny, number, source(number)) for number in range(3)]
    assert not torch.equal(attempts[1], attempts[2])
    pulls = [Pull(3, 3).attempt(target, x, y, tiny, number, source(5)) for number in (1, 2)]
    assert not torch.equal(*pulls)  # from the same place towards other classes


def losses_of(attack, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(tries, N): what each attempt raises, at the images themselves."""
    target, rows = Target(module), torch.arange(len(x))
    with torch.no_grad():
        return torch.stack(
            [attack.loss(target, x, y, k)(target.view(x), rows).double() for k in range(attack.tries)]
        )


class Flat(nn.Module):
    """Pixels as features, in the precision of its only parameter."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x.flatten(1)


def test_attempts_pull_to_every_other_mean_the_nearest_first():
    model, x = make_model(classes=CLASSES), border_images()
    y = torch.arange(len(x)) % CLASSES
    energies = model.tempered().energies(x).detach()
    others = energies[energies != energies.gather(1, y[:, None])].view(len(x), CLASSES - 1)
    found = losses_of(Pull(3, CLASSES), model, x, y)
    torch.testing.assert_close(found[:-1].T, -others.sort(1).values)
    assert torch.equal(found[-1], found[0])  # after the last mean the first again


def test_attempts_go_through_all_temperatures():
    """Attempt k raises −log p(y|x) at the k-th γ²."""
    model, x = make_model(classes=CLASSES), border_images()
    y = torch.arange(len(x)) % CLASSES
    gamma2s = (2.0, 50.0, 700.0)
    found = losses_of(Temperatures(3, 4, gamma2s=gamma2s), model, x, y)
    energies = model.tempered().energies(x).detach()
    for k, gamma2 in enumerate((*gamma2s, gamma2s[0])):
        wanted = -(-energies / gamma2).log_softmax(1).gather(1, y[:, None]).squeeze(1)
        torch.testing.assert_close(found[k], wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attempts_imitate_other_images_the_nearest_first(dtype):
    """Guides at 1, 2, … from the features of every image, those of its own class left out."""
    x = torch.zeros(2, 1, 1, 2, dtype=dtype)
    guides = torch.tensor([[3.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 4.0]], dtype=dtype)
    attack = FeatureMatch(3, 3, guides, torch.tensor([0, 1, 0, 1]))
    found = losses_of(attack, Flat(dtype), x, torch.tensor([2, 0]))
    assert found[:, 0].tolist() == [-1, -4, -9]
    assert found[:2, 1].tolist() == [-1, -16]


def test_a_transfer_knows_nothing_of_the_model_it_is_tried_on():
    x, threat = border_images(), Threat("linf", 0.1)
    y, by = torch.arange(len(x)) % CLASSES, Margin(5, 1)
    surrogate = Target(smooth(seed=1))
    wanted = by.attempt(surrogate, x, y, threat, 0, source())
    for seed in (0, 1, 2):
        moved = Transfer(surrogate, by).attempt(Target(smooth(seed=seed)), x, y, threat, 0, source())
        assert torch.equal(moved, wanted)


def test_the_papers_attack_begins_at_random():
    x, y, threat = border_images(), torch.zeros(6).long(), Threat("linf", 0.1)
    first, second = (
        PaperPGD(steps=0).attempt(Target(smooth()), x, y, threat, 0, source(seed)) for seed in (0, 1)
    )
    assert (first != x).flatten(1).any(1).all()
    assert (first != second).flatten(1).any(1).all()


def test_margin_by_hand():
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 7.0]])
    assert margin(logits, torch.tensor([0, 1])).tolist() == [-1, 2]


class TestSaturation:
    def test_cross_entropy_has_no_gradient_where_the_margin_still_has_one(self):
        module, x, y, exact = two_classes(scale=1e4)
        threat = Threat("linf", 1.4 * exact["linf"])
        assert (gradients.cross_entropy_gradient(Target(module), x, y) == 0).all()
        assert not broken_by(PaperPGD(), module, x, y, threat).any()
        assert broken_by(Margin(20, 1), module, x, y, threat).all()

    def test_an_overflow_points_nowhere(self):
        class Overflowing(nn.Module):
            def forward(self, x):
                return torch.stack([x.sum((1, 2, 3)), (x.sum((1, 2, 3)) * 1e20) ** 2], 1)

        x = border_images()
        gradient = gradients.cross_entropy_gradient(
            Target(Overflowing()), x, torch.zeros(len(x), dtype=torch.long)
        )
        assert gradient.isfinite().all()


class TestAutoAttack:
    def test_targets_are_as_many_as_there_are(self):
        assert [AutoAttackPart("fab-t", classes).targets for classes in (2, 10, 100)] == [1, 9, 9]
        assert [AutoAttackPart("apgd-t", classes).possible for classes in (2, 3, 4)] == [False, False, True]
        assert all(AutoAttackPart(part, 2).possible for part in PARTS if part != "apgd-t")

    @pytest.mark.parametrize("part", ["apgd-ce", "square"])
    def test_warns_once_of_what_misleads_it(self, part, capfd):
        class Moody(nn.Module):
            def forward(self, x):
                return smooth()(x + 0.1 * torch.rand(()))

        class Blind(nn.Module):
            def forward(self, x):
                return smooth()(x.round().detach())

        networks = {
            "call to call": Moody(),
            "probabilities": nn.Sequential(smooth(), nn.Softmax(-1)),
            "gradient": Blind(),
            None: smooth(),
        }
        x = border_images()
        for word, network in networks.items():
            attack = AutoAttackPart(part, CLASSES, queries=5)
            with torch.random.fork_rng():
                for _ in range(2):
                    broken_by(attack, network, x, smooth()(x).argmax(1), Threat.linf(1))
            assert len(attack.notes) == (word is not None)
            assert all(word in note for note in attack.notes)
        assert capfd.readouterr() == ("", "")

    def test_aims_at_the_other_classes_with_the_largest_logits_first(self, monkeypatch):
        aims = []

        def towards_each(attack, x, y, goals):
            aims.append(goals)
            return x

        monkeypatch.setattr(autoattack, "towards_each", towards_each)
        module, x = smooth(12), border_images()
        order = module(x).argsort(1, descending=True)
        for part in ("apgd-t", "fab-t"):
            AutoAttackPart(part, 12).attempt(Target(module), x, order[:, 0], Threat.linf(8), 0, source())
        assert torch.equal(aims[0], order[:, 1:10])
        assert torch.equal(aims[1], aims[0])

    @pytest.mark.parametrize("norm", NORMS)
    def test_fab_goes_on_to_other_classes_until_an_image_within_reach_is_found(self, norm):
        """The class with the larger logit is six times as far away as the other one."""
        weight = torch.zeros(3, 64)
        weight[1, :32], weight[2, 32:] = 1 / (32 * 0.3), 2 / (32 * 0.05)
        module = linear(weight)
        with torch.no_grad():
            module[1].bias += torch.tensor([2.0, 1.0, 0.0])
        x, y = torch.full((2, 1, 8, 8), 0.5), torch.zeros(2).long()
        nearest = 0.05 if norm == "linf" else 0.05 * 32**0.5
        attack = AutoAttackPart("fab-t", 3)
        assert broken_by(attack, module, x, y, Threat(norm, 1.02 * nearest)).all()
        assert not broken_by(attack, module, x, y, Threat(norm, 0.99 * nearest)).any()

    def test_attacks_one_class_after_the_other_until_an_image_is_broken(self):
        x, y, seen = torch.rand(4, 1, 2, 2, generator=source()), torch.zeros(4).long(), []

        def attack(x, y, goal):
            seen.append(goal.tolist())
            return x + goal[:, None, None, None], goal == 3

        goals = torch.tensor([[1, 3, 2], [3, 1, 2], [1, 2, 3], [1, 2, 4]])
        moved = towards_each(attack, x, y, goals)
        assert seen == [[1, 3, 1, 1], [3, 2, 2], [3, 4]]
        torch.testing.assert_close((moved - x)[:, 0, 0, 0], torch.tensor([3.0, 3.0, 3.0, 4.0]))


# --- foolbox, which JEM and the paper used ---------------------------------------------------------


def foolbox_model(module: nn.Module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        foolbox = pytest.importorskip("foolbox")
        return foolbox, foolbox.PyTorchModel(module, bounds=(0, 1), device="cpu")


@pytest.mark.parametrize(("norm", "attack_name"), [("linf", "LinfPGD"), ("l2", "L2PGD")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pgd_gives_foolboxs_images(norm, attack_name):
    module, x = smooth(), border_images()
    foolbox, theirs = foolbox_model(module)
    y, eps = module(x).argmax(1), {"linf": 0.1, "l2": 0.8}[norm]
    attack = getattr(foolbox.attacks, attack_name)(rel_stepsize=1 / 30, steps=40, random_start=False)
    _, wanted, _ = attack(theirs, x, y, epsilons=eps)
    ours = replace(PaperPGD(), random_start=False)
    moved = ours.attempt(Target(module), x, y, Threat(norm, eps), 0, source())
    assert (moved - x).abs().max() > 0.05
    torch.testing.assert_close(moved, wanted, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_carlini_and_wagner_come_as_close_as_foolboxs():
    module, x = smooth(), torch.rand(8, 1, 8, 8, generator=source(4))
    foolbox, theirs = foolbox_model(module)
    y = module(x).argmax(1)
    attack = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=6, steps=100, stepsize=0.01, confidence=0.0, initial_const=0.01
    )
    _, wanted, success = attack(theirs, x, y, epsilons=None)
    moved = CarliniWagner(100, False, search_steps=6).attack(Target(module), x, y, y)
    assert success.all()
    assert (module(moved).argmax(1) != y).all()
    ours, foolboxs = ((part - x).flatten(1).norm(dim=1).mean().item() for part in (moved, wanted))
    assert ours == pytest.approx(foolboxs, rel=0.03)


def test_a_transfer_goes_on_after_the_surrogate_is_broken():
    """What only just fools one model fools no other."""
    module, x, y, exact = two_classes()
    target, threat = Target(module), Threat("linf", 3 * exact["linf"])
    with target.exposed():
        over = [
            margin(target(Margin(20, 1, stop=stop).attempt(target, x, y, threat, 0, source())), y)
            for stop in (True, False)
        ]
    assert (over[1] > over[0] + LINEAR_GAP / 2).all()


def test_carlini_wagner_minds_the_priors():
    """Where a class is likelier, the boundary lies elsewhere than between the means."""
    model = make_model(classes=3)
    x = torch.rand(6, 1, 8, 8, generator=source())
    logits = model(x).detach()
    model.head.priors.copy_((logits.mean(0).max() - logits.mean(0)).softmax(0))  # no class wins by itself
    target = Target(model)
    with target.exposed():
        y = target(x).argmax(1)
        moved = CarliniWagner(200, targeted=False).attack(target, x, y, y)
        changed = (moved != x).flatten(1).any(1)
        assert changed.any()
        assert not target.names(moved[changed], y[changed]).any()
