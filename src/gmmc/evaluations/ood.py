"""Does the model know what it has never seen? The paper's three scores on images of other sets (Table 4)."""

import numpy as np
from torch import Tensor, nn

from gmmc.config import EvaluateConfig
from gmmc.data import Dataset, outside
from gmmc.errors import InputError
from gmmc.evaluations import intervals
from gmmc.evaluations.detection import bootstrap, detect, histogram
from gmmc.evaluations.result import Result, conditions
from gmmc.evaluations.temperatures import IN_WORDS, temperatures
from gmmc.progress import Progress
from gmmc.scores import Tempered, density_and_confidence, gradient_norms, logits_at, raw_of, tempered

REPLICATES = 200

Scores = dict[tuple[str, str], np.ndarray]  # (score, temperature) → one number per image


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateConfig) -> Result:
    if not cfg.ood:
        raise InputError("evaluate.ood must name at least one set of other images, got none")
    names = [short(name) for name in cfg.ood]
    if len(set(names)) < len(names):
        raise InputError(f"the sets of evaluate.ood must have different names, got {', '.join(names)}")
    # What is missing is told before the work.
    sets = {short(name): outside(name, data, cfg.seed) for name in cfg.ood}
    network = tempered(model)
    found = temperatures(network, data)
    work = len(data.test) + sum(len(images) for images in sets.values())
    values, ranges, curves = {}, {}, {}
    with Progress("out of distribution", 2 * work) as bar:
        done = Counter(bar)
        inside = all_scores(network, data.test.images, found, done)
        for number, (name, images) in enumerate(sets.items()):
            others = all_scores(network, images, found, done)
            for key, scores in others.items():
                place = "/".join((name, *key))
                source = np.random.default_rng([cfg.seed, number])
                drawn = bootstrap(inside[key], scores, REPLICATES, source)
                for metric, value in detect(inside[key], scores)._asdict().items():
                    values[f"{place}/{metric}"] = value.item()
                    ranges[f"{place}/{metric}"] = intervals.of_replicates(getattr(drawn, metric))
                curves[place] = histogram(inside[key], scores)
    return Result(
        values=values,
        intervals=ranges,
        curves=curves,
        flags=[*ties(inside), *doubts(values, ranges)],
        conditions=conditions(
            model,
            positive="in-distribution: a higher score means inside",
            inside=f"{len(data.test)} test images",
            outside={name: len(images) for name, images in sets.items()},
            temperatures=found,
            fitted_on=f"{len(data.valid)} validation images, by NLL",
            intervals=f"95%, {REPLICATES} bootstrap draws of both sets (blind where these do not overlap)",
            seed=cfg.seed,
        ),
    )


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
    raw = raw_of(network, images, done)
    done.begin()
    norms = gradient_norms(network, images, gamma2s, done)
    scores: Scores = {}
    for name, gamma2 in gamma2s.items():
        for score, per_image in density_and_confidence(logits_at(network, raw, gamma2)).items():
            scores[score, name] = per_image.numpy()
        scores["gradient_norm", name] = norms[name].numpy()
    for (score, name), per_image in scores.items():
        if not np.isfinite(per_image).all():
            raise InputError(f"the model gives scores that are not finite numbers ({score}, γ² {name})")
    return scores


def short(name: str) -> str:
    """The name of a set; of a folder or file the last part of its path, which has no slash."""
    return name.rstrip("/").rsplit("/", 1)[-1]


def ties(inside: Scores) -> list[str]:
    """A score that is the same for all images tells nothing apart: a network may pass no gradient back."""
    return [
        f"{score} with {IN_WORDS[name]}: all test images have the same score"
        for (score, name), values in inside.items()
        if len(values) > 1 and (values == values[0]).all()
    ]


def doubts(values: dict[str, float], ranges: dict[str, tuple[float, float]]) -> list[str]:
    flags = []
    for place, (_, high) in ranges.items():
        name, score, temperature, metric = place.split("/")
        if (score, temperature, metric) == ("log_density", "fitted", "auroc") and high < 0.5:
            flags.append(
                f"{name}: the model finds these images more likely than its own test images "
                f"(AUROC {values[place]:.2f} by log p(x))"
            )
    return flags
