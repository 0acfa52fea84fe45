"""Augmentation of whole batches on their device. Images are in [−1, 1]."""

import torch
import torch.nn.functional as F
from torch import Tensor


def augment(x: Tensor, *, shift: int, flip: bool, noise: float, generator: torch.Generator) -> Tensor:
    if shift:
        x = random_shift(x, shift, generator)
    if flip:
        mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    if noise:
        x = x + noise * torch.randn(x.shape, generator=generator, device=x.device)
    return x


def random_shift(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `most` pixels in both directions, edges filled by reflection."""
    batch, _, height, width = x.shape
    padded = F.pad(x, (most, most, most, most), mode="reflect")
    offsets = torch.randint(0, 2 * most + 1, (2, batch, 1), generator=generator, device=x.device)
    rows = offsets[0] + torch.arange(height, device=x.device)
    columns = offsets[1] + torch.arange(width, device=x.device)
    image = torch.arange(batch, device=x.device)
    # Indices around a slice put the channels last.
    return (
        padded[image[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        .permute(0, 3, 1, 2)
        .contiguous()
    )
