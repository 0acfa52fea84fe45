"""Checks of a recipe before anything is written: alone, and with the data and the number of processes."""

import torch

from gmmc.classifier.build import build
from gmmc.classifier.checks import check_model
from gmmc.classifier.model import pick_device
from gmmc.config.schema import Config
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.networks.backbones import split_last
from gmmc.networks.heads import HEADS
from gmmc.pixels import is_vector
from gmmc.sampling.engine import choose
from gmmc.train.learner import ALGORITHMS


def check_recipe(cfg: Config) -> None:
    """Refuse settings that are each allowed and make no sense together, before data are read."""
    check_model(cfg)
    ALGORITHMS[cfg.train.algorithm].check_recipe(cfg)


def check(cfg: Config, data: Dataset, processes: int) -> None:
    """Refuse a recipe that these data or so many processes do not allow."""
    choose(cfg.train.engine, pick_device(cfg.train.device), compile=False)
    smallest_side = min(data.shape[1:])
    for name in ("discriminative", "generative", "contrast", "denoising"):
        for key in ("shift", "cutout"):
            pixels = getattr(getattr(cfg, name), key)
            if pixels >= smallest_side:
                rule = f"must be less than the image size {smallest_side}"
                raise InputError(f"{name}.{key} {rule}, got {pixels}")
        colour = getattr(cfg, name).colour
        if colour and is_vector(data.shape):
            raise InputError(f"{name}.colour must be 0 with rows of numbers, got {colour:g}")
    batch_size = min(cfg.train.batch_size, len(data.train))
    if processes > batch_size:
        rule = f"must be at most the {batch_size} images of a batch"
        raise InputError(f"the number of processes, train.devices × train.nodes, {rule}, got {processes}")
    if batch_size % processes:
        rule = f"must be a multiple of the {processes} processes"
        raise InputError(f"train.batch_size {rule}, got {batch_size}")
    ALGORITHMS[cfg.train.algorithm].check_data(cfg, data, processes)
    updates = len(data.train) // batch_size
    for name in ("discriminative", "generative"):
        phase = getattr(cfg, name)
        if phase.epochs and phase.warmup > phase.epochs * updates:
            rule = f"must be at most the {phase.epochs * updates} updates of the phase"
            remedy = f"lower it or raise {name}.epochs"
            raise InputError(f"{name}.warmup {rule}, got {phase.warmup}; {remedy}")
    classes, dim = len(data.class_names), cfg.model.dim
    if HEADS[cfg.model.head].fixed_means and 0 < dim < classes - 1:
        rule = f"must be at least {classes - 1} for equiangular means of {classes} classes, or 0"
        raise InputError(f"model.dim {rule}, got {dim}")
    with torch.device("meta"):  # a network that cannot be built is refused before anything is written
        model = build(cfg, data.shape, data.class_names)
    frozen, last = cfg.transfer.frozen_epochs, split_last(model.backbone)[1]
    if frozen and not [*last.parameters(), *model.head.parameters()]:
        rule = "transfer.frozen_epochs needs a last layer that learns, model.dim above 0"
        raise InputError(f"{rule}, got transfer.frozen_epochs={frozen} and model.dim={dim}")
