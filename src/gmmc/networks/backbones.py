"""Feature extractors φ: images in [−1, 1] → (B, d). By default without any normalisation (Appendix B)."""

import functools
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.base.limits import BACKBONE_NAME
from gmmc.base.text import shortened
from gmmc.config.sections import ModelConfig
from gmmc.errors import InputError
from gmmc.networks.smooth import smooth_resnet
from gmmc.pixels import Shape

MIN_SIZE = 8
# The order of pixels and channels in memory that convolutions are fastest with, on GPUs and CPUs.
LAYOUT = torch.channels_last
SLOPE = 0.2  # of LeakyReLU
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


def leaky_relu() -> nn.Module:
    return nn.LeakyReLU(SLOPE)


@dataclass(frozen=True)
class Parts:
    """What a backbone is built of."""

    activation: Callable[[], nn.Module]
    batch_norm: bool
    noise_level: bool = False  # whether the noise level is one more channel of an image

    def convolution(self, width_in: int, width_out: int, size: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(width_in, width_out, size, stride=stride, padding=size // 2)

    def normalised(self, width: int, norm: type[BatchNorm] = nn.BatchNorm2d) -> list[nn.Module]:
        """Batch norm, if any, then the activation."""
        return [*([norm(width)] if self.batch_norm else []), self.activation()]


class Block(nn.Module):
    """Pre-activation residual block of a wide ResNet."""

    def __init__(self, width_in: int, width_out: int, stride: int, parts: Parts):
        super().__init__()
        self.before1 = nn.Sequential(*parts.normalised(width_in))
        self.conv1 = parts.convolution(width_in, width_out, 3)
        self.before2 = nn.Sequential(*parts.normalised(width_out))
        self.conv2 = parts.convolution(width_out, width_out, 3, stride)
        same = stride == 1 and width_in == width_out
        self.shortcut = nn.Identity() if same else parts.convolution(width_in, width_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.before1(x))
        return self.conv2(self.before2(h)) + self.shortcut(x)


def wide_resnet(depth: int, width: int, *, shape: Shape, dim: int, parts: Parts) -> nn.Sequential:
    """WRN-depth-width (Zagoruyko & Komodakis). dim=0: no linear layer after pooling, d = 64·width."""
    channels = _channels(shape, parts)
    _check_sizes(depth, width)
    blocks_per_stage = (depth - 4) // 6
    layers: list[nn.Module] = [parts.convolution(channels, 16, 3)]
    width_in = 16
    for width_out, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
        for i in range(blocks_per_stage):
            layers.append(Block(width_in, width_out, stride if i == 0 else 1, parts))
            width_in = width_out
    layers += [*parts.normalised(width_in), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dim:
        layers.append(nn.Linear(width_in, dim))
    return nn.Sequential(*layers)


def smooth(
    depth: int,
    width: int,
    *,
    shape: Shape,
    dim: int,
    parts: Parts,
    scales: int = 1,
    attention: bool = False,
) -> nn.Sequential:
    """A wide ResNet with smooth input gradients, see networks/smooth.py. dim=0 means 64·width."""
    _check_sizes(depth, width)
    if parts.batch_norm:
        raise InputError("model.norm must be none with a smooth network, which has its own normalisation")
    channels = _channels(shape, parts)
    return smooth_resnet(depth, width, channels=channels, dim=dim, scales=scales, attention=attention)


def small_cnn(*, shape: Shape, dim: int, parts: Parts) -> nn.Sequential:
    """Four convolutions for images of 8×8 and a little more; dim=0 means 64."""
    layers: list[nn.Module] = []
    width_in = _channels(shape, parts)
    for width_out, stride in ((16, 1), (16, 1), (32, 2), (64, 1)):
        layers += [parts.convolution(width_in, width_out, 3, stride), *parts.normalised(width_out)]
        width_in = width_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, dim or 64))


def mlp(depth: int, width: int, *, shape: Shape, dim: int, parts: Parts) -> nn.Sequential:
    """`depth` hidden layers of `width` units, for vectors or for images as vectors; dim=0 means `width`."""
    if depth > 100 or width > 100_000:
        raise InputError(f"an MLP must have at most 100 layers of at most 100000 units, got {depth}, {width}")
    layers: list[nn.Module] = [nn.Flatten()]
    width_in = (shape[0] + parts.noise_level) * math.prod(shape[1:])
    for _ in range(depth):
        layers += [nn.Linear(width_in, width), *parts.normalised(width, nn.BatchNorm1d)]
        width_in = width
    for layer in layers:
        if isinstance(layer, nn.Linear):  # torch's own start is so small that curves take long to learn
            nn.init.kaiming_normal_(layer.weight, a=SLOPE)
    return nn.Sequential(*layers, nn.Linear(width_in, dim or width))


def _check_sizes(depth: int, width: int) -> None:
    if not 10 <= depth <= 1000 or (depth - 4) % 6:
        raise InputError(f"the depth of a wide ResNet must be 6n + 4, from 10 to 1000, got {depth}")
    if width > 100:
        raise InputError(f"the width of a wide ResNet must be at most 100, got {width}")


def _channels(shape: Shape, parts: Parts) -> int:
    """Number of input channels of a network with convolutions."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise InputError(f"images must have 1 or 3 channels, got {channels}")
    if min(height, width) < MIN_SIZE:
        raise InputError(f"images must be at least {MIN_SIZE}×{MIN_SIZE}, got {height}×{width}")
    return channels + parts.noise_level


# Name, or pattern of names with sizes in them → builder and activation.
BACKBONES: dict[str, tuple[Callable[..., nn.Sequential], Callable[[], nn.Module]]] = {
    r"small_cnn": (small_cnn, nn.SiLU),
    r"wrn-(\d+)-([1-9]\d*)": (wide_resnet, leaky_relu),
    r"mlp-([1-9]\d*)-([1-9]\d*)": (mlp, leaky_relu),
    r"smooth-(\d+)-([1-9]\d*)": (smooth, nn.SiLU),
    r"smooth-(\d+)-([1-9]\d*)-scales3": (functools.partial(smooth, scales=3), nn.SiLU),
    r"smooth-(\d+)-([1-9]\d*)-attention": (functools.partial(smooth, attention=True), nn.SiLU),
    r"smooth-mlp-([1-9]\d*)-([1-9]\d*)": (mlp, nn.SiLU),
}


def build_backbone(cfg: ModelConfig, shape: Shape, *, noise_level: bool = False) -> nn.Module:
    """The network of this name for images of the given shape; `noise_level`: it takes one more channel."""
    if len(cfg.backbone) > BACKBONE_NAME:
        rule = f"model.backbone must have at most {BACKBONE_NAME} characters (limits.BACKBONE_NAME)"
        raise InputError(f"{rule}, got {shortened(cfg.backbone)}")
    for pattern, (build, activation) in BACKBONES.items():
        if match := re.fullmatch(pattern, cfg.backbone):
            parts = Parts(activation, cfg.norm != "none", noise_level)
            network: Any = build(*map(int, match.groups()), shape=shape, dim=cfg.dim, parts=parts)
            return network.to(memory_format=LAYOUT)
    raise InputError(
        "model.backbone must be 'small_cnn', 'wrn-DEPTH-WIDTH' (wrn-28-10), 'mlp-DEPTH-WIDTH' (mlp-2-64), "
        "'smooth-DEPTH-WIDTH' (smooth-28-4), 'smooth-DEPTH-WIDTH-scales3', 'smooth-DEPTH-WIDTH-attention' "
        f"or 'smooth-mlp-DEPTH-WIDTH' (smooth-mlp-3-128), got {shortened(cfg.backbone)}"
    )


def feature_dim(network: nn.Module) -> int:
    """Number of features: outputs of the last convolution or linear layer."""
    return [weight for weight in network.parameters() if weight.dim() > 1][-1].shape[0]


def split_last(network: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """Return (trunk, last layer): all layers, and a linear layer at the end, if there is one, apart."""
    layers = dict(network.named_children())
    last = {name: layer for name, layer in [*layers.items()][-1:] if isinstance(layer, nn.Linear)}
    trunk = {name: layer for name, layer in layers.items() if name not in last}
    return nn.Sequential(OrderedDict(trunk)), nn.Sequential(OrderedDict(last))


# --- batch statistics ---


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    return [part for part in module.modules() if isinstance(part, BatchNorm)]


def has_live_statistics(module: nn.Module) -> bool:
    """Whether the features of an image now depend on its neighbours in the batch."""
    return any(norm.training for norm in batch_norms(module))


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norm by what was learned so far: a chain does not feel its neighbours."""
    live = [norm for norm in batch_norms(module) if norm.training]
    for norm in live:
        norm.eval()
    try:
        yield
    finally:
        for norm in live:
            norm.train()


@contextmanager
def unrecorded_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norm by the batch's own statistics, which are not added to what was learned."""
    norms = batch_norms(module)
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
