"""Augmentation of whole batches on their device. Images are in [−1, 1]."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.config.sections import AugmentConfig


def augment(x: Tensor, cfg: AugmentConfig, generator: torch.Generator) -> Tensor:
    if cfg.shift:
        x = random_shift(x, cfg.shift, generator)
    if cfg.flip:
        mirrored = torch.rand(len(x), generator=generator, device=x.device) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    if cfg.colour:
        x = jitter_colour(x, cfg.colour, generator)
    if cfg.cutout:
        x = cut_out(x, cfg.cutout, generator)
    if cfg.noise:
        x = x + cfg.noise * torch.randn(x.shape, generator=generator, device=x.device)
    return x


def random_shift(x: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Each image moved by up to `most` pixels in both directions: padded by reflection, cropped at random."""
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


def jitter_colour(x: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Each image in other light: brightness, contrast and saturation, in this order (DiffAugment).

    With a, b, c ~ U(−most, most): a is added to all pixels, differences from the image's mean grow by the
    factor 1 + b, and those from each pixel's grey by 1 + c. An image of one channel is grey already.
    """
    drawn = torch.rand(3, len(x), 1, 1, 1, generator=generator, device=x.device)
    brightness, contrast, saturation = most * (2 * drawn - 1)
    x = x + brightness
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (1 + contrast) * (x - mean)
    grey = x.mean(1, keepdim=True)
    return (grey + (1 + saturation) * (x - grey)).clamp(-1, 1)


def cut_out(x: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A grey square at random in front of each image; its centre is in the image, its edges need not be."""
    batch, _, height, width = x.shape

    def covered(size: int) -> Tensor:
        first = torch.randint(size, (batch, 1), generator=generator, device=x.device) - side // 2
        place = torch.arange(size, device=x.device)
        return (place >= first) & (place < first + side)

    square = covered(height)[:, :, None] & covered(width)[:, None, :]
    return x.masked_fill(square[:, None], 0.0)
