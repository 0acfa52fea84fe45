"""Several averages of the weights in one training."""

import json
import math
from dataclasses import replace

import pytest
import torch

import gmmc
from conftest import interrupted_at, make_learner, make_model, roll_back, tiny_config, tiny_data
from gmmc.config.sections import TrainConfig
from gmmc.errors import InputError
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.denoising import Denoising
from gmmc.train.ema import Average
from gmmc.train.loop import train
from gmmc.train.so_far import write_model_so_far
from processes import finished, gmmc_command

DECAYS = (0.5, 0.05)
KINDS = {
    "denoising": {
        "train": {"algorithm": "denoising"},
        "model": {"backbone": "smooth-mlp-2-16", "dim": 8},
        "sampler": {"name": "heun"},
    },
    "chains, batch norm, bf16": {"model": {"norm": "batch"}, "train": {"weights": "bf16"}},
}


def config(kind="denoising", ema=0.9, averages=DECAYS, **sections):
    basis = KINDS[kind] | {"train": {**KINDS[kind]["train"], "ema": ema, "averages": averages}}
    return tiny_config(
        **{name: {**basis.get(name, {}), **sections.get(name, {})} for name in basis | sections}
    )


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def all_averages(learner):
    return [weights_of(average.model) for average in (learner.average, *learner.averages.values())]


@pytest.mark.parametrize("decay", [0.05, 0.9])
def test_an_average_is_a_sum_with_geometric_weights(decay):
    """θ̄_n = Σ_i (1 − d_i)·Π_{j > i} d_j·θ_i, with d_j = min(decay, (1 + j)/(10 + j))."""
    model = make_model()
    first = weights_of(model)
    average, course = Average(model, decay), []
    for step in range(4):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_()
        average.update(model, step)
        course.append(weights_of(model))
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(4)]
    for name, parameter in average.model.named_parameters():
        expected = math.prod(decays) * first[name]
        for i, weights in enumerate(course):
            expected = expected + (1 - decays[i]) * math.prod(decays[i + 1 :]) * weights[name]
        torch.testing.assert_close(parameter.detach(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_the_model_of_a_training_with_that_decay(tmp_path, kind):
    """To the last bit, thresholds and recipe included; the run's own model stays what it was."""
    train(config(kind), tmp_path / "run", tiny_data())
    places = {0.9: tmp_path / "run"} | {d: tmp_path / "run" / "averages" / str(d) for d in DECAYS}
    for decay, place in places.items():
        train(config(kind, ema=decay, averages=()), tmp_path / str(decay), tiny_data())
        expected, found = (model_file.load(folder) for folder in (tmp_path / str(decay), place))
        assert same(expected.state_dict(), found.state_dict())
        assert expected.trained == found.trained
        for name, scores in expected.reference.scores.items():
            assert torch.equal(scores, found.reference.scores[name])
        if decay != 0.9:
            assert RunFolder(place).recipe() == RunFolder(tmp_path / str(decay)).recipe()
            assert found.cfg == expected.cfg
    assert not (tmp_path / "0.9" / "averages").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_resumed_after_each_update_has_the_same_averages(kind):
    cfg, data = config(kind), tiny_data()
    whole, learner = make_learner(cfg, data), make_learner(cfg, data)
    while whole.step < whole.plan.total:
        whole.update()
        resumed = make_learner(cfg, data)
        resumed.resume(learner.snapshot())
        resumed.update()
        learner = resumed
        for a, b in zip(all_averages(learner), all_averages(whole), strict=True):
            assert same(a, b)


def test_an_interrupted_training_writes_the_same_folders(tmp_path):
    cfg = config(train={"checkpoint_seconds": 0.0}, guard={"every": 2})
    train(cfg, tmp_path / "whole", tiny_data())
    with interrupted_at(7):
        train(cfg, tmp_path / "run", tiny_data())
    assert not (tmp_path / "run" / "averages").exists()
    train(cfg, tmp_path / "run", tiny_data())
    for decay in DECAYS:
        for file in ("model.safetensors", "config.toml"):
            place = f"averages/{decay}/{file}"
            assert (tmp_path / "run" / place).read_bytes() == (tmp_path / "whole" / place).read_bytes()


def test_a_skipped_update_is_in_no_average(monkeypatch):
    learner = make_learner(config(discriminative={"epochs": 0}), tiny_data())
    learner.update()
    before, noisy = all_averages(learner), Denoising.noisy

    with monkeypatch.context() as patch:
        patch.setattr(
            Denoising,
            "noisy",
            lambda self, batch, step: replace(n := noisy(self, batch, step), target=n.target * math.nan),
        )
        learner.update()
    assert all(same(a, b) for a, b in zip(before, all_averages(learner), strict=True))
    learner.update()
    assert not any(same(a, b) for a, b in zip(before, all_averages(learner), strict=True))


def test_a_rollback_restores_all_of_them():
    learner = make_learner(config(generative={"epochs": 4}), tiny_data())
    for _ in range(3):
        learner.update()
    good, before = learner.snapshot(), all_averages(learner)
    for _ in range(4):
        learner.update()
    assert not any(same(a, b) for a, b in zip(before, all_averages(learner), strict=True))
    roll_back(learner, good)
    for a, b in zip(before, all_averages(learner), strict=True):
        assert same(a, b)


@pytest.mark.slow
def test_each_is_a_run_folder(tmp_path):
    cfg = config(train={"batch_size": 256}, model={"dim": 16})
    train(cfg, tmp_path / "run")
    folder = tmp_path / "run" / "averages" / "0.5"
    finished(gmmc_command("evaluate", folder, "accuracy"))
    found = json.loads((folder / "results.json").read_text())["accuracy"]
    assert found["conditions"]["settings"]["train"]["ema"] == 0.5
    assert gmmc.load(folder).trained["weights"] == "average"
    assert gmmc.load(folder / "model.safetensors").cfg.train.averages == ()


def test_they_need_no_average_of_the_run_itself(tmp_path):
    train(config(ema=0.0), tmp_path / "run", tiny_data())
    assert model_file.load(tmp_path / "run").trained["weights"] == "last"
    assert model_file.load(tmp_path / "run" / "averages" / "0.5").trained["weights"] == "average"


def test_an_unfinished_training_is_written_without_them(tmp_path):
    cfg, data = config(train={"checkpoint_seconds": 0.0}, guard={"every": 2}), tiny_data()
    with interrupted_at(7):
        train(cfg, tmp_path / "run", data)
    write_model_so_far(tmp_path / "run", tmp_path / "now", data)
    assert not (tmp_path / "now" / "averages").exists()


def test_a_link_out_of_the_run_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "averages").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        train(config(), tmp_path / "run", tiny_data())
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("averages", [(0.9,), (0.5, 0.5), (0.0,), (1.0,), (-0.1,), (math.nan,)])
def test_decays_that_are_none_or_not_further_are_refused(averages):
    with pytest.raises(InputError, match="averages"):
        TrainConfig(ema=0.9, averages=averages)
