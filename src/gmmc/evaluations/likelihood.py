"""log p(x) of test images in bits per dimension, by the probability flow (classifier/likelihood.py).

The density is p(x; σ₀), of images with a little noise: with less noise it is sharper, with too little the
network was not trained. σ₀ is therefore the level with the fewest bits on validation images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmmc.base.precision import full_float32
from gmmc.base.progress import Progress
from gmmc.classifier.denoiser import Denoiser, fast_denoiser
from gmmc.classifier.likelihood import DELTA, HIGHEST, bits_per_dimension
from gmmc.classifier.model import Classifier
from gmmc.config.sections import EvaluateOptions, SamplerConfig
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations.attacks.campaign import Store, content_key
from gmmc.evaluations.denoising import choose_images, mean_with_interval, noise_conditional, standard_error
from gmmc.evaluations.result import Result, conditions
from gmmc.runs.folder import RunFolder

STEPS = 100
LOWEST = (0.002, 0.005, 0.01, 0.02, 0.05)  # levels to choose σ₀ from, beside sampler.sigma_min
CHOOSING = 100  # validation images to choose it by
AT_ONCE = 256  # images whose bits are kept together; a multiple of every size of a block
BINS = 50
FEW_VALUES = 64  # distinct values of 8-bit images, up to which they are flagged
FORMAT = 1  # another number where the estimate changes: an interrupted evaluation then restarts


@dataclass
class Work:
    """Bits of images under a denoiser, kept as they are computed."""

    denoiser: Denoiser
    store: Store
    bar: Progress
    done: float = field(default=0.0)  # images times steps

    def bits(self, name: str, images: Tensor, seeds: Sequence[int], *, sigma: float, steps: int) -> Tensor:
        """Bits per dimension, (N,)."""
        parts = []
        for first in range(0, len(images), AT_ONCE):
            part, place = images[first : first + AT_ONCE], f"{name}/{sigma:g}/{steps}/{first}"
            if place not in self.store.tensors:
                found = bits_per_dimension(
                    self.denoiser,
                    part,
                    seeds[first : first + AT_ONCE],
                    sigma=sigma,
                    steps=steps,
                    on_progress=self._report(steps, f"σ₀ = {sigma:g}"),
                )
                self.store.put(place, found)
            self.done += len(part) * steps
            parts.append(self.store.tensors[place])
        return torch.cat(parts)

    def _report(self, steps: int, status: str) -> Callable[[float], object]:
        return lambda images: self.bar.update(self.done + images * steps, status)


def evaluate(
    model: nn.Module, data: Dataset, cfg: EvaluateOptions, folder: RunFolder | None = None
) -> Result:
    """Measure the bits per dimension of test images; the run folder keeps what an interrupted call has."""
    ours = noise_conditional(model, "likelihood")
    if len(data.test) < 2:
        raise InputError(f"likelihood needs at least 2 test images, got {len(data.test)}")
    chosen, seeds = choose_images(data.test, cfg.likelihood_images, cfg.seed)
    valid, valid_seeds = choose_images(data.valid, CHOOSING, cfg.seed)
    levels, flags = candidates(ours, len(valid))
    store = open_store(folder, ours, chosen.images, valid.images, levels, cfg.seed)
    total = len(chosen) * (STEPS + STEPS // 2) + (len(levels) > 1) * len(levels) * len(valid) * (STEPS // 2)
    try:
        with full_float32(), Progress("likelihood", total) as bar:
            if store.tensors:
                bar.say("going on with what an interrupted call left")
            work = Work(fast_denoiser(ours), store, bar)
            tried = {
                sigma: work.bits("valid", valid.images, valid_seeds, sigma=sigma, steps=STEPS // 2)
                for sigma in (levels if len(levels) > 1 else ())
            }
            means = {sigma: bits.mean().item() for sigma, bits in tried.items()}
            sigma = min(means, key=means.__getitem__) if means else levels[0]
            rough = work.bits("test", chosen.images, seeds, sigma=sigma, steps=STEPS // 2)
            bits = work.bits("test", chosen.images, seeds, sigma=sigma, steps=STEPS)
    finally:
        store.save()
    value, ends = mean_with_interval(bits)
    error, change = standard_error(bits), (rough - bits).mean().item()
    discrete = data.test.images.dtype == torch.uint8
    return Result(
        values={"bits_per_dim": value, "standard_error": error, "bits_half_steps": value + change},
        intervals={"bits_per_dim": ends} if ends else {},
        curves=curves(bits, chosen, data.class_names) | ({"chosen": chosen_by(means)} if means else {}),
        flags=[*flags, *doubts(change, error, discrete=discrete), *few_values(chosen.images)],
        conditions=conditions(ours, **protocol(data, len(chosen), sigma, means, len(valid), cfg.seed)),
        unfinished=store.path,
    )


def candidates(model: Classifier, valid: int) -> tuple[list[float], list[str]]:
    """Levels to choose σ₀ from; without validation images the one at which chains end, with a flag."""
    lowest = (model.drawing.sampler if model.drawing else SamplerConfig()).sigma_min
    if valid:
        return sorted({*LOWEST, lowest}), []
    return [lowest], [
        f"there are no validation images to choose σ₀ by: it is sampler.sigma_min, {lowest:g}, and another "
        "level may have fewer bits"
    ]


def open_store(
    folder: RunFolder | None, model: Classifier, images: Tensor, valid: Tensor, *settings: object
) -> Store:
    """Progress of an evaluation with these weights, images and settings, and of no other."""
    key = content_key(FORMAT, STEPS, DELTA, HIGHEST, *settings, images, valid, *model.state_dict().values())
    return Store(folder.work("likelihood") / f"{key[:16]}.safetensors" if folder else None, key)


def curves(bits: Tensor, chosen: LabelledImages, class_names: Sequence[str]) -> dict[str, Any]:
    """Histogram of the bits per dimension, and their mean for each class."""
    counts, edges = np.histogram(bits.numpy(), BINS)
    of_class = [bits[chosen.labels == y] for y in range(len(class_names))]
    return {
        "histogram": {"edges": edges.tolist(), "images": counts.tolist()},
        "bits_per_class": [part.mean().item() if len(part) else None for part in of_class],
        "class_names": list(class_names),
    }


def chosen_by(means: dict[float, float]) -> dict[str, list[float]]:
    return {"sigma": list(means), "bits_per_dim": list(means.values())}


def doubts(change: float, error: float, *, discrete: bool) -> list[str]:
    flags = []
    if abs(change) / 3 > error:  # of second order: a third of the change is left
        flags.append(
            f"half as many steps change the bits by {change:+.3g}: the discretisation error, about a third "
            f"of that, exceeds the standard error ({error:.3g})"
        )
    if not discrete:
        flags.append(
            "the images are not 8-bit: these are bits of a continuous density in units of [0, 1], without "
            "dequantisation; they may be negative and do not compare with those of 8-bit images"
        )
    return flags


def few_values(images: Tensor) -> list[str]:
    """A flag for images that were made 8-bit from fewer grey levels."""
    values = len(images.unique())
    if images.dtype != torch.uint8 or values > FEW_VALUES:
        return []
    return [
        f"the images have {values} of the 256 values that bits are counted for: a model of these values "
        "alone has far fewer bits"
    ]


def protocol(
    data: Dataset, count: int, sigma: float, means: dict[float, float], valid: int, seed: int
) -> dict[str, Any]:
    discrete = data.test.images.dtype == torch.uint8
    levels = ", ".join(f"{level:g}: {bits:.4g}" for level, bits in means.items())
    chosen = f"fewest bits on {valid} validation images with {STEPS // 2} steps ({levels})"
    return {
        "split": "test",
        "images": f"{count:,} of {len(data.test):,} test images"
        + (", drawn at random" if count < len(data.test) else ""),
        "density": f"p(x; σ₀) without a class, σ₀ = {sigma:g}"
        + (", a lower bound of log P of the 8-bit images" if discrete else ""),
        "sigma_min": sigma,
        "sigma_chosen": chosen if means else "sampler.sigma_min",
        "sigma_max": HIGHEST,
        "steps": f"{STEPS}, Heun, levels of equal ratio",
        "trace": f"Hutchinson, random signs at each level, differences of δ = {DELTA:g}",
        "dequantisation": "uniform, one draw per image" if discrete else "none: the images are not 8-bit",
        "gradient_precision": "fp32 without TF32",
        "intervals": "95%, from the standard error over images",
        "seed": seed,
    }
