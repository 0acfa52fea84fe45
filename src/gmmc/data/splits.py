"""Labelled images in memory, checked when they are made."""

import functools
import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.base.class_names import check_class_names
from gmmc.base.seeds import generator
from gmmc.errors import InputError
from gmmc.pixels import Shape, check_range

TEST_SHARE = 0.2
TEST_SEED = 0  # fixed: the test images are the same for every run


@dataclass(frozen=True)
class LabelledImages:
    """Images (N, channels, height, width), uint8 or float32 in [0, 1], and their classes (N,)."""

    images: Tensor
    labels: Tensor

    def __post_init__(self):
        if self.images.dtype not in (torch.uint8, torch.float32) or self.images.ndim != 4:
            raise InputError(
                "images must be uint8 or float32 of the shape (N, channels, height, width), "
                f"got {self.images.dtype} of the shape {tuple(self.images.shape)}"
            )
        check_range(self.images)
        if self.labels.dtype != torch.int64 or tuple(self.labels.shape) != (len(self.images),):
            raise InputError(
                f"labels must be {len(self.images)} whole numbers (int64), one per image, "
                f"got {self.labels.dtype} of the shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index) -> "LabelledImages":
        return LabelledImages(self.images[index], self.labels[index])


@dataclass(frozen=True)
class Parts:
    """What a source gives: a data set before its validation images are held out."""

    name: str
    train: LabelledImages
    test: LabelledImages
    class_names: tuple[str, ...]
    valid: LabelledImages | None = None  # None: the source has none of its own
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dataset:
    """Train on `train`, choose on `valid`, report on `test`."""

    train: LabelledImages
    valid: LabelledImages
    test: LabelledImages
    class_names: tuple[str, ...]
    name: str = "arrays"
    root: str = ""  # where further named sets are looked for
    notes: tuple[str, ...] = ()  # what was done to the images when they were read
    partial: bool = False  # whether classes may lack images, which come in another part

    def __post_init__(self):
        names = check_class_names(tuple(self.class_names), "class_names")
        object.__setattr__(self, "class_names", names)
        count = len(names)
        if count < 2:
            raise InputError(
                f"a classifier needs images of at least two classes, got {', '.join(self.class_names)!r}"
            )
        if len(self.train) == 0:
            raise InputError("the training data must hold at least one image, got none")
        for name in ("train", "valid", "test"):
            part: LabelledImages = getattr(self, name)
            if len(part) and tuple(part.images.shape[1:]) != self.shape:
                raise InputError(
                    f"{name} images must be {self.shape} like train, got {tuple(part.images.shape[1:])}"
                )
            if len(part) and not (part.labels.min() >= 0 and part.labels.max() < count):
                low, high = part.labels.min().item(), part.labels.max().item()
                raise InputError(f"{name} labels must lie in 0..{count - 1}, got {low}..{high}")
        missing = [
            name for name, n in zip(self.class_names, self.class_counts.tolist(), strict=True) if n == 0
        ]
        if missing and not self.partial:
            raise InputError(f"every class needs a training image, got none for {', '.join(missing)}")

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(getattr(self, name))} {name}" for name in ("train", "valid", "test"))
        shape = "×".join(map(str, self.shape))
        return f"Dataset({self.name}: {parts}, {shape}, {len(self.class_names)} classes)"

    @property
    def shape(self) -> Shape:
        return self.train.images.shape[1], self.train.images.shape[2], self.train.images.shape[3]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what a model learns from: a run is only gone on with on the same images and labels."""
        return _hash_of((self.shape, self.class_names), self.train)

    @functools.cached_property
    def held_out_fingerprint(self) -> str:
        """Hash of the validation and test images, which a model is fitted to and measured on."""
        return _hash_of((len(self.valid), len(self.test)), self.valid, self.test)

    @property
    def class_counts(self) -> Tensor:
        return self.train.labels.bincount(minlength=len(self.class_names))

    @property
    def class_frequencies(self) -> Tensor:
        """Shares of the classes among the training images."""
        return self.class_counts / len(self.train)


def _hash_of(facts: tuple, *parts: LabelledImages) -> str:
    digest = hashlib.sha256(repr(facts).encode())
    for part in parts:
        digest.update(part.images.contiguous().numpy().data)
        digest.update(part.labels.contiguous().numpy().data)
    return digest.hexdigest()


def hold_out(data: LabelledImages, share: float, seed: int) -> tuple[LabelledImages, LabelledImages]:
    """(the rest, the share held out), the latter with its due part of every class."""
    order = torch.randperm(len(data), generator=generator(seed, "hold out"))
    by_class = order[data.labels[order].argsort(stable=True)]
    held = torch.zeros(len(data), dtype=torch.bool)
    # Every (1/share)-th image of the shuffled, class-sorted list: each class gives its share, ±1.
    count = round(share * len(data))
    if count:
        held[by_class[(torch.arange(count) * len(data)) // count]] = True
    for y in data.labels[held].unique():
        if held[data.labels == y].all():  # the only images of a class are to be learned from
            held[by_class[data.labels[by_class] == y][0]] = False
    return data[~held], data[held]


def hold_out_test(data: LabelledImages) -> tuple[LabelledImages, LabelledImages]:
    """(the rest, the test images) of a source that does not say which are its test images."""
    return hold_out(data, TEST_SHARE, TEST_SEED)
