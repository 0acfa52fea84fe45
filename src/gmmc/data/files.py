"""Image files outside of data sets: single ones, and all those of a folder."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmmc.base.open_image import Source, pillow_rules
from gmmc.data.decode import Conversion, decode
from gmmc.data.layout import SUFFIXES, shown, visible_files, with_known_suffix
from gmmc.errors import InputError
from gmmc.pixels import Shape


def read_image(path: str | Path, shape: Shape, *, resize: bool = False) -> Tensor:
    """An image file → uint8 (channels, height, width) of the wanted shape; grey and colour are converted."""
    return read_converted(Path(path), shown(Path(path)), shape, resize=resize)[0]


def read_converted(
    source: Source, where: str, shape: Shape, *, resize: bool
) -> tuple[Tensor, tuple[Conversion, ...]]:
    """(the image as `read_image` returns it, what was done to get it). Errors name it by `where`."""
    channels, height, width = shape
    size = {"height": height, "width": width} if resize else {}
    with pillow_rules():
        picture, conversions = decode(source, where, mode="L" if channels == 1 else "RGB", **size)
    if picture.size != (width, height):
        rule = f"must be {width}×{height} pixels like the training images"
        remedy = "pass --resize (in Python, resize=True)"
        raise InputError(f"{where} {rule}, got {picture.width}×{picture.height}; or {remedy}")
    array = np.array(picture).reshape(height, width, channels)
    return torch.from_numpy(array).permute(2, 0, 1), conversions


def find_images(folder: Path) -> tuple[list[Path], tuple[str, ...]]:
    """(image files of a folder and its sub-folders in the order of their names, notes on other files)."""
    try:
        images, notes = with_known_suffix(list(visible_files(folder)))
    except OSError as error:
        raise InputError(f"cannot read {shown(error.filename or folder)}: {error.strerror}") from None
    if not images:
        known = ", ".join(sorted(SUFFIXES))
        raise InputError(f"{shown(folder)} must hold image files, which end in {known}, got none")
    return images, notes
