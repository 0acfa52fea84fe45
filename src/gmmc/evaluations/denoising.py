"""How well a noise-conditional model denoises and classifies test images, at several noise levels.

The loss is that of training, ‖F − t‖²/n, of the energy without a class. F = 0 is the best linear denoiser of
images with the variance σ_d². A calibrated denoiser is the mean of the clean images given the noisy one. The
regression of t on F then has slope 1; below 1, F is too large for what the image shows.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from gmmc import noise
from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.denoiser import Denoiser, Regression, fast_denoiser, seeded_blocks
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import evaluating
from gmmc.config.sections import DenoisingConfig, EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations.result import Result, conditions
from gmmc.pixels import to_signed, to_unit

IMAGES = 2000  # at most
LEVELS = 9  # σ = exp(sigma_mean + z·sigma_std), z from −2 to 2


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateOptions) -> Result:
    ours = noise_conditional(model, "denoising")
    assert ours.denoising is not None
    chosen, seeds = choose_images(data.test, IMAGES, cfg.seed)
    denoiser, sigmas = fast_denoiser(ours), levels(ours.denoising)
    values, ranges = {}, {}
    curves: dict[str, Any] = {"sigma": sigmas}
    with Progress("denoising", len(sigmas) * len(chosen)) as bar:
        for i, sigma in enumerate(sigmas):
            found, hits = [], 0
            for part, right in at_level(ours, denoiser, chosen, seeds, sigma):
                found.append(part)
                hits += right
                bar.update(i * len(chosen) + sum(len(each.loss) for each in found), f"σ = {sigma:.3g}")
            whole = Regression(*map(torch.cat, zip(*found, strict=True)))
            for name, (value, ends) in summary(whole, hits).items():
                values[f"sigma_{sigma:.3g}/{name}"] = value
                curves.setdefault(name, []).append(value if math.isfinite(value) else None)
                if ends:
                    ranges[f"sigma_{sigma:.3g}/{name}"] = ends
    return Result(
        values=values,
        intervals=ranges,
        curves=curves,
        conditions=conditions(
            ours,
            split="test",
            images=len(chosen),
            energy="without a class, E(x; σ)",
            gradient_precision="fp32",
            sigma_data=ours.denoising.sigma_data,
            levels=f"exp(sigma_mean + z·sigma_std), z from −2 to 2: {sigmas[0]:.3g} to {sigmas[-1]:.3g}",
            intervals="95%; loss: normal; slope: delta method; top1: Wilson",
            seed=cfg.seed,
        ),
    )


def has_noise_levels(model: nn.Module) -> TypeGuard[Classifier]:
    return isinstance(model, Classifier) and model.denoising is not None


def noise_conditional(model: nn.Module, name: str) -> Classifier:
    """Return a model that has noise levels; refuse any other."""
    if has_noise_levels(model):
        return model
    got = "one trained otherwise" if isinstance(model, Classifier) else type(model).__name__
    raise InputError(
        f"evaluation {name!r} needs a model trained by denoising (train.algorithm=denoising), got {got}"
    )


def choose_images(images: LabelledImages, most: int, seed: int) -> tuple[LabelledImages, list[int]]:
    """At most so many images, drawn at random, and a seed for each, which its place in all images decides."""
    places = torch.arange(len(images))
    if most < len(images):
        places = torch.randperm(len(images), generator=generator(seed, "noisy"))[:most]
    return images[places], [seed + place for place in places.tolist()]


def levels(cfg: DenoisingConfig) -> list[float]:
    """Noise levels that training draws, from two standard deviations below the mean of ln σ to two above."""
    quantiles = torch.linspace(-2, 2, LEVELS, dtype=torch.float64).tolist()
    return noise.training_levels(cfg.sigma_mean, cfg.sigma_std, quantiles)


def at_level(
    model: Classifier, denoiser: Denoiser, chosen: LabelledImages, seeds: Sequence[int], sigma: float
) -> Iterator[tuple[Regression, int]]:
    """Yield (errors of F, number of images classified correctly) for each block of noisy images."""
    classify = model.at_noise(sigma)
    for block in seeded_blocks(chosen.images, seeds, model.device):
        clean = to_signed(block.images).to(model.head.gamma2.dtype)
        level = noise.per_image(sigma, clean)
        x = clean + level * block.noise.normal(*clean.shape[1:]).to(clean)
        found = denoiser.regression(clean, x, level)
        with evaluating(classify), torch.inference_mode():
            predicted = classify(to_unit(x)).argmax(-1)[: block.count].cpu()
        right = int((predicted == chosen.labels[block.first :][: block.count]).sum())
        yield Regression(*(each[: block.count].cpu() for each in found)), right


def summary(found: Regression, hits: int) -> dict[str, tuple[float, tuple[float, float] | None]]:
    """Mean losses, slope ⟨F, t⟩/‖F‖² and accuracy, with 95% intervals over images."""
    count, power = len(found.loss), found.power.mean().item()
    slope = found.product.mean().item() / power if power else math.nan
    return {
        "loss": mean_with_interval(found.loss),
        "zero_loss": mean_with_interval(found.zero_loss),
        "slope": (slope, around(slope, (found.product - slope * found.power) / power if power else None)),
        "top1": (hits / count, intervals.of_proportion(hits, count)),
    }


def mean_with_interval(numbers: Tensor) -> tuple[float, tuple[float, float] | None]:
    return numbers.mean().item(), around(numbers.mean().item(), numbers)


def around(value: float, influences: Tensor | None) -> tuple[float, float] | None:
    """95% interval of a statistic from each image's influence on it; None where one image is all there is."""
    if influences is None or len(influences) < 2:
        return None
    half = intervals.Z * standard_error(influences)
    return value - half, value + half


def standard_error(numbers: Tensor) -> float:
    """Standard error of the mean."""
    return numbers.std().item() / math.sqrt(len(numbers))
