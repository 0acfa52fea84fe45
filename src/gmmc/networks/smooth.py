"""Wide ResNets for training by denoising: smooth input gradients by SiLU, average pooling and group norm.

Denoising fits these gradients. LeakyReLU makes them jump, and the adjoint of a strided convolution leaves
checkerboards. Batch norm would couple the energies of a batch. docs/log.md compares group norm with
magnitude-preserving layers and with scaled weight standardisation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.base.precision import full_precision

SPATIAL = 16  # features per place of the last map
FINER = (4, 8)  # features per place of the first and the second stage's map, where these are used too
HEAD_WIDTH = 64  # channels of a head of attention
EPSILON = 1e-5


class GroupNorm(nn.Module):
    """Group norm in plain operations, which compile well, with statistics in float32."""

    def __init__(self, width: int):
        super().__init__()
        most = max(1, min(32, width // 4))
        self.groups = next(groups for groups in range(most, 0, -1) if width % groups == 0)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        exact = full_precision(x)
        # Per channel first: channels-last memory is then read in order.
        mean, square = exact.mean((2, 3)), exact.square().mean((2, 3))
        mean, square = (s.unflatten(1, (self.groups, -1)).mean(-1, keepdim=True) for s in (mean, square))
        deviation = (square - mean.square()).clamp(min=0).add(EPSILON).sqrt()
        scale = self.weight.view(self.groups, -1) / deviation
        shift = self.bias.view(self.groups, -1) - mean * scale
        scale, shift = (s.flatten(1)[:, :, None, None] for s in (scale, shift))
        return (exact * scale + shift).to(x.dtype)


class SmoothBlock(nn.Module):
    """Pre-activation residual block; `pool` halves the sides. Begins as its shortcut and a bias."""

    def __init__(self, width_in: int, width_out: int, *, pool: bool):
        super().__init__()
        self.pool = nn.AvgPool2d(2) if pool else nn.Identity()
        self.norm1, self.norm2 = GroupNorm(width_in), GroupNorm(width_out)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        same = width_in == width_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width_out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.pool(F.silu(self.norm1(x))))
        return self.shortcut(self.pool(x)) + self.conv2(F.silu(self.norm2(h)))


class Attention(nn.Module):
    """Residual self-attention between the places of a map (Vaswani et al. 2017). Begins as the identity.

    Written in plain operations: the gradient of the energy goes through it, and a loss may follow that.
    """

    def __init__(self, width: int):
        super().__init__()
        self.heads = max(1, width // HEAD_WIDTH)  # the last stage is as wide as some heads
        self.norm = GroupNorm(width)
        self.query_key_value = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        for parameter in self.out.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        split = self.query_key_value(self.norm(x)).flatten(2).unflatten(1, (3, self.heads, -1))
        query, key, value = split.unbind(1)  # each (B, heads, width/heads, places)
        similarity = query.mT @ key / query.shape[2] ** 0.5
        weights = full_precision(similarity).softmax(-1).to(value.dtype)
        return x + self.out((value @ weights.mT).flatten(1, 2).unflatten(2, x.shape[2:]))


class Coordinates(nn.Module):
    """Pooled features, in which the classes have their means, then spatial ones of mean 0."""

    def __init__(self, width: int, dim: int):
        super().__init__()
        self.spatial = nn.Conv2d(width, SPATIAL, 1)
        self.pooled = nn.Linear(width, dim or width)  # last: its outputs are the head's
        with torch.no_grad():  # logits are these times S/γ², which is large
            self.pooled.weight.mul_(0.1)
            self.pooled.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.pooled(x.mean((2, 3))), self.spatial(x).flatten(1)], 1)


class WithSpatial(nn.Module):
    """Features of the later layers, then spatial ones of the map that these are given."""

    def __init__(self, width: int, count: int, later: nn.Module):
        super().__init__()
        self.spatial = nn.Sequential(GroupNorm(width), nn.SiLU(), nn.Conv2d(width, count, 1))
        self.later = later  # last: its last outputs are the head's

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.later(x), self.spatial(x).flatten(1)], 1)


def smooth_resnet(
    depth: int, width: int, *, channels: int, dim: int, scales: int = 1, attention: bool = False
) -> nn.Sequential:
    """(B, channels, H, W) → (B, dim + 16·H/4·W/4) by (depth − 4)/2 blocks; dim = 0 means 64·width.

    With three scales, 8 features per place of the second stage's map follow, and 4 of the first stage's. With
    `attention`, each block of the last stage is followed by one of attention.
    """
    width_in = 16 * width
    stem, stages = nn.Conv2d(channels, width_in, 3, padding=1), []
    for stage, width_out in enumerate((16 * width, 32 * width, 64 * width)):
        blocks: list[nn.Module] = []
        for i in range((depth - 4) // 6):
            blocks.append(SmoothBlock(width_in, width_out, pool=i == 0 and stage > 0))
            width_in = width_out
            if attention and stage == 2:
                blocks.append(Attention(width_out))
        stages.append(blocks)
    first, second, third = stages
    layers: list[nn.Module] = [*third, GroupNorm(width_in), nn.SiLU(), Coordinates(width_in, dim)]
    layers = [*second, *_from_here(32 * width, FINER[1], layers, scales)]
    layers = [*first, *_from_here(16 * width, FINER[0], layers, scales)]
    return nn.Sequential(stem, *layers)


def _from_here(width: int, count: int, later: list[nn.Module], scales: int) -> list[nn.Module]:
    """The later layers, with spatial features of the map before them where all scales have some."""
    return later if scales == 1 else [WithSpatial(width, count, nn.Sequential(*later))]
