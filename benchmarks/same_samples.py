"""Does the fast sampler draw what the plain one draws? The same seeds both ways: energies, pixels, FID.

    python benchmarks/same_samples.py runs/cifar --number 5000 --features inception

`--features` is inception, small, auto or a TorchScript file; without it there is no FID.
"""

import argparse
import dataclasses
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmmc.base import provenance
from gmmc.base.progress import Progress
from gmmc.classifier.model import Classifier
from gmmc.errors import InputError
from gmmc.fid import features
from gmmc.fid.feature_cache import known_features
from gmmc.fid.features import FeatureNetwork
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.pixels import as_unit, to_uint8
from gmmc.runs import finished, training_data


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--number", type=int, default=5000, help="of images; by default 5000")
    parser.add_argument("--steps", type=int, default=None, help="by default those of the recipe")
    parser.add_argument("--features", default=None, help="inception, small, auto or a TorchScript file")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/same_samples.json"), help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if arguments.number < 2:
        parser.error(f"--number must be at least 2, got {arguments.number}")
    network, real = None, torch.empty(0)
    try:
        model = finished.load_model(arguments.run, arguments.device)
        if arguments.features:
            data = training_data.load_data(model, arguments.run)
            network, real = features.find(arguments.features, data, model.device), data.train.images
    except InputError as error:
        parser.error(str(error))
    labels = torch.arange(arguments.number) % len(model.class_names)
    ways = {way: drawn(model, way, labels, arguments.steps) for way in ("plain", "auto")}
    images = {way: found.pop("images") for way, found in ways.items()}
    result: dict[str, Any] = {**ways, "mean_pixel_difference": difference(*images.values())}
    if network:
        result["fid"] = distances(images, real, network)
    result["conditions"] = conditions(model, arguments, network)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def drawn(model: Classifier, way: str, labels: Tensor, steps: int | None) -> dict[str, Any]:
    model.drawing = model.drawing and dataclasses.replace(model.drawing, engine=way)
    with Progress(f"sampling, {way}", len(labels)) as bar:
        began = time.monotonic()
        images = model.sample(len(labels), labels, steps=steps, on_progress=bar.update).cpu()
        seconds = time.monotonic() - began
    energies = model.energy(images, labels)  # in full precision
    return {
        "images": to_uint8(images),
        "seconds": seconds,
        "precision": model.drawer().precision,
        "mean_energy": energies.mean().item(),
        "median_energy": energies.median().item(),
    }


def difference(a: Tensor, b: Tensor) -> float:
    """Of pixels in [0, 1]."""
    return (as_unit(a) - as_unit(b)).abs().mean().item()


def distances(images: dict[str, Tensor], real: Tensor, network: FeatureNetwork) -> dict[str, float]:
    """The Fréchet distance of every two sets of images."""
    found = {way: Gaussian.of(network.features(drawn, way)) for way, drawn in images.items()}
    found["training images"] = Gaussian.of(known_features(network, real, "training images"))
    return {f"{a} – {b}": frechet(found[a], found[b]) for a, b in itertools.combinations(found, 2)}


def conditions(
    model: Classifier, arguments: argparse.Namespace, network: FeatureNetwork | None
) -> dict[str, Any]:
    return {
        "number": arguments.number,
        "steps": arguments.steps or model.drawer().settings.steps,
        "seeds": f"0..{arguments.number - 1}",
        "features": network.name if network else None,
        "hardware": provenance.hardware(model.device),
        "torch": torch.__version__,
        "commit": provenance.commit(),
        "trained": model.trained,
    }


if __name__ == "__main__":
    main()
