"""How the rows of a table become images in [0, 1], and back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gmmc.errors import InputError
from gmmc.pixels import Shape

CHANNELS = (1, 3)
MARGIN = 1.25  # the box that chains walk in, relative to the farthest training row


@dataclass(frozen=True)
class Rows:
    """A row is a vector, that is an image of one pixel with a channel per number, or an image as it is."""

    given: tuple[int, ...]  # the shape of one row of X
    shape: Shape
    channels_last: bool
    centre: np.ndarray  # of each number's range, or of that of all pixels
    half: np.ndarray  # of the width of that range
    dtype: np.dtype  # of samples

    @classmethod
    def of_vectors(cls, x: np.ndarray) -> "Rows":
        """Around the mean of each column, a little farther than the farthest row."""
        x = x.astype(np.float64)
        centre = x.mean(0)
        half = MARGIN * np.abs(x - centre).max(0)
        half[~(half > 0)] = 1.0  # a column that does not vary
        return cls(x.shape[1:], (x.shape[1], 1, 1), False, centre, half, np.dtype(np.float64))

    @classmethod
    def of_images(cls, x: np.ndarray, given: tuple[int, ...], image_shape: Sequence[int]) -> "Rows":
        """uint8, or floating point in [0, 1]; of other numbers, the least is black and the largest white."""
        shape, channels_last = _read_shape(image_shape)
        if np.prod(shape) != x.shape[1]:
            raise InputError(f"image_shape must have {x.shape[1]} numbers, as many as a row, got {shape}")
        integers = x.dtype == np.uint8
        low, high = (0.0, 255.0) if integers else (float(x.min()), float(x.max()))
        if not integers and low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        half = (high - low) / 2 or 1.0
        dtype = np.dtype(np.uint8 if integers else np.float64)
        return cls(given, shape, channels_last, np.array((low + high) / 2), np.array(half), dtype)

    @property
    def are_vectors(self) -> bool:
        return self.shape[1:] == (1, 1)

    def to_unit(self, x: np.ndarray) -> Tensor:
        """(N, numbers) → float64 (N, channels, height, width); what is outside of the range stays outside."""
        unit = ((x.astype(np.float64) - self.centre) / self.half + 1) / 2
        channels, height, width = self.shape
        if self.channels_last:
            unit = unit.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(unit.reshape(-1, *self.shape)))

    def from_unit(self, images: Tensor) -> np.ndarray:
        """Images in [0, 1] → rows as they were given."""
        unit = images.cpu().double().numpy()
        if self.channels_last:
            unit = unit.transpose(0, 2, 3, 1)
        rows = (unit.reshape(len(unit), -1) * 2 - 1) * self.half + self.centre
        rows = np.rint(rows) if self.dtype == np.uint8 else rows
        return rows.astype(self.dtype).reshape(len(unit), *self.given)


def _read_shape(image_shape: Sequence[int]) -> tuple[Shape, bool]:
    """(channels, height, width), and whether the channels came last."""
    sizes = tuple(int(size) for size in image_shape)
    if len(sizes) == 2:
        return (1, *sizes), False
    if len(sizes) == 3 and sizes[0] in CHANNELS:
        return (sizes[0], sizes[1], sizes[2]), False
    if len(sizes) == 3 and sizes[2] in CHANNELS:
        return (sizes[2], sizes[0], sizes[1]), True
    rule = "(height, width), or that with 1 or 3 channels before or after it"
    raise InputError(f"the shape of an image must be {rule}, got {sizes}")
