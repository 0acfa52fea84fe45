"""Single image files."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gmmc.data.decode import decode, fit, pillow_rules
from gmmc.errors import InputError
from gmmc.pixels import Shape


def read_image(path: str | Path, shape: Shape, *, resize: bool = False) -> Tensor:
    """An image file → uint8 (channels, height, width) of the wanted shape; grey and colour are converted."""
    channels, height, width = shape
    with pillow_rules():
        picture, _ = decode(Path(path), str(path))
    picture = picture.convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height) and not resize:
        rule = f"must be {width}×{height} pixels like the training images"
        raise InputError(f"{path} {rule}, got {picture.width}×{picture.height}; or pass --resize")
    array = np.array(fit(picture, height, width)).reshape(height, width, channels)
    return torch.from_numpy(array).permute(2, 0, 1)
