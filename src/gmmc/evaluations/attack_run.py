"""Shared by the evaluations that attack: which images, where progress is kept, how survivors are counted."""

from typing import Any

import torch
from torch import Tensor

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.scores import check_finite
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.evaluations.attacks.campaign import Campaign, Store, content_key
from gmmc.evaluations.attacks.protocol import Broken
from gmmc.evaluations.attacks.target import Target
from gmmc.runs.folder import RunFolder

FORMAT = 4  # another number where an attack changes: an interrupted evaluation then restarts
FEW = 50  # images below which a number is a rough one
PARTIAL = ("cw",)  # not on all images: it counts for the worst case, and has no accuracy of its own

Intervals = dict[str, tuple[float, float]]


def choose_images(images: LabelledImages, count: int, seed: int) -> LabelledImages:
    """A random draw; fewer images of the same seed are the first of them."""
    order = torch.randperm(len(images), generator=generator(seed, "attacked"))
    return images[order[:count]]


def check_answers(target: Target, images: Tensor) -> None:
    """Refuse a model whose logits of clean images are not finite: every attack would seem to succeed."""
    with torch.no_grad():
        logits = torch.cat([target(part) for part in images.split(target.batch)])
    check_finite(logits.logsumexp(1))  # a class may have −∞: its prior may be zero


def open_store(
    name: str, folder: RunFolder | None, target: Target, attacked: LabelledImages, *settings: object
) -> Store:
    """Progress of an evaluation with these weights, images and settings, and of no other."""
    weights = target.module.state_dict().values()
    sizes = (target.batch, target.gamma2)
    key = content_key(FORMAT, *sizes, *settings, attacked.images, attacked.labels, *weights)
    return Store(folder.work(name) / f"{key[:16]}.safetensors" if folder else None, key)


def show_progress(campaign: Campaign, work: float, bar: Progress) -> None:
    bar.total = work
    if campaign.store.tensors:
        bar.say("going on with what an interrupted call left")
    campaign.on_progress = bar.update


def accuracies(broken: Broken, right: Tensor) -> tuple[dict[str, float], Intervals]:
    """The share of images that survive each attack, `threat/attack/accuracy`, and `clean`; with intervals."""
    count = len(right)
    survivors = {"clean": int(right.sum())} | {
        f"{threat}/{attack}/accuracy": int((~mask).sum())
        for threat, masks in broken.items()
        for attack, mask in masks.items()
        if attack not in PARTIAL
    }
    ranges = {name: intervals.of_proportion(left, count) for name, left in survivors.items()}
    return {name: left / count for name, left in survivors.items()}, ranges


def few(count: int, what: str, interval: tuple[float, float]) -> list[str]:
    """A warning where so few images were attacked that the interval is the result."""
    if count >= FEW:
        return []
    low, high = interval
    return [f"{count} images only: {what} at 8/255 is known to lie in [{low:.0%}, {high:.0%}], no better"]


def shared_conditions(campaign: Campaign, data: Dataset) -> dict[str, Any]:
    """Conditions of every attack."""
    return {
        "images": f"{len(campaign.labels)} of {len(data.test)} test images, drawn at random",
        "seed": campaign.seed,
        "threat": "x and x + δ in [0, 1], ε checked after every attack; no rounding to 8 bits",
        "logits": "as users get them, at gamma2; deterministic",
        "gamma2": campaign.target.gamma2,
    }
