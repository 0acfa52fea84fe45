"""Tiny data and recipes: a training takes a second."""

import dataclasses
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import HealthCheck, settings

from gmmc.base import progress
from gmmc.base.precision import cpu_traps_bf16
from gmmc.classifier.build import build
from gmmc.classifier.model import Classifier
from gmmc.config import recipes, schema
from gmmc.data import sources as data_sources
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.evaluations import autoattack
from gmmc.evaluations.attacks import protocol
from gmmc.fid import small_features
from gmmc.runs import model_file
from gmmc.runs.resume import State
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner
from gmmc.train.loop import train
from processes import DEADLINE, started

# Equal inputs in every run, and no failure by the clock; `make fuzz` is for new inputs.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")
# Where bf16 ends a process, it would end the whole suite; child processes inherit the remedy.
if cpu_traps_bf16():
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    cpu_traps_bf16.cache_clear()
torch.set_num_threads(1)  # tiny tensors: threads cost more than they bring, all the more on a busy machine

TINY = {
    "data": {"name": "digits"},
    "train": {"batch_size": 16, "log_every": 3, "beta": 0.5, "device": "cpu", "precision": "fp32"},
    "discriminative": {"epochs": 1, "lr": 1e-3, "shift": 1},
    "generative": {"epochs": 2, "lr": 1e-3, "noise": 0.1},
    "sampler": {"steps": 2, "alpha": 0.03},
    "buffer": {"size": 40, "reinit": 0.1},
    "sample": {"steps": 3},
    "evaluate": {"samples": 30},
}
OF_CHAINS = {"sampler", "buffer"}  # sections with settings that training by denoising refuses


def tiny_config(**sections) -> schema.Config:
    """The tiny recipe with some keys replaced: tiny_config(train={"beta": 0})."""
    by_denoising = sections.get("train", {}).get("algorithm") == "denoising"
    tiny = {name: table for name, table in TINY.items() if not (by_denoising and name in OF_CHAINS)}
    tree = {name: {**tiny.get(name, {}), **sections.get(name, {})} for name in tiny.keys() | sections.keys()}
    return recipes.from_dict(tree)


def tiny_data(classes: int = 3, count: int = 64, channels: int = 1, size: int = 8) -> Dataset:
    """Noisy images whose brightness tells the class."""
    source = torch.Generator().manual_seed(0)

    def part(count: int) -> LabelledImages:
        labels = torch.arange(count) % classes
        level = (labels.float() + 0.5) / classes * 255
        noise = 20 * torch.randn(count, channels, size, size, generator=source)
        images = (level[:, None, None, None] + noise).clamp(0, 255).to(torch.uint8)
        return LabelledImages(images, labels)

    return Dataset(part(count), part(12), part(18), [f"class {i}" for i in range(classes)])


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Without it they would depend on the tests that ran before in the same process."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_lines_by_the_clock(monkeypatch):
    """Print progress only when a task ends: how many lines come before depends on the machine."""
    monkeypatch.setattr(progress, "PLAIN_EVERY", math.inf)


@pytest.fixture
def data() -> Dataset:
    return tiny_data()


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A finished run on the real digits, a second of training: for all that only needs some model."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_config(train={"batch_size": 128}, buffer={"size": 200}), out)
    return out


@pytest.fixture(scope="session")
def digits(run):
    """The model of that run and its data."""
    model = model_file.load(run)
    return model, data_sources.load(model.cfg.data, model.cfg.train.seed)


@pytest.fixture
def hurried(monkeypatch):
    """A feature network of its own is enough, a good one is not needed."""
    monkeypatch.setattr(small_features, "UPDATES", 40)


@pytest.fixture
def few_queries(monkeypatch):
    """AutoAttack with a Square of a few queries, which goes by the same name."""
    for module in (autoattack, protocol):
        monkeypatch.setattr(module, "QUERIES", 20)


def make_model(classes: int = 3, seed: int = 0, shape=(1, 8, 8), **sections) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(tiny_config(**sections), shape, [f"class {i}" for i in range(classes)]).eval()


def make_learner(cfg: schema.Config, data: Dataset, start: Classifier | None = None) -> Learner:
    return Learner(cfg, data, build_fabric(cfg.train), start)


def set_state(learner: Learner, **changes) -> None:
    """Continue as if the training had come to this state."""
    learner.state = dataclasses.replace(learner.state, **changes)


def set_pace(learner: Learner, **factors: float) -> None:
    """Continue at another pace."""
    set_state(learner, pace={**learner.state.pace, **factors})


def roll_back(learner: Learner, good: State, *, failed: int = 0) -> dict:
    """Roll back as after so many rollbacks that did not lead past the trouble."""
    trouble = good.step if failed else -1
    set_state(learner, trouble_at=trouble, failed=max(0, failed - 1))
    return learner.roll_back(good)


def real_batch(learner: Learner, step: int = 0):
    """Images, labels and contrast images of an update, without making it."""
    batch = learner.batches.at(learner.moment(step))
    return batch.images, batch.labels, learner.algorithm.contrast_images(batch)


@contextmanager
def interrupted_at(step: int) -> Iterator[None]:
    """Interrupt the training in this block before update number `step`."""
    update = Learner.update

    def interrupt(learner: Learner) -> None:
        if learner.step == step:
            raise KeyboardInterrupt
        update(learner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture
def model() -> Classifier:
    return make_model()


def dead_process() -> int:
    """Return the id of a process that has ended."""
    with started([sys.executable, "-c", ""]) as process:
        process.wait(DEADLINE)
    return process.pid
