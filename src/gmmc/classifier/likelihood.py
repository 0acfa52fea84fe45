"""log p(x; σ) of images by the probability flow of a denoiser (Song et al. 2021, Karras et al. 2022).

With u = c_in·x and the angle θ = arctan(σ/σ_d), the flow dx/dσ = (x − D(x; σ))/σ is

    du/dθ = −F(u; σ),    log p(x₀; σ₀) = log N(u_T; 0, I) − ∫ div_u F dθ − n/2·ln(σ₀² + σ_d²).

Heun's method moves u from σ₀ to σ_T = 80, the trapezoidal rule integrates the divergence. Hutchinson's
estimator takes one more gradient: div_u F ≈ εᵀ[F(u + δε) − F(u)]/δ, with new random signs ε at each level.
Odd orders of δ have mean 0, so that the bias is of order δ².
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gmmc import noise as noisy
from gmmc.classifier.denoiser import Block, Denoiser, seeded_blocks
from gmmc.classifier.scores import check_finite
from gmmc.errors import InputError
from gmmc.pixels import BIN, UNIT, dequantised, to_signed
from gmmc.sampling.samplers import Noise

# Of the steps tried, fp32 rounds the divergence at 1e-4 and curvature biases it from 1e-2 on (docs/log.md).
DELTA = 2e-3
HIGHEST = 80.0  # σ_T, as EDM has it
OnLevel = Callable[[int], object]  # of the number of noise levels done


def angles(sigma_data: float, sigma: float, steps: int) -> tuple[list[float], list[float]]:
    """Noise levels from σ₀ to σ_T, `steps` + 1 of equal ratio, and their angles θ = arctan(σ/σ_d)."""
    ratio = (HIGHEST / sigma) ** (1 / steps)
    levels = [sigma * ratio**i for i in range(steps + 1)]
    return levels, [math.atan(level / sigma_data) for level in levels]


def log_likelihood(
    denoiser: Denoiser,
    x: Tensor,
    noise: Noise,
    *,
    sigma: float,
    steps: int,
    delta: float = DELTA,
    on_level: OnLevel = lambda done: None,
) -> Tensor:
    """log p(x; σ₀) of a batch of images in [−1, 1], in nats, (B,) in float64; σ₀ = `sigma`.

    Takes 3·steps + 2 gradients.
    """
    levels, theta = angles(denoiser.sigma_data, sigma, steps)
    u = x / math.hypot(sigma, denoiser.sigma_data)
    integral = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for i, level in enumerate(levels):
        sign = 1 - 2 * noise.uniform(*x.shape[1:]).round().to(x)  # ε
        force = denoiser.force(u, noisy.per_image(level, x))
        moved = denoiser.force(u + delta * sign, noisy.per_image(level, x))
        divergence = (sign * (moved - force)).double().flatten(1).sum(1) / delta
        before, after = max(i - 1, 0), min(i + 1, steps)
        integral += (theta[after] - theta[before]) / 2 * divergence
        if i < steps:
            step = theta[i + 1] - theta[i]
            next_force = denoiser.force(u - step * force, noisy.per_image(levels[i + 1], x))
            u = u - step / 2 * (force + next_force)
        on_level(i + 1)
    n = x[0].numel()
    normal = -u.double().square().flatten(1).sum(1) / 2 - n / 2 * math.log(2 * math.pi)
    return normal - integral - n / 2 * math.log(sigma**2 + denoiser.sigma_data**2)


@torch.inference_mode(False)
@torch.enable_grad()  # the denoiser is a gradient
def bits_per_dimension(
    denoiser: Denoiser,
    images: Tensor,
    seeds: Sequence[int],
    *,
    sigma: float,
    steps: int,
    delta: float = DELTA,
    on_progress: Callable[[float], object] = lambda done: None,
) -> Tensor:
    """−log₂ p(x; σ)/n of any number of images, uint8 or [0, 1], (N,) in float64 on the CPU.

    uint8 images are dequantised: the mean is an upper bound of −log₂ P/n of the images with their 256 levels.
    Other images have the density of a continuous variable in [0, 1], whose bits may be negative.
    Image i depends on `seeds[i]` and on no other image. `on_progress` is called with the images done, a
    fraction within a block.
    """
    _check(images, seeds, sigma, steps)
    found = [torch.empty(0, dtype=torch.float64)]
    width = BIN if images.dtype == torch.uint8 else UNIT
    for block in seeded_blocks(images, seeds, denoiser.head.gamma2.device):
        if images.dtype == torch.uint8:
            x = dequantised(block.images, block.noise.uniform(*images.shape[1:]))
        else:
            x = to_signed(block.images)
        x = x.to(denoiser.head.gamma2.dtype)

        def report(done: int, block: Block = block) -> None:
            on_progress(block.first + block.count * done / (steps + 1))

        nats = log_likelihood(
            denoiser, x, block.noise, sigma=sigma, steps=steps, delta=delta, on_level=report
        )
        found.append(-(nats[: block.count].cpu() / x[0].numel() + math.log(width)) / math.log(2))
    bits = torch.cat(found)
    check_finite(bits)
    return bits


def _check(images: Tensor, seeds: Sequence[int], sigma: float, steps: int) -> None:
    if not 0 < sigma < HIGHEST:
        raise InputError(f"sigma must be above 0 and below {HIGHEST:g}, got {sigma:g}")
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if len(seeds) != len(images):
        raise InputError(f"seeds must be {len(images)}, one per image, got {len(seeds)}")
