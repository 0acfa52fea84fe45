"""A data set from arrays in memory."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gmmc.base.text import shortened
from gmmc.data.splits import TEST_SEED, Dataset, LabelledImages, hold_out
from gmmc.errors import InputError
from gmmc.pixels import as_batch, as_uint8

CHANNELS = (1, 3)


def from_arrays(
    images,
    labels,
    class_names: Sequence[str] | None = None,
    *,
    test: float = 0.2,
    valid: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Images (N, C, H, W), (N, H, W, C) or (N, H, W), uint8 or in [0, 1], and a class for each.

    Labels are whole numbers or strings. Without `class_names` the classes are the labels that occur, sorted.
    The shares `test` and then `valid` are held out; the seed moves the validation images only.
    """
    for name, share in (("test", test), ("valid", valid)):
        if not 0 <= share <= 0.9:
            raise InputError(f"{name} must be a share from 0 to 0.9, got {share}")
    pixels = _pixels(images)
    classes, names = _classes(labels, class_names, len(pixels))
    rest, held = hold_out(LabelledImages(pixels, classes), test, TEST_SEED)
    chosen, checked = hold_out(rest, valid, seed)
    return Dataset(chosen, checked, held, names)


def _pixels(images) -> Tensor:
    """uint8 (N, channels, height, width)."""
    array = images.detach().cpu() if isinstance(images, Tensor) else _array(images, "images")
    shape = tuple(array.shape)
    if len(shape) == 3:
        batch = as_batch(array, (1, *shape[1:]))
    elif len(shape) == 4 and (shape[1] in CHANNELS) != (shape[3] in CHANNELS):
        first = shape[1] in CHANNELS
        batch = as_batch(array, shape[1:] if first else (shape[3], shape[1], shape[2]))
    else:
        one = "either axis 1 or axis 3 of length 1 or 3 (the channels)"
        raise InputError(
            f"images must have the shape (N, height, width), or four axes with {one}, got {shape}"
        )
    return as_uint8(batch).contiguous()


def _classes(labels, class_names: Sequence[str] | None, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """(positions in the class names, class names)."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else _array(labels, "labels")
    if array.shape != (count,):
        raise InputError(f"labels must be one per image, {count} in one row, got the shape {array.shape}")
    strings = array.dtype.kind in "UT" or (array.dtype == object and all(isinstance(v, str) for v in array))
    if not strings and array.dtype.kind not in "iub":
        raise InputError(f"labels must be whole numbers or strings, got {array.dtype}")
    values, positions = np.unique(array.astype(str) if strings else array, return_inverse=True)
    occurring = values.tolist()
    if class_names is None:
        return torch.from_numpy(positions), tuple(map(str, occurring))
    names = tuple(map(str, class_names))
    known = names if strings else range(len(names))
    unknown = [value for value in occurring if value not in known]
    if unknown:
        rule = "be class names" if strings else f"lie in 0..{len(names) - 1}, the positions of class_names"
        raise InputError(f"labels must {rule}, got {shortened(unknown[0])}")
    return torch.tensor([known.index(value) for value in occurring])[torch.from_numpy(positions)], names


def _array(values, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be an array: {' '.join(str(error).split())}") from None
