"""The recipe that a fit follows, from the parameters of the estimator."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gmmc.base.text import shortened
from gmmc.config import recipes, schema
from gmmc.config.schema import Config
from gmmc.config.sections import SamplerConfig
from gmmc.errors import InputError
from gmmc.networks.heads import HEADS
from gmmc.pixels import Shape, is_vector

SMALL_IMAGE = 16  # pixels a side up to which training with samples takes a minute on a CPU, not an hour
PHASES = ("discriminative", "generative")
# By algorithm: recipes for rows of numbers, for small images and for larger ones; "" where there is none.
AUTOMATIC = {
    "contrastive": ("vectors", "images", "photos"),
    "denoising": ("vectors-denoising", "images-denoising", ""),
}


def chosen(
    recipe: str, shape: Shape, classes: int, overrides: Mapping[str, Any], algorithm: str | None = None
) -> Config:
    """A recipe by name or file, or the one for rows of this shape, with its overrides.

    `algorithm`: the one that the recipe must have; None for any.
    """
    vectors = is_vector(shape)
    if recipe == "auto":
        recipe = automatic(shape, algorithm or "contrastive")
    if not isinstance(recipe, str | Path):
        raise InputError(f"recipe must be a name or a file, got {shortened(recipe)}")
    changes = {key: _plain(value) for key, value in overrides.items()}
    trained_by = changes.get("train.algorithm", train_section(recipe).get("algorithm"))
    if changes.get("train.beta") == 0 and trained_by not in schema.NOISE_CONDITIONAL:  # nothing is sampled
        changes |= {"generative.epochs": 0, "sampler.name": SamplerConfig.name}
    if "train.start" not in changes:
        check_no_start(recipe)
        # Rows have no class names to choose a start by, and a silent fit would not report which it chose.
        changes["train.start"] = ""
    cfg = recipes.load(recipe, changes)
    if algorithm not in (None, cfg.train.algorithm):
        rule = f"algorithm must be None or {cfg.train.algorithm!r} with the recipe {shortened(recipe)}"
        raise InputError(f'{rule}, got {algorithm!r}; recipe="auto" chooses one for it')
    if changes.get("train.beta") and not cfg.samples:
        rule = f"beta={cfg.train.beta:g} needs generative epochs, and the recipe {shortened(recipe)} has none"
        raise InputError(f'{rule}; give settings={{"generative.epochs": …}}, or another recipe')
    if vectors and "mlp" not in cfg.model.backbone:
        rule = "for rows of numbers, the recipe must have an MLP such as model.backbone=mlp-2-64"
        raise InputError(f"{rule}, got {cfg.model.backbone}; for images give image_shape")
    needed = classes - 1  # for equiangular means
    if HEADS[cfg.model.head].fixed_means and 0 < cfg.model.dim < needed:
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dim=needed))
    return cfg


def automatic(shape: Shape, algorithm: str) -> str:
    """Name of the recipe for rows of this shape."""
    _, height, width = shape
    large = max(height, width) > SMALL_IMAGE
    recipe = AUTOMATIC[algorithm][0 if is_vector(shape) else 2 if large else 1]
    if not recipe:
        raise InputError(
            f"algorithm={algorithm!r} has a recipe for images up to {SMALL_IMAGE}×{SMALL_IMAGE}, got "
            f'{height}×{width}; larger ones need a GPU, and a recipe such as recipe="cifar10-denoising"'
        )
    return recipe


def check_no_start(recipe: str | Path) -> None:
    """Refuse a recipe that names a start, which is a parameter here; "auto" is not followed."""
    named = train_section(recipe).get("start", "")
    if named not in ("", schema.AUTO_START):
        raise InputError(f"recipe must leave train.start to the parameter start, got {shortened(named)}")


def train_section(recipe: str | Path) -> dict[str, Any]:
    """Section [train] of a recipe as it is written, not checked yet."""
    table = recipes.read_toml(recipes.find_recipe(recipe)).get("train")
    return table if isinstance(table, dict) else {}


def lengthened(cfg: Config, rows: int, least_updates: int) -> Config:
    """With so many epochs that each phase of the recipe has that many updates."""
    per_epoch = max(1, rows // cfg.train.batch_size)
    phases = {}
    for name in PHASES:
        phase = getattr(cfg, name)
        if phase.epochs:
            epochs = max(phase.epochs, math.ceil(least_updates / per_epoch))
            warmup = min(phase.warmup, epochs * per_epoch)
            phases[name] = dataclasses.replace(phase, epochs=epochs, warmup=warmup)
    return dataclasses.replace(cfg, **phases)


def one_pass(cfg: Config) -> Config:
    """One epoch of each phase that the recipe has, at a constant pace."""
    phases = {
        name: dataclasses.replace(phase, epochs=1, warmup=0, schedule="step", decay_epochs=())
        for name in PHASES
        if (phase := getattr(cfg, name)).epochs
    }
    model = dataclasses.replace(cfg.model, priors="uniform")
    return dataclasses.replace(cfg, model=model, train=dataclasses.replace(cfg.train, ramp=0), **phases)


def _plain(value: Any) -> Any:
    """Numbers of numpy, as a grid of settings has them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value
