"""How many photos does recipes/photos.toml need? Cats, frogs and ships of CIFAR-10 as a folder of PNG files.

    python benchmarks/photos.py --out results/photos.json     # some minutes on one core; needs CIFAR-10

For each number of photos: train, then evaluate accuracy, calibration and OOD detection; 100 automobiles and
100 horses are the other photos. Photos are the first training images of each class.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image

import gmmc
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.config import recipes
from gmmc.config.sections import DataConfig
from gmmc.data.splits import LabelledImages
from gmmc.evaluations.run import evaluate_run
from gmmc.train.loop import train

CLASSES = ("cat", "frog", "ship")
OTHERS = ("automobile", "horse")
COUNTS = (120, 300, 1200)


def save(images: LabelledImages, names: tuple[str, ...], name: str, count: int, folder: Path) -> None:
    """The first `count` images of a class as PNG files."""
    folder.mkdir(parents=True)
    for i, image in enumerate(images.images[images.labels == names.index(name)][:count]):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}_{i:04d}.png")


def measure(count: int, other: Path, data: gmmc.data.Dataset, folder: Path) -> dict[str, Any]:
    for name in CLASSES:
        save(data.train, data.class_names, name, count // len(CLASSES), folder / "photos" / name)
    # Random weights: the network of cifar10 has been trained on these photos.
    changes = {"data.name": str(folder / "photos"), "train.start": "", "train.threads": 1}
    cfg = recipes.load("photos", changes)
    sets = (str(other), "noise", "interp")
    cfg = dataclasses.replace(cfg, evaluate=dataclasses.replace(cfg.evaluate, ood=sets))
    model = train(cfg, folder / "run")
    names = ["accuracy", "calibration", "ood"]
    found = {name: result for name, result in evaluate_run(str(folder / "run"), names, "cpu")}
    assert model.reference is not None
    return {
        "validation_images": model.reference.images(model.abstains_by),
        "test_images": found["accuracy"].conditions["images"],
        "values": {f"{name}/{key}": value for name in names for key, value in found[name].values.items()},
        "intervals": {f"{name}/{key}": ends for name in names for key, ends in found[name].intervals.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/photos.json"), help="the JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    data = gmmc.data.load(DataConfig(name="cifar10", valid=0.0), seed=0)
    found = {}
    with TemporaryDirectory() as temporary, Progress("photos", len(COUNTS)) as bar:
        work = Path(temporary)
        for name in OTHERS:
            save(data.train, data.class_names, name, 100, work / "other" / name)
        for count in COUNTS:
            found[str(count)] = measure(count, work / "other", data, work / str(count))
            bar.update(len(found), f"{count} photos")
    conditions = {
        "protocol": " ".join(str(__doc__).split("\n\n")[2].split()),
        "seed": 0,
        "hardware": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    text = json.dumps({"photos": found, "conditions": conditions}, indent=1, ensure_ascii=False)
    write_atomic(arguments.out, f"{text}\n".encode())


if __name__ == "__main__":
    main()
