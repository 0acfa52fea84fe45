"""Which rows are held out is decided by their content: no call learns from what another held out."""

import hashlib

import numpy as np
import torch
from torch import Tensor

from gmmc.data.splits import LabelledImages


def held_out(images: Tensor, share: float, seed: int) -> Tensor:
    """Whether each image is among that share; the same image is so wherever and whenever it comes."""
    key = seed.to_bytes(8, "little")
    rounded = images.double().round(decimals=6).numpy() + 0.0  # which unit a column has is no matter, nor −0
    drawn = [hashlib.blake2b(image.tobytes(), digest_size=8, key=key).digest() for image in rounded]
    return torch.tensor(
        [int.from_bytes(number, "little") / 2**64 < share for number in drawn], dtype=torch.bool
    )


def split(
    rows: LabelledImages, held: Tensor, *, every_class: bool = False
) -> tuple[LabelledImages, LabelledImages]:
    """(the rest, those held out); with `every_class` no class loses all of its rows."""
    if every_class:
        held = held.clone()
        for y in rows.labels[held].unique():
            if held[rows.labels == y].all():
                held[rows.labels == y] = False
    return rows[~held], rows[held]


def joined(first: LabelledImages, second: LabelledImages) -> LabelledImages:
    """Both, each row once, in the order they came."""
    images, labels = torch.cat([first.images, second.images]), torch.cat([first.labels, second.labels])
    _, places = np.unique(images.flatten(1).numpy(), axis=0, return_index=True)
    return LabelledImages(images, labels)[torch.from_numpy(np.sort(places))]
