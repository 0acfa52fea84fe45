"""The plain loop that our speed is measured against: generative training as public implementations run it.

Eager fp32 tensors in torch's default layout and convolution precision, a Python loop over the sampler's
steps, parameters that ask for gradients all the time, the replay buffer in host memory. Nothing here is meant
to be fast, and nothing is made slower than it is found.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.config.sections import ModelConfig
from gmmc.core import simplex_means
from gmmc.errors import Diverged
from gmmc.networks.backbones import build_backbone
from gmmc.pixels import Shape

DIVERGED = 1e8  # |L| above which such loops give up


@dataclass
class PlainLoop:
    """Network, optimiser and buffer of the reference; settings as it is published, but for `lr`."""

    network: nn.Module
    means: Tensor  # on the network's device
    buffer: Tensor  # fp32 images in host memory, equally many slots per class, class after class
    steps: int = 20  # τ
    step_size: float = 1.0  # on the batch's mean energy
    target_std: float = 0.001
    reinit: float = 0.025
    beta: float = 0.5
    lr: float = 1e-4
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self):
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.lr)


def plain_loop(
    backbone: str, shape: Shape, device: torch.device, *, classes: int, buffer: int, steps: int, lr: float
) -> PlainLoop:
    """With fresh weights and a buffer of noise."""
    network = build_backbone(ModelConfig(backbone=backbone), shape)
    with torch.no_grad():
        dim = network(torch.zeros(1, *shape)).shape[1]
    plain: Any = network  # torch types no layout
    network = plain.to(memory_format=torch.contiguous_format)
    images = torch.rand(buffer // classes * classes, *shape) * 2 - 1
    means = simplex_means(classes, dim).to(device)
    return PlainLoop(network.to(device), means, images, steps=steps, lr=lr)


@contextmanager
def as_published() -> Iterator[None]:
    """Convolutions on a GPU in TF32, torch's default, by the algorithm that cuDNN finds fastest.

    Whatever others set in this process.
    """
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=True):
        yield


def mean_energy(network: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The mean over the batch of ½‖φ(x) − z‖²."""
    return 0.5 * (network(x) - target).square().sum(1).mean()


# --- sampling -------------------------------------------------------------------------------------


def sampling_step(network: nn.Module, x: Tensor, target: Tensor, *, step_size: float) -> Tensor:
    """x ← clamp(x − step_size·∂/∂x mean energy): on each image's own energy the step is step_size/B."""
    x = x.detach().requires_grad_(True)
    (grad,) = torch.autograd.grad(mean_energy(network, x, target), [x], retain_graph=True)
    return (x.detach() - step_size * grad).clamp(-1, 1)


def draw(loop: PlainLoop, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(slots, images on the labels' device) of the given labels; a few of them are noise."""
    per_class = len(loop.buffer) // len(loop.means)
    slots = labels.cpu() * per_class + torch.randint(per_class, labels.shape)
    kept = loop.buffer[slots]
    anew = torch.rand(len(slots), 1, 1, 1) < loop.reinit
    return slots, torch.where(anew, torch.rand_like(kept) * 2 - 1, kept).to(labels.device)


def sample(loop: PlainLoop, labels: Tensor) -> Tensor:
    """Chains from the buffer, τ steps further; they go back to host memory at once."""
    loop.network.eval()
    slots, x = draw(loop, labels)
    centres = loop.means[labels]
    target = centres + loop.target_std * torch.randn_like(centres)
    for _ in range(loop.steps):
        x = sampling_step(loop.network, x, target, step_size=loop.step_size)
    loop.network.train()
    loop.buffer[slots] = x.cpu()
    return x


# --- updates --------------------------------------------------------------------------------------


def generative_iteration(loop: PlainLoop, x: Tensor, y: Tensor) -> float:
    """Chains of the batch's labels, then an update on mean E(x, y) − β·mean E(x′, y′)."""
    sampled = sample(loop, y)
    real_energy = mean_energy(loop.network, x, loop.means[y])
    sampled_energy = mean_energy(loop.network, sampled, loop.means[y])
    return update(loop, real_energy - loop.beta * sampled_energy)


def discriminative_iteration(loop: PlainLoop, x: Tensor, y: Tensor) -> float:
    """An update on mean E(x, y)."""
    loop.network.train()
    return update(loop, mean_energy(loop.network, x, loop.means[y]))


def update(loop: PlainLoop, loss: Tensor) -> float:
    """The host waits for the loss, to look whether it is still sound."""
    value = loss.item()
    if not abs(value) < DIVERGED:
        raise Diverged(f"the reference diverged: its loss is {value:.3g}")
    loop.optimizer.zero_grad()
    loss.backward()
    loop.optimizer.step()
    return value
