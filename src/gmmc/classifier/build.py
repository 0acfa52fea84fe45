"""A classifier from a recipe, and the recipe of a classifier."""

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from gmmc.base.class_names import check_class_names
from gmmc.classifier.checks import check_model, without_means
from gmmc.classifier.drawing import DrawingSettings
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.errors import InputError
from gmmc.networks.backbones import build_backbone, feature_dim
from gmmc.networks.heads import HEADS, Head
from gmmc.pixels import Shape
from gmmc.sampling.initial import GaussianStart, InitialImages, NoiseStart, UniformStart


def build(cfg: Config, shape: Shape, class_names: Sequence[str], priors: Tensor | None = None) -> Classifier:
    """Build the model of a recipe, with random weights, and record the recipe as its `cfg`."""
    check_model(cfg)
    classes = len(check_class_names(tuple(class_names), "class_names"))
    backbone = build_backbone(cfg.model, shape, noise_level=cfg.noise_conditional)
    head = HEADS[cfg.model.head](classes, feature_dim(backbone), cfg.model.scale, priors)
    model = Classifier(
        backbone,
        head,
        _initial_images(cfg, shape, classes),
        shape=shape,
        class_names=class_names,
        abstain=cfg.abstain,
        drawing=_drawing_settings(cfg),
        no_drawing=_no_drawing(cfg, head),
        resizes=cfg.data.size > 0,
        denoising=cfg.denoising if cfg.noise_conditional else None,
    )
    model.cfg = cfg
    return model


def recipe_of(model: Classifier) -> Config:
    """Return the recipe of a model, with the rule to abstain and the sampler that are in force."""
    if model.cfg is None:
        raise InputError(
            "the model must have a recipe (cfg), which files keep; a gmmc.Classifier built by hand has none"
        )
    cfg = dataclasses.replace(model.cfg, abstain=model.abstain)
    if model.drawing is None:
        return cfg
    sample = dataclasses.replace(cfg.sample, steps=model.drawing.steps)
    return dataclasses.replace(cfg, sampler=model.drawing.sampler, sample=sample)


def _initial_images(cfg: Config, shape: Shape, classes: int) -> InitialImages:
    if cfg.buffer.start == "gaussian" and cfg.samples:
        return GaussianStart(shape, classes, cfg.buffer.rank, cfg.buffer.detail)
    return NoiseStart(shape) if cfg.noise_conditional else UniformStart(shape)


def _drawing_settings(cfg: Config) -> DrawingSettings | None:
    """None for a training without samples."""
    if not cfg.samples:
        return None
    return DrawingSettings(cfg.sampler, cfg.sample.steps, cfg.train.engine, cfg.train.precision)


def _no_drawing(cfg: Config, head: Head) -> str:
    sampler = "" if head.has_means else f" and sampler.name={without_means()}, since it has no class means"
    return (
        f"this model was trained without samples (train.beta={cfg.train.beta:g}, "
        f"generative.epochs={cfg.generative.epochs}); train one with both above 0{sampler}, "
        "as the recipe digits does"
    )
