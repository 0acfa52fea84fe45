"""When a model abstains: thresholds and p-values from scores of validation images; training features."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.base.names import NOISE_SCORES
from gmmc.base.text import shortened
from gmmc.classifier.noise_sizes import Gaussian
from gmmc.classifier.scores import SCORES
from gmmc.errors import InputError

KEPT = 10_000  # scores of a larger validation set are thinned to as many quantiles
NEIGHBOURS = 10  # k, the neighbour whose distance counts
NEIGHBOURS_KEPT = 1_000  # training features stored in a model, equally many of each class
LEAST = 20  # images that a density of sizes at noise levels needs, and as many others for its thresholds
TAIL = 0.1  # share of the lowest reference scores, below which p-values fall exponentially
# Weights of the log p-values that are combined. The two scores of noise levels see the same images with the
# same noise, so each counts half.
JOINED_BY_NOISE = {"force_size": 0.5, "denoising_error": 0.5, "neighbours": 1.0}
JOINED = {"log_density": 1.0, "max_posterior": 1.0, "gradient_norm": 1.0, "neighbours": 1.0}


@dataclass(frozen=True)
class Reference:
    """Scores of images that the model should accept, ascending.

    `gamma2` is the temperature fitted on these images: that of the confidence, so of max_posterior alone. The
    other scores are at the γ² of training. `sizes` is the density of sizes at noise levels. It is fitted on
    one half of the images, and scores that depend on it are those of the other half.
    """

    gamma2: float
    scores: dict[str, Tensor]
    sizes: Gaussian | None = None

    @classmethod
    def of(cls, gamma2: float, scores: dict[str, Tensor], sizes: Gaussian | None = None) -> "Reference":
        if not all(len(values) and values.isfinite().all() for values in scores.values()):
            raise InputError("scores to measure by need at least one image, and must be finite numbers")
        return cls(gamma2, {name: thinned(values.sort().values) for name, values in scores.items()}, sizes)

    @property
    def joined(self) -> dict[str, float]:
        """Weights of the log p-values in the combined score, of those scores that the reference has."""
        weights = JOINED if self.sizes is None else JOINED_BY_NOISE
        return {name: weight for name, weight in weights.items() if name in self.scores}

    def combined(self, scores: Mapping[str, Tensor]) -> Tensor:
        """Σ w·ln p(score), Fisher's statistic with weights; high where an image is familiar by all scores.

        The scores depend on each other, so its threshold is that of reference images, not that of χ².
        """
        parts = [weight * self.log_p_value(name, scores[name]) for name, weight in self.joined.items()]
        return torch.stack(parts).sum(0)

    def log_p_value(self, score: str, values: Tensor) -> Tensor:
        """ln p, with p the share of reference images whose score is as low as this.

        That share is 0 below all of them. So below the `TAIL` of lowest scores an exponential with their mean
        takes its place, and lower scores have lower p-values however few the reference images are.
        """
        reference = self._of(score).double()
        values = values.to(reference).contiguous()
        count, lowest = len(reference), int(TAIL * len(reference))
        edge = reference[lowest]
        scale = (edge - reference[: lowest or count]).abs().mean().clamp(min=1e-9 * (1 + edge.abs()))
        body = (1 + torch.searchsorted(reference, values, right=True)).log() - math.log(1 + count)
        tail = math.log((1 + lowest) / (1 + count)) - (edge - values) / scale
        return torch.where(values < edge, tail, body)

    def threshold(self, score: str, tpr: float) -> float:
        """The highest that still accepts the share `tpr` of the reference images."""
        values = self._of(score)
        if not isinstance(tpr, numbers.Real) or not 0 < tpr < 1:
            raise InputError(f"tpr must lie between 0 and 1, got {shortened(tpr)}")
        # Rounded first: (1 − 0.95)·20 is 1 + 9e-16 in floating point. And 1 − 1e-17 is 1, beyond the last.
        index = int(round((1 - tpr) * len(values), 9))
        return values[min(index, len(values) - 1)].item()

    def percentile(self, score: str, values: Tensor) -> Tensor:
        """How many of a hundred reference images have a lower score."""
        reference = self._of(score)
        return (
            100 * torch.searchsorted(reference, values.to(reference).contiguous()).double() / len(reference)
        )

    @property
    def mostly_outside_span(self) -> bool:
        """Whether more than half of the energy of a typical image lies outside the span of the means."""
        if not {"residual", "span_density"} <= self.scores.keys():
            return False
        return bool(-self.scores["residual"].median() > -self.scores["span_density"].median())

    def images(self, score: str) -> int:
        """Number of reference scores, at most `KEPT`."""
        return len(self._of(score))

    def _of(self, score: str) -> Tensor:
        if score not in SCORES:
            raise InputError(f"score must be one of {', '.join(SCORES)}, got {shortened(score)}")
        if score in NOISE_SCORES and self.sizes is None:
            raise InputError(
                f"the score {score!r} needs a model trained by denoising (train.algorithm) and calibrated on "
                f"{2 * LEAST} validation images or more"
            )
        if score not in self.scores:
            raise InputError(
                f"this model keeps no threshold for the score {score!r}, only for "
                f"{', '.join(name for name in SCORES if name in self.scores)}; "
                f"if an older gmmc made it, {REFIT}"
            )
        return self.scores[score]


REFIT = "`gmmc calibrate RUN --score auto` fits its thresholds again; in Python, model.calibrate does"


@dataclass(frozen=True)
class Neighbours:
    """Features of some training images, equally many of each class, in half precision."""

    features: Tensor  # (M, d), float16

    @classmethod
    def of(cls, features: Tensor) -> "Neighbours":
        kept = features.to(torch.float16)
        if not len(kept) or not kept.isfinite().all():
            raise InputError("features to keep need at least one image, and must fit float16")
        return cls(kept)

    def distance(self, features: Tensor) -> Tensor:
        """‖φ − φ_k‖, where φ_k is the k-th nearest of the kept features: (N, ≥ d) → (N,), in float64.

        Of φ the first d count, which are those that were kept.
        """
        kept = self.features.to(features.device).double()
        k = min(NEIGHBOURS, len(kept))
        return torch.cdist(features[..., : kept.shape[1]].double(), kept).topk(k, largest=False).values[:, -1]


def balanced_subset(labels: Tensor, count: int, source: torch.Generator) -> Tensor:
    """Places of about `count` images drawn at random: of each class equally many, if it has them, or one."""
    order = torch.randperm(len(labels), generator=source)
    classes = labels.unique()
    each = max(1, count // max(1, len(classes)))
    return torch.cat([order[:0], *(order[labels[order] == y][:each] for y in classes)])


@dataclass(frozen=True)
class Answer:
    """What a model says of some images: one entry per image, but for the threshold."""

    labels: Tensor  # the most probable class
    names: list[str]  # of these classes
    confidence: Tensor  # p(y|x) of it, at the fitted γ²
    score: str
    values: Tensor  # of the score, see scores.feature_scores
    threshold: float  # below it the model abstains
    percentile: Tensor  # of 100 validation images, how many score lower
    accepted: Tensor  # whether the image is like those of the training


def thinned(ascending: Tensor) -> Tensor:
    if len(ascending) <= KEPT:
        return ascending
    return ascending[torch.linspace(0, len(ascending) - 1, KEPT).round().long()]
