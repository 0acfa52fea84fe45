"""Single image files."""

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gmmc.errors import InputError
from gmmc.pixels import Shape

SAFE_MODES = ("1", "L", "P", "RGB")  # 8 bits or fewer per channel, nothing transparent


def read_image(path: str | Path, shape: Shape, *, resize: bool = False) -> Tensor:
    """An image file → uint8 (channels, height, width) of the wanted shape; grey and colour are converted."""
    channels, height, width = shape
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path)
        with image:
            if image.mode not in SAFE_MODES or "transparency" in image.info:
                raise InputError(
                    f"{path} must be 8-bit grey or RGB without transparency, got mode {image.mode}"
                )
            picture = image.convert("L" if channels == 1 else "RGB")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no image file {str(path)!r}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Warning) as error:
        raise InputError(f"cannot read {path} as an image: {error}") from None
    if picture.size != (width, height):
        if not resize:
            got = f"{picture.size[0]}×{picture.size[1]}"
            rule = f"must be {width}×{height} pixels like the training images"
            raise InputError(f"{path} {rule}, got {got}; or pass --resize")
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    array = np.asarray(picture).reshape(height, width, channels)
    return torch.from_numpy(array.copy()).permute(2, 0, 1)
