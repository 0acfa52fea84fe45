"""CIFAR-10 at 16×16 by denoising: which change helps a small network in equally many updates? For a CPU.

    python benchmarks/denoising_small.py --data DIR --out results/denoising-small.json
    python benchmarks/denoising_small.py --data DIR --out FILE --only base gaussian
    python benchmarks/denoising_small.py --rehearse --out runs/rehearsal-small.json

DIR holds cifar10/ as parquet files. A run takes about eight minutes of one CPU thread (`long-` ones half an
hour), and becomes an entry of the JSON file; entries that are there are not measured again. Several
processes may share --out.

Images are means of 2×2 pixels. Each run has one change to `base`: the recipe cifar10-denoising with a network
of 87,000 parameters. Runs of one seed see the same images and the same noise. Measured on validation images,
of the averaged weights:

- the loss ‖F − t‖²/n by σ, of 1,000 images with their classes, beside that of the best Gaussian denoiser:
  posterior mean of a Gaussian with the mean and the full covariance of the training images;
- its mean over ln σ ~ N(−1.2, 1.2²), the noise levels of `base`, by the trapezoidal rule;
- the accuracy, of all 5,000;
- FID of 1,000 fresh images by the network `small`, of chains from normal noise at σ = 80 and of chains from
  the Gaussian of their class at σ = 5.

Test images are dropped when they are read. A network this small, trained this briefly, underfits: its numbers
say nothing of overfitting, and the best learning rate is another for a large one.
"""

import argparse
import dataclasses
import fcntl
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from denoising_runs import calibration, noisy
from gaussian_denoiser import GaussianDenoiser

import gmmc
from gmmc import noise
from gmmc.base import intervals, provenance
from gmmc.base.atomic import write_atomic
from gmmc.classifier.model import Classifier
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import Interrupted
from gmmc.fid import features as feature_networks
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.networks import threads
from gmmc.pixels import to_signed
from gmmc.runs.metrics import read_metrics
from gmmc.sampling.initial import NoiseStart
from gmmc.train.loop import train

RECIPE = "cifar10-denoising"
SMALL = (
    *("model.backbone=smooth-10-1", "train.precision=fp32", "train.weights=fp32", "train.threads=1"),
    *("train.batch_size=64", "denoising.class_images=32", "generative.shift=2", "generative.cutout=8"),
    *("generative.epochs=6", "generative.lr=2e-3", "generative.warmup=200", "train.ema=0.998"),
    *("train.log_every=100", "train.valid_every=2"),
)
GAUSSIAN = ("denoising.gaussian=fitted",)
NOISE = ("denoising.sigma_mean=-0.8", "denoising.sigma_std=1.4")  # more of the highest levels
LONG = ("generative.epochs=24", "train.valid_every=4")
RUNS: dict[str, tuple[str, ...]] = {
    "base": (),
    "base-seed-1": ("train.seed=1",),
    "noise": NOISE,
    "step": ("denoising.h=0.05",),
    "gaussian": GAUSSIAN,
    "gaussian-seed-1": (*GAUSSIAN, "train.seed=1"),
    "gaussian-noise": (*GAUSSIAN, *NOISE),
    "gaussian-step": (*GAUSSIAN, "denoising.h=0.05"),
    "gaussian-attention": (*GAUSSIAN, "model.backbone=smooth-10-1-attention"),
    "gaussian-class-.15": (*GAUSSIAN, "denoising.class_weight=0.15"),
    "gaussian-class-.015": (*GAUSSIAN, "denoising.class_weight=0.015"),
    "gaussian-scale-10": (*GAUSSIAN, "model.scale=10.0"),
    "gaussian-lr": (*GAUSSIAN, "generative.lr=4e-3"),
    "long-base": LONG,
    "long-gaussian": (*GAUSSIAN, *LONG),
}
LEVELS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 60.0)
LEVEL_IMAGES, DRAWN, SEED = 1000, 1000, 0
STEPS = 18
REHEARSAL = ("generative.epochs=1", "train.batch_size=32", "denoising.class_images=16", "generative.warmup=2")


def recipe(name: str, rehearse: bool) -> Config:
    return recipes.load(RECIPE, [*SMALL, *RUNS[name], *(REHEARSAL if rehearse else ())])


def load_data(root: Path | None, seed: int, rehearse: bool) -> Dataset:
    """Images of half the sides; the split follows the seed of the training, test images are dropped."""
    if rehearse and root is None:
        source = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (400, 3, 16, 16), dtype=torch.uint8, generator=source)
        parts = LabelledImages(images, torch.arange(400) % 10)
        return Dataset(parts[:320], parts[320:], parts[:0], tuple("abcdefghij"), name="rehearsal")
    cfg = recipes.load(RECIPE).data
    data = sources.load(DataConfig(cfg.name, str(root or ""), valid=cfg.valid), seed)

    def small(part: LabelledImages) -> LabelledImages:
        return LabelledImages(F.avg_pool2d(part.images.float(), 2).round().byte(), part.labels)

    valid = small(data.valid)
    whole = dataclasses.replace(data, train=small(data.train), valid=valid, test=valid[:0], name="cifar10-16")
    if not rehearse:
        return whole
    return dataclasses.replace(whole, train=whole.train[:320], valid=whole.valid[:80])


# --- numbers of a run -----------------------------------------------------------------------------


def measure(name: str, root: Path | None, runs: Path, rehearse: bool) -> dict[str, Any]:
    cfg = recipe(name, rehearse)
    data = load_data(root, cfg.train.seed, rehearse)
    model = train(cfg, runs / name, data)
    lines = [line for line in read_metrics(runs / name) if "event" not in line]
    hits = int((model.predict(data.valid.images) == data.valid.labels).sum())
    levels = by_level(model, data, LEVEL_IMAGES)
    return {
        "changes": list(RUNS[name]),
        "parameters": model.trained["parameters"],
        "updates": model.trained["updates"],
        "rollbacks": model.trained["rollbacks"],
        "valid_accuracy": hits / len(data.valid),
        "valid_accuracy_interval": intervals.of_proportion(hits, len(data.valid)),
        "mean_loss": mean_loss(levels),
        "levels": levels,
        "fid": fids(model, data, 40 if rehearse else DRAWN),
        "course": [
            {key: line[key] for key in ("step", "loss", "class_loss", "valid_accuracy") if key in line}
            for line in lines
        ],
        "conditions": {
            "rehearsal": rehearse,
            "recipe": [RECIPE, *SMALL],
            "images": {"train": len(data.train), "valid": len(data.valid), "levels": LEVEL_IMAGES},
            "data_sha256": data.fingerprint,
            "hardware": provenance.hardware(torch.device("cpu")),
            "torch": torch.__version__,
            "gmmc": gmmc.__version__,
            "commit": provenance.commit(),
        },
    }


def by_level(model: Classifier, data: Dataset, count: int) -> dict[str, dict[str, float]]:
    """Loss and calibration on validation images with their classes, and the loss of a Gaussian."""
    assert model.denoising is not None
    images, labels = data.valid.images[:count], data.valid.labels[:count]
    found = calibration(model, images, labels, LEVELS)
    clean, best = to_signed(images), GaussianDenoiser(data.train.images)
    for sigma, values in zip(LEVELS, found.values(), strict=True):
        x = noisy(clean, sigma)
        _, out, _ = noise.scales(noise.per_image(sigma, clean), model.denoising.sigma_data)
        values["gaussian_loss"] = ((best(x, sigma) - clean) / out).square().mean().item()
    return found


def mean_loss(levels: dict[str, dict[str, float]]) -> float:
    """Mean over the noise levels of `base`, ln σ ~ N(−1.2, 1.2²), by the trapezoidal rule in ln σ."""
    base = recipes.load(RECIPE).denoising
    place = torch.tensor([math.log(sigma) for sigma in LEVELS], dtype=torch.float64)
    density = (-((place - base.sigma_mean) / base.sigma_std).square() / 2).exp()
    loss = torch.tensor([values["loss"] for values in levels.values()], dtype=torch.float64)
    return (torch.trapezoid(density * loss, place) / torch.trapezoid(density, place)).item()


def fids(model: Classifier, data: Dataset, count: int) -> dict[str, float]:
    """FID of equally many fresh images of each class against the training images."""
    network = feature_networks.find("small", data, torch.device("cpu"))
    reference = Gaussian.of(network.features(data.train.images, silent=True))
    labels = (torch.arange(count) % len(data.class_names)).tolist()
    of_class, drawing = model.start, model.drawing
    assert drawing is not None
    found = {}
    for name, start, high in (("gaussian, 5", of_class, 5.0), ("normal, 80", NoiseStart(data.shape), 80.0)):
        model.start = start
        model.drawing = dataclasses.replace(
            drawing, sampler=dataclasses.replace(drawing.sampler, sigma_max=high)
        )
        drawn = (model.sample(count, labels, seed=SEED, steps=STEPS) * 255).round().byte()
        found[name] = frechet(reference, Gaussian.of(network.features(drawn, silent=True)))
    model.start, model.drawing = of_class, drawing
    return found


# --- the file -------------------------------------------------------------------------------------


@contextmanager
def locked(out: Path) -> Iterator[dict[str, Any]]:
    """The entries of the file, which are written back."""
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        entries = json.loads(out.read_text())["runs"] if out.exists() else {}
        yield entries
        ordered = {name: entries[name] for name in RUNS if name in entries}
        write_atomic(
            out, f"{json.dumps({'runs': ordered}, indent=1, ensure_ascii=False, default=str)}\n".encode()
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with cifar10/; default $GMMC_DATA")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--runs", type=Path, help="folder of the trainings; default runs/NAME of --out")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS), help="runs to make")
    parser.add_argument("--rehearse", action="store_true", help="few images, one epoch")
    arguments = parser.parse_args()
    runs = arguments.runs or Path("runs") / arguments.out.stem
    runs.mkdir(parents=True, exist_ok=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        with locked(arguments.out) as entries:
            known = name in entries
        if known:
            continue
        with threads.using(1):
            entry = measure(name, arguments.data, runs, arguments.rehearse)
        with locked(arguments.out) as entries:
            entries[name] = entry
    with locked(arguments.out) as entries:
        for name, entry in entries.items():
            fid = ", ".join(f"{key} {value:.3f}" for key, value in entry["fid"].items())
            print(
                f"{name:20s} loss {entry['mean_loss']:.4f}  accuracy {entry['valid_accuracy']:.2%}  FID {fid}"
            )


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stopped:
        raise SystemExit(str(stopped)) from None
