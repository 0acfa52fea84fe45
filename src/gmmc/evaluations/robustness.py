"""How many test images survive an attacker? By the paper's protocol, and by one that a sceptic would ask for.

The paper runs PGD on a cross-entropy that saturates (its Table 5 hardly falls with ε). Beside that stand
attacks that do not saturate, AutoAttack, and for each image the worst of all of them: the number to quote.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from gmmc.base import intervals
from gmmc.base.names import PAPER_PGD, WORST_CASE
from gmmc.base.progress import Progress
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations import masking
from gmmc.evaluations.attack_run import (
    accuracies,
    check_answers,
    choose_images,
    few,
    open_store,
    shared_conditions,
    show_progress,
)
from gmmc.evaluations.attacks.campaign import Campaign
from gmmc.evaluations.attacks.gradient import cross_entropy_gradient
from gmmc.evaluations.attacks.protocol import PRESETS, Broken, Protocol, union
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.result import Result, conditions
from gmmc.pictures import grid
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder

GUIDES = 1000  # training images whose features may be imitated
SHOWN = 10  # images with their adversarial noise

Moved = dict[str, tuple[Tensor, Tensor]]  # attack → (images as it moved them, whether it succeeded)


def evaluate(
    model: nn.Module, data: Dataset, cfg: EvaluateOptions, folder: RunFolder | None = None
) -> Result:
    preset = PRESETS[cfg.attacks]
    surrogate = load_surrogate(cfg.surrogate, model, data)
    attacked = choose_images(data.test, cfg.attacked or preset.images, cfg.seed)
    target = Target(model)
    other_weights = surrogate.module.state_dict().values() if surrogate else ()
    store = open_store("robustness", folder, target, attacked, preset, cfg.seed, *other_weights)
    with target.exposed() as prepared, Progress("attacks", 1) as bar:
        images, labels = prepared(attacked.images), attacked.labels.to(target.device)
        check_answers(target, images)
        campaign = Campaign(target, images, labels, cfg.seed, store)
        imitated = guides(target, data.train, prepared, cfg.seed)
        protocol = Protocol(campaign, preset, imitated, len(data.class_names), surrogate)
        show_progress(campaign, protocol.work(), bar)
        broken = protocol.run()
        moved = protocol.carlini_wagner(broken)
        still = zero_gradients(target, images, labels)
        measured_in = conditions(model)  # the precision in which all of it was measured
    result = summed_up(broken, campaign.right, moved, images.cpu(), still)
    checks = masking.checks(result)
    return replace(
        result,
        unfinished=store.path,
        flags=[
            *few(len(labels), "the worst case", result.intervals["linf_8/worst_case/accuracy"]),
            *store.notes,
            *(text for text, raised in checks.items() if raised),
        ],
        conditions={
            **shared_conditions(campaign, data),
            "preset": cfg.attacks,
            "checks": {text: "raised" if raised else "fine" for text, raised in checks.items()},
            "attacks": protocol.settings(),
            "surrogate": described(surrogate, cfg.surrogate),
            **measured_in,
        },
    )


def guides(
    target: Target, train: LabelledImages, prepared: Callable[[Tensor], Tensor], seed: int
) -> tuple[Tensor, Tensor]:
    """Features and labels of training images that the model gets right."""
    some = choose_images(train, GUIDES, seed)
    features, labels = [], []
    for images, classes in zip(some.images.split(target.batch), some.labels.split(target.batch), strict=True):
        x, y = prepared(images), classes.to(target.device)
        right = target.names(x, y)
        with torch.no_grad():
            features.append(target.view(x).features[right])
        labels.append(y[right])
    return torch.cat(features), torch.cat(labels)


def load_surrogate(run: str, model: nn.Module, data: Dataset) -> Target | None:
    if not run:
        return None
    other = model_file.load(run, str(next(model.parameters(), torch.empty(0)).device))
    if (other.shape, other.class_names) != (data.shape, data.class_names):
        raise InputError(f"the surrogate must be a model of the same images and classes, got {run}")
    return Target(other)


def described(surrogate: Target | None, run: str) -> str:
    """By its name, not its whole path, which says something of a machine only."""
    if surrogate is None:
        return "none"
    model: Any = surrogate.module
    return f"{Path(run).resolve().name}: {model.cfg.model.head} head, {model.cfg.model.backbone}"


def zero_gradients(target: Target, images: Tensor, labels: Tensor) -> float:
    """Share of images whose gradient of the cross-entropy at the paper's γ² is zero in every pixel."""
    parts = zip(images.split(target.batch), labels.split(target.batch), strict=True)
    still = [(cross_entropy_gradient(target, x, y) == 0).flatten(1).all(1) for x, y in parts]
    return torch.cat(still).double().mean().item()


# --- summing up -----------------------------------------------------------------------------------


def summed_up(broken: Broken, right: Tensor, moved: Moved, images: Tensor, still: float) -> Result:
    """Accuracies with their intervals, the curve over ε, C&W's distances and picture; no conditions yet."""
    values, ranges = accuracies(with_worst_case(broken), right)
    for name, (found, reached) in moved.items():
        tried = int(right[: len(reached)].sum())
        distances = (found - images[: len(found)]).double().flatten(1).norm(dim=1)[reached]
        hits, place = int(reached.sum()), f"cw/{name}"
        if tried:
            values[f"{place}/images"] = tried
            values[f"{place}/success_rate"] = hits / tried
            ranges[f"{place}/success_rate"] = intervals.of_proportion(hits, tried)
        if hits:
            values[f"{place}/l2_mean"] = distances.mean().item()
            values[f"{place}/l2_median"] = distances.median().item()
    values["zero_gradient_share"] = still
    return Result(
        values,
        {},
        intervals=ranges,
        curves={"linf": curve(values, ranges), "steps": by_steps(values)},
        pictures=noise_picture(moved, images),
    )


def with_worst_case(broken: Broken) -> Broken:
    """Per image the worst of all attacks; what breaks an image breaks it within a larger ε too."""
    found: Broken = {}
    so_far: dict[str, Tensor] = {}
    for threat, masks in broken.items():  # of each norm the smallest ε first
        norm = threat.split("_")[0]
        worst = union(masks | {"smaller": so_far[norm]}) if norm in so_far else union(masks)
        found[threat], so_far[norm] = masks | {WORST_CASE: worst}, worst
    return found


def curve(values: dict[str, float], ranges: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """Accuracy against ε of L∞ in 255ths, for each attack; None where it did not run."""
    places = [key.split("/") for key in values if key.startswith("linf_")]
    threats = list(dict.fromkeys(place[0] for place in places))
    attacks = dict.fromkeys(place[1] for place in places)
    return {
        "eps": [float(threat.removeprefix("linf_")) for threat in threats],
        "accuracy": {
            attack: [values.get(f"{threat}/{attack}/accuracy") for threat in threats] for attack in attacks
        },
        "interval": {WORST_CASE: [list(ranges[f"{threat}/{WORST_CASE}/accuracy"]) for threat in threats]},
    }


def by_steps(values: dict[str, float]) -> dict[str, list[float]]:
    """PGD's accuracy at 8/255 with more and more steps."""
    names = {10: "pgd_10", 40: PAPER_PGD, 200: "pgd_200"}
    found = {steps: values.get(f"linf_8/{name}/accuracy") for steps, name in names.items()}
    known = {steps: accuracy for steps, accuracy in found.items() if accuracy is not None}
    return {"steps": list(known), "accuracy": list(known.values())}


def noise_picture(moved: Moved, images: Tensor) -> dict[str, Image]:
    """Of the first successes: the image, (x_adv − x)/2 as the paper draws it, the same stretched, x_adv."""
    if not moved:
        return {}
    found, reached = next(iter(moved.values()))
    shown = reached.nonzero().flatten()[:SHOWN]
    if len(shown) == 0:
        return {}
    x, adversarial = images[shown], found[shown]
    noise = (adversarial - x) / 2
    largest = noise.flatten(1).abs().amax(1)[:, None, None, None].clamp(min=1e-12)
    rows = torch.cat([x, noise + 0.5, noise / largest / 2 + 0.5, adversarial])
    return {"robustness/noises.png": grid(rows, len(shown), ["image", "noise / 2", "stretched", "attacked"])}
