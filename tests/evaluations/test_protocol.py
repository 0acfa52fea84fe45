"""Which images are attacked by what, and how the broken ones are counted: hand-made masks and attacks."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from attacked import source
from conftest import make_model, tiny_data
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations import robustness
from gmmc.evaluations.attack_run import accuracies
from gmmc.evaluations.attacks.autoattack import PARTS, QUERIES
from gmmc.evaluations.attacks.campaign import Campaign, Store
from gmmc.evaluations.attacks.gradient import Temperatures, Transfer
from gmmc.evaluations.attacks.protocol import HEADLINE, PRESETS, AutoAttack, Protocol
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat
from gmmc.evaluations.robustness import guides, summed_up, with_worst_case, zero_gradients

CLASSES = 3
COUNT = 6


class Levels(nn.Module):
    """The class of the nearest of three levels of brightness: 1/6, 3/6 and 5/6."""

    def forward(self, x: Tensor) -> Tensor:
        return -(x.mean((1, 2, 3))[:, None] - torch.tensor([1 / 6, 3 / 6, 5 / 6])).square()


def flat(*levels: float) -> Tensor:
    return torch.tensor(levels)[:, None, None, None].expand(-1, 1, 4, 4).clone()


def mask(*broken: int) -> Tensor:
    return torch.isin(torch.arange(COUNT), torch.tensor(broken))


def make_campaign(labels: Tensor | None = None) -> Campaign:
    """Two images of each class at its level."""
    labels = torch.arange(COUNT) % CLASSES if labels is None else labels
    images = flat(*((torch.arange(COUNT) % CLASSES * 2 + 1) / 6).tolist())
    return Campaign(Target(Levels()), images, labels, 0, Store(None, "key"))


def make_protocol(campaign: Campaign, surrogate: Target | None = None, **changes) -> Protocol:
    some = torch.zeros(4, CLASSES), torch.arange(4) % CLASSES
    return Protocol(campaign, replace(PRESETS["quick"], **changes), some, CLASSES, surrogate)


# --- what is counted ------------------------------------------------------------------------------


def test_what_breaks_an_image_breaks_it_within_a_larger_ball_of_the_same_norm():
    broken = {
        "linf_4": {"a": mask(0), "b": mask(1)},
        "linf_8": {"a": mask(2)},
        "linf_16": {"a": mask()},
        "l2_0.5": {"a": mask(5)},
        "l2_1": {"a": mask(4)},
    }
    worst = {threat: masks["worst_case"] for threat, masks in with_worst_case(broken).items()}
    wanted = {"linf_4": (0, 1), "linf_8": (0, 1, 2), "linf_16": (0, 1, 2), "l2_0.5": (5,), "l2_1": (4, 5)}
    for threat, images in wanted.items():
        assert torch.equal(worst[threat], mask(*images)), threat


def test_accuracies_are_shares_of_all_images_also_of_those_that_are_wrong_anyway():
    right = ~mask(0, 1)
    broken = {"linf_8": {"nothing": ~right, "strong": ~right | mask(2, 3, 4), "cw": mask(2)}}
    values, ranges = accuracies(broken, right)
    assert values == {"clean": 4 / 6, "linf_8/nothing/accuracy": 4 / 6, "linf_8/strong/accuracy": 1 / 6}
    assert all(low < values[name] < high for name, (low, high) in ranges.items())


def test_distances_of_carlini_and_wagner_are_those_of_successes():
    """Four images of 16 pixels, each pixel moved by 1, 2, 6 and 100 thousandths; the last reached nothing."""
    images = flat(0.5, 0.5, 0.5, 0.5, 0.5)
    found = images + flat(0.001, 0.002, 0.006, 0.1, 0.0)
    right = torch.tensor([True, True, True, True, False, True])
    reached = torch.tensor([True, True, True, False, False])
    broken = {"linf_8": {"paper_pgd": ~right}}
    values = summed_up(broken, right, {"untargeted": (found, reached)}, images, 0.0).values
    assert values["cw/untargeted/images"] == 4
    assert values["cw/untargeted/success_rate"] == 3 / 4
    assert values["cw/untargeted/l2_mean"] == pytest.approx(4 * 0.003, rel=1e-4)
    assert values["cw/untargeted/l2_median"] == pytest.approx(4 * 0.002, rel=1e-4)


def test_a_gradient_is_zero_where_it_is_zero_in_every_pixel():
    """A network that looks at one half of an image, and not at all at dark ones."""

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            light = (x[..., :2].mean((1, 2, 3)) - 0.5).relu()
            return torch.stack([light, -light], 1)

    images, labels = flat(0.1, 0.2, 0.6, 0.7, 0.8), torch.zeros(5).long()
    assert zero_gradients(Target(Half()), images, labels) == 2 / 5


# --- which images are attacked --------------------------------------------------------------------


def test_imitated_images_are_training_images_that_the_model_names_right():
    data = tiny_data()
    target = Target(Levels())
    wrong = data.train.labels.clone()
    wrong[::4] = (wrong[::4] + 1) % CLASSES
    train = type(data.train)(data.train.images, wrong)
    with target.exposed() as prepared:
        features, labels = guides(target, train, prepared, seed=0)
        kept = target.names(prepared(train.images), wrong)
    assert len(features) == len(labels) == int(kept.sum()) < len(train)
    assert torch.equal(features.argmax(1), labels)


@dataclass
class Seen:
    campaign: Campaign
    guides: tuple[Tensor, Tensor]


def begun(monkeypatch, data: Dataset, surrogate: Target | None = None) -> Seen:
    """Arguments of the protocol of an evaluation."""
    found = []

    def stop(campaign, preset, imitated, classes, surrogate):
        found.append(Seen(campaign, imitated))
        raise KeyboardInterrupt

    monkeypatch.setattr(robustness, "Protocol", stop)
    monkeypatch.setattr(robustness, "load_surrogate", lambda *_: surrogate)
    with pytest.raises(KeyboardInterrupt):
        robustness.evaluate(Levels(), data, EvaluateOptions(attacked=9))
    return found[0]


def test_test_images_are_attacked_and_training_images_imitated(monkeypatch):
    data = tiny_data()
    seen = begun(monkeypatch, data)
    of_test = {image.numpy().tobytes() for image in data.test.images / 255}
    assert all(image.numpy().tobytes() in of_test for image in seen.campaign.images)
    logits = Levels()(data.train.images / 255)
    of_train = {row.tobytes() for row in logits.numpy()}
    assert len(seen.guides[0]) > 9
    assert all(row.tobytes() in of_train for row in seen.guides[0].numpy())


def test_progress_with_another_surrogate_is_not_resumed(monkeypatch):
    surrogates = [None, *(Target(make_model(seed=seed)) for seed in (0, 1))]
    keys = {begun(monkeypatch, tiny_data(), each).campaign.store.key for each in surrogates}
    assert len(keys) == 3


# --- what runs ------------------------------------------------------------------------------------


class Recorded(Campaign):
    """Each attack breaks the images that are listed for it under a threat."""

    def run(self, name, attack, threat, already=None):
        self.calls = [*getattr(self, "calls", []), (name, threat.name, already)]
        return mask(*self.broken.get((name, threat.name), ())) | (mask() if already is None else already)


def recorded(broken: dict) -> tuple[Recorded, dict]:
    campaign = make_campaign()
    campaign = Recorded(campaign.target, campaign.images, campaign.labels, 0, campaign.store)
    campaign.broken = broken
    settings = {"pixels": (4, 8, 64), "distances": (0.5, 1.0), "auto": ("apgd-ce", "square")}
    return campaign, make_protocol(campaign, **settings).run()


def test_the_papers_attack_is_run_at_every_epsilon_by_itself():
    campaign, found = recorded({("paper_pgd", "linf_4"): (0,), ("paper_pgd", "linf_64"): (1,)})
    calls = [(threat, already) for name, threat, already in campaign.calls if name == "paper_pgd"]
    assert calls == [("linf_4", None), ("linf_8", None), ("linf_64", None)]
    assert [found[threat]["paper_pgd"].tolist() for threat, _ in calls] == [
        mask(0).tolist(), mask().tolist(), mask(1).tolist()
    ]  # fmt: skip


def test_an_adaptive_attack_spares_what_it_broke_within_a_smaller_ball_of_the_same_norm():
    broken = {("margin", "linf_4"): (0,), ("margin", "linf_8"): (1,), ("margin", "l2_0.5"): (2,)}
    campaign, found = recorded(broken)
    spared = {threat: already for name, threat, already in campaign.calls if name == "margin"}
    assert spared["linf_4"] is None
    assert spared["l2_0.5"] is None
    for threat, images in {"linf_8": (0,), "linf_64": (0, 1), "l2_1": (2,)}.items():
        assert torch.equal(spared[threat], mask(*images))
        assert torch.equal(found[threat]["margin"] & mask(*images), mask(*images))


def test_restarts_count_what_either_of_them_breaks_on_what_survived_all_else():
    broken = {
        ("margin", "linf_8"): (0,),
        ("square", "linf_8"): (1,),
        ("restarts", "linf_8"): (2,),
        ("restarts_pull", "linf_8"): (3,),
    }
    campaign, found = recorded(broken)
    spared = {name: already for name, threat, already in campaign.calls if threat == "linf_8"}
    assert torch.equal(spared["restarts"], mask(0, 1))
    assert torch.equal(spared["restarts_pull"], mask(0, 1, 2))
    assert torch.equal(found["linf_8"]["restarts"], mask(0, 1, 2, 3))


def test_every_temperature_is_tried():
    attack = make_protocol(make_campaign()).adaptive["temperatures"]
    target, x = Target(Levels()), make_campaign().images
    losses = [
        attack.loss(target, x, torch.zeros(COUNT).long(), number)(target.view(x), torch.arange(COUNT)).sum()
        for number in range(attack.tries)
    ]
    assert len({loss.item() for loss in losses}) == len(Temperatures.gamma2s)


def test_a_transferred_image_goes_as_far_as_it_may():
    """Not only until the surrogate, which is not the model that is attacked, is broken."""
    protocol = make_protocol(make_campaign(), Target(Levels()), steps=20)
    assert isinstance(protocol.transfer, Transfer)
    threat, campaign = Threat("linf", 0.3), protocol.campaign
    bright = campaign.labels == 0
    x, y = campaign.images[bright], campaign.labels[bright]
    moved = protocol.transfer.attempt(campaign.target, x, y, threat, 0, source())
    torch.testing.assert_close(threat.distance(moved, x), torch.full((2,), threat.eps).double())


@pytest.mark.parametrize(
    ("parts", "queries", "name"),
    [
        (PARTS, QUERIES, "autoattack"),
        (PARTS, QUERIES - 1, "autoattack_parts"),
        (PARTS[:2] + PARTS[3:], QUERIES, "autoattack_parts"),
    ],
    ids=["all", "a shorter Square", "three parts"],
)
def test_only_all_parts_at_their_full_length_are_called_autoattack(parts, queries, name):
    assert AutoAttack(make_campaign(), 4, parts, queries).name == name


# --- Carlini & Wagner ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Move:
    """In place of C&W: images of the levels that it is given."""

    targeted: bool
    levels: tuple[float, ...]
    cost: int = 1
    iterations: int = 1

    def attack(self, target, x, y, goals, on_progress) -> Tensor:
        return flat(*self.levels)


def wagner(attack: Move, labels: Tensor | None = None) -> tuple[list[bool], dict[str, list[bool]]]:
    """Which images the attack turned, and which count as broken within each threat."""
    campaign = make_campaign(labels)
    protocol = make_protocol(campaign, carlini_wagner=(attack,), carlini_wagner_images=COUNT)
    broken = {threat.name: {} for threat in protocol.balls}
    ((_, reached),) = protocol.carlini_wagner(broken).values()
    return reached.tolist(), {threat: masks["cw"].tolist() for threat, masks in broken.items()}


def test_goals_are_other_classes_all_of_them():
    campaign = make_campaign()
    goals = make_protocol(campaign)._goals(torch.zeros(300).long())
    assert goals.unique().tolist() == [1, 2]
    assert (make_protocol(campaign)._goals(torch.arange(300) % CLASSES) != torch.arange(300) % CLASSES).all()


def test_a_targeted_attack_succeeds_where_the_goal_is_named():
    goals = make_protocol(make_campaign())._goals(torch.arange(COUNT) % CLASSES)
    levels = (goals.double() * 2 + 1) / 6
    levels[1] = (3 - 1 - goals[1]) * 2 / 6 + 1 / 6  # the third class, neither its own nor the goal
    reached, _ = wagner(Move(True, tuple(levels.tolist())))
    assert reached == [True, False, True, True, True, True]
    reached, _ = wagner(Move(False, tuple(levels.tolist())))
    assert reached == [True] * COUNT


def test_what_was_wrong_before_is_no_success():
    labels = torch.arange(COUNT) % CLASSES
    labels[:2] = (labels[:2] + 1) % CLASSES
    reached, broken = wagner(Move(False, (0.9, 0.1, 0.1, 0.5, 0.9, 0.1)), labels)
    assert reached == [False, False, True, True, True, True]
    assert all(masks[:2] == [True, True] for masks in broken.values())


def test_an_image_counts_within_the_threats_that_it_lies_in():
    """From 1/6 it is 1/6 to the next class: 42.5/255 in L∞, 4·(1/6) in L2."""
    level = 1 / 6 + 1 / 6 + 0.001
    reached, broken = wagner(Move(False, (level, 0.5, 5 / 6, 1 / 6, 0.5, 5 / 6)))
    assert reached == [True] + [False] * 5
    counted = {threat for threat, masks in broken.items() if masks[0]}
    assert counted == {"linf_64"}
    assert not any(any(masks[1:]) for masks in broken.values())


def test_the_headline_threats_are_among_those_of_every_preset():
    for preset in PRESETS.values():
        balls = [*map(Threat.linf, preset.pixels), *(Threat("l2", eps) for eps in preset.distances)]
        assert {*HEADLINE, *preset.auto_threats} <= {*balls}
        assert all(a.eps < b.eps for a, b in itertools.pairwise(balls) if a.norm == b.norm)
