"""Images of chains to compare: in 8 bits, and an even choice of them."""

import torch
from torch import Tensor

from gmmc.pixels import to_uint8, to_unit


def as_files(chains: Tensor) -> Tensor:
    """uint8, as image files would hold them."""
    return torch.cat([to_uint8(to_unit(part)) for part in chains.split(10_000)])


def evenly(count: int, most: int) -> Tensor:
    """At most so many places of `count`, evenly spaced: slots are sorted by class at first."""
    return torch.arange(min(count, most)) * count // min(count, most)
