"""Two numbers of an image at each of several noise levels, and the density of such numbers.

ln ‖F(c_in·x; σ)‖/√n of the image x as it is: how far its denoised image would lie from it, in units of c_out.
ln ‖F − t‖/√n of the image with noise σ: the denoising error. n numbers per image. Too small is as unusual as
too large: plain images are easier to denoise than those of the training. A Gaussian over all of them, fitted
on validation images, sees both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc import noise
from gmmc.base.names import NOISE_SCORES
from gmmc.base.seeds import generator
from gmmc.classifier.denoiser import Denoiser
from gmmc.config.sections import DenoisingConfig
from gmmc.errors import InputError

QUANTILES = (-1.5, -0.75, 0.0, 0.75, 1.5)  # levels, in standard deviations of ln σ in training
SMALLEST = 1e-12  # of a size, whose logarithm is taken
FLOOR = 1e-6  # added to variances: sizes that are all alike have none


def levels(cfg: DenoisingConfig) -> list[float]:
    """Noise levels σ that images are looked at with."""
    return noise.training_levels(cfg.sigma_mean, cfg.sigma_std, QUANTILES)


def noise_sizes(denoiser: Denoiser, images: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Images in [−1, 1] → (N, 2K): for K levels first ln ‖F‖/√n of each, then the ln of each denoising error.

    The noise of a level is the same for every image, so the numbers of an image depend on nothing else.
    """
    sizes, errors = [], []
    for i, sigma in enumerate(sigmas):
        level = noise.per_image(sigma, images)
        scales = noise.scales(level, denoiser.sigma_data)
        sizes.append(_log_size(denoiser.force(scales.into * images, level).square().flatten(1).mean(1)))
        fixed = torch.randn(images.shape[1:], generator=generator(0, "noise sizes", i)).to(images)
        errors.append(_log_size(denoiser.regression(images, images + level * fixed, level).loss))
    return torch.stack([*sizes, *errors], 1)


def _log_size(mean_square: Tensor) -> Tensor:
    return mean_square.double().sqrt().clamp(min=SMALLEST).log()


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian density of rows, in float64."""

    mean: Tensor  # (D,)
    covariance: Tensor  # (D, D)

    @classmethod
    def of(cls, rows: Tensor) -> "Gaussian":
        """Fit mean and covariance; of few rows, the correlations shrink by N/(N + D)."""
        if not len(rows) or not rows.isfinite().all():
            raise InputError("a density needs at least one row, and finite numbers")
        rows = rows.double()
        count, width = rows.shape
        centred = rows - rows.mean(0)
        covariance = centred.T @ centred / max(1, count - 1)
        kept = count / (count + width)
        variances = covariance.diagonal().diag()
        return cls(
            rows.mean(0), kept * covariance + (1 - kept) * variances + FLOOR * torch.eye(width).to(rows)
        )

    def log_density(self, rows: Tensor, columns: slice = slice(None)) -> Tensor:
        """log p of rows (N, D), or the marginal density of some columns."""
        mean, covariance = self.mean[columns], self.covariance[columns, columns]
        normal = torch.distributions.MultivariateNormal(mean, covariance, validate_args=False)
        return normal.log_prob(rows[:, columns].double())


def size_scores(density: Gaussian, rows: Tensor) -> dict[str, Tensor]:
    """force_size and denoising_error: marginal log densities of the first K numbers and of the last K."""
    count = rows.shape[1] // len(NOISE_SCORES)
    return {
        score: density.log_density(rows, slice(i * count, (i + 1) * count))
        for i, score in enumerate(NOISE_SCORES)
    }
