"""Evaluations: one module each, all `evaluate(model, data, cfg) -> Result`. A new one adds a line here.

They take any module of images in [0, 1] → logits; those that draw need a model with `sample`.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from gmmc.config import EvaluateConfig
from gmmc.data import Dataset
from gmmc.errors import InputError
from gmmc.evaluations import accuracy, calibration, latent, ood, samples
from gmmc.evaluations.result import Result
from gmmc.scores import batched

EVALUATIONS: dict[str, Callable[[Any, Dataset, EvaluateConfig], Result]] = {
    "accuracy": accuracy.evaluate,
    "calibration": calibration.evaluate,
    "ood": ood.evaluate,
    "latent": latent.evaluate,
    "samples": samples.evaluate,
}
NEED_SAMPLES = {"samples"}


def evaluate(
    model: nn.Module, data: Dataset, names: Iterable[str] | str = (), cfg: EvaluateConfig | None = None
) -> dict[str, Result]:
    """Run the named evaluations, or all that the model allows."""
    if len(data.test) == 0:
        raise InputError("an evaluation needs at least one test image, got none")
    chosen = choose(model, names)
    check_logits(model, data)
    results = {name: EVALUATIONS[name](model, data, cfg or EvaluateConfig()) for name in chosen}
    return {name: about(result, data) for name, result in results.items()}


def check_logits(model: nn.Module, data: Dataset) -> None:
    shape = tuple(batched(model, model, data.test.images[:2]).shape)
    wanted = (min(2, len(data.test)), len(data.class_names))
    if shape != wanted:
        raise InputError(f"the model must give one logit per class, {wanted} for 2 images, got {shape}")


def about(result: Result, data: Dataset) -> Result:
    """With the data among its conditions."""
    told = {"data": data.name, **result.conditions}
    if data.notes:
        told["data_notes"] = list(data.notes)
    return dataclasses.replace(result, conditions=told)


def choose(model: nn.Module, names: Iterable[str] | str) -> list[str]:
    """The names of the evaluations to run, all of them known and possible."""
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in EVALUATIONS:
            raise InputError(f"unknown evaluation {name!r}; known are {', '.join(EVALUATIONS)}")
        if name in NEED_SAMPLES and not can_sample(model):
            raise InputError(f"evaluation {name!r} needs a model that can sample, got {type(model).__name__}")
    return chosen or [name for name in EVALUATIONS if name not in NEED_SAMPLES or can_sample(model)]


def can_sample(model: nn.Module) -> bool:
    """One of ours, but not a softmax classifier trained without samples."""
    return bool(getattr(model, "can_sample", hasattr(model, "sample")))


__all__ = ["EVALUATIONS", "Result", "evaluate"]
