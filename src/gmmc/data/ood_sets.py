"""Images from outside of a data set, in its shape: what a model should find unlikely."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.base.inputs import expanded
from gmmc.base.seeds import generator
from gmmc.base.text import shortened, suggestion
from gmmc.config.sections import DataConfig
from gmmc.data import local, named
from gmmc.data.augment import cut_out
from gmmc.data.decode_many import fitted
from gmmc.data.digits import digits
from gmmc.data.messages import say
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.pixels import as_uint8, to_signed, to_unit


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


def cutout(images: Tensor, source: torch.Generator) -> Tensor:
    """A grey square of half the smaller side, at random in front of each image."""
    height, width = images.shape[2:]
    side = min(height, width) // 2
    if side == 0:
        raise InputError(f"cutout needs images of at least 2×2 pixels, got {width}×{height}")
    return as_uint8(to_unit(cut_out(to_signed(images), side, source)))


# From the test images: as many, and of their shape.
GENERATED: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "noise": noise,
    "constant": constant,
    "interp": interp,
    "inverted": inverted,
    "rotated": rotated,
    "cutout": cutout,
}


PAIRED = {"interp", "inverted", "rotated", "cutout"}  # image i is made from test image i


@dataclass(frozen=True)
class Outside:
    """A set of other images, and what should be known of it beside a number."""

    name: str
    images: Tensor  # uint8, of the shape of the data set
    notes: tuple[str, ...] = ()
    paired: bool = False


def outside(name: str, data: Dataset, seed: int = 0) -> Tensor:
    """uint8 images of the shape of `data`: generated, of a named set, or of a folder or parquet file.

    Of another set, its test images if it has any; cropped around the centre and resized to fit.
    """
    found = find_outside(name, data, seed)
    for note in found.notes:
        say(note)
    return found.images


def find_outside(name: str, data: Dataset, seed: int = 0) -> Outside:
    if name in GENERATED:
        if len(data.test) == 0:
            raise InputError(f"{name} is made from test images, got none")
        images = GENERATED[name](as_uint8(data.test.images), generator(seed, "outside", name))
        return Outside(name, images, paired=name in PAIRED)
    if name == "digits":
        return Outside(name, fitted(digits(DataConfig()).test.images, data.shape))
    if name in named.NAMED:
        return Outside(name, *local.load_unlabelled(named.find(name, data.root), data.shape, name))
    known = (*GENERATED, "digits", *named.NAMED)
    path = expanded(name)
    if not path.exists():
        hint = suggestion(name, known)
        raise InputError(f"no folder, parquet file or known set of images {shortened(name)} exists; {hint}")
    last = path.resolve().name
    # Not to be taken for the set of that name.
    shown = f"{last} (folder)" if last in known else last
    images, notes = local.load_unlabelled(path, data.shape)
    return Outside(shown, images, (f"{shown}: read from {path}", *notes))
