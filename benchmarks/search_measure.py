"""Numbers of one average of the weights in the search by denoising; training and validation images only.

The evaluation `validation` (accuracy on 5,000 images, FID and KID of 10,000 fresh images), cross-entropies of
training and validation images as they are at the γ² of training and of validation images at the fitted γ²,
the denoising loss of validation images at each σ, and the AUROC of every score for validation images against
themselves behind a grey square.
"""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch
from denoising_runs import calibration

import gmmc
from gmmc.base import intervals
from gmmc.base.atomic import write_atomic
from gmmc.base.seeds import generator
from gmmc.classifier.drawing import with_guidance
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import feature_scores, features, logits_at, unit_energies
from gmmc.config.sections import EvaluateOptions
from gmmc.data.ood_sets import GENERATED
from gmmc.data.splits import Dataset
from gmmc.evaluations import validation
from gmmc.evaluations.detection import bootstrap, detect
from gmmc.evaluations.generation import draw
from gmmc.fid import features as feature_networks
from gmmc.fid.feature_cache import training_features
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.runs.folder import RunFolder

GENERATED_IMAGES, LEVEL_IMAGES, CLASS_IMAGES, REPLICATES, SEED = 10_000, 500, 5_000, 10, 0
# (steps, guidance, first noise level) that the chosen model is drawn with
SAMPLING = (  # the first is the usual one
    *((steps, 0.0, 5.0) for steps in (18, 12, 35)),
    *((18, guidance, 5.0) for guidance in (0.25, 0.5, 1.0)),
    (18, 0.0, 80.0),  # a start that the Gaussian of the class does not decide
)


def measure(place: Path, data: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one average; an interrupted call goes on with the images drawn so far."""
    finished = place / "search.json"
    if finished.exists():
        return json.loads(finished.read_text())
    model = gmmc.load(place, device="auto")
    assert model.drawing is not None
    model.drawing = dataclasses.replace(model.drawing, engine="auto")
    count = 4 * len(data.class_names) if arguments.rehearse else GENERATED_IMAGES
    network = "small" if arguments.rehearse else arguments.features
    options = EvaluateOptions(generated=count, features=network, seed=SEED)
    folder = RunFolder(place)
    result = validation.evaluate(model, data, options, folder)
    width = fid_half_width(model, data, options, result.unfinished)
    number = 50 if arguments.rehearse else LEVEL_IMAGES
    few = data.valid[:number]
    found = {
        "values": result.values,
        "intervals": {**result.intervals, "fresh/fid": around(result.values["fresh/fid"], width)},
        "flags": result.flags,
        "cross_entropy": cross_entropies(model, data),
        "levels": calibration(model, few.images, few.labels),
        "level_images": len(few),
        "cutout": cutout_aurocs(model, data),
        "conditions": {key: result.conditions[key] for key in result.conditions if key != "settings"},
    }
    write_atomic(finished, json.dumps(found).encode())
    folder.forget(result.unfinished)
    return found


def around(value: float, width: float) -> tuple[float, float]:
    return value - width, value + width


def fid_half_width(model: Classifier, data: Dataset, options: EvaluateOptions, work: Path | None) -> float:
    """1.96 standard deviations of FID over bootstrap draws of the images that `validation` drew."""
    drawer = model.drawer()
    images = draw(model, drawer, options.generated, options.seed, drawer.settings.steps, work)
    network = feature_networks.find(options.features, data, model.device)
    fresh = network.features(images, "fresh images")
    reference = Gaussian.of(torch.cat(training_features(network, data)))
    fids = []
    for i in range(REPLICATES):
        drawn = torch.randint(len(fresh), (len(fresh),), generator=generator(SEED, "bootstrap", i))
        fids.append(frechet(reference, Gaussian.of(fresh[drawn.to(fresh.device)])))
    return 1.96 * statistics.stdev(fids)


def cross_entropies(model: Classifier, data: Dataset) -> dict[str, float]:
    """Mean cross-entropies of images as they are, without noise or augmentation."""
    network = model.tempered()
    some = torch.randperm(len(data.train), generator=generator(SEED, "cross-entropy"))[:CLASS_IMAGES]
    parts = {"train": data.train[some], "valid": data.valid}
    energies = {name: unit_energies(network, part.images) for name, part in parts.items()}

    def mean(name: str, gamma2: float) -> float:
        logits = logits_at(network, energies[name], gamma2)
        return torch.nn.functional.cross_entropy(logits, parts[name].labels.to(logits.device)).item()

    trained = model.density_gamma2
    return {
        "train": mean("train", trained),
        "valid": mean("valid", trained),
        "valid_at_fitted": mean("valid", model.gamma2),
        "fitted_gamma2": model.gamma2,
    }


def cutout_aurocs(model: Classifier, data: Dataset) -> dict[str, Any]:
    """AUROC of each score for validation images against copies behind a grey square."""
    network = model.tempered()
    squares = GENERATED["cutout"](data.valid.images, generator(SEED, "outside", "cutout"))

    def scores(images: torch.Tensor) -> dict[str, np.ndarray]:
        found = features(network, images)
        return {name: s.cpu().numpy() for name, s in feature_scores(network, found, model.gamma2).items()}

    inside, outside = scores(data.valid.images), scores(squares)
    aurocs: dict[str, Any] = {
        name: detect(inside[name], outside[name]).auroc.item() for name in inside if name in outside
    }
    key, source = "log_density", np.random.default_rng(SEED)
    drawn = bootstrap(inside[key], outside[key], 200, source, paired=True)
    return aurocs | {"log_density_interval": intervals.of_replicates(drawn.auroc)}


# --- steps, guidance and start of chains -----------------------------------------------------------------


def by_sampling(place: Path, data: Dataset, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """FID of fresh images by Heun steps, guidance and start, of the same seeds; kept in a file meanwhile."""
    kept = place / "sampling.json"
    found = json.loads(kept.read_text()) if kept.exists() else {}
    model = gmmc.load(place, device="auto")
    assert model.drawing is not None
    count = 4 * len(data.class_names) if arguments.rehearse else GENERATED_IMAGES
    network = feature_networks.find("small" if arguments.rehearse else arguments.features, data, model.device)
    reference = Gaussian.of(torch.cat(training_features(network, data)))
    drawing = dataclasses.replace(model.drawing, engine="auto")
    for steps, guidance, high in SAMPLING:
        name = f"{steps} steps, w = {guidance:g}, from σ = {high:g}"
        if name in found:
            continue
        guided = with_guidance(drawing, guidance)
        model.drawing = dataclasses.replace(
            guided, sampler=dataclasses.replace(guided.sampler, sigma_max=high)
        )
        images = draw(model, model.drawer(), count, SEED, steps, None)
        fid = frechet(reference, Gaussian.of(network.features(images, name)))
        found[name] = {
            "steps": steps,
            "guidance": guidance,
            "sigma_max": high,
            "images": count,
            "fid": fid,
        }
        write_atomic(kept, json.dumps(found).encode())
    return found
