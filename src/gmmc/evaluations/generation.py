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
from gmmc.evaluations.buffer_images import KEPT, Buffer, most_confident, read_buffer
from gmmc.evaluations.generation_flags import doubts
from gmmc.evaluations.memorisation import Memorisation, compare
from gmmc.evaluations.result import Result, conditions
from gmmc.fid import features
from gmmc.fid.chain_images import evenly
from gmmc.fid.feature_cache import known_features, training_features
from gmmc.fid.features import FeatureNetwork
from gmmc.fid.similarity import (
    DENSITY_NEIGHBOURS,
    KID_SIZE,
    KID_SUBSETS,
    PRECISION_NEIGHBOURS,
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
OVERLAP_IMAGES = 10_000  # of each set: time grows with their square
STARTS_AT_ONCE = 10_000  # in memory
KID_PROTOCOL = f"{KID_SUBSETS} subsets of at most {KID_SIZE:,} images"

SELECTION = {
    "fresh": "none: fresh chains",
    "start": "none: the images that the fresh chains start from, after 0 steps",
    "buffer": "none: the replay buffer as training left it",
    "paper": f"of the buffer, the most confident {KEPT:.0%} of each class that the model predicts",
    "test": "none: real test images",
}


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
    followed = follow(network, model, drawer, cfg, sets["fresh"], reference, scores, work)
    for name, value in found.values.items():
        scores.add(f"memorisation/{name}", value, found.interval if name == "closer_share" else None)
    return Result(
        values=scores.values,
        intervals=scores.ranges,
        curves={"nearest": found.curve} | followed,
        pictures=draw_pictures(fresh, buffer, found, data, cfg.seed),
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


def follow(
    network: FeatureNetwork,
    model: Classifier,
    drawer: Drawer,
    cfg: EvaluateOptions,
    fresh: Images,
    reference: Images,
    scores: Scores,
    work: Path | None,
) -> dict[str, Any]:
    """FID and KID of the first chains, had they been shorter or longer; the curve, if it is wanted."""
    counts = sorted(set(cfg.generation_steps))
    number = min(cfg.generated_by_steps, cfg.generated)
    if not counts or not number:
        return {}
    for steps in counts:
        if steps == drawer.settings.steps:
            images = fresh[torch.arange(number)]
        else:
            drawn_now = draw(model, drawer, number, cfg.seed, steps, work)
            images = Images(network.features(drawn_now, f"samples of {steps} steps"))
        scores.counts[f"steps_{steps}"] = number
        add_distances(scores, f"steps_{steps}", images, reference, cfg.seed)
    return {"steps": {"steps": counts, "fid": [scores.values[f"steps_{steps}/fid"] for steps in counts]}}


# --- what is shown and said ---


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


def told(
    model: Classifier,
    drawer: Drawer,
    data: Dataset,
    cfg: EvaluateOptions,
    network: FeatureNetwork,
    counts: dict[str, int],
    buffer: Buffer | None,
) -> dict[str, Any]:
    reference = reference_of(data)
    if buffer:
        reference += f"; paper: with the {len(data.test):,} test images too"
    followed = {name: SELECTION["fresh"] for name in counts if name.startswith("steps_")}
    protocol = {
        "images": counts,
        "reference": reference,
        **told_of_features(network),
        "selection": {name: SELECTION[name] for name in SELECTION if name in counts} | followed,
        **told_of_chains(drawer, cfg),
        "kid": KID_PROTOCOL,
        "overlap": f"{PRECISION_NEIGHBOURS} neighbours (precision, recall), {DENSITY_NEIGHBOURS} (density, "
        f"coverage), at most {OVERLAP_IMAGES:,} images of each set",
        "intervals": "95%; KID: jackknife; shares: Wilson; none for FID and density",
        "seed": cfg.seed,
    }
    if not network.classes:
        protocol["inception_score"] = (
            "not measured: this feature network has no class head; the official one (--features) has"
        )
    if buffer:
        protocol["buffer"] = {"chains": len(buffer), "never_moved": buffer.untouched, "step": buffer.step}
    return conditions(model, **protocol)


def reference_of(data: Dataset) -> str:
    return f"{len(data.train) + len(data.valid):,} training and validation images"


def told_of_features(network: FeatureNetwork) -> dict[str, Any]:
    return {"features": network.name, "features_precision": "float32 without TF32", "pixels": "uint8"}


def told_of_chains(drawer: Drawer, cfg: EvaluateOptions) -> dict[str, Any]:
    return {
        "steps": drawer.settings.steps,
        "seeds": f"{cfg.seed}..{cfg.seed + cfg.generated - 1}",
        "start": f"{drawer.initial.name}, not the buffer",
        "labels": f"0..{drawer.classes - 1} in turn",
        **sampler_conditions(drawer),
    }


def sampler_conditions(drawer: Drawer) -> dict[str, Any]:
    """The sampler, its precision and the settings that matter most."""
    settings = drawer.sampler_settings()
    values = {"sampler": settings.pop("name"), "sampler_precision": drawer.precision}
    if "sigma_data" in settings:
        return values | settings
    return values | {"alpha": settings["alpha"], "max_step": settings["max_step"] or "no limit"}
