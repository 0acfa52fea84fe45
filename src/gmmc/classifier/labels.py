"""Labels as users give them → class indices."""

import torch
from torch import Tensor

from gmmc.errors import InputError


def label_tensor(labels, count: int, classes: int) -> Tensor:
    """`count` class indices as a checked tensor."""
    try:
        y = torch.as_tensor(labels if hasattr(labels, "__len__") else list(labels))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"labels must be a list of whole numbers: {error}") from None
    if (y.is_floating_point() and y.numel()) or y.ndim != 1 or len(y) != count:
        got = f"{y.dtype} of the shape {tuple(y.shape)}"
        raise InputError(f"labels must be {count} whole numbers, one per image, got {got}")
    if count and not (y.min() >= 0 and y.max() < classes):
        raise InputError(f"labels must lie in 0..{classes - 1}, got {y.min().item()}..{y.max().item()}")
    return y.long()
