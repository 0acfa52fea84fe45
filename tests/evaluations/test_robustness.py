import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gmmc
from conftest import make_model, tiny_data
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import BATCH
from gmmc.config.sections import DataConfig, EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations.attacks import campaign as campaigns
from gmmc.evaluations.attacks.autoattack import AutoAttackPart
from gmmc.evaluations.attacks.carlini_wagner import CarliniWagner
from gmmc.evaluations.attacks.gradient import Adaptive, PaperPGD
from gmmc.evaluations.attacks.protocol import PRESETS
from gmmc.evaluations.evaluate import keep
from gmmc.evaluations.result import Result
from gmmc.evaluations.robustness import choose_images, evaluate
from gmmc.runs.folder import RunFolder

SMALL = replace(
    PRESETS["quick"],
    images=9,
    pixels=(4, 8, 64),
    steps=10,
    queries=20,
    restarts=2,
    carlini_wagner=(CarliniWagner(50, targeted=False, search_steps=4),),
    carlini_wagner_images=4,
)
CFG = EvaluateOptions()
ATTACKS = {"paper_pgd", "margin", "pull", "temperatures", "features", "apgd_ce", "square", "restarts"}


@pytest.fixture(autouse=True)
def _small_preset(monkeypatch):
    monkeypatch.setitem(PRESETS, "quick", SMALL)
    monkeypatch.setattr(campaigns, "SAVE_EVERY", 0.0)


class Brightness(nn.Module):
    """The class of the nearest level of brightness; 42/255 from one to the boundary of the next.

    A large scale saturates its softmax, and changes no decision.
    """

    def __init__(self, scale: float, classes: int = 3):
        super().__init__()
        self.levels = nn.Parameter((torch.arange(classes) + 0.5) / classes)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return -self.scale * (x.mean((1, 2, 3))[:, None] - self.levels).square()


def raised(result: Result, words: str) -> bool:
    """Whether this check, which is always made, cast a doubt; a doubt is also among the flags."""
    ((text, outcome),) = [item for item in result.conditions["checks"].items() if words in item[0]]
    assert (outcome == "raised") == (text in result.flags)
    return outcome == "raised"


@pytest.fixture(scope="module")
def masked() -> Result:
    return evaluate_small(Brightness(1e7))


@pytest.fixture(scope="module")
def plain() -> Result:
    return evaluate_small(Brightness(30))


def evaluate_small(model: nn.Module) -> Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(PRESETS, "quick", SMALL)
        return evaluate(model, tiny_data(), CFG)


class TestMasking:
    def test_a_saturated_softmax_fools_pgd_and_not_the_worst_case(self, masked):
        assert masked.values["clean"] == 1
        assert masked.values["zero_gradient_share"] == 1
        assert masked.values["linf_64/paper_pgd/accuracy"] == 1
        assert masked.values["linf_64/margin/accuracy"] == 0
        assert masked.values["linf_64/worst_case/accuracy"] == 0
        assert raised(masked, "gradients of PGD’s cross-entropy are exactly zero")
        assert raised(masked, "PGD by the paper’s protocol leaves")
        assert raised(masked, "the worst case is")
        assert not raised(masked, "the worst case leaves")

    def test_a_model_that_hides_nothing_is_not_doubted(self, plain):
        assert plain.values["linf_8/worst_case/accuracy"] == 1  # truly so: its boundaries are far away
        assert plain.values["linf_64/paper_pgd/accuracy"] == 0
        assert plain.values["zero_gradient_share"] == 0
        assert all("images only" in flag for flag in plain.flags)
        assert set(plain.conditions["checks"].values()) == {"fine"}

    def test_it_changes_nothing_for_the_worst_case(self, masked, plain):
        names = [name for name in plain.values if "worst_case" in name]
        assert len(names) == 4
        assert [masked.values[name] for name in names] == [plain.values[name] for name in names]


# --- the result -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> Result:
    return evaluate_small(trained())


def trained() -> Classifier:
    """One of ours that knows the classes and hardly holds against anybody."""
    model, data = make_model(), tiny_data()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(20):
        F.cross_entropy(model(data.train.images / 255), data.train.labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class TestResult:
    def test_has_every_value_of_its_attacks(self, result):
        values = result.values
        for threat in ("linf_8", "l2_0.5"):
            found = {name.split("/")[1] for name in values if name.startswith(threat + "/")}
            wanted = ATTACKS | {"autoattack_parts", "worst_case"}
            wanted = wanted | {"pgd_10", "pgd_200"} if threat == "linf_8" else wanted - {"paper_pgd"}
            assert found == wanted
        others = {name for name in values if not re.match(r"(linf|l2)_[\d.]+/\w+/accuracy$", name)}
        wagner = {f"cw/untargeted/{name}" for name in ("images", "success_rate", "l2_mean", "l2_median")}
        assert others == {"clean", "zero_gradient_share"} | wagner
        accuracies = {name for name in values if name.endswith(("accuracy", "clean", "rate"))}
        assert result.intervals.keys() == accuracies
        for name, (low, high) in result.intervals.items():
            assert 0 <= low <= values[name] <= high <= 1
        json.dumps(result.entry(), allow_nan=False)

    def test_the_worst_case_is_the_worst(self, result):
        for name, value in result.values.items():
            threat, *rest = name.split("/")
            if rest and rest[-1] == "accuracy":
                assert result.values[f"{threat}/worst_case/accuracy"] <= value <= result.values["clean"]

    def test_curves_are_those_values(self, result):
        curve = result.curves["linf"]
        assert curve["eps"] == [4, 8, 64]
        for attack, accuracies in curve["accuracy"].items():
            assert accuracies == [result.values.get(f"linf_{eps}/{attack}/accuracy") for eps in (4, 8, 64)]
        assert curve["accuracy"]["square"][0] is None
        worst = curve["accuracy"]["worst_case"]
        assert worst == sorted(worst, reverse=True)
        ranges = [list(result.intervals[f"linf_{eps}/worst_case/accuracy"]) for eps in (4, 8, 64)]
        assert curve["interval"] == {"worst_case": ranges}
        by_steps = [result.values[f"linf_8/{name}/accuracy"] for name in ("pgd_10", "paper_pgd", "pgd_200")]
        assert result.curves["steps"] == {"steps": [10, 40, 200], "accuracy": by_steps}

    def test_tells_its_conditions(self, result):
        told = result.conditions
        assert told["images"].startswith("9 of 18 test images")
        assert (told["seed"], told["preset"], told["surrogate"]) == (0, "quick", "none")
        assert told["gamma2"] == pytest.approx(trained().head.gamma2.item())
        assert ATTACKS | {"cw_untargeted"} <= told["attacks"].keys()
        assert told["attacks"]["cw_untargeted"].items() >= {
            ("iterations", 50), ("search_steps", 4), ("learning_rate", 0.01), ("first_c", 0.01), ("images", 4)
        }  # fmt: skip

    def test_measures_and_draws_the_noises(self, plain):
        assert plain.values["cw/untargeted/success_rate"] == 1
        # √64 pixels times the way to the boundary, 42/255 but for the noise of the images.
        assert plain.values["cw/untargeted/l2_mean"] == pytest.approx(8 / 6, rel=0.15)
        assert plain.values["cw/untargeted/l2_median"] == pytest.approx(8 / 6, rel=0.15)
        assert plain.pictures.keys() == {"robustness/noises.png"}

    def test_carlini_and_wagner_count_for_the_worst_case(self, monkeypatch):
        for attack in (PaperPGD, Adaptive, AutoAttackPart):
            monkeypatch.setattr(attack, "attempt", lambda self, target, x, *rest: x)
        monkeypatch.setitem(PRESETS, "quick", replace(SMALL, distances=(0.5, 2.0)))
        values = evaluate(Brightness(30), tiny_data(), CFG).values
        assert values["l2_2/margin/accuracy"] == 1
        assert values["l2_0.5/worst_case/accuracy"] == 1
        assert values["l2_2/worst_case/accuracy"] == pytest.approx(5 / 9)
        assert "l2_2/cw/accuracy" not in values

    def test_targeted_attacks_reach_what_they_aim_at(self, monkeypatch):
        both = tuple(CarliniWagner(50, targeted, search_steps=4) for targeted in (False, True))
        monkeypatch.setitem(PRESETS, "quick", replace(SMALL, carlini_wagner=both))
        values = evaluate(Brightness(30), tiny_data(), CFG).values
        assert values["cw/targeted/success_rate"] > 0
        assert values["cw/targeted/l2_mean"] > values["cw/untargeted/l2_mean"] * 0.99


class TestImages:
    def test_are_those_of_the_seed(self):
        test = tiny_data().test
        first, again, other = (choose_images(test, 9, seed) for seed in (0, 0, 1))
        assert torch.equal(first.images, again.images)
        assert not torch.equal(first.images, other.images)
        few = choose_images(test, 4, 0)
        assert torch.equal(few.images, first.images[:4])
        assert len(choose_images(test, 1000, 0)) == len(test)

    def test_are_as_many_as_asked_for(self):
        result = evaluate(make_model(), tiny_data(), EvaluateOptions(attacked=2))
        assert result.conditions["images"].startswith("2 of 18")


# --- interrupted ----------------------------------------------------------------------------------


@contextmanager
def interrupted_at(place: str) -> Iterator[None]:
    """An evaluation that comes there goes no further, and must come there."""

    def stop(*arguments):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(place, stop)
        with pytest.raises(KeyboardInterrupt):
            yield


ADAPTIVE = "gmmc.evaluations.attacks.gradient.Adaptive.attempt"
PGD = "gmmc.evaluations.attacks.gradient.PaperPGD.attempt"
AUTOATTACK = "gmmc.evaluations.attacks.autoattack.AutoAttackPart.attempt"


class TestInterrupted:
    def test_goes_on_to_the_same_result(self, monkeypatch, tmp_path, result):
        with interrupted_at(AUTOATTACK):
            evaluate(trained(), tiny_data(), CFG, RunFolder(tmp_path))
        assert list(tmp_path.rglob("*.safetensors"))
        monkeypatch.delattr(PaperPGD, "attempt")  # what was finished is not done again
        again = evaluate(trained(), tiny_data(), CFG, RunFolder(tmp_path))
        assert again.entry() == result.entry()
        keep(again, "robustness", RunFolder(tmp_path))
        assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["results.json", "robustness"]

    @pytest.mark.parametrize("change", ["weights", "seed", "preset", "images", "labels"])
    def test_another_evaluation_begins_anew(self, monkeypatch, tmp_path, change):
        with interrupted_at(ADAPTIVE):
            evaluate(make_model(), tiny_data(), CFG, RunFolder(tmp_path))
        if change == "preset":
            monkeypatch.setitem(PRESETS, "quick", replace(SMALL, steps=11))
        model = make_model(seed=1) if change == "weights" else make_model()
        data = tiny_data()
        images = data.test.images.flip(3) if change == "images" else data.test.images
        labels = (data.test.labels + 1) % 3 if change == "labels" else data.test.labels
        data = Dataset(data.train, data.valid, LabelledImages(images, labels), data.class_names)
        with interrupted_at(PGD):
            evaluate(model, data, EvaluateOptions(seed=5 if change == "seed" else 0), RunFolder(tmp_path))

    def test_goes_on_where_batches_have_another_size(self, monkeypatch, tmp_path):
        monkeypatch.setitem(BATCH, "cpu", 2)
        with interrupted_at("gmmc.evaluations.robustness.zero_gradients"):
            evaluate(Brightness(30), tiny_data(), EvaluateOptions(attacked=4), RunFolder(tmp_path))
        monkeypatch.setitem(BATCH, "cpu", 64)
        again = evaluate(Brightness(30), tiny_data(), EvaluateOptions(attacked=4), RunFolder(tmp_path))
        assert again.values["cw/untargeted/success_rate"] == 1

    def test_in_a_folder_that_is_not_there_yet(self, tmp_path):
        gmmc.evaluate(Brightness(30), tiny_data(), "robustness", CFG, out=tmp_path / "new")
        kept = json.loads((tmp_path / "new" / "results.json").read_text())
        assert kept["robustness"]["values"]["clean"] == 1
        assert (tmp_path / "new" / "robustness" / "noises.png").is_file()


# --- any model, any data --------------------------------------------------------------------------


class TestAnyModel:
    @pytest.mark.parametrize("classes", [2, 4])
    def test_few_classes(self, classes):
        result = evaluate(make_model(classes), tiny_data(classes), CFG)
        assert ("linf_8/apgd_t/accuracy" in result.values) == (classes >= 4)
        assert 0 <= result.values["linf_8/worst_case/accuracy"] <= 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_a_foreign_network(self, dtype):
        layer = nn.Linear(64, 3)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[-2.0], [0.0], [2.0]]).expand(3, 64) / 64)
            layer.bias.copy_(torch.tensor([1.0, 0.25, -1.0]))
        network = nn.Sequential(nn.Flatten(), layer).to(dtype).train()
        result = evaluate(network, tiny_data(), CFG)
        assert result.values["clean"] > 0.5
        assert result.values["linf_64/worst_case/accuracy"] == 0
        assert not any("further than allowed" in flag for flag in result.flags)
        assert network.training

    def test_one_that_never_looks_at_its_images(self):
        class Fixed(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.tensor([1.0, 0.0, 0.0]).expand(len(x), 3)

        data = tiny_data()
        first_class = Dataset(data.train, data.valid, data.test[::3], data.class_names)
        result = evaluate(Fixed(), first_class, CFG)
        assert (values := result.values)["clean"] == 1
        assert values["linf_64/worst_case/accuracy"] == 1
        assert values["zero_gradient_share"] == 1
        assert raised(result, "the worst case leaves")
        assert values["cw/untargeted/success_rate"] == 0
        assert result.pictures == {}

    def test_one_that_is_always_wrong(self):
        data = tiny_data()
        wrong = Brightness(30)
        with torch.no_grad():
            wrong.levels.copy_(wrong.levels.flip(0))
        result = evaluate(wrong, Dataset(data.train, data.valid, data.test[::3], data.class_names), CFG)
        assert result.values["clean"] == 0
        assert result.values["linf_8/worst_case/accuracy"] == 0


class TestRefusals:
    def test_a_surrogate_of_other_classes(self, run):
        cfg = EvaluateOptions(surrogate=str(run))
        with pytest.raises(InputError, match="the surrogate must be a model of the same images") as caught:
            evaluate(make_model(), tiny_data(), cfg)
        assert "\n" not in str(caught.value)


def test_transfer_from_another_model(run):
    digits = gmmc.data.load(DataConfig(), seed=0)
    model = gmmc.load(run)
    result = evaluate(model, digits, EvaluateOptions(surrogate=str(run), attacked=6))
    for threat in ("linf_8", "l2_0.5"):
        transferred, margin = (result.values[f"{threat}/{name}/accuracy"] for name in ("transfer", "margin"))
        assert transferred <= margin + 1 / 6  # from itself: as good as the margin it is made by
    assert "linf_4/transfer/accuracy" not in result.values
    assert result.conditions["surrogate"] == f"{run.name}: mmc head, small_cnn"
