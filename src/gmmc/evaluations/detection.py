"""How well a score tells images inside the distribution from those outside, as pure functions.

Inside is the positive class, and a higher score means inside. Each image has a weight, so that a bootstrap is
the same computation with the number of times each image was drawn.
"""

from typing import NamedTuple

import numpy as np

TPR = 0.95


class Detection(NamedTuple):
    """One number per row of weights."""

    auroc: np.ndarray
    aupr: np.ndarray
    fpr95: np.ndarray  # share of outside images let in where 95% of the inside images are


def detect(inside: np.ndarray, outside: np.ndarray, weights: np.ndarray | None = None) -> Detection:
    """Scores (n,) and (m,), weights (replicates, n + m), by default one row of ones."""
    scores = np.concatenate([inside, outside])
    if weights is None:
        weights = np.ones((1, len(scores)))
    order = np.argsort(-scores, kind="stable")
    descending = scores[order]
    # Tied images are let in together.
    ends = np.append(np.flatnonzero(np.diff(descending)), len(scores) - 1)
    is_inside = order < len(inside)
    weights = weights[:, order]
    let_in = np.cumsum(weights * is_inside, 1)[:, ends]
    let_in_wrongly = np.cumsum(weights * ~is_inside, 1)[:, ends]

    tpr = np.pad(let_in / let_in[:, -1:], ((0, 0), (1, 0)))
    fpr = np.pad(let_in_wrongly / let_in_wrongly[:, -1:], ((0, 0), (1, 0)))
    auroc = ((tpr[:, 1:] + tpr[:, :-1]) / 2 * np.diff(fpr, axis=1)).sum(1)
    precision = let_in / np.maximum(let_in + let_in_wrongly, 1e-300)
    aupr = (np.diff(tpr, axis=1) * precision).sum(1)
    reached = (tpr >= TPR - 1e-12).argmax(1)
    return Detection(auroc, aupr, fpr[np.arange(len(fpr)), reached])


def bootstrap(
    inside: np.ndarray,
    outside: np.ndarray,
    replicates: int,
    source: np.random.Generator,
    *,
    paired: bool = False,
    rows: int = 20,
) -> Detection:
    """Both sets drawn anew with replacement; a few replicates at a time, for memory.

    Paired: image i outside was made from image i inside, and comes and goes with it.
    """
    parts = []
    for first in range(0, replicates, rows):
        count = min(rows, replicates - first)
        drawn = source.multinomial(len(inside), np.full(len(inside), 1 / len(inside)), count)
        other = drawn
        if not paired:
            other = source.multinomial(len(outside), np.full(len(outside), 1 / len(outside)), count)
        parts.append(detect(inside, outside, np.concatenate([drawn, other], 1).astype(float)))
    return Detection(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def histogram(inside: np.ndarray, outside: np.ndarray, bins: int = 50) -> dict[str, list[float]]:
    """Counts on common edges; the few images beyond the middle 99% count in the bins at the ends."""
    both = np.concatenate([inside, outside])
    low, high = np.quantile(both, [0.005, 0.995])
    if not low < high:
        low, high = both.min() - 0.5, both.max() + 0.5
    edges = np.linspace(low, high, bins + 1)
    counts = [np.histogram(np.clip(scores, low, high), edges)[0].tolist() for scores in (inside, outside)]
    return {"edges": edges.tolist(), "inside": counts[0], "outside": counts[1]}
