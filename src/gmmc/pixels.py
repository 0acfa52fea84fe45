"""The only place where pixel ranges are converted.

Users hold uint8 or [0, 1]; batches, buffer and sampler hold [−1, 1]. A vector of n numbers is an image of n
channels and one pixel. Float64 stays float64: with a network of that precision, all of it is.
"""

import numpy as np
import torch
from torch import Tensor

from gmmc.base.precision import full_precision
from gmmc.errors import InputError

Shape = tuple[int, int, int]  # channels, height, width
UNIT = 2.0  # length of [0, 1] in [−1, 1]
BIN = UNIT / 255  # distance of two neighbouring values of uint8 there
READERS = "gmmc.read_images(files, model) reads files and PIL images"


def is_vector(shape: Shape) -> bool:
    """Whether it is that of a row of numbers, not of an image."""
    return shape[1:] == (1, 1)


def as_unit(images: Tensor) -> Tensor:
    """uint8 or [0, 1] → floating point in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else full_precision(images)


def to_signed(images: Tensor) -> Tensor:
    """uint8 or [0, 1] → floating point in [−1, 1]."""
    return as_unit(images) * 2 - 1


def dequantised(images: Tensor, uniform: Tensor) -> Tensor:
    """uint8 → [−1, 1] with noise as wide as a bin: 2(byte + U − ½)/255 − 1, U uniform in [0, 1)."""
    return (images.float() + uniform - 0.5) / 255 * 2 - 1


def to_unit(signed: Tensor) -> Tensor:
    """[−1, 1] → floating point in [0, 1]."""
    return (full_precision(signed) + 1) / 2


def to_uint8(unit: Tensor) -> Tensor:
    """[0, 1] → uint8, as image files store it."""
    return (unit * 255).round().clamp(0, 255).to(torch.uint8)


def as_uint8(images: Tensor) -> Tensor:
    """uint8 or [0, 1] → uint8."""
    return images if images.dtype == torch.uint8 else to_uint8(images)


def as_batch(images, shape: Shape, *, bounded: bool = True) -> Tensor:
    """What a user calls images → a (N, channels, height, width) tensor of uint8 or [0, 1].

    Takes arrays and tensors, channels first or last; the channel axis may be missing when there is one.
    `bounded`: refuse numbers outside of [0, 1], which noise would lead to.
    """
    try:
        batch = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    except (TypeError, ValueError) as error:
        reason, _, _ = str(error).partition(". ")  # torch lists all its types
        rule = "images must be an array of uint8 or floating point in [0, 1]"
        raise InputError(f"{rule}: {reason}; {READERS}") from None
    channels, height, width = shape
    if channels == 1 and tuple(batch.shape[1:]) == (height, width):
        batch = batch.unsqueeze(1)
    elif tuple(batch.shape[1:]) == (height, width, channels) and tuple(batch.shape[1:]) != shape:
        batch = batch.permute(0, 3, 1, 2)
    if batch.ndim != 4 or tuple(batch.shape[1:]) != shape:
        rule = f"images must have the shape (N, {channels}, {height}, {width})"
        raise InputError(f"{rule}, got {tuple(batch.shape)}; {READERS}")
    if batch.dtype == torch.uint8:
        return batch
    if not batch.is_floating_point():
        raise InputError(f"images must be uint8 or floating point in [0, 1], got {batch.dtype}")
    if bounded:
        check_range(batch)
    return full_precision(batch)


def check_range(images: Tensor) -> None:
    """Refuse floating point numbers outside of [0, 1]."""
    if images.is_floating_point() and images.numel():
        low, high = images.detach().min().item(), images.detach().max().item()
        if not (low >= 0 and high <= 1):  # also false for NaN
            raise InputError(f"floating point images must lie in [0, 1], got values from {low:g} to {high:g}")
