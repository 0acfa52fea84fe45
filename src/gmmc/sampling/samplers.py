"""Samplers: chains of images that follow the gradient of an energy, each with its equation in its loop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from gmmc import noise as noisy
from gmmc.base.seeds import generator
from gmmc.config.sections import SamplerConfig
from gmmc.core import unit_energy

if TYPE_CHECKING:
    from gmmc.networks.gaussian_term import GaussianTerm
    from gmmc.networks.heads import Head

BOX = (-1.0, 1.0)  # where pixels live
# Settings of noise-conditional samplers, which read no others but these.
NOISE_SETTINGS = ("sigma_min", "sigma_max", "rho", "churn", "guidance")
WITHOUT_CLASS = -1.0  # guidance at which `guided_energy` is that of the image alone
CHURNED = (0.05, 50.0)  # noise levels at which churn adds noise, as EDM has them for CIFAR-10
Energy = Callable[[Tensor, Tensor], Tensor]  # (features, goal) → energies (B,)


class Gradient(Protocol):
    """∂ΣE(φ(x), goal)/∂x; how it is computed is the engine's business.

    The result may be memory that the next call overwrites.
    """

    def __call__(self, energy: Energy, x: Tensor, goal: Tensor) -> Tensor: ...


class Noise(Protocol):
    """Random numbers for a batch of chains: `size` is that of one chain's share."""

    def uniform(self, *size: int) -> Tensor: ...
    def normal(self, *size: int) -> Tensor: ...


@dataclass(frozen=True)
class Chains:
    """Chains that a sampler moves."""

    labels: Tensor  # y′
    means: Tensor | None  # μ_y′, where the head has means
    energy: Energy  # (φ(x′), y′) → energies (B,) that Langevin dynamics descends
    noise: Noise
    sigma_data: float | None = None  # σ_d, of a noise-conditional energy
    gaussian: "GaussianTerm | None" = None  # Gaussian term of that energy, where its variances were fitted

    @classmethod
    def of(
        cls,
        head: "Head",
        energy: Energy,
        labels: Tensor,
        noise: Noise,
        sigma_data: float | None = None,
        gaussian: "GaussianTerm | None" = None,
    ) -> "Chains":
        """Chains towards these classes; `energy` is one of the head's."""
        means = None if head.means is None else head.means.detach()[labels]
        return cls(labels, means, energy, noise, sigma_data, gaussian)


def input_gradient(total: Callable[[Tensor, Tensor], Tensor], x: Tensor, goal: Tensor) -> Tensor:
    """Gradient of the summed energy, so a step does not depend on the batch size."""
    x = x.detach().requires_grad_(True)
    (gradient,) = torch.autograd.grad(total(x, goal), x)
    return gradient


# --- the samplers: chains x′, `steps` further; `on_step` is shown them before the first step, then after each
# (`heun` shows it the estimates D of the images before each step instead, as its chains are mostly noise)

OnStep = Callable[[int, Tensor], object]  # of the number of steps done, and the chains


def ignore(step: int, x: Tensor) -> None:
    pass


def staged(
    gradient: Gradient, x: Tensor, chains: Chains, cfg: SamplerConfig, *, steps: int, on_step: OnStep = ignore
) -> Tensor:
    """x ← clamp(x − α ∂/∂x ½‖φ(x) − z‖²) with z ~ N(μ_y′, target_std²·I) drawn once per chain (Eq. 8)."""
    z = _target(chains, cfg)
    on_step(0, x)
    for t in range(steps):
        x = (x - _limited(cfg.alpha * gradient(unit_energy, x, z), cfg)).clamp(*BOX)
        on_step(t + 1, x)
    return x


def noise_injected(
    gradient: Gradient, x: Tensor, chains: Chains, cfg: SamplerConfig, *, steps: int, on_step: OnStep = ignore
) -> Tensor:
    """x ← clamp(x − α ∂/∂x ½‖φ(x) − z_t‖²), z_t ~ N(μ_y′, target_std²·I) drawn at each step (Eq. 9–10)."""
    on_step(0, x)
    for t in range(steps):
        z = _target(chains, cfg)
        x = (x - _limited(cfg.alpha * gradient(unit_energy, x, z), cfg)).clamp(*BOX)
        on_step(t + 1, x)
    return x


def sgld(
    gradient: Gradient, x: Tensor, chains: Chains, cfg: SamplerConfig, *, steps: int, on_step: OnStep = ignore
) -> Tensor:
    """x ← x − α_t/2 ∂E/∂x + ε, ε ~ N(0, α_t), α_t = α·(1 + t)^−power (Eq. 3).

    The paper prints α·ε with ε ~ N(0, 1), which is Langevin dynamics at temperature α; the *variance* is α
    here, as in the works that it follows, so that exp(−E) is the stationary law.
    """
    on_step(0, x)
    for t in range(steps):
        alpha = cfg.alpha * (1 + t) ** -cfg.power
        noise = alpha**0.5 * chains.noise.normal(*x.shape[1:])
        x = x - _limited(alpha / 2 * gradient(chains.energy, x, chains.labels), cfg) + noise
        on_step(t + 1, x)
    return x


def sgld_jem(
    gradient: Gradient, x: Tensor, chains: Chains, cfg: SamplerConfig, *, steps: int, on_step: OnStep = ignore
) -> Tensor:
    """x ← x − α ∂E/∂x + noise·N(0, I), pixels unbounded: what JEM's code runs, with α = 1 and noise 0.01."""
    on_step(0, x)
    for t in range(steps):
        noise = cfg.noise * chains.noise.normal(*x.shape[1:])
        x = x - _limited(cfg.alpha * gradient(chains.energy, x, chains.labels), cfg) + noise
        on_step(t + 1, x)
    return x


def heun(
    gradient: Gradient, x: Tensor, chains: Chains, cfg: SamplerConfig, *, steps: int, on_step: OnStep = ignore
) -> Tensor:
    """Heun's method for dx/dσ = (x − D(x; σ))/σ from x + N(0, σ_max²) (EDM, Algorithm 1; with churn 2).

    The last step is x ← D(x; σ_min), from σ_max where it is the only one. Takes 2·steps − 1 gradients.
    """
    levels = [*noisy.levels(steps, cfg.sigma_min, cfg.sigma_max, cfg.rho), 0.0]
    x = x + levels[0] * chains.noise.normal(*x.shape[1:])

    def clean(x: Tensor, sigma: float) -> Tensor:
        return denoised(gradient, x, sigma, chains, cfg.guidance)

    for t, (sigma, after) in enumerate(pairwise(levels)):
        higher = noisy.churned(sigma, steps, cfg.churn, *CHURNED)
        if higher > sigma:
            x = x + (higher**2 - sigma**2) ** 0.5 * chains.noise.normal(*x.shape[1:])
        estimate = clean(x, higher)
        on_step(t, estimate)
        first = (x - estimate) / higher
        moved = x + (after - higher) * first
        if after:
            second = (moved - clean(moved, after)) / after
            moved = x + (after - higher) * 0.5 * (first + second)
        x = moved
    on_step(steps, x)
    return x


def denoised(gradient: Gradient, x: Tensor, sigma: float, chains: Chains, guidance: float) -> Tensor:
    """D(x; σ) = c_skip·x + c_out·F, F = −∂/∂u of the guided energy."""
    assert chains.sigma_data is not None
    level = noisy.per_image(sigma, x)
    scales = noisy.scales(level, chains.sigma_data)
    goal = goals(chains.labels, level, chains.sigma_data, guidance)
    found = force(gradient, chains.energy, scales.into * x, level, goal, chains.gaussian)
    return scales.skip * x + scales.out * found


def goals(labels: Tensor, level: Tensor, sigma_data: float, guidance: float) -> Tensor:
    """Label, γ² = σ/σ_d and guidance of each image, (B, 3), as `Head.guided_energy` takes them."""
    gamma2 = level.flatten() / sigma_data
    return torch.stack([labels.to(gamma2), gamma2, torch.full_like(gamma2, guidance)], 1)


def force(
    gradient: Gradient,
    energy: Energy,
    u: Tensor,
    level: Tensor,
    goal: Tensor,
    gaussian: "GaussianTerm | None",
) -> Tensor:
    """F(u; σ) = −∂e/∂u, with e the energy of features and goals, and the σ of each image.

    Where the variances of the Gaussian term were fitted, F + G·u.
    """
    found = -gradient(energy, noisy.network_input(u, level), goal)[:, :-1].to(u)
    return found if gaussian is None else found + gaussian.force(u, level)


@dataclass(frozen=True)
class Sampler:
    """A sampler and what the rest of gmmc must know about it."""

    move: Callable[..., Tensor]
    # Walks to a class mean: needs a head with means, and does not shape all of E into a density.
    to_means: bool
    # Goes through all noise levels: needs an energy at each of them, as training by denoising learns it.
    noise_conditional: bool = False


SAMPLERS: dict[str, Sampler] = {
    "staged": Sampler(staged, to_means=True),
    "noise_injected": Sampler(noise_injected, to_means=True),
    "sgld": Sampler(sgld, to_means=False),
    "sgld_jem": Sampler(sgld_jem, to_means=False),
    "heun": Sampler(heun, to_means=False, noise_conditional=True),
}


def _target(chains: Chains, cfg: SamplerConfig) -> Tensor:
    assert chains.means is not None  # a recipe without means and with this sampler is refused
    return chains.means + cfg.target_std * chains.noise.normal(chains.means.shape[-1])


def _limited(move: Tensor, cfg: SamplerConfig) -> Tensor:
    """A move of each pixel by at most `max_step`, if there is a limit."""
    return move.clamp(-cfg.max_step, cfg.max_step) if cfg.max_step else move


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
