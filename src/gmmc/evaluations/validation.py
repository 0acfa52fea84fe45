"""What may be looked at while a recipe is being chosen: nothing of the test images.

Accuracy on the validation images, which training does not see, and FID and KID of fresh chains and of the
replay buffer against all training images, as `generation` measures them, without what is slow there.
"""

from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import nn

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.classifier.drawing import Drawer
from gmmc.classifier.model import Classifier
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations.accuracy import logits_of
from gmmc.evaluations.buffer_images import Buffer
from gmmc.evaluations.generation import (
    Images,
    Scores,
    add_distances,
    can_sample,
    check_counts,
    draw,
    find_buffer,
    labels_of,
)
from gmmc.evaluations.generation_conditions import (
    KID_PROTOCOL,
    SELECTION,
    reference_of,
    told_of_chains,
    told_of_features,
)
from gmmc.evaluations.generation_flags import doubts_of_buffer, doubts_of_chains, doubts_of_counts
from gmmc.evaluations.result import Result, conditions
from gmmc.fid import features
from gmmc.fid.chain_images import evenly
from gmmc.fid.feature_cache import training_features
from gmmc.fid.features import FeatureNetwork
from gmmc.pictures import GRID_COLUMNS, grid
from gmmc.pixels import as_unit
from gmmc.runs.folder import RunFolder


def evaluate(
    model: nn.Module, data: Dataset, cfg: EvaluateOptions, folder: RunFolder | None = None
) -> Result:
    """The run folder, if any, holds the replay buffer, and meanwhile the chains drawn so far.

    Of a module that draws no samples there is the accuracy alone.
    """
    if not len(data.valid):
        raise InputError("validation needs validation images, got none; train with data.valid above 0")
    scores = Scores()
    told: dict[str, Any] = {"split": "validation", "images": len(data.valid)}
    if not can_sample(model):
        add_accuracy(scores, model, data.valid)
        told |= {"generated": 0, "samples": "not measured: this module draws none"}
        return Result(scores.values, conditions(model, **told, seed=cfg.seed), scores.ranges)
    check_counts("validation", data, cfg, ("train",))
    network = features.find(cfg.features, data, model.device)
    add_accuracy(scores, model, data.valid)
    work = folder.work("validation") if folder else None
    buffer, missing = find_buffer(folder, model)
    drawer = model.drawer()
    sets = generated_sets(model, drawer, cfg, buffer, work)
    score(scores, sets, network, data, cfg.seed)
    return Result(
        values=scores.values,
        intervals=scores.ranges,
        pictures={f"validation/{name}.png": by_class(images, model) for name, images in sets.items()},
        flags=doubts(scores, network, model, drawer, buffer, missing),
        conditions=conditions(model, **told, **told_of_samples(drawer, data, cfg, network, sets, buffer)),
        unfinished=work,
    )


# --- the numbers ---


def add_accuracy(scores: Scores, model: nn.Module, valid: LabelledImages) -> None:
    hits = int((logits_of(model, valid.images).argmax(-1) == valid.labels).sum())
    scores.add("top1", hits / len(valid), intervals.of_proportion(hits, len(valid)))


def generated_sets(
    model: Classifier, drawer: Drawer, cfg: EvaluateOptions, buffer: Buffer | None, work: Path | None
) -> dict[str, LabelledImages]:
    """Fresh chains and, if there is one, no more of the buffer: FID depends on the number of images."""
    fresh = draw(model, drawer, cfg.generated, cfg.seed, drawer.settings.steps, work)
    sets = {"fresh": LabelledImages(fresh, labels_of(len(fresh), drawer.classes))}
    if buffer:
        slots = evenly(len(buffer), cfg.generated)
        sets["buffer"] = LabelledImages(buffer.images[slots], buffer.labels[slots])
    return sets


def score(
    scores: Scores, sets: dict[str, LabelledImages], network: FeatureNetwork, data: Dataset, seed: int
) -> None:
    reference = Images(torch.cat(training_features(network, data)))
    looked_at = {name: Images(network.features(part.images, f"{name} images")) for name, part in sets.items()}
    with Progress("scoring", len(sets)) as bar:
        for i, (name, images) in enumerate(looked_at.items()):
            scores.counts[name] = len(images)
            add_distances(scores, name, images, reference, seed)
            bar.update(i + 1, name)


# --- what is shown and said ---


def by_class(part: LabelledImages, model: Classifier) -> Image:
    """A row per class with the first of its images, as many as the rarest class has."""
    labels, counts = part.labels.unique(return_counts=True)
    columns = min(GRID_COLUMNS, int(counts.min()))
    chosen = torch.cat([(part.labels == y).nonzero().flatten()[:columns] for y in labels])
    return grid(as_unit(part.images[chosen]), columns, [model.class_names[y] for y in labels])


def doubts(
    scores: Scores,
    network: FeatureNetwork,
    model: Classifier,
    drawer: Drawer,
    buffer: Buffer | None,
    missing: str,
) -> list[str]:
    """Of what matters in a choice between runs; whether others' FIDs compare does not."""
    flags = [f"buffer is not measured: {missing}"] if missing else []
    flags += doubts_of_counts(scores.counts, network.dim)
    flags += doubts_of_chains(scores.values, scores.ranges, drawer.settings.steps)
    return flags + (doubts_of_buffer(buffer, model.trained.get("updates")) if buffer else [])


def told_of_samples(
    drawer: Drawer,
    data: Dataset,
    cfg: EvaluateOptions,
    network: FeatureNetwork,
    sets: dict[str, LabelledImages],
    buffer: Buffer | None,
) -> dict[str, Any]:
    selection = {name: SELECTION[name] for name in sets}
    if buffer and len(sets["buffer"]) < len(buffer):
        selection["buffer"] = f"of the {len(buffer):,} chains of the replay buffer, evenly spaced ones"
    return {
        "generated": cfg.generated,
        **({"buffer": len(sets["buffer"])} if buffer else {}),
        "reference": reference_of(data),
        **told_of_features(network),
        "selection": selection,
        **told_of_chains(drawer, cfg),
        "kid": KID_PROTOCOL,
        "intervals": "95%; KID: jackknife; accuracy: Wilson; none for FID",
        "seed": cfg.seed,
    }
