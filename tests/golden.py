"""Short trainings whose course is on record, in golden.json.

A training that is wrong but deterministic resumes bit for bit and repeats itself; only a record shows that it
changed. One thread, fp32, plain engine. `python tests/golden.py` records them again, or those named: do that
only after a change that is meant to alter training, and say so in the commit.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conftest import make_learner, tiny_config, tiny_data
from gmmc.config.schema import Config
from gmmc.networks.backbones import batch_norms
from gmmc.train.learner import Learner

RECORD = Path(__file__).with_name("golden.json")

# Between them the cases use every algorithm, objective, head, sampler, norm, shape and kind of augmentation.
CASES: dict[str, dict[str, Any]] = {
    "gmmc, staged": {
        "discriminative": {"shift": 1, "flip": True},
        "generative": {"shift": 2, "warmup": 3, "weight_decay": 0.01},
        "sampler": {"alpha": 0.1, "target_std": 0.5},
    },
    "gmmc, noise injected, cap": {
        "objective": {"shape": "cap", "bound": 49.5},
        "discriminative": {"epochs": 0},
        "generative": {"epochs": 3, "cutout": 3, "noise": 0.0},
        "sampler": {"name": "noise_injected", "steps": 4, "alpha": 0.1, "target_std": 0.5},
        "train": {"ramp": 6, "clip": 1.0},
    },
    "balanced, few chains, batch norm, average": {
        # A bias before batch norm has no gradient but rounding, which Adam would make a step of, and this.
        "discriminative": {"weight_decay": 0.01},
        "generative": {"weight_decay": 0.01},
        "model": {"norm": "batch"},
        "objective": {"name": "balanced"},
        "contrast": {"shift": 1, "noise": 0.2},
        "buffer": {"chains": 6, "labels": "batch", "size": 60, "reinit": 0.3},
        "train": {"ema": 0.9},
    },
    "balanced, Gaussian start, huber": {
        "model": {"norm": "batch_then_frozen", "priors": "empirical"},
        "objective": {"name": "balanced", "shape": "huber", "bound": 40.0, "anchor": 0.3},
        "discriminative": {"weight_decay": 0.01},
        "generative": {"weight_decay": 0.01, "schedule": "cosine"},
        "buffer": {"start": "gaussian", "rank": 8, "reinit": 0.5},
        "contrast": {"noise": 0.1},
        "train": {"ema": 0.8, "weights": "bf16"},
    },
    "balanced, learned means, Langevin": {
        "model": {"head": "lda"},
        "objective": {"name": "balanced", "anchor_on": "contrast"},
        "sampler": {"name": "sgld", "alpha": 0.05},
    },
    "balanced, linear head, JEM": {
        "model": {"head": "linear"},
        "objective": {"name": "balanced"},
        "sampler": {"name": "sgld_jem", "alpha": 1.0, "noise": 0.05},
        "buffer": {"reinit": 0.3},
    },
    "denoising, smooth, average": {
        "model": {"backbone": "smooth-10-1", "dim": 8, "scale": 2.0},
        "denoising": {"unlabelled": 0.3, "class_images": 10, "shift": 1},
        # With β = 0 spatial features have no gradient but rounding, which Adam would make a step of.
        "discriminative": {"epochs": 0},
        "generative": {"epochs": 3},
        "sampler": {"name": "heun", "churn": 2.0, "guidance": 1.0},
        "train": {"algorithm": "denoising", "ema": 0.9, "clip": 1.0},
    },
    "denoising, learned means, Gaussian start": {
        "model": {"backbone": "smooth-mlp-2-16", "dim": 8, "head": "lda", "priors": "empirical"},
        "denoising": {"h": 0.05, "residual_limit": 0.5, "class_sigma": 0.2, "noisy_class_weight": 0.5},
        "discriminative": {"lr": 3e-3},
        "generative": {"schedule": "cosine", "cutout": 2, "lr": 3e-3},
        "sampler": {"name": "heun", "sigma_max": 5.0},
        "train": {"algorithm": "denoising", "ramp": 6},
        "buffer": {"start": "gaussian", "rank": 8},
    },
}


def configuration(name: str) -> Config:
    sections = CASES[name]
    train = {"batch_size": 30, "engine": "plain", **sections.get("train", {})}
    buffer = {"size": 60, **sections.get("buffer", {})}
    return tiny_config(**{**sections, "train": train, "buffer": buffer})


def measure(name: str) -> dict[str, list[float]]:
    """Series of a training, a number for every five updates, and numbers of the finished model."""
    learner = make_learner(configuration(name), tiny_data(count=300))  # more than one block for γ²
    lines = list(_lines(learner))
    series = {key: [line.get(key, 0.0) for line in lines] for key in lines[-1]}
    return series | _finished(learner)


def _lines(learner: Learner) -> Iterator[dict[str, float]]:
    """Numbers of every five updates: ten of each epoch, three epochs."""
    while learner.step < learner.plan.total:
        learner.update()
        if learner.step % 5 == 0:
            yield _state(learner)
            learner.meter.reset()


def _state(learner: Learner) -> dict[str, float]:
    line, _ = learner.report()
    names = (
        "lr",
        "beta",
        "loss",
        "class_loss",
        "real_energy",
        "contrast_energy",
        "sampled_energy",
        "accuracy",
        "grad_norm",
        "weight_norm",
    )
    numbers = {name: line[name] for name in names if name in line}
    if learner.average:
        numbers["average_norm"] = _norm(learner.average.model.parameters())
        numbers["statistics"] = _norm(norm.running_mean for norm in batch_norms(learner.average.model))
    buffer = getattr(learner.algorithm, "buffer", None)
    if buffer:
        images, labels = buffer.images.double(), buffer.labels.double()
        place = torch.arange(len(labels)).double() + 1
        numbers |= {
            "buffer_size": images.square().mean().sqrt().item(),
            "buffer_places": (images.square().mean((1, 2, 3)) * place).sum().item(),
            "buffer_labels": (labels * place).sum().item(),
            "buffer_visits": (buffer.visits.double() * place).sum().item(),
        }
    return numbers


def _norm(tensors: Iterator[Tensor]) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors))


def _finished(learner: Learner) -> dict[str, list[float]]:
    """Numbers of the finished model: what it fitted, and its answers on test images and on fresh chains."""
    model, data = learner.finish(), learner.data
    assert model.reference is not None
    samples = model.sample(4, seed=3)
    return {
        "gamma2": [model.head.gamma2.item(), model.reference.gamma2],
        "thresholds": [model.reference.threshold(score, 0.9) for score in ("log_density", "neighbours")],
        "valid_accuracy": [learner.validate()],
        "test_density": model.log_density(data.test.images).tolist(),
        "sample_density": model.log_density(samples).tolist(),
        "sample_size": [samples.std().item()],
    }


def main(names: list[str]) -> None:
    record = json.loads(RECORD.read_text("utf-8")) if names else {}
    for name in names or CASES:
        record[name] = {
            key: [float(f"{value:.7g}") for value in values] for key, values in measure(name).items()
        }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{RECORD}: {len(names or CASES)} of {len(record)} trainings")


if __name__ == "__main__":
    main(sys.argv[1:])
