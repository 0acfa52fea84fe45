"""Does the model know what it has never seen? The paper's three scores on images of other sets (Table 4)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmmc.config import EvaluateConfig
from gmmc.data import GENERATED, Dataset, Outside, find_outside
from gmmc.errors import InputError
from gmmc.evaluations import intervals
from gmmc.evaluations.detection import bootstrap, detect, histogram
from gmmc.evaluations.result import Result, conditions
from gmmc.evaluations.temperatures import IN_WORDS, doubts_of_fit, fitted_on, temperatures
from gmmc.models import Classifier
from gmmc.progress import Progress
from gmmc.scores import (
    Tempered,
    check_finite,
    density_and_confidence,
    gradient_norms,
    logits_at,
    tempered,
    unit_energies,
)

REPLICATES = 200

SCORE_WORDS = {
    "log_density": "log p(x)",
    "max_posterior": "max p(y|x)",
    "gradient_norm": "the gradient norm",
}

Scores = dict[tuple[str, str], np.ndarray]  # (score, temperature) → one number per image


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateConfig) -> Result:
    sets, flags = find_sets(data, cfg)  # what is missing is told before the work
    network = tempered(model)
    found = temperatures(network, data)
    work = len(data.test) + sum(len(other.images) for other in sets)
    values, ranges, curves = {}, {}, {}
    with Progress("out of distribution", 2 * work) as bar:
        done = Counter(bar)
        inside = all_scores(network, data.test.images, found, done)
        for number, other in enumerate(sets):
            for key, scores in all_scores(network, other.images, found, done).items():
                place = "/".join((other.name, *key))
                source = np.random.default_rng([cfg.seed, number])
                measured, found_ranges = measure(inside[key], scores, source, paired=other.paired)
                values |= {f"{place}/{metric}": value for metric, value in measured.items()}
                ranges |= {f"{place}/{metric}": ends for metric, ends in found_ranges.items()}
                curves[place] = histogram(inside[key], scores)
    return Result(
        values=values,
        intervals=ranges,
        curves=curves,
        flags=[*flags, *doubts_of_fit(found), *ties(inside), *doubts(values, ranges)],
        conditions=conditions(
            model,
            positive="in-distribution: a higher score means inside",
            inside=f"{len(data.test)} test images",
            outside={other.name: len(other.images) for other in sets},
            aupr_by_chance={
                other.name: round(len(data.test) / (len(data.test) + len(other.images)), 4) for other in sets
            },
            outside_notes=[note for other in sets for note in other.notes],
            temperatures=found,
            fitted_on=fitted_on(data),
            **abstains(model),
            intervals=f"95%, {REPLICATES} bootstrap draws of both sets; none where these do not overlap",
            seed=cfg.seed,
        ),
    )


def abstains(model: nn.Module) -> dict[str, Any]:
    """By which score, and below which value of it, the model as it is stored gives no answer."""
    if not isinstance(model, Classifier) or model.reference is None:
        return {}
    rule = model.cfg.abstain
    threshold = model.reference.threshold(rule.score, rule.tpr)
    return {"abstains": {"score": rule.score, "tpr": rule.tpr, "below": threshold}}


def find_sets(data: Dataset, cfg: EvaluateConfig) -> tuple[list[Outside], list[str]]:
    """The sets of other images, and why one that is made from the test images cannot be made from these."""
    if not cfg.ood:
        raise InputError("evaluate.ood must name at least one set of other images, got none")
    sets, flags = [], []
    for name in cfg.ood:
        try:
            sets.append(find_outside(name, data, cfg.seed))
        except InputError as error:
            if name not in GENERATED or len(cfg.ood) == 1:
                raise
            flags.append(f"left out: {error}")
    flags += overlaps(sets, data)
    names = [other.name for other in sets]
    if len(set(names)) < len(names):
        raise InputError(f"the sets of evaluate.ood must have different names, got {', '.join(names)}")
    return sets, flags


def overlaps(sets: list[Outside], data: Dataset) -> list[str]:
    """Images from outside that are inside."""
    own = {image for part in (data.train, data.valid, data.test) for image in hashes(part.images)}
    counts = {other.name: sum(image in own for image in hashes(other.images)) for other in sets}
    return [f"{name}: {n:,} of these images are in the model's own data" for name, n in counts.items() if n]


def hashes(images: Tensor) -> Iterator[int]:
    return (hash(image.tobytes()) for image in images.numpy())


def measure(
    inside: np.ndarray, outside: np.ndarray, source: np.random.Generator, *, paired: bool
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """AUROC, AUPR and FPR at 95% TPR, and their intervals."""
    drawn = bootstrap(inside, outside, REPLICATES, source, paired=paired)
    values = {metric: value.item() for metric, value in detect(inside, outside)._asdict().items()}
    ranges = {metric: intervals.of_replicates(getattr(drawn, metric)) for metric in values}
    if ranges["fpr95"] is None:  # all or none of the outside images: a proportion like any other
        ranges["fpr95"] = intervals.of_proportion(round(values["fpr95"] * len(outside)), len(outside))
    return values, {metric: ends for metric, ends in ranges.items() if ends}


class Counter:
    """Images done, over several passes."""

    def __init__(self, bar: Progress):
        self._bar, self._before, self._now = bar, 0, 0

    def begin(self) -> None:
        self._before, self._now = self._before + self._now, 0

    def __call__(self, done: int) -> None:
        self._now = done
        self._bar.update(self._before + done)


def all_scores(network: Tempered, images: Tensor, gamma2s: dict[str, float], done: Counter) -> Scores:
    done.begin()
    energies = unit_energies(network, images, done)
    done.begin()
    norms = gradient_norms(network, images, gamma2s, done)
    check_finite(torch.stack(list(norms.values()), 1))
    scores: Scores = {}
    for name, gamma2 in gamma2s.items():
        for score, per_image in density_and_confidence(logits_at(network, energies, gamma2)).items():
            scores[score, name] = per_image.numpy()
        scores["gradient_norm", name] = norms[name].numpy()
    return scores


def ties(inside: Scores) -> list[str]:
    """A score that is the same for all images tells nothing apart: a network may pass no gradient back."""
    return [
        f"{score} with {IN_WORDS[name]}: all test images have the same score"
        for (score, name), values in inside.items()
        if len(values) > 1 and (values == values[0]).all()
    ]


def doubts(values: dict[str, float], ranges: dict[str, tuple[float, float]]) -> list[str]:
    """Sets that look more familiar than the test images, by which score."""
    temperatures = [place.split("/")[2] for place in values]
    last = temperatures[-1] if temperatures else ""  # the fitted one, where there is one
    wrong: dict[str, list[str]] = {}
    for place, value in values.items():
        name, score, temperature, metric = place.split("/")
        if (temperature, metric) == (last, "auroc") and ranges.get(place, (value, value))[1] < 0.5:
            wrong.setdefault(name, []).append(f"{value:.2f} by {SCORE_WORDS[score]}")
    return [
        f"{name}: the model finds these images more familiar than its own test images (AUROC {', '.join(by)})"
        for name, by in wrong.items()
    ]
