"""Images from outside of a data set, in its shape: what a model should find unlikely."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gmmc.config import DataConfig
from gmmc.data import named, stored
from gmmc.data.digits import digits
from gmmc.data.reading import fitted
from gmmc.data.speaking import say
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.randomness import generator


def noise(images: Tensor, source: torch.Generator) -> Tensor:
    """Uniform pixels."""
    return torch.randint(0, 256, images.shape, dtype=torch.uint8, generator=source)


def constant(images: Tensor, source: torch.Generator) -> Tensor:
    """One uniform colour per image."""
    colours = torch.randint(0, 256, (*images.shape[:2], 1, 1), dtype=torch.uint8, generator=source)
    return colours.expand(images.shape).contiguous()


def interp(images: Tensor, source: torch.Generator) -> Tensor:
    """The middle between each image and another one."""
    count = len(images)
    if count < 2:
        raise InputError(f"interp needs at least two test images, got {count}")
    other = (torch.arange(count) + torch.randint(1, count, (count,), generator=source)) % count
    return ((images.float() + images[other]) / 2).round().to(torch.uint8)


def inverted(images: Tensor, _: torch.Generator) -> Tensor:
    return 255 - images


def rotated(images: Tensor, _: torch.Generator) -> Tensor:
    """A quarter turn to the left."""
    if images.shape[2] != images.shape[3]:
        raise InputError(f"rotated needs square images, got {images.shape[3]}×{images.shape[2]}")
    return images.rot90(1, (2, 3)).contiguous()


# From the test images: as many, and of their shape.
GENERATED: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise": noise,
    "constant": constant,
    "interp": interp,
    "inverted": inverted,
    "rotated": rotated,
}


def outside(name: str, data: Dataset, seed: int = 0) -> Tensor:
    """uint8 images of the shape of `data`: generated, of a named set, or of a folder or parquet file.

    Of another set, its test images if it has any; cropped around the centre and resized to fit.
    """
    if name in GENERATED:
        if len(data.test) == 0:
            raise InputError(f"{name} is made from test images, got none")
        return GENERATED[name](data.test.images, generator(seed, "outside", name))
    if name == "digits":
        return fitted(digits(DataConfig()).test.images, data.shape)
    if name in named.NAMED:
        images, notes = stored.load_unlabelled(named.find(name, data.root), data.shape, name)
    elif (path := Path(name).expanduser()).exists():
        images, notes = stored.load_unlabelled(path, data.shape)
    else:
        known = ", ".join((*GENERATED, "digits", *named.NAMED))
        raise InputError(f"images from outside must be one of {known}, or a folder, got {name!r}")
    for note in notes:
        say(note)
    return images
