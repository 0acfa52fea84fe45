"""Does log p(x) learn the cut-out of the class term, and what cures it? Small models of the digits.

    python benchmarks/cutout.py --out results/cutout.json     # about a quarter of an hour on one core

Class images have a grey square of 4×4 pixels at random in front of them, contrast images have none: samples
push against whole digits only. The cures are the anchor on contrast images (objective.anchor_on=contrast),
and the same squares in both terms (contrast.cutout). Twenty clean discriminative epochs, then forty
generative ones of objective "balanced"; the anchor is 0.05, the default, and 1, a strong one. All is measured
on validation images, a quarter of the training images, and on five cut-out copies of each. AUROC of log p(x)
at γ = 1: 1 where cut-out images are less likely than whole ones, 0.5 where they are as likely.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.svm import SVC
from torch import Tensor

import gmmc
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import feature_scores, features
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.data import sources as data_sources
from gmmc.data.augment import cut_out
from gmmc.data.splits import Dataset
from gmmc.evaluations.detection import detect
from gmmc.evaluations.samples import pixel_vectors
from gmmc.pixels import to_signed, to_uint8, to_unit
from gmmc.train.loop import train

SIDE = 4  # of the square, in images of 8×8 pixels
COPIES = 5  # of each validation image, each behind another square
SAMPLES = 300
NEAR_GREY = 0.2  # of [−1, 1]
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"name": "digits", "valid": 0.25},
    "model": {"backbone": "small_cnn", "dim": 64, "scale": 10.0},
    "objective": {"name": "balanced", "shape": "huber", "bound": 10.0},
    "train": {"beta": 0.5, "ramp": 100, "ema": 0.99, "precision": "fp32", "device": "cpu", "threads": 1},
    "discriminative": {"epochs": 20, "lr": 2e-3, "schedule": "cosine"},
    "generative": {"epochs": 40, "lr": 2e-3, "schedule": "cosine"},
    "sampler": {"steps": 5, "alpha": 1 / 32},
    "buffer": {"size": 2000, "chains": 32, "reinit": 0.1, "labels": "batch", "start": "gaussian", "rank": 32},
    "sample": {"steps": 100},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "no cut-out": {},
    "as is": {"generative": {"cutout": SIDE}},
    "anchor on contrast": {"generative": {"cutout": SIDE}, "objective": {"anchor_on": "contrast"}},
    "cut-out in both": {"generative": {"cutout": SIDE}, "contrast": {"cutout": SIDE}},
}
ANCHORS = (0.05, 1.0)
SEEDS = (0, 1, 2)


def recipe(variant: str, anchor: float, seed: int) -> Config:
    changes = VARIANTS[variant]
    tree = {name: {**RECIPE.get(name, {}), **changes.get(name, {})} for name in RECIPE | changes}
    tree["objective"]["anchor"], tree["train"]["seed"] = anchor, seed
    return recipes.from_dict(tree)


def trained(variant: str, anchor: float, seed: int) -> tuple[Classifier, Dataset]:
    cfg = recipe(variant, anchor, seed)
    data = data_sources.load(cfg.data, seed)
    with tempfile.TemporaryDirectory() as out:
        return train(cfg, out, data, silent=True), data


# --- measuring ---

NAMES = {"log_density": "log_density", "span_density": "in_span", "residual": "outside_span"}


def densities(model: Classifier, images: Tensor) -> dict[str, np.ndarray]:
    """log p(x) at γ = 1, its part in the span of the means, and the rest."""
    network = model.tempered()
    scores = feature_scores(network, features(network, images), 1.0, list(NAMES))
    return {NAMES[score]: values.numpy() for score, values in scores.items()}


def cut_out_copies(images: Tensor, seed: int) -> Tensor:
    source = generator(seed, "cut-out copies")
    return torch.cat([to_uint8(to_unit(cut_out(to_signed(images), SIDE, source))) for _ in range(COPIES)])


def ranks(model: Classifier, data: Dataset, seed: int) -> dict[str, float]:
    """How whole validation images rank against cut-out ones, and how many of these pass for usual."""
    whole = densities(model, data.valid.images)
    cut = densities(model, cut_out_copies(data.valid.images, seed))
    found = {}
    for name in whole:
        found[f"{name}/auroc"] = detect(whole[name], cut[name]).auroc.item()
        found[f"{name}/above_median"] = (cut[name] > np.median(whole[name])).mean().item()
    return found


def of_samples(model: Classifier, data: Dataset) -> dict[str, float]:
    """Samples of the class that an SVC sees, and those that show a grey square."""
    labels = torch.arange(SAMPLES) % len(data.class_names)
    images = model.sample(SAMPLES, labels).cpu()
    judge = SVC().fit(pixel_vectors(data.train), data.train.labels.numpy())
    agrees = judge.predict(images.flatten(1).numpy()) == labels.numpy()
    return {"svc_agreement": agrees.mean().item(), "samples_with_square": with_square(images)}


def with_square(images: Tensor) -> float:
    """Share of images with 3×3 pixels next to each other that are all nearly grey."""
    grey = (to_signed(images).abs() < NEAR_GREY).float()
    return (F.avg_pool2d(grey, 3, 1) == 1).flatten(1).any(1).float().mean().item()


def measure(variant: str, anchor: float, seed: int) -> dict[str, float]:
    model, data = trained(variant, anchor, seed)
    correct = model.predict(data.valid.images) == data.valid.labels
    return {
        **ranks(model, data, seed),
        "accuracy": correct.float().mean().item(),
        **of_samples(model, data),
        "whole_with_square": with_square(data.valid.images),
        "cut_out_with_square": with_square(cut_out_copies(data.valid.images, seed)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/cutout.json"), help="the JSON file to write")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="by default 0, 1, 2")
    arguments = parser.parse_args()
    runs = [(a, v, s) for a in ANCHORS for v in VARIANTS for s in arguments.seeds]
    measured = []
    with Progress("measuring", len(runs)) as bar:
        for anchor, variant, seed in runs:
            numbers = measure(variant, anchor, seed)
            measured.append({"anchor": anchor, "variant": variant, "seed": seed, **numbers})
            bar.update(len(measured), f"{variant}, anchor {anchor:g}, seed {seed}")
    conditions = {
        "protocol": " ".join(" ".join(str(__doc__).split("\n\n")[2:]).split()),
        "recipe": RECIPE,
        "variants": VARIANTS,
        "samples": SAMPLES,
        "hardware": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    text = json.dumps({"runs": measured, "conditions": conditions}, indent=1, ensure_ascii=False)
    write_atomic(arguments.out, f"{text}\n".encode())
    for run in measured:
        told = {key: round(value, 3) for key, value in run.items() if isinstance(value, float)}
        print(f"{run['variant']:20s} seed {run['seed']}", told)


if __name__ == "__main__":
    main()
