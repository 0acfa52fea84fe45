"""Our own sampler and updates, as `gmmc train` runs them, on images of noise."""

import functools

import torch

from gmmc.bench.cells import DISCRIMINATIVE, Cell, Preset
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.pixels import Shape
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner

CLASSES = 10
# So small that hundreds of updates on noise do not lead anywhere, least of all to 10²⁰.
LR = 1e-7
ENDLESS = 1000  # epochs: as in a long training, compiling pays


def new_learner(cell: Cell, phase: str, preset: Preset, device: torch.device) -> Learner:
    cfg = recipe(cell, phase, preset, device)
    fabric = build_fabric(cfg.train)
    return Learner(cfg, noise_images(preset.images, cell.shape), fabric)


def recipe(cell: Cell, phase: str, preset: Preset, device: torch.device) -> Config:
    """With the augmentation of a CIFAR-10 recipe, which the reference does without."""
    augmentation = {"shift": 4 if cell.shape[1] >= 32 else 1, "flip": True, "noise": 0.03}
    name = "discriminative" if phase == DISCRIMINATIVE else "generative"
    return recipes.from_dict(
        {
            "model": {"backbone": cell.network},
            "train": {"batch_size": cell.batch, "device": str(device), **preset.train},
            name: {"epochs": ENDLESS, "lr": LR, **augmentation},
            "sampler": {"steps": preset.steps},
            "buffer": {"size": preset.buffer},
        }
    )


@functools.lru_cache(maxsize=1)
def noise_images(count: int, shape: Shape) -> Dataset:
    """Speed does not ask what is on them."""
    source = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=source)
    labels = torch.arange(count) % CLASSES
    train = LabelledImages(images, labels)
    few = LabelledImages(images[:CLASSES], labels[:CLASSES])
    return Dataset(train, few, few, tuple(map(str, range(CLASSES))), "noise")
