"""When a model says that it has not seen the like of an image: scores of validation images as the measure."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.errors import InputError
from gmmc.scores import SCORES

KEPT = 10_000  # scores of a larger validation set are thinned to as many quantiles


@dataclass(frozen=True)
class Reference:
    """Scores of images that the model should accept, ascending, and the γ² they were taken at."""

    gamma2: float
    scores: dict[str, Tensor]

    @classmethod
    def of(cls, gamma2: float, scores: dict[str, Tensor]) -> "Reference":
        if not all(len(values) and values.isfinite().all() for values in scores.values()):
            raise InputError("scores to measure by need at least one image, and must be finite numbers")
        return cls(gamma2, {name: thinned(values.sort().values) for name, values in scores.items()})

    def threshold(self, score: str, tpr: float) -> float:
        """The highest that still accepts the share `tpr` of the reference images."""
        values = self._of(score)
        if not 0 < tpr < 1:
            raise InputError(f"tpr must lie between 0 and 1, got {tpr:g}")
        # Rounded first: (1 − 0.95)·20 is 1 + 9e-16 in floating point.
        return values[int(round((1 - tpr) * len(values), 9))].item()

    def percentile(self, score: str, values: Tensor) -> Tensor:
        """How many of a hundred reference images have a lower score."""
        reference = self._of(score)
        return (
            100 * torch.searchsorted(reference, values.to(reference).contiguous()).double() / len(reference)
        )

    @property
    def images(self) -> int:
        return len(next(iter(self.scores.values())))

    def _of(self, score: str) -> Tensor:
        if score not in self.scores:
            raise InputError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
        return self.scores[score]


@dataclass(frozen=True)
class Answer:
    """What a model says of some images: one entry per image, but for the threshold."""

    labels: Tensor  # the most probable class
    names: list[str]  # of these classes
    confidence: Tensor  # p(y|x) of it, at the fitted γ²
    score: str
    values: Tensor  # of the score: log p(x), the log odds of the confidence, or −‖∂log p(x)/∂x‖
    threshold: float  # below it the model abstains
    percentile: Tensor  # of 100 validation images, how many score lower
    accepted: Tensor  # whether the image is like those of the training


def thinned(ascending: Tensor) -> Tensor:
    if len(ascending) <= KEPT:
        return ascending
    return ascending[torch.linspace(0, len(ascending) - 1, KEPT).round().long()]
