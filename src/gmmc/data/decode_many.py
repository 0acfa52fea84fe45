"""Many encoded images → one tensor: decoded by several threads, counted, all of one size."""

import functools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gmmc.base.limits import PIXELS_AT_ONCE
from gmmc.base.open_image import pillow_rules
from gmmc.data.decode import Conversion, check_memory, decode, fit
from gmmc.data.messages import progress
from gmmc.errors import InputError
from gmmc.pixels import Shape

BATCH = 128  # images in memory at once; fewer if they are large
TASK = 8  # images that a thread takes at a time: one by one, handing over costs as much as a small image

Encoded = tuple[Path | bytes, str]  # a file or its bytes, and how to call it in an error


@dataclass(frozen=True)
class Wanted:
    """How the images of a split are to be read."""

    height: int = 0  # crop and resize to height × width; 0: all must be alike
    width: int = 0
    channels: int = 0  # 1 or 3; 0: 1 if all images are grey, otherwise 3
    label: str | None = ""  # column of the labels; "": found by its name; None: no labels

    @property
    def mode(self) -> str:
        """Pillow's name of the channels; empty where the images decide."""
        return {0: "", 1: "L", 3: "RGB"}[self.channels]


@dataclass(frozen=True)
class Reading:
    """One split as it was read. `labels` are positions in `classes`, both empty without labels."""

    images: Tensor
    labels: Tensor
    classes: tuple[str | int, ...]
    named: bool = False  # the file names all classes; otherwise they are those that occur
    conversions: Counter[Conversion] = field(default_factory=Counter)
    grey: int = 0  # images that are grey by themselves


class Stack:
    """Images of one size, put in one by one. It is grey until the first one in colour."""

    def __init__(self, count: int):
        self.count = count
        self.done = 0
        self.grey = 0
        self._first = ""
        self._images: np.ndarray = np.empty(0, np.uint8)

    def add(self, pixels: np.ndarray, where: str) -> None:
        """Take (height, width) of grey or (height, width, 3) of colour."""
        height, width = pixels.shape[:2]
        if self.done == 0:
            self._first = where
            self._images = self._room(1, height, width)
        if (height, width) != self._images.shape[2:]:
            height, width = self._images.shape[2], self._images.shape[3]
            raise InputError(
                f"all images must have one size, got {pixels.shape[1]}×{pixels.shape[0]} in {where} and "
                f"{width}×{height} in {self._first}; data.size=… crops and resizes them to squares"
            )
        if pixels.ndim == 2:
            self.grey += 1
            self._images[self.done] = pixels
        else:
            if self._images.shape[1] == 1:
                grey, self._images = self._images, self._room(3, height, width)
                self._images[: self.done] = grey[: self.done]
            self._images[self.done] = pixels.transpose(2, 0, 1)
        self.done += 1

    def _room(self, channels: int, height: int, width: int) -> np.ndarray:
        check_memory(self.count, (channels, height, width))
        return np.empty((self.count, channels, height, width), np.uint8)

    @property
    def at_once(self) -> int:
        """Images to decode before any is added: one until their size is known."""
        pixels = self._images.shape[2] * self._images.shape[3] if self.done else PIXELS_AT_ONCE
        return max(1, min(BATCH, PIXELS_AT_ONCE // max(1, pixels)))

    def tensor(self) -> Tensor:
        return torch.from_numpy(self._images)


def read_all(batches: Iterable[Sequence[Encoded]], count: int, wanted: Wanted, title: str) -> Reading:
    """Decode `count` images that come in batches. The first one that cannot be read is named."""
    stack = Stack(count)
    tally: Counter[Conversion] = Counter()
    workers = min(16, os.cpu_count() or 1)
    with pillow_rules(), ThreadPoolExecutor(workers) as pool, progress(title, count) as bar:
        for some in _rounds(batches, stack):
            each = max(1, min(TASK, len(some) // workers))
            tasks = [some[start : start + each] for start in range(0, len(some), each)]
            for decoded in pool.map(functools.partial(_decode_some, wanted=wanted), tasks):
                for pixels, conversions, where in decoded:
                    stack.add(pixels, where)
                    tally.update(conversions)
                bar.update(stack.done)
    return Reading(stack.tensor(), torch.empty(0, dtype=torch.int64), (), False, tally, stack.grey)


def _rounds(batches: Iterable[Sequence[Encoded]], stack: Stack) -> Iterator[Sequence[Encoded]]:
    """As many images of a batch at a time as the stack can take."""
    for batch in batches:
        start = 0
        while start < len(batch):
            some = batch[start : start + stack.at_once]
            start += len(some)
            yield some


def _decode_some(
    some: Sequence[Encoded], wanted: Wanted
) -> list[tuple[np.ndarray, tuple[Conversion, ...], str]]:
    decoded = []
    for source, where in some:
        image, conversions = decode(source, where, mode=wanted.mode, height=wanted.height, width=wanted.width)
        decoded.append((np.asarray(image), conversions, where))
    return decoded


def fitted(images: Tensor, shape: Shape) -> Tensor:
    """uint8 images in another shape, cropped, resized and converted as files of them would be."""
    channels, height, width = shape
    if tuple(images.shape[1:]) == shape:
        return images
    check_memory(len(images), shape)
    fits = torch.empty(len(images), *shape, dtype=torch.uint8)
    for i, image in enumerate(images):
        picture = Image.fromarray((image[0] if len(image) == 1 else image.permute(1, 2, 0)).numpy())
        picture = fit(picture.convert("L" if channels == 1 else "RGB"), height, width)
        fits[i] = torch.from_numpy(np.array(picture).reshape(height, width, channels)).permute(2, 0, 1)
    return fits
