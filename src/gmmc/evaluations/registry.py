"""Evaluations: one module each, all `evaluate(model, data, cfg) -> Result`. A new one adds a line here.

They take any module of images in [0, 1] → logits; those that draw need a model with `sample`,
some a model with noise levels. Long ones also
take the run folder, where they keep what they have so far, and go on from there after an interruption.
"""

from collections.abc import Callable, Iterable

from torch import nn

from gmmc.base.text import shortened, suggestion
from gmmc.classifier.model import Classifier
from gmmc.classifier.predictor import NoiseLevel
from gmmc.errors import InputError
from gmmc.evaluations import (
    accuracy,
    autoattack,
    calibration,
    denoising,
    generation,
    latent,
    likelihood,
    ood,
    robustness,
    samples,
    validation,
)
from gmmc.evaluations.denoising import has_noise_levels, noise_conditional
from gmmc.evaluations.generation import can_sample
from gmmc.evaluations.result import Result

EVALUATIONS: dict[str, Callable[..., Result]] = {
    "accuracy": accuracy.evaluate,
    "calibration": calibration.evaluate,
    "ood": ood.evaluate,
    "latent": latent.evaluate,
    "samples": samples.evaluate,
    "denoising": denoising.evaluate,
    "robustness": robustness.evaluate,
    "autoattack": autoattack.evaluate,
    "generation": generation.evaluate,
    "likelihood": likelihood.evaluate,
    "validation": validation.evaluate,
}
NEED_SAMPLES = {"samples", "generation"}
NEED_NOISE = {"denoising", "likelihood"}  # a noise-conditional model
# Up to minutes on a GPU: run where they are asked for by name.
LONG = {"robustness", "autoattack", "generation", "likelihood", "validation"}


def choose(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The names of the evaluations to run, all of them known and possible."""
    chosen = list(names)
    for name in chosen:
        if name not in EVALUATIONS:
            raise InputError(f"unknown evaluation {shortened(name)}; {suggestion(name, EVALUATIONS)}")
        if name in NEED_SAMPLES | NEED_NOISE and isinstance(model, NoiseLevel):
            raise InputError(f"sigma must be left out for {name!r}, which goes through all noise levels")
        if name in NEED_SAMPLES:
            if not isinstance(model, Classifier):
                got = type(model).__name__
                raise InputError(f"evaluation {name!r} needs a model that can sample, got {got}")
            model.check_can_sample()
        if name in NEED_NOISE:
            noise_conditional(model, name)
    return chosen or [name for name in EVALUATIONS if name not in LONG and _allows(model, name)]


def _allows(model: nn.Module, name: str) -> bool:
    if name in NEED_NOISE:
        return has_noise_levels(model)
    return name not in NEED_SAMPLES or can_sample(model)
