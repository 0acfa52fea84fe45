"""Samplers: gradient descent on images, and the energies it walks down (section 3.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gmmc.base.seeds import generator
from gmmc.config.sections import SamplerConfig
from gmmc.core import unit_energy

BOX = (-1.0, 1.0)  # where pixels live
Energy = Callable[[Tensor, Tensor], Tensor]  # (features, goal) → energies (B,)


class Noise(Protocol):
    """Random numbers for a batch of chains: `size` is that of one chain's share."""

    def uniform(self, *size: int) -> Tensor: ...
    def normal(self, *size: int) -> Tensor: ...


@dataclass(frozen=True)
class Chains:
    """What a sampler may know of the chains it moves."""

    labels: Tensor  # y′
    means: Tensor | None  # μ_y′, where the head has means
    energy: Energy  # (φ(x′), y′) → unit energies (B,)
    noise: Noise


@dataclass(frozen=True)
class Walk:
    """How chains move: x_{t+1} = clamp(x_t − α(t) ∂E(φ(x_t), goal(t))/∂x + noise(x_t, t))."""

    energy: Energy
    goal: Callable[[int], Tensor]  # of step t: one row per chain
    alpha: Callable[[int], float]
    noise: Callable[[Tensor, int], Tensor] | None = None
    bounds: tuple[float, float] | None = BOX
    max_step: float = 0.0  # most that α ∂E/∂x moves a pixel; 0: no limit


class Mover(Protocol):
    """Computes one step. What it returns may be memory that its next step overwrites."""

    def __call__(self, walk: Walk, x: Tensor, goal: Tensor, alpha: float, noise: Tensor | None) -> Tensor: ...


class PlainMover:
    """The step as it is written; the reference for any faster way."""

    how = "plain"

    def __init__(self, features: Callable[[Tensor], Tensor]):
        self.features = features

    def __call__(self, walk: Walk, x: Tensor, goal: Tensor, alpha: float, noise: Tensor | None) -> Tensor:
        def total(x: Tensor, goal: Tensor) -> Tensor:
            return walk.energy(self.features(x), goal).sum()

        return stepped(walk, x, input_gradient(total, x, goal), alpha, noise)


def input_gradient(total: Callable[[Tensor, Tensor], Tensor], x: Tensor, goal: Tensor) -> Tensor:
    """Of the *summed* energy: a chain does not feel the size of its batch."""
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(total(x, goal), x)
    return gradient


def stepped(walk: Walk, x: Tensor, gradient: Tensor, alpha: float | Tensor, noise: Tensor | None) -> Tensor:
    move = alpha * gradient
    if walk.max_step:
        move = move.clamp(-walk.max_step, walk.max_step)
    x = x.detach() - move
    if noise is not None:
        x = x + noise
    return x if walk.bounds is None else x.clamp(*walk.bounds)


def descend(
    move: Mover,
    walk: Walk,
    x: Tensor,
    *,
    steps: int,
    on_step: Callable[[int, Tensor], object] | None = None,
) -> Tensor:
    """Eq. 8 and Eq. 10; with noise, Eq. 3. `on_step` is shown the chains after each step."""
    for t in range(steps):
        goal = walk.goal(t)
        noise = None if walk.noise is None else walk.noise(x, t)
        x = move(walk, x, goal, walk.alpha(t), noise)
        if on_step is not None:
            on_step(t + 1, x)
    return x.clone()


def staged(chains: Chains, cfg: SamplerConfig) -> Walk:
    """½‖φ(x′) − z‖² with z ~ N(μ_y′, target_std²·I) drawn once per chain (Eq. 8)."""
    target = _around(chains, cfg)
    return Walk(unit_energy, lambda t: target, lambda t: cfg.alpha, max_step=cfg.max_step)


def noise_injected(chains: Chains, cfg: SamplerConfig) -> Walk:
    """½‖φ(x′) − μ_y′ − target_std·z‖² with z drawn anew at each step (Eq. 9–10)."""
    return Walk(unit_energy, lambda t: _around(chains, cfg), lambda t: cfg.alpha, max_step=cfg.max_step)


def sgld(chains: Chains, cfg: SamplerConfig) -> Walk:
    """x − α_t/2 ∂E/∂x + ε, ε ~ N(0, α_t), α_t = α·(1 + t)^−power (Eq. 3).

    The paper prints α·ε with ε ~ N(0, 1), which is Langevin dynamics at temperature α; the *variance* is α
    here, as in the works that it follows, so that exp(−E) is the stationary law.
    """

    def alpha(t: int) -> float:
        return cfg.alpha * (1 + t) ** -cfg.power

    return Walk(
        chains.energy,
        lambda t: chains.labels,
        lambda t: alpha(t) / 2,
        lambda x, t: alpha(t) ** 0.5 * chains.noise.normal(*x.shape[1:]),
        bounds=None,
        max_step=cfg.max_step,
    )


def sgld_jem(chains: Chains, cfg: SamplerConfig) -> Walk:
    """x − α ∂E/∂x + noise·N(0, I), pixels unbounded: what JEM's code runs, with α = 1 and noise 0.01."""
    return Walk(
        chains.energy,
        lambda t: chains.labels,
        lambda t: cfg.alpha,
        lambda x, t: cfg.noise * chains.noise.normal(*x.shape[1:]),
        bounds=None,
        max_step=cfg.max_step,
    )


SAMPLERS: dict[str, Callable[[Chains, SamplerConfig], Walk]] = {
    "staged": staged,
    "noise_injected": noise_injected,
    "sgld": sgld,
    "sgld_jem": sgld_jem,
}


def _around(chains: Chains, cfg: SamplerConfig) -> Tensor:
    assert chains.means is not None  # a recipe without means and with this sampler is refused
    return chains.means + cfg.target_std * chains.noise.normal(chains.means.shape[-1])


# --- where the numbers come from ---


class BatchNoise:
    """One generator for all chains: training."""

    def __init__(self, count: int, source: torch.Generator):
        self._count, self._source = count, source

    def uniform(self, *size: int) -> Tensor:
        return torch.rand(self._count, *size, generator=self._source, device=self._source.device)

    def normal(self, *size: int) -> Tensor:
        return torch.randn(self._count, *size, generator=self._source, device=self._source.device)


class SeededNoise:
    """One seed per chain and nothing else: fresh samples.

    Drawn on the CPU, so that a seed means the same numbers on every device.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device):
        self._sources = [generator("chain", seed) for seed in seeds]
        self._device = device

    def uniform(self, *size: int) -> Tensor:
        return self._sent([torch.rand(size, generator=source) for source in self._sources])

    def normal(self, *size: int) -> Tensor:
        return self._sent([torch.randn(size, generator=source) for source in self._sources])

    def _sent(self, shares: list[Tensor]) -> Tensor:
        numbers = torch.stack(shares)
        if self._device.type == "cuda":
            numbers = numbers.pin_memory()  # else the host would wait for the device
        return numbers.to(self._device, non_blocking=True)

    @staticmethod
    def quantiles_of(seeds: Sequence[int]) -> Tensor:
        """One uniform number per seed, for a label from the priors; not part of the chain's noise."""
        return torch.tensor([torch.rand((), generator=generator("label", seed)).item() for seed in seeds])
