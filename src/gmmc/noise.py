"""Energies of noisy images: the paper's model at every noise level σ, in EDM's preconditioning.

    E(x, y; σ) = ‖x‖²/2(σ² + σ_d²) + ½‖φ(u) − μ_y‖²/γ²,   u = c_in·x,   γ² = σ/σ_d
    D(x; σ) = x − σ² ∂E/∂x = c_skip·x + c_out·F,   F = −∂/∂u ½‖φ(u) − μ_y‖²

The first term is that of one more feature, ρ = √γ²·‖u‖, whose mean is 0 in every class: with it
E(x, y; σ) = ½‖(φ, ρ) − (μ_y, 0)‖²/γ² is Eq. 4. σ, σ_d and the constants are those of Karras et al. 2022;
images are in [−1, 1].
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Scales(NamedTuple):
    """Constants of the preconditioning at one σ, or at the σ of each image, (B, 1, 1, 1)."""

    skip: Tensor  # c_skip
    out: Tensor  # c_out
    into: Tensor  # c_in


def scales(sigma: Tensor, sigma_data: float) -> Scales:
    """c_skip = σ_d²/(σ² + σ_d²), c_out = σ·σ_d/√(σ² + σ_d²), c_in = 1/√(σ² + σ_d²)."""
    total = sigma.square() + sigma_data**2
    return Scales(sigma_data**2 / total, sigma * sigma_data / total.sqrt(), total.rsqrt())


def target(clean: Tensor, noisy: Tensor, scales: Scales) -> Tensor:
    """t = (x₀ − c_skip·x)/c_out, which F is fitted to."""
    return (clean - scales.skip * noisy) / scales.out


def network_input(u: Tensor, sigma: Tensor) -> Tensor:
    """u and, as one more channel, ln(σ)/4. A few numbers do not reveal their noise level."""
    level = (sigma.log() / 4).expand(u.shape[0], 1, *u.shape[2:])  # not len: ONNX would fix it
    return torch.cat([u, level.to(u)], 1)


def radius(u: Tensor, sigma: Tensor, sigma_data: float) -> Tensor:
    """ρ = √(σ/σ_d)·‖u‖, (B, 1): the feature of the class-free Gaussian term."""
    return (sigma.flatten(1) / sigma_data).sqrt() * u.flatten(1).norm(dim=1, keepdim=True)


def per_image(sigma: float, images: Tensor) -> Tensor:
    """σ for each image of a batch, (B, 1, 1, 1)."""
    return torch.full((images.shape[0], 1, 1, 1), sigma, dtype=images.dtype, device=images.device)


def levels(steps: int, low: float, high: float, power: float) -> list[float]:
    """σ_0 = `high`, …, σ_{steps−1} = `low`, equally far apart after the `power`-th root (EDM, Eq. 5)."""
    if steps == 1:
        return [high]
    ends = high ** (1 / power), low ** (1 / power)
    return [(ends[0] + i / (steps - 1) * (ends[1] - ends[0])) ** power for i in range(steps)]


def training_levels(mean: float, std: float, quantiles: Sequence[float]) -> list[float]:
    """Levels of training, ln σ ~ N(mean, std²): σ = exp(mean + z·std) for each z of `quantiles`."""
    return [math.exp(mean + z * std) for z in quantiles]


def churned(sigma: float, steps: int, churn: float, low: float, high: float) -> float:
    """σ̂ = σ·(1 + min(churn/steps, √2 − 1)) between `low` and `high` (EDM, Algorithm 2), elsewhere σ."""
    return sigma * (1 + min(churn / steps, math.sqrt(2) - 1)) if churn and low <= sigma <= high else sigma
