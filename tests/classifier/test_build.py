"""Models built by hand, and from a recipe and back."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import gmmc
from conftest import make_model, tiny_config, tiny_data
from gmmc.classifier.build import build, recipe_of
from gmmc.classifier.drawing import DrawingSettings
from gmmc.config.sections import AbstainConfig, SamplerConfig
from gmmc.errors import InputError
from gmmc.export.onnx import to_onnx
from gmmc.generate import drawn, to_folder
from gmmc.networks.heads import HEADS, MMCHead
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.sampling.initial import GaussianStart
from gmmc.train.loop import train

NAMES = ["class 0", "class 1", "class 2"]


class Brightness(nn.Module):
    """A backbone of one's own: its last weight has not as many rows as there are features."""

    def __init__(self):
        super().__init__()
        self.project = nn.Parameter(torch.randn(64, 6, generator=torch.Generator().manual_seed(0)) / 8)

    def forward(self, images: Tensor) -> Tensor:
        return 5 * (images.flatten(1) @ self.project).tanh()


def by_hand(head: str = "mmc", **options) -> gmmc.Classifier:
    made = HEADS[head](3, 6, 4.0, None)
    return gmmc.Classifier(Brightness(), made, shape=(1, 8, 8), class_names=NAMES, **options)


DRAWING = DrawingSettings(SamplerConfig(alpha=0.05), steps=3)


@pytest.mark.parametrize("head", HEADS)
def test_a_model_built_by_hand_answers(head):
    model, data = by_hand(head), tiny_data()
    images, labels = data.valid.images, data.valid.labels
    assert (model.cfg, model.dim) == (None, 6)
    assert model.predict_proba(images).sum(1).tolist() == pytest.approx([1] * len(images))
    assert torch.allclose(model.log_density(images), model.at("unit")(images / 255).logsumexp(-1))
    model.keep_neighbours(data.train.images, data.train.labels)
    model.calibrate(images, labels)
    assert model.abstains_by == "log_density"
    assert model.answer(images).accepted.float().mean() >= 0.9
    model.abstain = AbstainConfig(score="neighbours", tpr=0.5)
    assert model.answer(images).score == "neighbours"
    assert 0.4 <= model.answer(images).accepted.float().mean() <= 0.7


def test_a_model_built_by_hand_is_evaluated(tmp_path):
    model, data = by_hand(), tiny_data()
    model.calibrate(data.valid.images, data.valid.labels)
    results = gmmc.evaluate(model, data, out=tmp_path)
    assert results.keys() == {"accuracy", "calibration", "ood", "latent"}
    assert results["ood"].conditions["abstains"]["tpr"] == model.abstain.tpr
    for result in results.values():
        assert result.values
        assert "settings" not in result.conditions  # there is no recipe
    assert RunFolder(tmp_path).results().keys() == results.keys()


def test_a_model_built_by_hand_draws_with_drawing_settings():
    model, data = by_hand(drawing=DRAWING), tiny_data()
    images = model.sample(40, seed=3)
    assert torch.equal(model.sample(1, seed=37), images[34:35])
    assert torch.equal(copy.deepcopy(model).sample(40, seed=3), images)
    labels = model.drawer().labels(40, 3)
    energies = [model.energy(model.sample(40, labels, 3, steps=steps), labels).mean() for steps in (1, 20)]
    assert energies[1] < energies[0]
    assert drawn(model, labels, 3).shape == (40, 1, 8, 8)
    result = gmmc.evaluate(model, data, "samples", gmmc.config.sections.EvaluateConfig(samples=6))["samples"]
    assert result.conditions["steps"] == 3
    assert result.conditions["alpha"] == 0.05


def test_a_model_built_by_hand_becomes_a_graph(tmp_path):
    model, data = by_hand(abstain=AbstainConfig(tpr=0.8)), tiny_data()
    model.calibrate(data.valid.images, data.valid.labels)
    exported = to_onnx(model, tmp_path / "model.onnx")
    assert exported.metadata["tpr"] == "0.8"
    assert exported.difference < 1e-3


def test_without_drawing_settings_it_refuses_to_draw():
    model = by_hand()
    assert not model.can_sample
    for draw in (model.drawer, model.check_can_sample, lambda: model.sample(1)):
        with pytest.raises(InputError, match=r"cannot draw: .*drawing=None"):
            draw()


def test_files_need_a_recipe(tmp_path):
    model, data = by_hand(drawing=DRAWING), tiny_data()
    for write in (
        lambda: model_file.save_model(tmp_path / "model.safetensors", model),
        lambda: gmmc.save_pretrained(model, tmp_path / "hub"),
        lambda: to_folder(model, torch.tensor([0]), 0, tmp_path / "drawn"),
        lambda: train(tiny_config(), tmp_path / "run", data, start=model),
    ):
        with pytest.raises(InputError, match=r"must have a recipe \(cfg\)"):
            write()
    assert not list(tmp_path.iterdir())


def test_a_head_of_other_classes_is_refused():
    with pytest.raises(InputError, match="head must have 2 classes, one per name, got 3"):
        gmmc.Classifier(Brightness(), MMCHead(3, 6, 4.0), shape=(1, 8, 8), class_names=["a", "b"])


# --- from a recipe --------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
def test_a_recipe_decides_all_that_the_model_needs(head):
    sections = {"sampler": {"name": "sgld", "alpha": 0.3}, "sample": {"steps": 7}, "data": {"size": 8}}
    sections |= {"model": {"head": head, "dim": 5}, "objective": {"name": "balanced"}}
    cfg = tiny_config(**sections, abstain={"tpr": 0.7}, train={"engine": "plain", "precision": "fp32"})
    model = build(cfg, (1, 8, 8), NAMES)
    assert (model.cfg, recipe_of(model)) == (cfg, cfg)
    assert (model.abstain, model.dim, model.resizes) == (cfg.abstain, 5, True)
    assert model.drawing == DrawingSettings(cfg.sampler, 7, "plain", "fp32")
    without = make_model(train={"beta": 0.0})
    assert without.drawing is None
    assert recipe_of(without) == without.cfg


def test_names_of_tensors_are_those_of_stored_models():
    """A renamed tensor would make every model file unreadable."""
    model = make_model(buffer={"start": "gaussian"})
    parts = {name.split(".")[0] for name in model.state_dict()}
    assert parts == {"backbone", "head", "start"}
    assert isinstance(model.start, GaussianStart)
    assert {"start.mean", "start.directions", "start.rest"} <= model.state_dict().keys()
    assert {name for name in model.state_dict() if name.startswith("head.")} == {
        "head.priors",
        "head.gamma2",
        "head.means",
    }


def test_a_file_keeps_the_rules_in_force(tmp_path):
    model = make_model()
    model.abstain = AbstainConfig(score="residual", tpr=0.6)
    sampler = dataclasses.replace(model.drawing.sampler, alpha=0.125)
    model.drawing = dataclasses.replace(model.drawing, sampler=sampler, steps=5)
    model_file.save_model(tmp_path / "model.safetensors", model)
    again = model_file.load(tmp_path / "model.safetensors")
    assert (again.abstain, again.drawing) == (model.abstain, model.drawing)
    assert again.cfg == recipe_of(model)
    assert torch.equal(again.sample(2), model.sample(2))


@pytest.mark.parametrize(
    ("sampler", "samples", "expected"),
    [("staged", True, True), ("noise_injected", True, True), ("sgld", True, False), ("staged", False, False)],
)
def test_chains_that_walk_to_means(sampler, samples, expected):
    model = make_model(sampler={"name": sampler}, train={"beta": 0.5 if samples else 0.0})
    assert model.walks_to_means == expected


def test_a_head_without_means_needs_another_sampler_than_the_default():
    backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    head = HEADS["linear"](3, 16, 1.0, None)
    names = {"shape": (1, 8, 8), "class_names": ["a", "b", "c"]}
    model = gmmc.Classifier(backbone, head, drawing=DrawingSettings(), **names)
    with pytest.raises(InputError, match=r"sampler\.name=staged"):
        model.sample(1)
    langevin = DrawingSettings(SamplerConfig(name="sgld"), steps=2)
    assert gmmc.Classifier(backbone, head, drawing=langevin, **names).sample(1).shape == (1, 1, 8, 8)


@pytest.mark.parametrize("wrong", [{"precision": "fp8"}, {"engine": "nonsense"}, {"steps": 0}])
def test_impossible_drawing_settings_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        DrawingSettings(**wrong)
