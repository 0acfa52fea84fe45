"""Samplers: gradient descent on images, and the energies it walks down (section 3.2)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gmmc.core import unit_energy
from gmmc.pixels import Shape
from gmmc.randomness import generator

EnergyAt = Callable[[Tensor, int], Tensor]  # (images, step t) → energies (B,)
Features = Callable[[Tensor], Tensor]
Noise = Callable[[int], Tensor]  # step t → standard normals of the shape of the features


def descend(
    energy_at: EnergyAt,
    x: Tensor,
    *,
    steps: int,
    alpha: float,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> Tensor:
    """x_{t+1} = clamp(x_t − α ∂E/∂x)  (Eq. 8, Eq. 10).

    The gradient is of the *summed* energy: a chain does not feel the size of its batch.
    """
    for t in range(steps):
        x = x.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(energy_at(x, t).sum(), x)
        x = (x.detach() - alpha * grad).clamp(*bounds)
    return x.detach()


def staged(features: Features, means: Tensor, noise: Noise, target_std: float) -> EnergyAt:
    """½‖φ(x′) − z‖² with z ~ N(μ_y′, target_std²·I) drawn once per chain (Eq. 8)."""
    target = means + target_std * noise(0)
    return lambda x, t: unit_energy(features(x), target)


def noise_injected(features: Features, means: Tensor, noise: Noise, target_std: float) -> EnergyAt:
    """½‖φ(x′) − μ_y′ − target_std·z‖² with z drawn anew at each step (Eq. 9–10)."""
    return lambda x, t: unit_energy(features(x), means + target_std * noise(t))


SAMPLERS: dict[str, Callable[[Features, Tensor, Noise, float], EnergyAt]] = {
    "staged": staged,
    "noise_injected": noise_injected,
}


class SeededNoise:
    """Everything random about a batch of chains, from one seed per chain and nothing else.

    Drawn on the CPU, so that a seed means the same start on every device; call it for t = 0, 1, 2, … in turn.
    """

    def __init__(self, seeds: Sequence[int], *, shape: Shape, dim: int, device: torch.device):
        self._sources = [generator("chain", seed) for seed in seeds]
        self._dim, self._device = dim, device
        starts = [torch.rand(shape, generator=source) * 2 - 1 for source in self._sources]
        self.start = torch.stack(starts).to(device)  # x′_0 ~ U(−1, 1)

    def __call__(self, t: int) -> Tensor:
        normals = [torch.randn(self._dim, generator=source) for source in self._sources]
        return torch.stack(normals).to(self._device)

    @staticmethod
    def quantiles_of(seeds: Sequence[int]) -> Tensor:
        """One uniform number per seed, for a label from the priors; not part of the chain's noise."""
        return torch.tensor([torch.rand((), generator=generator("label", seed)).item() for seed in seeds])
