"""Single image files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmmc.data.decode import decode
from gmmc.data.layout import shown
from gmmc.errors import InputError
from gmmc.opening import pillow_rules
from gmmc.pixels import Shape


def read_image(path: str | Path, shape: Shape, *, resize: bool = False) -> Tensor:
    """An image file → uint8 (channels, height, width) of the wanted shape; grey and colour are converted."""
    channels, height, width = shape
    where, size = shown(Path(path)), {"height": height, "width": width} if resize else {}
    with pillow_rules():
        picture, _ = decode(Path(path), where, mode="L" if channels == 1 else "RGB", **size)
    if picture.size != (width, height):
        rule = f"must be {width}×{height} pixels like the training images"
        raise InputError(f"{where} {rule}, got {picture.width}×{picture.height}; or pass --resize")
    array = np.array(picture).reshape(height, width, channels)
    return torch.from_numpy(array).permute(2, 0, 1)
