"""How the rows of a table become images in [0, 1], and back."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gmmc.data.arrays import CHANNELS
from gmmc.errors import InputError
from gmmc.pixels import Shape

MARGIN = 1.25  # the box that chains walk in, relative to the farthest training row
OUTLIER = 8  # interquartile ranges from the median, beyond which a row does not widen the box


@dataclass(frozen=True)
class Rows:
    """A row is a vector, that is an image of one pixel with a channel per number, or an image as it is."""

    given: tuple[int, ...]  # the shape of one row of X
    shape: Shape
    channels_last: bool
    low: np.ndarray  # what becomes 0, of each number or of all pixels
    high: np.ndarray  # what becomes 1
    dtype: np.dtype  # uint8, or float64 for all others

    def __post_init__(self):
        with np.errstate(over="ignore", invalid="ignore"):
            width = self.high - self.low
        if not np.isfinite(width).all():
            raise InputError("X must have a range that float64 can hold, got numbers near ±1e308; scale it")

    @classmethod
    def of_vectors(cls, x: np.ndarray) -> "Rows":
        """Around the median of each column, a little farther than the farthest row that is no outlier."""
        x = x.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # a range that is not finite is refused
            centre = np.median(x, 0)
            farthest = np.abs(x - centre).max(0)
            spread = np.subtract(*np.quantile(x, [0.75, 0.25], axis=0))
            # A column that hardly varies, as a pixel of the margin, has a spread of 0 and no outliers.
            half = MARGIN * np.where(spread > 0, np.minimum(farthest, OUTLIER * spread), farthest)
            # A column that does not vary at all; 1 may be less than float64 resolves there.
            half = np.where(half <= 0, np.maximum(1.0, 1e-9 * np.abs(centre)), half)
            low, high = centre - half, centre + half
        return cls(x.shape[1:], (x.shape[1], 1, 1), False, low, high, np.dtype(np.float64))

    @classmethod
    def of_images(cls, x: np.ndarray, given: tuple[int, ...], image_shape: Any) -> "Rows":
        """uint8, or floating point in [0, 1]; of other numbers, the least is black and the largest white."""
        shape, channels_last = _read_shape(image_shape)
        if math.prod(shape) != x.shape[1]:
            raise InputError(f"image_shape must have {x.shape[1]} numbers, as many as a row, got {shape}")
        if x.dtype == np.uint8:
            return cls(given, shape, channels_last, np.array(0.0), np.array(255.0), np.dtype(np.uint8))
        low, high = float(x.min()), float(x.max())
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        high = high if high > low else low + 1
        return cls(given, shape, channels_last, np.array(low), np.array(high), np.dtype(np.float64))

    def to_unit(self, x: np.ndarray) -> Tensor:
        """(N, numbers) → float64 (N, channels, height, width); what is outside of the range stays outside."""
        if self.dtype == np.uint8 and x.dtype.kind == "f" and x.size and 0 < x.max() <= 1:
            raise InputError(
                f"images must range from 0 to 255 as those of the training, got at most {x.max():g}"
            )
        with np.errstate(over="ignore"):  # farther than numbers go: infinite, and refused if asked about
            return self._arranged((x.astype(np.float64) - self.low) / (self.high - self.low))

    def to_learn(self, x: np.ndarray) -> Tensor:
        """As a data set holds them: uint8 as it is, else float32 within [0, 1]."""
        # What a later part of the data brings may be beyond.
        return self._arranged(x) if x.dtype == np.uint8 == self.dtype else self.to_unit(x).clamp(0, 1).float()

    def from_unit(self, images: Tensor) -> np.ndarray:
        """Images in [0, 1] → rows as they were given."""
        unit = images.cpu().double().numpy()
        if self.channels_last:
            unit = unit.transpose(0, 2, 3, 1)
        rows = unit.reshape(len(unit), math.prod(self.shape)) * (self.high - self.low) + self.low
        rows = np.rint(rows) if self.dtype == np.uint8 else rows
        return rows.astype(self.dtype).reshape(len(unit), *self.given)

    def _arranged(self, rows: np.ndarray) -> Tensor:
        channels, height, width = self.shape
        if self.channels_last:
            rows = rows.reshape(-1, height, width, channels).transpose(0, 3, 1, 2)
        return torch.from_numpy(np.array(rows.reshape(-1, *self.shape)))  # a copy: rows may be read-only


def _read_shape(image_shape: Any) -> tuple[Shape, bool]:
    """(channels, height, width), and whether the channels came last."""
    try:
        sizes = tuple(int(size) for size in image_shape)
    except (TypeError, ValueError):
        sizes = ()
    if min(sizes, default=0) >= 1 and len(sizes) == 2:
        return (1, *sizes), False
    if min(sizes, default=0) >= 1 and len(sizes) == 3 and sizes[0] in CHANNELS:
        return (sizes[0], sizes[1], sizes[2]), False
    if min(sizes, default=0) >= 1 and len(sizes) == 3 and sizes[2] in CHANNELS:
        return (sizes[2], sizes[0], sizes[1]), True
    rule = "(height, width), or that with 1 or 3 channels before or after it"
    raise InputError(f"the shape of an image must be {rule}, got {image_shape}")
