"""Speed, course and validation of trainings by denoising; calibration of a denoiser at each noise level.

    python benchmarks/denoising_runs.py runs/a runs/b --levels runs/a --out results/cifar10-denoising.json

From run folders: images per second (median over lines of metrics.jsonl with equally many updates, the first
third left out), loss, accuracy, rollbacks, and the evaluation `validation` if there is one. With `--levels`,
of validation images with noise of each σ: the loss ‖F − t‖²/n, the power ‖F‖²/n, and the slope ⟨F, t⟩/‖F‖² of
the regression of the target on F. A calibrated denoiser has slope 1; below 1 it is too sure of what it sees.
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gmmc
from gmmc import noise
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.model import Classifier
from gmmc.pixels import to_signed
from gmmc.runs.metrics import read_metrics
from gmmc.runs.results import read_results
from gmmc.runs.training_data import load_data
from gmmc.sampling.engine import PlainGradient
from gmmc.sampling.samplers import force, goals

LEVELS = (0.05, 0.2, 0.6, 1.5, 4.0, 8.0, 15.0, 60.0)
SEED = 0
AT_ONCE = 50


def course(run: Path, batch_size: int) -> dict[str, Any]:
    lines = [line for line in read_metrics(run) if "event" not in line]
    gaps = [
        (later["step"] - line["step"], later["seconds"] - line["seconds"])
        for line, later in itertools.pairwise(lines)
        if "valid_accuracy" not in later
    ]
    usual = statistics.mode(steps for steps, _ in gaps)
    rates = [batch_size * steps / seconds for steps, seconds in gaps if steps == usual]
    last, validation = lines[-1], read_results(run).get("validation", {})
    numbers = {
        "images_per_second": statistics.median(rates[len(rates) // 3 :]),
        "updates": last["step"],
        "images": last["step"] * batch_size,
        "seconds": last["seconds"],
        "loss": last["loss"],
        "train_accuracy": last["accuracy"],
        "rollbacks": last.get("rollbacks", 0),
        "skipped": max(line["skipped"] for line in lines),
        "valid_accuracy": {
            line["step"]: line["valid_accuracy"] for line in lines if "valid_accuracy" in line
        },
    }
    return numbers | ({"validation": validation} if validation else {})


def calibration(
    model: Classifier, images: Tensor, labels: Tensor, sigmas: Sequence[float] = LEVELS
) -> dict[str, dict[str, float]]:
    """How F with the class of each image fits its target, by σ; the noise is the same for all models."""
    assert model.denoising is not None
    clean, gradient = to_signed(images).to(model.device), PlainGradient(model.backbone)
    by_level, sigma_data = {}, model.denoising.sigma_data
    with Progress("denoising", len(sigmas) * len(clean)) as bar:
        for i, sigma in enumerate(sigmas):
            level = noise.per_image(sigma, clean)
            x, scales = noisy(clean, sigma), noise.scales(level, sigma_data)
            target = noise.target(clean, x, scales)
            goal = goals(labels.to(clean.device), level, sigma_data, 0.0)
            parts = zip(*(each.split(AT_ONCE) for each in (scales.into * x, level, goal)), strict=True)
            forces = []
            for part in parts:
                forces.append(force(gradient, model.head.guided_energy, *part, model.gaussian).detach())
                bar.update(i * len(clean) + sum(map(len, forces)))
            found = torch.cat(forces)
            errors = (found - target).square().mean((1, 2, 3))
            by_level[f"{sigma:g}"] = {
                "loss": errors.mean().item(),
                "standard_error": errors.std().item() / math.sqrt(len(errors)),
                "power": found.square().mean().item(),
                "slope": ((found * target).sum() / found.square().sum()).item(),
            }
    return by_level


def noisy(clean: Tensor, sigma: float) -> Tensor:
    """Images with noise σ, the same for all models."""
    drawn = torch.randn(clean.shape, generator=generator(SEED, "levels", sigma))
    return clean + sigma * drawn.to(clean.device)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, help="run folders")
    parser.add_argument("--batch", type=int, default=512, help="images per update")
    parser.add_argument("--levels", help="a model whose denoiser to look at")
    parser.add_argument("--images", type=int, default=200, help="validation images for that")
    parser.add_argument("--more", nargs="*", default=[], help="NAME=FILE.json to put in as well")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"runs": {run.name: course(run, arguments.batch) for run in arguments.runs}}
    if arguments.levels:
        model = gmmc.load(arguments.levels)
        valid = load_data(model, arguments.levels).valid
        levels = calibration(model, valid.images[: arguments.images], valid.labels[: arguments.images])
        results["levels"] = {
            "model": Path(arguments.levels).name,
            "images": arguments.images,
            "values": levels,
        }
    for pair in arguments.more:
        name, _, file = pair.partition("=")
        results[name] = json.loads(Path(file).read_text())
    results["conditions"] = {
        "measured_on": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    write_atomic(arguments.out, f"{json.dumps(results, indent=1, ensure_ascii=False)}\n".encode())
    for name, run in results["runs"].items():
        print(f"{name:16s} {run['images_per_second']:8.0f} images/s  loss {run['loss']:.4f}")
    for sigma, values in results.get("levels", {}).get("values", {}).items():
        print(f"σ = {sigma:5s}", {name: round(value, 4) for name, value in values.items()})


if __name__ == "__main__":
    main()
