"""Does a network of CIFAR-10 learn other photos better than random weights? Triples of CIFAR-100 classes.

    python benchmarks/transfer.py --out runs/transfer                                 # all; needs CIFAR-100
    python benchmarks/transfer.py --out runs/transfer --arms random frozen --seeds 0  # some
    python benchmarks/transfer.py --out runs/transfer --test                          # the final table

Three triples of classes are drawn by the seed 0. Of each class there are the 100 images of CIFAR-100's test
split: 20 serve as test images, always the same, 16 as validation images, by the run's seed, and 64 are
trained on, as in a folder of 300 photos. Every arm is recipes/photos.toml with the changes of ARMS, in fp32.
Arms are compared on validation images. NLL and ECE are of test images, at γ² fitted on validation images.
AUROCs are of validation images against as many of uniform noise and against 300 images of other classes.

Each run is an entry of results.json in --out, written when it ends: runs that are there are not repeated, and
several processes may share the folder.
"""

import argparse
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import gmmc
from gmmc.base import provenance
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import feature_scores, features, logits_at, unit_energies
from gmmc.config import recipes
from gmmc.config.sections import DataConfig
from gmmc.data import named
from gmmc.data.ood_sets import GENERATED
from gmmc.data.splits import Dataset, LabelledImages, hold_out
from gmmc.evaluations.calibration import measure as measure_calibration
from gmmc.evaluations.detection import detect
from gmmc.runs import metrics
from gmmc.runs.results import read_results, write_results
from gmmc.train.loop import train

ARMS = {
    "random": ["train.start="],
    "frozen": ["train.start=cifar10", "transfer.epochs=0"],
    "frozen-300": [
        "train.start=cifar10",
        "transfer.frozen_epochs=300",
        "transfer.frozen_lr=1e-2",
        "transfer.epochs=0",
    ],
    **{
        f"fine-{epochs}-{lr}": ["train.start=cifar10", f"transfer.epochs={epochs}", f"transfer.lr={lr}"]
        for epochs in (3, 10, 30)
        for lr in ("1e-5", "3e-5", "1e-4", "3e-4")
    },
}
TRIPLES, SEEDS = (0, 1, 2), (0, 1, 2)
OTHERS = 300  # images of other classes


def cifar100(root: str) -> Dataset:
    """The 10,000 images of the test split, a fifth of them held out as test images of ours."""
    [file] = sorted(named.find("cifar100", root).rglob("test-*.parquet"))
    return gmmc.data.load(DataConfig(name=str(file), label="fine_label", valid=0.0), seed=0)


def triple_of(whole: Dataset, number: int, seed: int) -> Dataset:
    """Three classes of nine that are drawn once, with the validation images of a seed."""
    drawn = torch.randperm(len(whole.class_names), generator=generator(0, "triples"))[:9].view(3, 3)
    classes = drawn[number].tolist()

    def chosen(images: LabelledImages) -> LabelledImages:
        places = torch.cat([(images.labels == y).nonzero().flatten() for y in classes])
        labels = torch.tensor([classes.index(y) for y in images.labels[places].tolist()])
        return LabelledImages(images.images[places], labels)

    learned, valid = hold_out(chosen(whole.train), recipes.load("photos").data.valid, seed)
    names = [whole.class_names[y] for y in classes]
    return Dataset(learned, valid, chosen(whole.test), names, "cifar100 triple")


def run(whole: Dataset, triple: int, arm: str, seed: int, more: list[str]) -> dict[str, Any]:
    """Train one model; return its values and conditions as results.json has them."""
    data = triple_of(whole, triple, seed)
    changes = [*ARMS[arm], "train.precision=fp32", *more]
    cfg = recipes.load("photos", [*changes, f"train.seed={seed}"])
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        model = train(cfg, folder, data, silent=True)
        seconds = metrics.read_metrics(Path(folder))[-1]["seconds"]
    values = {"training_seconds": seconds, "seconds": time.perf_counter() - began, **measure(model, data)}
    values |= aurocs(model, data, whole)
    conditions = {
        "triple": triple,
        "classes": list(data.class_names),
        "arm": arm,
        "changes": changes,
        "seed": seed,
        "images": {name: len(getattr(data, name)) for name in ("train", "valid", "test")},
        "protocol": " ".join(" ".join(str(__doc__).split("\n\n")[2:3]).split()),
        "hardware": provenance.hardware(model.device),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    return {"values": values, "conditions": conditions}


def measure(model: Classifier, data: Dataset) -> dict[str, float]:
    assert model.reference is not None
    valid = (model.predict(data.valid.images).cpu() == data.valid.labels).float().mean().item()
    network = model.tempered()
    logits = logits_at(network, unit_energies(network, data.test.images), model.reference.gamma2)
    calibration, _ = measure_calibration(logits, data.test.labels, seed=0)
    test = (logits.argmax(-1) == data.test.labels).float().mean().item()
    named_values = {f"test_{key}": calibration[key] for key in ("nll", "ece")}
    return {"valid_accuracy": valid, "test_accuracy": test, **named_values}


def aurocs(model: Classifier, data: Dataset, whole: Dataset) -> dict[str, float]:
    """AUROC of every score, validation images against noise and against images of other classes."""
    names = torch.tensor([name in data.class_names for name in whole.class_names])
    places = (~names[whole.train.labels]).nonzero().flatten()
    some = places[torch.randperm(len(places), generator=generator(0, "others"))[:OTHERS]]
    outside = {
        "noise": GENERATED["noise"](data.valid.images, generator(0, "noise")),
        "others": whole.train.images[some],
    }
    network = model.tempered()

    def scores(images: torch.Tensor) -> dict[str, torch.Tensor]:
        return feature_scores(network, features(network, images), model.gamma2)

    inside = scores(data.valid.images)
    return {
        f"{name}/{score}/auroc": detect(inside[score].numpy(), values.numpy()).auroc.item()
        for name, images in outside.items()
        for score, values in scores(images).items()
    }


def show(results: dict[str, Any], *, test: bool) -> None:
    """One line per arm: means over triples and seeds, and the difference to random weights, run by run."""
    keys = ["valid_accuracy", *(["test_accuracy", "test_nll", "test_ece"] if test else []), "seconds"]
    print("  ".join([f"{'arm':14s} runs", *(f"{key:>14s}" for key in keys), "over random ± s.e., by triple"]))
    compared = "test_accuracy" if test else "valid_accuracy"
    for arm in ARMS:
        runs = [entry for entry in results.values() if entry["conditions"]["arm"] == arm]
        if runs:
            means = (statistics.mean(entry["values"][key] for entry in runs) for key in keys)
            numbers = [f"{mean:14.3f}" for mean in means]
            print("  ".join([f"{arm:14s} {len(runs):4d}", *numbers, gain(results, runs, compared)]))


def gain(results: dict[str, Any], runs: list[dict[str, Any]], key: str) -> str:
    by_triple: dict[int, list[float]] = {}
    for entry in runs:
        triple, seed = entry["conditions"]["triple"], entry["conditions"]["seed"]
        random = results.get(name_of(triple, "random", seed))
        if random and key in random["values"]:
            by_triple.setdefault(triple, []).append(entry["values"][key] - random["values"][key])
    gains = [each for several in by_triple.values() for each in several]
    if len(gains) < 2:
        return ""
    error = statistics.stdev(gains) / len(gains) ** 0.5
    means = ", ".join(f"{statistics.mean(by_triple[triple]):+.3f}" for triple in sorted(by_triple))
    return f"{statistics.mean(gains):+.3f} ± {error:.3f}  ({means})"


def name_of(triple: int, arm: str, seed: int) -> str:
    return f"triple-{triple}/{arm}/{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"), help="the folder of results.json")
    parser.add_argument("--root", default="", help="folder that holds cifar100; default: $GMMC_DATA")
    arms = ", ".join(ARMS)
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS), metavar="ARM", help=arms)
    parser.add_argument("--triples", nargs="*", type=int, choices=TRIPLES, default=TRIPLES)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    parser.add_argument("--test", action="store_true", help="show the numbers of test images")
    arguments = parser.parse_args()
    wanted = [(t, arm, s) for arm in arguments.arms for s in arguments.seeds for t in arguments.triples]
    left = [each for each in wanted if name_of(*each) not in read_results(arguments.out)]
    if left:
        whole = cifar100(arguments.root)
        with Progress("transfer", len(left)) as bar:
            for done, each in enumerate(left, 1):
                write_results(arguments.out, {name_of(*each): run(whole, *each, arguments.set)})
                bar.update(done, name_of(*each))
    show(read_results(arguments.out), test=arguments.test)


if __name__ == "__main__":
    main()
