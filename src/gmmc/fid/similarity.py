"""How alike two sets of feature vectors are, as pure functions: FID and its relatives.

All sums are float64, on the device of the features, and so many rows at a time that memory stays bounded: how
many changes nothing but the last digits.
"""

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gmmc.base.intervals import Z
from gmmc.base.seeds import generator

ROOM = 2**25  # numbers that are held at once beside the features: 256 MB
KID_SUBSETS, KID_SIZE = 100, 1000
PRECISION_NEIGHBOURS, DENSITY_NEIGHBOURS = 3, 5  # as their authors have them
SPLITS = 10  # of the Inception Score

OnProgress = Callable[[int], object]


class Estimate(NamedTuple):
    """A number and its 95% interval."""

    value: float
    interval: tuple[float, float]


def slices(rows: int, columns: int) -> Iterator[slice]:
    """Of as many rows as there is room for."""
    step = max(1, ROOM // max(1, columns))
    return (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def some(features: Tensor, count: int, *key: int | str) -> Tensor:
    """At most `count` rows, drawn at random by a key."""
    if len(features) <= count:
        return features
    order = torch.randperm(len(features), generator=generator(*key))
    return features[order[:count].to(features.device)]


# --- Fréchet distance (Heusel et al. 2017) ---


@dataclass(frozen=True)
class Gaussian:
    """The normal law with the mean and covariance of a set."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Gaussian":
        """Of two rows or more. Fewer rows than columns give a singular covariance, which is no obstacle."""
        count, dim = features.shape
        parts = list(slices(count, dim))
        mean = torch.stack([features[part].double().sum(0) for part in parts]).sum(0) / count
        covariance = torch.zeros(dim, dim, dtype=torch.float64, device=features.device)
        for part in parts:
            deviations = features[part].double() - mean
            covariance += deviations.mT @ deviations
        return cls(mean, covariance / (count - 1))

    @functools.cached_property
    def root(self) -> Tensor:
        """The symmetric square root of the covariance."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def frechet(a: Gaussian, b: Gaussian) -> float:
    """‖m₁ − m₂‖² + tr(C₁ + C₂ − 2(C₁C₂)^½); the last trace by the eigenvalues of √C₁·C₂·√C₁."""
    cross = torch.linalg.eigvalsh(a.root @ b.covariance @ a.root).clamp(min=0).sqrt().sum()
    traces = a.covariance.trace() + b.covariance.trace()
    # Of equals, rounding alone could leave a little less than nothing.
    return max(0.0, ((a.mean - b.mean).square().sum() + traces - 2 * cross).item())


# --- kernel distance (Bińkowski et al. 2018) ---


def mmd2(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate of MMD² with the kernel (⟨x, y⟩/d + 1)³; of equal laws it is about zero."""
    x, y = x.double(), y.double()

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b.mT / a.shape[1] + 1) ** 3

    def within(a: Tensor) -> Tensor:
        k = kernel(a, a)
        return (k.sum() - k.trace()) / (len(a) * (len(a) - 1))

    return (within(x) + within(y) - 2 * kernel(x, y).mean()).item()


def kid(x: Tensor, y: Tensor, *, subsets: int = KID_SUBSETS, size: int = KID_SIZE, seed: int = 0) -> Estimate:
    """The mean MMD² of random subsets, each of at most half of the smaller set, of four rows or more.

    Its variance is that of the delete-d jackknife, m/(n − m) times the variance over subsets of m of n rows,
    and that of the mean of so many subsets.
    """
    count = min(len(x), len(y))
    size = min(size, count // 2)
    source = generator(seed, "kid")

    def drawn(features: Tensor) -> Tensor:
        return features[torch.randperm(len(features), generator=source)[:size].to(features.device)]

    found = torch.tensor([mmd2(drawn(x), drawn(y)) for _ in range(subsets)], dtype=torch.float64)
    value = found.mean().item()
    half = Z * math.sqrt(found.var().item() * (size / (count - size) + 1 / subsets))
    return Estimate(value, (value - half, value + half))


# --- neighbours ---


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Euclidean, (n, m), of float64 rows."""
    squares = x.square().sum(1, keepdim=True) + y.square().sum(1) - 2 * x @ y.mT
    return squares.clamp(min=0).sqrt()


def nearest(
    x: Tensor, others: Tensor, k: int = 1, *, on_progress: OnProgress | None = None
) -> tuple[Tensor, Tensor]:
    """(distances, places) of the k rows of `others` nearest to each row of x: (n, k), the nearest first."""
    others = others.double()
    parts = []
    for part in slices(len(x), len(others)):
        parts.append(distances(x[part].double(), others).topk(min(k, len(others)), largest=False))
        if on_progress:
            on_progress(part.stop)
    return torch.cat([found.values for found in parts]), torch.cat([found.indices for found in parts])


class Overlap(NamedTuple):
    """How two sets cover each other."""

    precision: float  # share of the generated within the reach of some real one (Kynkäänniemi et al. 2019)
    recall: float  # share of the real within the reach of some generated one
    density: float  # real ones in whose reach a generated one lies, relative to chance (Naeem et al. 2020)
    coverage: float  # share of the real with a generated one in their reach


def overlap(real: Tensor, generated: Tensor) -> Overlap:
    """The reach of a point is the distance to its k-th neighbour among its own."""
    real, generated = real.double(), generated.double()
    k = min(DENSITY_NEIGHBOURS, len(real) - 1)
    reach, wide_reach = reaches(real, PRECISION_NEIGHBOURS, k)
    (own_reach,) = reaches(generated, PRECISION_NEIGHBOURS)
    within = torch.zeros(len(generated), dtype=torch.bool, device=real.device)
    containing = torch.zeros(len(generated), dtype=torch.int64, device=real.device)
    recalled, covered = torch.zeros(2, len(real), dtype=torch.bool, device=real.device)
    for part in slices(len(generated), len(real)):
        apart = distances(generated[part], real)
        within[part] = (apart <= reach).any(1)
        containing[part] = (apart <= wide_reach).sum(1)
        recalled |= (apart <= own_reach[part, None]).any(0)
        covered |= (apart <= wide_reach).any(0)
    precision, recall, coverage = (hits.double().mean().item() for hits in (within, recalled, covered))
    return Overlap(precision, recall, containing.double().mean().item() / k, coverage)


def reaches(points: Tensor, *ks: int) -> Tensor:
    """(ks, n): how far it is to the k-th neighbour, or to the farthest where there are not so many."""
    columns = [min(k, len(points) - 1) - 1 for k in ks]
    parts = []
    for part in slices(len(points), len(points)):
        apart = distances(points[part], points)
        places = torch.arange(part.start, part.stop, device=points.device)
        apart[places - part.start, places] = torch.inf  # a point is not its own neighbour
        parts.append(apart.topk(1 + max(columns), largest=False).values[:, columns])
    return torch.cat(parts).mT


# --- Inception Score (Salimans et al. 2016) ---


def inception_score(probabilities: Tensor, *, splits: int = SPLITS, seed: int = 0) -> Estimate:
    """exp of the mean KL(p(y|x) ‖ p(y)), the mean of random splits; images sorted by class do no harm."""
    p = probabilities.double()
    splits = max(1, min(splits, len(p) // 2))
    order = torch.randperm(len(p), generator=generator(seed, "splits")).to(p.device)
    scores = torch.stack([_score(p[part]) for part in order.tensor_split(splits)])
    value = scores.mean().item()
    half = Z * math.sqrt(scores.var().item() / splits) if splits > 1 else 0.0
    return Estimate(value, (value - half, value + half))


def _score(p: Tensor) -> Tensor:
    """xlogy: where p(y|x) is zero it counts for nothing."""
    marginal = p.mean(0, keepdim=True).expand_as(p)
    divergence = torch.special.xlogy(p, p) - torch.special.xlogy(p, marginal)
    return divergence.sum(1).mean().exp()
