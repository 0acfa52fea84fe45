"""The CIFAR-10 model that ships with the package: it is the one that was measured, and it is all there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gmmc
from gmmc.base.tensorfile import unpack
from gmmc.classifier.drawing import Drawer
from gmmc.cli.app import main
from gmmc.config import recipes
from gmmc.generate import fingerprint
from gmmc.pictures import GAP
from gmmc.runs import shipped

ROOT = Path(__file__).parents[2]
FOLDER = shipped.SHIPPED / "cifar10"

# E(x′, y′)·γ² of seeds 0 to 9, a class each, after two steps; in float32 within 1% of this.
ENERGIES = [231.45, 292.28, 82.39, 102.05, 84.07, 53.98, 108.65, 232.97, 160.91, 213.39]


@pytest.fixture(scope="module")
def model():
    return gmmc.load("cifar10")


@pytest.fixture(scope="module")
def results():
    return json.loads((FOLDER / "results.json").read_text())


def test_seeded_chains_have_the_recorded_energies(model):
    labels = torch.arange(10)
    x = model.sample(10, labels, seed=0, steps=2)
    with torch.no_grad():
        energies = model.head.unit_energy(model.backbone(x * 2 - 1), labels)
    assert energies.tolist() == pytest.approx(ENERGIES, rel=0.05)


def test_it_is_small_and_in_bf16():
    assert (FOLDER / "model.safetensors").stat().st_size <= 12_500_000
    tensors, _, _ = unpack(FOLDER / "model.safetensors")
    assert {t.dtype for name, t in tensors.items() if name.startswith("backbone.")} == {torch.bfloat16}


def test_it_is_the_recipe_s(model):
    """But for [evaluate]: sets to measure on may be added later."""
    recipe = recipes.load(ROOT / "recipes" / "cifar10-joint.toml")
    for cfg in (model.cfg, recipes.stored(recipes.read_toml(FOLDER / "config.toml"))[0]):
        assert not [line for line in recipes.differences(cfg, recipe) if not line.startswith("evaluate.")]


def test_it_carries_what_was_measured_with_it(model, results):
    """γ² of the paper, γ² fitted, and the threshold it abstains below."""
    values, told = results["calibration"]["values"], results["ood"]["conditions"]["abstains"]
    assert model.head.gamma2.item() == pytest.approx(values["paper/gamma2"], rel=1e-6)
    # Fitted once at the end of training and again when it was measured, in TF32.
    assert model.reference.gamma2 == pytest.approx(values["fitted/gamma2"], rel=0.02)
    assert model.reference.threshold(told["score"], told["tpr"]) == pytest.approx(told["below"], rel=1e-6)
    assert model.trained["commit"] == results["accuracy"]["conditions"]["trained"]["commit"]


def test_results_are_those_of_the_repository():
    assert (ROOT / "results" / "cifar10.json").read_bytes() == (FOLDER / "results.json").read_bytes()


def test_noise_is_not_named(tmp_path, capsys, monkeypatch):
    """As a user would, of an image of any size; without network, data or a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("no network is needed"))
    noise = torch.randint(256, (45, 60, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(noise.numpy()).save("noise.png")
    with pytest.raises(SystemExit) as done:
        main(["predict", "cifar10", "noise.png", "--json", "--device", "cpu"])
    assert done.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer"] is None
    assert told["calibrated"]
    assert not (tmp_path / "runs").exists()


def test_its_examples_are_its_own_images_and_need_no_data(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("no network is needed"))
    monkeypatch.setattr("gmmc.data.load", lambda *_: pytest.fail("no data set is needed"))
    with pytest.raises(SystemExit) as done:
        main(["examples", "cifar10"])
    assert done.value.code == 0
    assert "Next: gmmc predict cifar10 runs/cifar10/examples\n" in capsys.readouterr().out
    places = sorted(Path("runs/cifar10/examples").iterdir())
    drawn = [f"{model.class_names[i]}_seed{i:06d}.png" for i in range(5)]
    assert [path.name for path in places] == sorted([*drawn, "noise.png", "turned.png"])
    with pytest.raises(SystemExit) as done:
        main(["predict", "cifar10", *map(str, places), "--json", "--device", "cpu"])
    assert done.value.code == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["image"] for row in rows] == list(map(str, places))
    answers = {Path(row["image"]).name: row["answer"] for row in rows}
    assert (answers["noise.png"], answers["turned.png"]) == (None, "truck")  # as the README has it


def test_its_drawn_images_were_drawn_by_these_weights(model, monkeypatch):
    """The stamp names weights, sampler and steps; drawing one again takes minutes."""
    monkeypatch.setattr(Drawer, "precision", "fp32")  # on the CPU that drew them
    made_by = fingerprint(model)
    for i, path in enumerate(shipped.drawn_images("cifar10")):
        with Image.open(path) as picture:
            assert json.loads(picture.info["gmmc"]) == {"made_by": made_by, "label": i, "seed": i}


def test_its_drawn_images_are_those_that_were_measured():
    """The same labels and seeds, drawn there on a GPU in bf16."""
    with Image.open(FOLDER / "generation" / "fresh.png") as picture:
        measured = np.array(picture)
    for i, path in enumerate(shipped.drawn_images("cifar10")):
        left = GAP + i * (32 + GAP)
        tile = measured[GAP : GAP + 32, left : left + 32]
        with Image.open(path) as picture:
            assert (
                np.abs(np.array(picture) - tile.astype(float)).mean() < 4
            )  # of 255; images of two seeds differ by 49 to 90


def test_its_card_is_on_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["report", "cifar10"])
    assert done.value.code == 0
    page = (tmp_path / "runs" / "cifar10" / "report.html").read_text()
    for words in (
        "Model card",
        "What it is for",
        "What it is not for",
        "Limits",
        "below which it abstains",
        "KID of the same",
    ):
        assert words in page
