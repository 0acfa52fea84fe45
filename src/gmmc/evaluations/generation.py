"""How good are the samples as a whole? FID, KID, how far they cover the real images, and memorisation.

Every protocol is named for what it is: fresh chains, none left out, are what a user gets; their start, before
any step, shows what the chains themselves bring; the replay buffer has followed its chains for the whole
training; the paper's protocol also leaves images out. Real test images against the same reference show what
a perfect generator would have.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from PIL.Image import Image
from torch import Tensor, nn

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.classifier.drawing import Drawer
from gmmc.classifier.model import Classifier
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations.buffer_images import Buffer, most_confident, read_buffer
from gmmc.evaluations.generation_conditions import OVERLAP_IMAGES, told
from gmmc.evaluations.generation_flags import doubts
from gmmc.evaluations.memorisation import Memorisation, compare
from gmmc.evaluations.result import Result
from gmmc.fid import features
from gmmc.fid.chain_images import evenly
from gmmc.fid.feature_cache import known_features, training_features
from gmmc.fid.features import FeatureNetwork
from gmmc.fid.similarity import (
    Gaussian,
    frechet,
    inception_score,
    kid,
    overlap,
    some,
)
from gmmc.generate import drawn
from gmmc.pictures import GRID_COLUMNS, grid
from gmmc.pixels import as_unit, to_uint8
from gmmc.runs.folder import RunFolder
from gmmc.sampling.initial import NoiseStart

FEWEST = 4  # images that anything can be said of
STARTS_AT_ONCE = 10_000  # in memory


@dataclass(frozen=True)
class Images:
    """One set of images, as the feature network sees it."""

    features: Tensor
    classes: Tensor | None = None  # p(y|x) of the network's head

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, places: Tensor) -> "Images":
        places = places.to(self.features.device)
        return Images(self.features[places], None if self.classes is None else self.classes[places])

    @functools.cached_property
    def gaussian(self) -> Gaussian:
        return Gaussian.of(self.features)


@dataclass
class Scores:
    """By protocol and metric: "fresh/fid"."""

    values: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: float, interval: tuple[float, float] | None = None) -> None:
        self.values[name] = value
        if interval is not None:
            self.ranges[name] = interval


def evaluate(
    model: Classifier, data: Dataset, cfg: EvaluateOptions, folder: RunFolder | None = None
) -> Result:
    """The run folder, if any, holds the replay buffer, and meanwhile the chains drawn so far."""
    check(model, data, cfg)
    drawer = model.drawer()
    network = features.find(cfg.features, data, model.device)
    train, valid = training_features(network, data)
    test = look_at_test(network, data)
    buffer, missing = find_buffer(folder, model)
    work = folder.work("generation") if folder else None
    fresh = draw(model, drawer, cfg.generated, cfg.seed, drawer.settings.steps, work)
    sets = {**candidates(network, model, fresh, buffer), "test": test}
    reference = Images(torch.cat([train, valid]))
    paper_reference = Images(torch.cat([train, valid, test.features]))
    scores = score_all(sets, reference, paper_reference, cfg.seed)
    if not isinstance(model.start, NoiseStart):
        add_start(network, draw_start(drawer, cfg.generated, cfg.seed), reference, scores, cfg.seed)
    found = compare(sets["fresh"].features, train, test.features)
    lengths = Lengths(model, drawer, cfg, work)
    followed = lengths.scored(network, fresh, sets["fresh"], reference, scores)
    for name, value in found.values.items():
        scores.add(f"memorisation/{name}", value, found.interval if name == "closer_share" else None)
    return Result(
        values=scores.values,
        intervals=scores.ranges,
        curves={"nearest": found.curve} | followed,
        pictures=draw_pictures(fresh, buffer, found, data, cfg.seed) | lengths.picture(),
        flags=[
            *([f"buffer and paper are not measured: {missing}"] if missing else []),
            *doubts(scores.values, scores.ranges, scores.counts, network, model, drawer, data, buffer),
        ],
        conditions=told(model, drawer, data, cfg, network, scores.counts, buffer),
        unfinished=work,
    )


def check(model: Classifier, data: Dataset, cfg: EvaluateOptions) -> None:
    """Refuse before the work what cannot be done."""
    model.check_can_sample()
    check_counts("generation", data, cfg, ("train", "test"))
    fewest = fewest_chains(data)
    if 0 < cfg.generated_by_steps < fewest:
        raise InputError(
            f"generated_by_steps must be 0 or at least 2 per class, {fewest}, got {cfg.generated_by_steps}"
        )
    if min(cfg.generation_steps, default=1) < 1:
        raise InputError(f"generation_steps must be at least 1, got {min(cfg.generation_steps)}")


def check_counts(evaluation: str, data: Dataset, cfg: EvaluateOptions, parts: tuple[str, ...]) -> None:
    """Enough fresh chains, and enough real images in each part of the data that is looked at."""
    fewest = fewest_chains(data)
    if cfg.generated < fewest:
        raise InputError(f"generated must be at least 2 per class, {fewest}, got {cfg.generated}")
    for part in parts:
        if (count := len(getattr(data, part))) < FEWEST:
            raise InputError(f"{evaluation} needs at least {FEWEST} {part} images, got {count}")


def fewest_chains(data: Dataset) -> int:
    return max(FEWEST, 2 * len(data.class_names))


def can_sample(model: nn.Module) -> TypeGuard[Classifier]:
    return isinstance(model, Classifier) and model.can_sample


# --- the images ---


def labels_of(count: int, classes: int) -> Tensor:
    return torch.arange(count) % classes


def draw(model: Classifier, drawer: Drawer, count: int, seed: int, steps: int, work: Path | None) -> Tensor:
    """Fresh chains as uint8 images on the CPU; an interrupted evaluation goes on with those in `work`."""
    with Progress(f"sampling, {steps} steps", count) as bar:
        place = work / f"steps_{steps}" if work else None
        labels, report = labels_of(count, drawer.classes), bar.update
        return drawn(model, labels, seed, steps=steps, folder=place, on_progress=report, drawer=drawer)


def draw_start(drawer: Drawer, count: int, seed: int) -> Tensor:
    """x′_0 of the same labels and seeds as `draw`, as uint8 images on the CPU."""
    labels = labels_of(count, drawer.classes)
    parts = [
        to_uint8(drawer.initial_images(part, seed + i * STARTS_AT_ONCE)).cpu()
        for i, part in enumerate(labels.split(STARTS_AT_ONCE))
    ]
    return torch.cat(parts)


def find_buffer(folder: RunFolder | None, model: Classifier) -> tuple[Buffer | None, str]:
    """The buffer, or None and why; no reason where the training had none."""
    if model.denoising is not None:
        return None, ""
    try:
        buffer = read_buffer(folder, model)
        if len(buffer) < 2 * FEWEST:
            raise InputError(f"the buffer holds {len(buffer)} images only")
        return buffer, ""
    except InputError as error:
        return None, str(error)


def look_at_test(network: FeatureNetwork, data: Dataset) -> Images:
    if network.classes:  # features on disk come without them
        return Images(*network.described(data.test.images, "test images"))
    return Images(known_features(network, data.test.images, "test images"))


def candidates(
    network: FeatureNetwork, model: Classifier, fresh: Tensor, buffer: Buffer | None
) -> dict[str, Images]:
    """The generated images, by protocol."""
    sets = {"fresh": Images(*network.described(fresh, "fresh samples"))}
    if buffer:
        sets["buffer"] = Images(*network.described(buffer.images, "the buffer"))
        sets["paper"] = sets["buffer"][most_confident(model, buffer.images)]
    return sets


# --- the scores ---


def score_all(sets: dict[str, Images], reference: Images, paper_reference: Images, seed: int) -> Scores:
    scores = Scores()
    with Progress("scoring", 2 * len(sets)) as bar:
        for i, (protocol, images) in enumerate(sets.items()):
            against = paper_reference if protocol == "paper" else reference
            scores.counts[protocol] = len(images)
            add_distances(scores, protocol, images, against, seed)
            bar.update(2 * i + 1, protocol)
            add_overlap(scores, protocol, images, against, seed)
            if images.classes is not None:
                scores.add(f"{protocol}/inception_score", *inception_score(images.classes, seed=seed))
            bar.update(2 * i + 2, protocol)
    return scores


def add_distances(scores: Scores, protocol: str, images: Images, reference: Images, seed: int) -> None:
    scores.add(f"{protocol}/fid", frechet(reference.gaussian, images.gaussian))
    scores.add(f"{protocol}/kid", *kid(images.features, reference.features, seed=seed))


def add_start(network: FeatureNetwork, images: Tensor, reference: Images, scores: Scores, seed: int) -> None:
    """FID and KID of the start, for `fresh` to be read against."""
    scores.counts["start"] = len(images)
    start = Images(network.features(images, "the start of the chains"))
    add_distances(scores, "start", start, reference, seed)


def add_overlap(scores: Scores, protocol: str, images: Images, reference: Images, seed: int) -> None:
    real = some(reference.features, OVERLAP_IMAGES, seed, "real")
    generated = some(images.features, OVERLAP_IMAGES, seed, "generated")
    counts = {"precision": len(generated), "recall": len(real), "coverage": len(real)}
    for name, value in overlap(real, generated)._asdict().items():
        count = counts.get(name)  # density is no proportion
        interval = intervals.of_proportion(round(value * count), count) if count else None
        scores.add(f"{protocol}/{name}", value, interval)


class Lengths:
    """The first fresh chains, had they been shorter or longer, for each of `generation_steps`."""

    def __init__(self, model: Classifier, drawer: Drawer, cfg: EvaluateOptions, work: Path | None):
        self.model, self.drawer, self.cfg, self.work = model, drawer, cfg, work
        self.number = min(cfg.generated_by_steps, cfg.generated)
        self.counts = sorted(set(cfg.generation_steps)) if self.number else []
        self.shown: dict[int, Tensor] = {}  # number of steps → first images, uint8

    def scored(
        self, network: FeatureNetwork, fresh: Tensor, looked_at: Images, reference: Images, scores: Scores
    ) -> dict[str, Any]:
        """Add FID and KID of each length; return the curve, if it is wanted."""
        for steps in self.counts:
            if steps == self.drawer.settings.steps:
                drawn_now, images = fresh, looked_at[torch.arange(self.number)]
            else:
                drawn_now = draw(self.model, self.drawer, self.number, self.cfg.seed, steps, self.work)
                images = Images(network.features(drawn_now, f"samples of {steps} steps"))
            self.shown[steps] = drawn_now[: min(GRID_COLUMNS, self.number)].clone()
            scores.counts[f"steps_{steps}"] = self.number
            add_distances(scores, f"steps_{steps}", images, reference, self.cfg.seed)
        fids = [scores.values[f"steps_{steps}/fid"] for steps in self.counts]
        return {"steps": {"steps": self.counts, "fid": fids}} if self.counts else {}

    def picture(self) -> dict[str, Image]:
        """A row per length, a seed per column."""
        if not self.shown:
            return {}
        rows = torch.cat([as_unit(images) for images in self.shown.values()])
        names = [f"{steps:,} steps" for steps in self.shown]
        return {"generation/by_steps.png": grid(rows, len(rows) // len(names), names)}


# --- what is shown ---


def draw_pictures(
    fresh: Tensor, buffer: Buffer | None, found: Memorisation, data: Dataset, seed: int
) -> dict[str, Image]:
    shown = {
        "generation/fresh.png": grid(as_unit(fresh[: GRID_COLUMNS**2]), GRID_COLUMNS),
        "generation/nearest.png": found.picture(fresh, data.train.images, seed),
    }
    if buffer:
        places = evenly(len(buffer), GRID_COLUMNS**2)
        shown["generation/buffer.png"] = grid(as_unit(buffer.images[places]), GRID_COLUMNS)
    return shown
