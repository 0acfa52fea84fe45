"""Does the fast sampler draw what the plain one draws? The same seeds both ways: energies, pixels, FID.

    python benchmarks/same_samples.py runs/cifar --number 5000 --features inception.pt

`--features` is a TorchScript network of images in [−1, 1], 299×299, to features; without it there is no FID.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc import commands, provenance
from gmmc.errors import InputError
from gmmc.models import Classifier
from gmmc.pixels import as_unit, to_signed, to_uint8
from gmmc.progress import Progress


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--number", type=int, default=5000, help="of images; by default 5000")
    parser.add_argument("--steps", type=int, default=None, help="by default those of the recipe")
    parser.add_argument("--features", type=Path, default=None, help="a TorchScript file")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/same_samples.json"), help="the JSON file to write"
    )
    arguments = parser.parse_args()
    if arguments.number < 2:
        parser.error(f"--number must be at least 2, got {arguments.number}")
    if arguments.features and not arguments.features.is_file():
        parser.error(f"--features must be a file, got {arguments.features}")
    try:
        model = commands.load_model(arguments.run, arguments.device)
    except InputError as error:
        parser.error(str(error))
    labels = torch.arange(arguments.number) % len(model.class_names)
    ways = {way: drawn(model, way, labels, arguments.steps) for way in ("plain", "auto")}
    images = {way: found.pop("images") for way, found in ways.items()}
    result: dict[str, Any] = {**ways, "mean_pixel_difference": difference(*images.values())}
    if arguments.features:
        real = commands.load_data(model, arguments.run).train.images
        result["fid"] = distances(images | {"training images": real}, arguments.features, model.device)
    result["conditions"] = conditions(model, arguments)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def drawn(model: Classifier, way: str, labels: Tensor, steps: int | None) -> dict[str, Any]:
    cfg = dataclasses.replace(model.cfg, train=dataclasses.replace(model.cfg.train, engine=way))
    model.cfg = cfg
    with Progress(f"sampling, {way}", len(labels)) as bar:
        began = time.monotonic()
        images = model.sample(len(labels), labels, steps=steps, on_progress=bar.update).cpu()
        seconds = time.monotonic() - began
    energies = model.energy(images, labels) * model.head.gamma2  # unit energies, in full precision
    return {
        "images": to_uint8(images),
        "seconds": seconds,
        "precision": model.sampling_precision,
        "mean_energy": energies.mean().item(),
        "median_energy": energies.median().item(),
    }


def difference(a: Tensor, b: Tensor) -> float:
    """Of pixels in [0, 1]."""
    return (as_unit(a) - as_unit(b)).abs().mean().item()


def distances(sets: dict[str, Tensor], path: Path, device: torch.device) -> dict[str, float]:
    """The Fréchet distance of every two sets of images."""
    network = torch.jit.load(path, map_location=device).eval()
    found = {name: statistics(network, images, device) for name, images in sets.items()}
    names = list(found)
    return {f"{a} – {b}": frechet(*found[a], *found[b]) for i, a in enumerate(names) for b in names[i + 1 :]}


@torch.inference_mode()
def statistics(network: torch.nn.Module, images: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    parts = []
    with Progress("features", len(images)) as bar:
        for part in images.split(256):
            large = F.interpolate(
                to_signed(part.to(device)), (299, 299), mode="bilinear", align_corners=False
            )
            parts.append(network(large).flatten(1).double())
            bar.update(sum(map(len, parts)))
    features = torch.cat(parts)
    return features.mean(0), features.mT.cov()


def frechet(mean1: Tensor, cov1: Tensor, mean2: Tensor, cov2: Tensor) -> float:
    """‖m₁ − m₂‖² + tr(C₁ + C₂ − 2(C₁C₂)^½); the last trace by the eigenvalues of √C₁·C₂·√C₁."""
    values, vectors = torch.linalg.eigh(cov1)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ cov2 @ root).clamp(min=0).sqrt().sum()
    return ((mean1 - mean2).square().sum() + cov1.trace() + cov2.trace() - 2 * cross).item()


def conditions(model: Classifier, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "number": arguments.number,
        "steps": arguments.steps or model.cfg.sample.steps,
        "seeds": f"0..{arguments.number - 1}",
        "features": arguments.features.name if arguments.features else None,
        "hardware": provenance.hardware(model.device),
        "torch": torch.__version__,
        "commit": provenance.commit(),
        "trained": model.trained,
    }


if __name__ == "__main__":
    main()
