"""Training that begins with the weights of another run."""

import dataclasses
import shutil

import pytest
import torch

from conftest import interrupted_at, make_learner, tiny_config
from gmmc.errors import InputError
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.initialize import load_start, take_over
from gmmc.train.loop import train

DIS = {"discriminative": {"epochs": 1}, "generative": {"epochs": 0}, "train": {"beta": 0.0}}


def follow(start, **sections):
    """The recipe of a run that begins with another."""
    train_section = {"start": str(start), **sections.pop("train", {})}
    return tiny_config(
        train=train_section, discriminative={"epochs": 0}, generative={"epochs": 1}, **sections
    )


@pytest.fixture
def start(tmp_path, data):
    out = tmp_path / "start"
    train(tiny_config(**DIS, model={"norm": "batch"}), out, data)
    return out


def test_the_network_is_that_of_the_start_and_the_buffer_is_new(start, data):
    cfg = follow(start, model={"norm": "batch_then_frozen"})
    model = model_file.load(start)
    learner = make_learner(cfg, data, start=load_start(cfg, data))
    for name, tensor in learner.model.backbone.state_dict().items():
        assert torch.equal(tensor, model.backbone.state_dict()[name]), name
    assert learner.step == 0
    assert (learner.algorithm.buffer.visits == 0).all()


def test_learned_means_are_taken_over(tmp_path, data):
    lda = {"model": {"head": "lda"}, "objective": {"name": "balanced"}}
    train(tiny_config(**DIS, **lda), tmp_path / "start", data)
    cfg = follow(tmp_path / "start", **lda)
    start = load_start(cfg, data)
    learner = make_learner(cfg, data)
    assert not torch.equal(learner.model.head.means, start.head.means)
    take_over(learner.model, start)
    assert torch.equal(learner.model.head.means, start.head.means)


def test_its_seconds_are_counted_and_it_is_remembered(tmp_path, start, data):
    out = tmp_path / "next"
    train(follow(start, model={"norm": "batch_then_frozen"}), out, data)
    before, after = (RunFolder(folder).metrics() for folder in (start, out))
    assert after[0]["seconds"] > before[-1]["seconds"] > 0
    remembered = model_file.load(out).trained["start"]
    assert remembered["updates"] == before[-1]["step"]
    assert remembered["seconds"] == before[-1]["seconds"]


def test_a_model_file_alone_will_do(tmp_path, start, data):
    file = shutil.copy(start / "model.safetensors", tmp_path / "moved.safetensors")
    model = train(follow(file, model={"norm": "batch_then_frozen"}), tmp_path / "next", data)
    assert "seconds" not in model.trained["start"]


def test_a_resumed_run_no_longer_needs_it(tmp_path, start, data):
    cfg = follow(
        start, train={"checkpoint_seconds": 0.0}, model={"norm": "batch_then_frozen"}, guard={"every": 1}
    )
    whole = train(cfg, tmp_path / "whole", data)
    with interrupted_at(3):
        train(cfg, tmp_path / "cut", data)
    shutil.rmtree(start)
    resumed = train(cfg, tmp_path / "cut", data)
    assert resumed.trained["start"] == whole.trained["start"]
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"norm": "none"}}, "model.norm=none, got batch"),
        ({"model": {"norm": "batch", "dim": 32}}, "model.dim=32, got 0"),
        ({"model": {"norm": "batch", "scale": 5.0}}, "model.scale=5.0, got 10.0"),
    ],
)
def test_another_network_is_refused_before_anything_is_written(tmp_path, start, data, sections, message):
    with pytest.raises(InputError, match=message):
        train(follow(start, **sections), tmp_path / "next", data)
    assert not (tmp_path / "next").exists()


def test_a_start_that_is_none_is_refused(tmp_path, data):
    with pytest.raises(
        InputError, match=r"train\.start must be a finished run or a model file: no run folder"
    ):
        train(follow(tmp_path / "nothing"), tmp_path / "next", data)


def test_one_that_saw_the_validation_images_is_refused(tmp_path):
    digits = {"train": {"batch_size": 128, "beta": 0.0}, "generative": {"epochs": 0}}
    train(tiny_config(**digits), tmp_path / "start")
    with pytest.raises(InputError, match="may have seen validation images of this run"):
        train(follow(tmp_path / "start", train={"seed": 1}), tmp_path / "next")


def test_a_model_in_memory_must_have_the_same_classes(start):
    with pytest.raises(InputError, match="same classes and image size, got 3 classes, 1×8×8"):
        train(follow("", model={"norm": "batch"}), start.parent / "next", start=model_file.load(start))


def test_a_start_is_not_forgotten_where_only_another_process_had_saved(tmp_path, start, data):
    """Killed within the first save: rank 0 writes last, and without its file there is no state."""
    cfg = follow(start, model={"norm": "batch_then_frozen"})
    whole = train(cfg, tmp_path / "whole", data)
    leftover = tmp_path / "cut" / "resume" / "step-000000000-rank-1-0123456789abcdef.safetensors"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"")
    again = train(cfg, tmp_path / "cut", data)
    assert again.trained["start"] == whole.trained["start"]
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in whole.state_dict().items())


def test_nor_where_a_model_is_damaged_and_no_state_is_left(tmp_path, start, data):
    cfg = follow(start, model={"norm": "batch_then_frozen"})
    whole = train(cfg, tmp_path / "run", data)
    shutil.rmtree(tmp_path / "run" / "resume")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    (tmp_path / "run" / "model.safetensors").write_bytes(b"damaged")
    again = train(cfg, tmp_path / "run", data)
    assert again.trained["start"] == whole.trained["start"]


def test_states_of_before_there_were_starts_are_resumed(data):
    cfg = tiny_config()
    learner = make_learner(cfg, data)
    state = learner.snapshot()
    del state.info["start"]
    learner.restore(state)
    assert learner.state.start is None


def test_the_same_images_by_another_name_and_split_are_refused(tmp_path, start, data):
    swapped = dataclasses.replace(data, train=data.train[:52], valid=data.train[52:], name="renamed")
    with pytest.raises(InputError, match="may have seen validation images"):
        train(follow(start, model={"norm": "batch"}), tmp_path / "next", swapped)


def test_frozen_statistics_need_a_phase_or_a_start_to_come_from():
    with pytest.raises(InputError, match=r"discriminative\.epochs or train\.start"):
        tiny_config(model={"norm": "batch_then_frozen"}, discriminative={"epochs": 0})
