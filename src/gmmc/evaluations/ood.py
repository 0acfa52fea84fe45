"""Does the model tell images of other sets from its own? By the paper's three scores (Table 3) and ours."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn

from gmmc.base import intervals
from gmmc.base.names import SCORE_QUANTITIES, TEMPERATURES
from gmmc.base.progress import Progress
from gmmc.classifier.abstention import NEIGHBOURS
from gmmc.classifier.evidence import Evidence, gather, joined, passes, scores_of
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import Tempered, feature_scores, tempered
from gmmc.config.sections import EvaluateOptions
from gmmc.data.ood_sets import GENERATED, Outside, find_outside
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations.detection import bootstrap, detect, histogram
from gmmc.evaluations.result import Result, conditions
from gmmc.evaluations.temperatures import doubts_of_fit, fitted_on, temperatures

REPLICATES = 200
MOSTLY = 0.5  # share of another set that is too much to accept
INSIDE = "test images"  # beside the names of the other sets, where a value is of one set alone

Scores = dict[tuple[str, str], np.ndarray]  # (score, temperature) → one number per image


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateOptions) -> Result:
    sets, flags = find_sets(data, cfg)  # what is missing is reported before the work
    network = tempered(model)
    found = temperatures(network, data)
    rule = acceptance(model)
    images = len(data.test) + sum(len(other.images) for other in sets)
    values, ranges, curves = {}, {}, {}
    with Progress("out of distribution", passes(network) * images) as bar:
        done = Counter(bar)
        seen = gather(network, data.test.images, on_progress=done.next())
        inside = all_scores(network, seen, found)
        add_summary(INSIDE, seen, inside, model, rule, values, ranges)
        for number, other in enumerate(sets):
            seen = gather(network, other.images, on_progress=done.next())
            outside = all_scores(network, seen, found)
            add_summary(other.name, seen, outside, model, rule, values, ranges)
            for key, scores in outside.items():
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
        flags=[
            *flags,
            *doubts_of_fit(found),
            *accepted_sets(values, rule),
            *ties(inside),
            *doubts(values, ranges),
        ],
        conditions=conditions(
            model,
            positive="in-distribution: a higher score means inside",
            inside=f"{len(data.test)} test images",
            outside={other.name: len(other.images) for other in sets},
            aupr_by_chance={
                other.name: round(len(data.test) / (len(data.test) + len(other.images)), 4) for other in sets
            },
            outside_notes=[note for other in sets for note in other.notes],
            scores=f"max_posterior at each temperature; all others at {density(network)}",
            temperatures=found,
            fitted_on=fitted_on(network, data),
            **neighbours(model),
            **combination(network),
            **({"abstains": rule} if rule else {}),
            intervals=f"95%, {REPLICATES} bootstrap draws of both sets; none where these do not overlap",
            seed=cfg.seed,
        ),
    )


def density(network: Tempered) -> str:
    """γ², and σ of a noise-conditional model, of all scores but the confidence."""
    at, sigma = TEMPERATURES[network.density_name], network.density_sigma
    return at if sigma is None else f"{at}, σ = {sigma:g}"


def acceptance(model: nn.Module) -> dict[str, Any]:
    """By which score, and below which value of it, the model as it is stored gives no answer."""
    if not isinstance(model, Classifier) or model.reference is None:
        return {}
    score, tpr = model.abstains_by, model.abstain.tpr
    if score not in model.reference.scores:  # an older file
        return {}
    return {"score": score, "tpr": tpr, "below": model.reference.threshold(score, tpr)}


def combination(network: Tempered) -> dict[str, Any]:
    """Weights of the p-values in the combined score, and noise levels at which images are looked at."""
    if not joined(network):
        return {}
    weights = ", ".join(f"{weight:g}·ln p({score})" for score, weight in joined(network).items())
    levels = [float(f"{sigma:.4g}") for sigma in network.noise_levels]
    return {"combined": weights, **({"noise_levels": levels} if levels else {})}


def neighbours(model: nn.Module) -> dict[str, Any]:
    """How many training features the model keeps, and which of their distances counts."""
    if not isinstance(model, Classifier) or model.neighbours is None:
        return {}
    kept = model.neighbours.features
    size = kept.nbytes
    return {
        "neighbours": f"Euclidean distance to the {NEIGHBOURS}th nearest of {len(kept)} training features, "
        f"at most equally many of each class, {size:,} bytes in the model"
    }


def all_scores(network: Tempered, seen: Evidence, gamma2s: dict[str, float]) -> Scores:
    """Confidence at every temperature, all other scores at the γ² of training."""
    at, gamma2 = network.density_name, network.density_gamma2
    trained = scores_of(network, seen, gamma2)
    scores: Scores = {(score, at): per_image.numpy() for score, per_image in trained.items()}
    for name, gamma2 in gamma2s.items():
        confidence = feature_scores(network, seen.features, gamma2, ["max_posterior"])["max_posterior"]
        scores["max_posterior", name] = confidence.numpy()
    order = [(score, name) for score in SCORE_QUANTITIES for name in gamma2s]
    return {key: scores[key] for key in order if key in scores}


def add_summary(
    name: str,
    seen: Evidence,
    scores: Scores,
    model: nn.Module,
    rule: dict[str, Any],
    values: dict[str, float],
    ranges: dict[str, tuple[float, float]],
) -> None:
    """Add what concerns one set alone: the share that is accepted, and both parts of a median energy."""
    if rule:
        accepted = accepted_images(model, seen, rule)
        values[f"{name}/accepted"] = accepted.double().mean().item()
        ranges[f"{name}/accepted"] = intervals.of_proportion(int(accepted.sum()), len(accepted))
    at = tempered(model).density_name
    if ("residual", at) in scores:
        values[f"{name}/energy_in_span"] = -np.median(scores["span_density", at]).item()
        values[f"{name}/energy_outside_span"] = -np.median(scores["residual", at]).item()


def accepted_images(model: nn.Module, seen: Evidence, rule: dict[str, Any]) -> Tensor:
    """As `answer` accepts them: a confidence is at the γ² that is stored with the threshold."""
    assert isinstance(model, Classifier)
    assert model.reference is not None
    score = rule["score"]
    return scores_of(tempered(model), seen, model.reference.gamma2, [score])[score] >= rule["below"]


def find_sets(data: Dataset, cfg: EvaluateOptions) -> tuple[list[Outside], list[str]]:
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

    def next(self) -> "Counter":
        """Begin with other images, which are counted from 0 again."""
        self._before, self._now = self._before + self._now, 0
        return self

    def __call__(self, done: int) -> None:
        self._now = done
        self._bar.update(self._before + done)


def ties(inside: Scores) -> list[str]:
    """A score that is the same for all images tells nothing apart: a network may pass no gradient back."""
    return [
        f"{score} with {TEMPERATURES[name]}: all test images have the same score"
        for (score, name), values in inside.items()
        if len(values) > 1 and (values == values[0]).all()
    ]


def accepted_sets(values: dict[str, float], rule: dict[str, Any]) -> list[str]:
    """Warn about other sets of which the model accepts more than half."""
    shares = {
        key.removesuffix("/accepted"): value for key, value in values.items() if key.endswith("/accepted")
    }
    return [
        f"{name}: the model accepts {share:.0%} of these images, by {SCORE_QUANTITIES[rule['score']]}"
        for name, share in shares.items()
        if name != INSIDE and share > MOSTLY
    ]


def doubts(values: dict[str, float], ranges: dict[str, tuple[float, float]]) -> list[str]:
    """Sets that look more familiar than the test images, by which score at its first temperature."""
    first: dict[tuple[str, str], tuple[str, float]] = {}
    for place, value in values.items():
        if place.endswith("/auroc"):
            name, score, _, _ = place.split("/")
            first.setdefault((name, score), (place, value))
    wrong: dict[str, list[str]] = {}
    for (name, score), (place, value) in first.items():
        if ranges.get(place, (value, value))[1] < 0.5:
            wrong.setdefault(name, []).append(f"{value:.2f} by {SCORE_QUANTITIES[score]}")
    return [
        f"{name}: these images look more familiar than the test images (AUROC {', '.join(by)})"
        for name, by in wrong.items()
    ]
