"""Wide ResNets whose input gradients are smooth: SiLU, average pooling, a stabiliser without batch statistics.

Denoising training fits these gradients. LeakyReLU would make them jump, and the adjoint of a strided convolution
leaves checkerboards.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.base.precision import full_precision

SPATIAL = 16  # features per place of the last map, whose mean is 0 in every class


# --- group norm ---


class GroupNorm(nn.Module):
    """Group norm in plain operations that compile well, with statistics in float32."""

    def __init__(self, width: int):
        super().__init__()
        self.groups = max(1, min(32, width // 4))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        exact = full_precision(x)
        # Per channel first: pixels are summed in the order in which channels-last memory holds them.
        mean, square = exact.mean((2, 3)), exact.square().mean((2, 3))
        mean, square = (s.unflatten(1, (self.groups, -1)).mean(-1, keepdim=True) for s in (mean, square))
        scale = (square - mean.square()).clamp(min=0).add(1e-5).rsqrt()
        weight, bias = (p.view(1, self.groups, -1) for p in (self.weight, self.bias))
        scale, shift = scale * weight, bias - mean * scale * weight
        scale, shift = scale.flatten(1)[:, :, None, None], shift.flatten(1)[:, :, None, None]
        return (exact * scale + shift).to(x.dtype)


class GroupBlock(nn.Module):
    def __init__(self, width_in: int, width_out: int, pool: bool):
        super().__init__()
        self.pool = pool
        self.norm1, self.norm2 = GroupNorm(width_in), GroupNorm(width_out)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        same = width_in == width_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.norm1(x))
        if self.pool:
            h, x = F.avg_pool2d(h, 2), F.avg_pool2d(x, 2)
        h = self.conv2(F.silu(self.norm2(self.conv1(h))))
        return self.shortcut(x) + h


# --- magnitude-preserving layers (Karras et al. 2024) ---


class UnitConv2d(nn.Conv2d):
    """Filters of norm 1: uncorrelated inputs keep their variance."""

    def __init__(self, width_in: int, width_out: int, size: int):
        super().__init__(width_in, width_out, size, padding=size // 2, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        weight = full_precision(self.weight)
        weight = weight / weight.flatten(1).norm(dim=1)[:, None, None, None]
        return F.conv2d(input, weight.to(input.dtype), padding=self.padding)  # pyright: ignore[reportArgumentType]


def pixel_norm(x: Tensor) -> Tensor:
    """Each pixel's channels to RMS 1."""
    exact = full_precision(x)
    return (exact * (exact.square().mean(1, keepdim=True) + 1e-4).rsqrt()).to(x.dtype)


def unit_silu(x: Tensor) -> Tensor:
    """SiLU whose output has RMS 1 for N(0, 1)."""
    return F.silu(x) / 0.596


class MagnitudeBlock(nn.Module):
    SHARE = 0.3  # of the branch in the sum

    def __init__(self, width_in: int, width_out: int, pool: bool):
        super().__init__()
        self.pool = pool
        self.conv1 = UnitConv2d(width_in, width_out, 3)
        self.conv2 = UnitConv2d(width_out, width_out, 3)
        same = width_in == width_out
        self.shortcut = nn.Identity() if same else UnitConv2d(width_in, width_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.pool:
            x = F.avg_pool2d(x, 2)
        x = pixel_norm(self.shortcut(x))
        first = self.conv1(unit_silu(x)) if isinstance(self.shortcut, nn.Identity) else x
        h = self.conv2(unit_silu(first))
        share = self.SHARE
        return ((1 - share) * x + share * h) / ((1 - share) ** 2 + share**2) ** 0.5


# --- scaled weight standardisation (Brock et al. 2021) ---


class StandardConv2d(nn.Conv2d):
    """Filters of mean 0 and norm 1, times a learned gain."""

    def __init__(self, width_in: int, width_out: int, size: int, gain: float = 1.0):
        super().__init__(width_in, width_out, size, padding=size // 2)
        self.gain = nn.Parameter(torch.full((width_out, 1, 1, 1), gain))

    def forward(self, input: Tensor) -> Tensor:
        weight = full_precision(self.weight)
        var, mean = torch.var_mean(weight, (1, 2, 3), keepdim=True, correction=0)
        scale = (var * weight[0].numel()).clamp(min=1e-4).rsqrt() * full_precision(self.gain)
        weight = (weight - mean) * scale
        return F.conv2d(input, weight.to(input.dtype), self.bias, padding=self.padding)  # pyright: ignore[reportArgumentType]


class StandardBlock(nn.Module):
    SHARE = 0.2

    def __init__(self, width_in: int, width_out: int, pool: bool, deviation: float):
        super().__init__()
        self.pool, self.deviation = pool, deviation
        self.conv1 = StandardConv2d(width_in, width_out, 3)
        self.conv2 = StandardConv2d(width_out, width_out, 3, gain=0.1)
        same = width_in == width_out and not pool
        self.shortcut = nn.Identity() if same else StandardConv2d(width_in, width_out, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(x / self.deviation) * 1.7868
        if self.pool:
            h = F.avg_pool2d(h, 2)
        if not isinstance(self.shortcut, nn.Identity):
            x = self.shortcut(h)
        return x + self.SHARE * self.conv2(F.silu(self.conv1(h)) * 1.7868)


class Coordinates(nn.Module):
    """Pooled features, which hold the class means, then spatial ones."""

    def __init__(self, width: int, dim: int):
        super().__init__()
        self.spatial = nn.Conv2d(width, SPATIAL, 1)
        self.pooled = nn.Linear(width, dim or width)  # last: its outputs are the head's
        with torch.no_grad():  # γ² is small, so that logits would begin far too large
            self.pooled.weight.mul_(0.1)
            self.pooled.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.pooled(x.mean((2, 3))), self.spatial(x).flatten(1)], 1)


class NormSiLU(nn.Module):
    def __init__(self, norm: Callable[[Tensor], Tensor]):
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(x))


def smooth_resnet(kind: str, depth: int, width: int, channels: int, dim: int) -> nn.Sequential:
    blocks = (depth - 4) // 6
    width_in = 16 * width
    layers: list[nn.Module] = []
    if kind == "unit":
        layers.append(UnitConv2d(channels, width_in, 3))
    else:
        layers.append(nn.Conv2d(channels, width_in, 3, padding=1))
    for stage, width_out in enumerate((16 * width, 32 * width, 64 * width)):
        variance = 1.0
        for i in range(blocks):
            pool = i == 0 and stage > 0
            if kind == "group":
                layers.append(GroupBlock(width_in, width_out, pool))
            elif kind == "unit":
                layers.append(MagnitudeBlock(width_in, width_out, pool))
            else:
                layers.append(StandardBlock(width_in, width_out, pool, variance**0.5))
                variance = (1.0 if i == 0 and stage > 0 else variance) + StandardBlock.SHARE**2
            width_in = width_out
    layers.append(NormSiLU(GroupNorm(width_in) if kind == "group" else nn.Identity()))
    return nn.Sequential(*layers, Coordinates(width_in, dim))
