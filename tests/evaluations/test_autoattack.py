"""The evaluation `autoattack`: four parts, whose survivors are counted part by part and together."""

import functools
import json
import shutil

import pyautoattack
import pytest
import torch

from conftest import make_model, tiny_data
from gmmc.cli.app import main
from gmmc.config.sections import EvaluateOptions
from gmmc.evaluations import robustness
from gmmc.evaluations.attacks import autoattack
from gmmc.evaluations.attacks import campaign as campaigns
from gmmc.evaluations.attacks.autoattack import PARTS, QUERIES, AutoAttackPart
from gmmc.evaluations.attacks.campaign import Campaign, Store
from gmmc.evaluations.attacks.protocol import AutoAttack
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat
from gmmc.evaluations.autoattack import THREATS, evaluate
from gmmc.evaluations.evaluate import keep
from gmmc.evaluations.result import Result
from gmmc.runs.folder import RunFolder

CLASSES = 4
NAMES = ("apgd_ce", "apgd_t", "fab_t", "square")
CFG = EvaluateOptions(attacked=6)


@pytest.fixture(autouse=True)
def _saved_at_once(monkeypatch):
    monkeypatch.setattr(campaigns, "SAVE_EVERY", 0.0)


def breaking(monkeypatch, **rows: list[int]) -> dict[str, int]:
    """Let each part break these rows of the images; gives how many images each was asked to attack."""
    seen = dict.fromkeys(rows, 0)

    def attempt(self, target, x, y, threat, number, source):
        name = self.part.replace("-", "_")
        seen[name] += len(x)
        places = (x[:, 0, 0, 0] * 255).round().long()
        return torch.where(torch.isin(places, torch.tensor(rows[name]))[:, None, None, None], 1 - x, x)

    monkeypatch.setattr(AutoAttackPart, "attempt", attempt)
    monkeypatch.setattr(Threat, "allows", lambda self, moved, images: torch.ones(len(images)).bool())
    return seen


def survivors(monkeypatch, **rows: list[int]) -> tuple[dict[str, set[int]], dict[str, int]]:
    """Of ten images that are named right until they are turned over, those each part leaves."""
    seen = breaking(monkeypatch, **rows)
    images = (torch.arange(10) / 255)[:, None, None, None].expand(10, 1, 4, 4).clone()

    class Dark(torch.nn.Module):
        def forward(self, x):
            light = x.mean((1, 2, 3)) - 0.5
            return torch.stack([-light, light, light - 1, light - 2], 1)

    campaign = Campaign(Target(Dark()), images, torch.zeros(10).long(), 0, Store(None, "key"))
    broken = AutoAttack(campaign, CLASSES, PARTS, QUERIES).run(Threat.linf(8))
    return {name: set((~mask).nonzero().flatten().tolist()) for name, mask in broken.items()}, seen


def test_what_survives_all_parts_survives_each(monkeypatch):
    left, seen = survivors(monkeypatch, apgd_ce=[0, 1], apgd_t=[1, 2], fab_t=[3], square=[1, 4])
    assert left["autoattack"] == {5, 6, 7, 8, 9} == set.intersection(*left.values())
    assert left["fab_t"] == {4, 5, 6, 7, 8, 9}  # on what was left, with what was broken before
    assert left["square"] == {0, 2, 3, 5, 6, 7, 8, 9}  # by itself
    assert seen == {"apgd_ce": 10, "apgd_t": 8, "fab_t": 7, "square": 10}


@pytest.fixture
def quick_parts(monkeypatch, few_queries):
    """Parts of a few steps, for tests that do not depend on how strong an attack is."""
    for attack in (autoattack.apgd, autoattack.fab):
        monkeypatch.setattr(autoattack, attack.__name__, functools.partial(attack, steps=5))


@pytest.fixture
def result(quick_parts) -> Result:
    return evaluate(make_model(CLASSES), tiny_data(CLASSES), CFG)


def test_has_four_parts_and_all_of_them_at_two_epsilons(result):
    places = {f"{threat.name}/{name}/accuracy" for threat in THREATS for name in (*NAMES, "autoattack")}
    assert result.values.keys() == result.intervals.keys() == places | {"clean"}
    assert {threat.name for threat in THREATS} == {"linf_4", "linf_8"}
    for threat in ("linf_4", "linf_8"):
        whole = result.values[f"{threat}/autoattack/accuracy"]
        assert all(whole <= result.values[f"{threat}/{name}/accuracy"] for name in NAMES)
    assert result.conditions["attacks"].keys() == set(NAMES)
    assert result.conditions["images"].startswith("6 of 18")
    assert any("6 images only" in flag for flag in result.flags)


@pytest.mark.usefixtures("few_queries")
def test_too_few_classes_for_a_part_are_flagged():
    result = evaluate(make_model(3), tiny_data(3), CFG)
    assert "linf_8/autoattack_parts/accuracy" in result.values
    assert "linf_8/autoattack/accuracy" not in result.values
    assert any("apgd-t" in flag for flag in result.flags)


@pytest.mark.usefixtures("few_queries")
def test_the_images_are_the_first_of_those_of_robustness(monkeypatch):
    seen = []
    names = Target.names
    monkeypatch.setattr(Target, "names", lambda self, x, y: (seen.append(x.clone()), names(self, x, y))[1])
    data = tiny_data(CLASSES)
    evaluate(make_model(CLASSES), data, CFG)
    chosen = robustness.choose_images(data.test, 9, CFG.seed)
    assert torch.equal(seen[0], chosen.images[:6] / 255)


@pytest.mark.parametrize("part", PARTS[1:])
def test_goes_on_to_the_same_result(monkeypatch, tmp_path, result, part):
    whole = AutoAttackPart.attempt

    def interrupted(self, *arguments):
        if self.part == part:
            raise KeyboardInterrupt
        return whole(self, *arguments)

    monkeypatch.setattr(AutoAttackPart, "attempt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(make_model(CLASSES), tiny_data(CLASSES), CFG, RunFolder(tmp_path))

    def resumed(self, target, x, y, threat, *rest):
        assert (self.part, threat) != ("apgd-ce", THREATS[0])  # finished before
        return whole(self, target, x, y, threat, *rest)

    monkeypatch.setattr(AutoAttackPart, "attempt", resumed)
    again = evaluate(make_model(CLASSES), tiny_data(CLASSES), CFG, RunFolder(tmp_path))
    assert again.entry() == result.entry()
    keep(again, "autoattack", RunFolder(tmp_path))
    assert [path.name for path in tmp_path.glob("[!.]*")] == ["results.json"]


@pytest.mark.usefixtures("quick_parts")
def test_from_the_command_line(run, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "run")
    with pytest.raises(SystemExit) as done:
        main(["evaluate", str(copy), "autoattack", "--attacked", "2", "--device", "cpu"])
    assert done.value.code == 0
    kept = json.loads((copy / "results.json").read_text())["autoattack"]
    assert kept["conditions"]["images"].startswith("2 of ")
    printed = capsys.readouterr().out
    assert printed.index("square") < printed.index("  autoattack ") < printed.index("95% interval")


# --- the authors' code ----------------------------------------------------------------------------


def reference(part: str, target: Target, x, y, threat: Threat, targets: int) -> torch.Tensor:
    """(N,): which images the authors' code breaks."""
    norm = {"linf": "Linf", "l2": "L2"}[threat.norm]
    attack = pyautoattack.AutoAttack(target, norm=norm, eps=threat.eps, seed=0)
    attack.attacks_to_run = [part]
    attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = targets
    attack.square.n_queries = 200
    with torch.random.fork_rng():
        moved, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
    return ~target.names(threat.project(moved, x), y)


def differences(part: str, digits, threat: Threat, images: int, targets: int) -> tuple[int, int, int]:
    """Images that the model names right, those that our attack breaks, those on which the two differ."""
    model, data = digits
    target = Target(model.at("fitted"))
    x, y = data.test.images[:images] / 255, data.test.labels[:images]
    with target.exposed():
        right = target.names(x, y)
        x, y = x[right], y[right]
        attack = AutoAttackPart(part, targets + 1, queries=200)
        moved = attack.attempt(target, x, y, threat, 0, torch.Generator().manual_seed(0))
        broken = ~target.names(moved, y)
        theirs = reference(part, target, x, y, threat, targets)
    return len(x), int(broken.sum()), int((broken != theirs).sum())


HALF = [Threat("linf", 0.06), Threat("l2", 0.35)]  # at which about half of the images break


@pytest.mark.parametrize("threat", HALF, ids=lambda threat: threat.norm)
@pytest.mark.parametrize("part", ["apgd-ce", "apgd-t", "fab-t"])
def test_breaks_the_images_that_the_authors_code_breaks(digits, part, threat):
    count, broken, differ = differences(part, digits, threat, 40, 3)
    assert 0.25 * count < broken < 0.85 * count
    assert differ <= 0.05 * count  # the random starts differ, so images at the border may


@pytest.mark.slow
@pytest.mark.parametrize("threat", HALF, ids=lambda threat: threat.norm)
@pytest.mark.parametrize("part", PARTS)
def test_breaks_the_images_that_the_authors_code_breaks_with_all_targets(digits, part, threat):
    count, broken, differ = differences(part, digits, threat, 120, 9)
    assert 0.25 * count < broken < 0.85 * count
    assert differ <= (0.15 if part == "square" else 0.03) * count
