"""Every part with every other, through a tiny training, a save, a resume after every update, and samples."""

import dataclasses
import typing
from typing import Literal

import pytest
import torch

from conftest import make_learner, tiny_config, tiny_data
from gmmc.config import schema
from gmmc.networks.backbones import BACKBONES
from gmmc.networks.heads import HEADS
from gmmc.runs import model_file
from gmmc.sampling.samplers import SAMPLERS
from gmmc.train.learner import ALGORITHMS
from gmmc.train.loop import train
from gmmc.train.objectives import OBJECTIVES, SHAPES

EXAMPLES = {  # a name for each pattern
    "small_cnn": "small_cnn",
    r"wrn-(\d+)-([1-9]\d*)": "wrn-10-1",
    r"mlp-([1-9]\d*)-([1-9]\d*)": "mlp-1-16",
    r"smooth-(\d+)-([1-9]\d*)": "smooth-10-1",
    r"smooth-(\d+)-([1-9]\d*)-scales3": "smooth-10-1-scales3",
    r"smooth-(\d+)-([1-9]\d*)-attention": "smooth-10-1-attention",
    r"smooth-mlp-([1-9]\d*)-([1-9]\d*)": "smooth-mlp-1-16",
}
SCHEDULES = ("step", "cosine")
DENOISING = {"train": {"algorithm": "denoising"}, "sampler": {"name": "heun"}}
COMPANIONS = {  # what a choice needs beside it
    ("train", "algorithm", "denoising"): DENOISING,
    ("sampler", "name", "heun"): DENOISING,
    ("denoising", "gaussian", "fitted"): DENOISING,
    ("abstain", "score", "force_size"): DENOISING,
    ("abstain", "score", "denoising_error"): DENOISING,
    ("model", "head", "lda"): {"objective": {"name": "balanced"}},
    ("model", "head", "linear"): {"objective": {"name": "balanced"}, "sampler": {"name": "sgld_jem"}},
    ("buffer", "labels", "batch"): {"buffer": {"size": 60}},
}


def trains_saves_resumes_and_samples(tmp_path, cfg):
    data = tiny_data(classes=3, count=32, channels=3, size=9)
    trained = train(cfg, tmp_path / "run", data)

    learner = make_learner(cfg, data)
    while learner.step < learner.plan.total:
        resumed = make_learner(cfg, data)  # as a new process after every update
        resumed.restore(learner.snapshot())
        resumed.update()
        learner = resumed
    loaded = model_file.load(tmp_path / "run")
    for name, tensor in model_file.stored_weights(learner.best_model).items():
        if name != "head.gamma2":
            assert torch.equal(tensor.to(loaded.state_dict()[name]), loaded.state_dict()[name]), name
    assert loaded.logits(data.test.images).isfinite().all()
    assert loaded.can_sample == trained.can_sample == cfg.samples
    if not cfg.samples:
        return
    samples = loaded.sample(2, seed=1)
    assert torch.equal(samples, trained.sample(2, seed=1))
    assert samples.isfinite().all()
    assert 0 <= samples.min() <= samples.max() <= 1


def short_config(**sections):
    """Two updates in each phase."""
    phases = {"discriminative": {"epochs": 1}, "generative": {"epochs": 1}}
    merged = {name: {**phases.get(name, {}), **sections.get(name, {})} for name in phases | sections}
    return tiny_config(**merged)


# A linear head has no means to walk to: test_config.py shows that the other pairs are refused.
PAIRS = [(h, s) for h in HEADS for s in SAMPLERS if HEADS[h].has_means or not SAMPLERS[s].to_means]
# Schedules alternate: every backbone, and every pair of head and sampler, meets each of them.
COMBINATIONS = [
    (backbone, *pair, SCHEDULES[(i + j) % len(SCHEDULES)])
    for i, backbone in enumerate(BACKBONES)
    for j, pair in enumerate(PAIRS)
]


@pytest.mark.parametrize(("backbone", "head", "sampler", "schedule"), COMBINATIONS)
def test_every_backbone_head_sampler_and_schedule(tmp_path, backbone, head, sampler, schedule):
    """By denoising, if the sampler is one of noisy images."""
    denoising = SAMPLERS[sampler].noise_conditional
    cfg = short_config(
        model={"backbone": EXAMPLES[backbone], "head": head},
        objective={"name": "gmmc" if head == "mmc" or denoising else "balanced"},
        train={"algorithm": "denoising" if denoising else "contrastive"},
        sampler={"name": sampler},
        discriminative={"schedule": schedule, "warmup": 1},
        generative={"schedule": schedule},
    )
    trains_saves_resumes_and_samples(tmp_path, cfg)


NEED_A_GPU = {("engine", "graph"), ("engine", "compiled")}  # test_engine.py has them


def every_choice():
    """(section, key, value) for each value of each key that offers a choice."""
    for section in dataclasses.fields(schema.Config):
        kind = typing.get_type_hints(schema.Config)[section.name]
        for key, hint in typing.get_type_hints(kind).items():
            if typing.get_origin(hint) is Literal:
                for value in typing.get_args(hint):
                    if (key, value) not in NEED_A_GPU:
                        yield section.name, key, value


@pytest.mark.parametrize(("section", "key", "value"), list(every_choice()))
def test_every_choice_of_every_setting(tmp_path, section, key, value):
    companions = COMPANIONS.get((section, key, value), {})
    if section == "contrast":
        companions = {"objective": {"name": "balanced"}, "contrast": {"shift": 1}}
    sections = {**companions, section: {**companions.get(section, {}), key: value}}
    trains_saves_resumes_and_samples(tmp_path, short_config(**sections))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("norm", ["none", "batch", "batch_then_frozen"])
def test_every_objective_shape_and_norm(tmp_path, objective, shape, norm):
    cfg = short_config(
        model={"norm": norm, "priors": "empirical"},
        objective={"name": objective, "shape": shape, "bound": 20.0},
        train={"ema": 0.9, "clip": 1.0},
    )
    trains_saves_resumes_and_samples(tmp_path, cfg)


# Choices that training by denoising refuses: test_denoising.py shows it.
NOT_BY_DENOISING = ({"objective", "contrast"}, {"norm", "algorithm", "labels"}, set(SAMPLERS))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        choice
        for choice in every_choice()
        if not any(part in refused for part, refused in zip(choice, NOT_BY_DENOISING, strict=True))
    ],
)
def test_every_choice_by_denoising(tmp_path, section, key, value):
    basis = {**DENOISING, "model": {"backbone": "smooth-mlp-1-16"}}
    sections = {**basis, section: {**basis.get(section, {}), key: value}}
    trains_saves_resumes_and_samples(tmp_path, short_config(**sections))


@pytest.mark.parametrize("algorithm", [{}, DENOISING], ids=["contrastive", "denoising"])
@pytest.mark.parametrize("epochs", [(1, 0), (0, 1), (1, 1)], ids=["discriminative", "generative", "joint"])
def test_every_approach(tmp_path, epochs, algorithm):
    cfg = tiny_config(**algorithm, discriminative={"epochs": epochs[0]}, generative={"epochs": epochs[1]})
    trains_saves_resumes_and_samples(tmp_path, cfg)


def test_every_way_to_train_is_among_the_choices():
    found = {name for (section, key, name) in every_choice() if (section, key) == ("train", "algorithm")}
    assert found == set(ALGORITHMS)
