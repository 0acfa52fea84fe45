"""A run folder and a Hub folder that the version before this layout wrote, at commit 19accae."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import gmmc
from gmmc.config import recipes
from gmmc.evaluations.run import evaluate_run
from gmmc.report.page import write_report
from gmmc.runs.folder import RunFolder
from gmmc.runs.layout import MODEL
from gmmc.runs.results import read_results

STORED = Path(__file__).parents[1] / "last_version"


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(STORED / "run", tmp_path / "run"))


def test_it_is_evaluated_with_the_recorded_results(folder):
    before = read_results(folder)
    for name, _ in evaluate_run(str(folder), ["accuracy", "calibration"], "cpu"):
        assert name in before
    after = read_results(folder)
    for name in ("accuracy", "calibration"):
        assert after[name]["values"] == pytest.approx(before[name]["values"], rel=1e-3, abs=1e-5)
        settings = recipes.stored(before[name]["conditions"]["settings"])[0]
        assert recipes.stored(after[name]["conditions"]["settings"]) == (settings, [])


def test_its_hub_folder_is_the_same_model(folder):
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    stored, model = gmmc.from_pretrained(STORED / "hub"), gmmc.load(folder)
    assert torch.equal(stored.predict_proba(images), model.predict_proba(images))
    assert torch.equal(stored.log_density(images), model.log_density(images))
    assert stored.answer(images).threshold == model.answer(images).threshold


def test_it_is_reported(folder):
    write_report([folder])
    page = (folder / "report.html").read_text()
    accuracy = read_results(folder)["accuracy"]["values"]["top1"]
    assert f"{100 * accuracy:.1f}" in page


def test_it_is_resumed_to_the_model_that_it_became(folder):
    """From the state of update 60 of 80; other CPUs round otherwise."""
    expected = gmmc.load(folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / MODEL).unlink()
    state, complaints = RunFolder(folder).load_state()
    assert state is not None
    assert (state.step, complaints) == (60, [])
    cfg = RunFolder(folder).recipe()
    gmmc.train.train(cfg, folder)
    resumed = gmmc.load(folder)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)
    assert resumed.reference is not None
    assert expected.reference is not None
    assert resumed.reference.gamma2 == pytest.approx(expected.reference.gamma2, rel=1e-2)
    again = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in again] == [json.loads(line)["step"] for line in lines]
