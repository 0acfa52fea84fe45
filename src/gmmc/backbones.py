"""Feature extractors φ: images in [−1, 1] → (B, d). None has a normalisation layer (Appendix B)."""

import re
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.errors import InputError
from gmmc.pixels import Shape

MIN_SIZE = 8


class Block(nn.Module):
    """Pre-activation residual block of a wide ResNet, biased convolutions instead of batch norm."""

    def __init__(self, width_in: int, width_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, stride=stride, padding=1)
        same = stride == 1 and width_in == width_out
        self.shortcut = nn.Identity() if same else nn.Conv2d(width_in, width_out, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.leaky_relu(x, 0.2))
        return self.conv2(F.leaky_relu(h, 0.2)) + self.shortcut(x)


def wide_resnet(depth: int, width: int, *, channels: int, dim: int) -> nn.Sequential:
    """WRN-depth-width (Zagoruyko & Komodakis). dim=0: no linear layer after pooling, d = 64·width."""
    if not 10 <= depth <= 1000 or (depth - 4) % 6:
        raise InputError(f"the depth of a wide ResNet must be 6n + 4, from 10 to 1000, got {depth}")
    if width > 100:
        raise InputError(f"the width of a wide ResNet must be at most 100, got {width}")
    blocks_per_stage = (depth - 4) // 6
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1)]
    width_in = 16
    for width_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for i in range(blocks_per_stage):
            layers.append(Block(width_in, width_out, stride if i == 0 else 1))
            width_in = width_out
    layers += [nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dim:
        layers.append(nn.Linear(width_in, dim))
    return nn.Sequential(*layers)


def small_cnn(*, channels: int, dim: int) -> nn.Sequential:
    """Four convolutions for images of 8×8 and a little more; dim=0 means 64."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, dim or 64),
    )


# Name, or pattern of names with sizes in them → builder.
BACKBONES: dict[str, Callable[..., nn.Sequential]] = {
    r"small_cnn": small_cnn,
    r"wrn-(\d+)-([1-9]\d*)": wide_resnet,
}


def build_backbone(name: str, shape: Shape, dim: int) -> nn.Module:
    """'small_cnn' or 'wrn-DEPTH-WIDTH' for images of the given shape."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"images must have 1 or 3 channels, got {channels}")
    if min(height, width) < MIN_SIZE:
        raise InputError(f"images must be at least {MIN_SIZE}×{MIN_SIZE}, got {height}×{width}")
    for pattern, build in BACKBONES.items():
        if match := re.fullmatch(pattern, name):
            return build(*map(int, match.groups()), channels=channels, dim=dim)
    raise InputError(f"model.backbone must be 'small_cnn' or 'wrn-DEPTH-WIDTH' (wrn-28-10), got {name!r}")
