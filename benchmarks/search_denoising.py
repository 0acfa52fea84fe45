"""CIFAR-10 by denoising, search, part one: runs of four minutes of one GPU, one change each.

    python benchmarks/search_denoising.py --data DIR --out results/search-denoising.json --seconds 240
    python benchmarks/search_denoising.py --data DIR --out FILE --only width-6      # one run
    python benchmarks/search_denoising.py --rehearse --out runs/rehearsal.json      # a few minutes on a CPU

DIR holds cifar10/ as parquet files. Each run is an entry of the JSON file, written when it ends, also where
it diverged; runs that are there are not repeated. An interrupted run goes on in --runs, where the trainings
are.

Equal time: the images per second of each network are measured in a short training first. A run gets as many
epochs of its cosine as fit into --seconds; compiling comes on top. Every run keeps three averages of the
weights.

Only training and validation images are looked at. Of each average: the evaluation `validation` (accuracy on
5,000 images, FID and KID of 10,000 fresh images), cross-entropies of training and validation images as they
are at the γ² of training and of validation images at the fitted γ², the denoising loss of validation images
at each σ, and the AUROC of every score for validation images against themselves behind a grey square.

The rule that decides stands in search_rule.py, and was written before any run.
"""

import argparse
import dataclasses
import itertools
import json
import shutil
import statistics
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from denoising_runs import calibration, course
from search_rule import RULE, candidates_of, decisions

import gmmc
from gmmc.base import intervals, provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.seeds import generator
from gmmc.classifier.model import Classifier, pick_device
from gmmc.classifier.scores import feature_scores, features, logits_at, unit_energies
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.config.sections import DataConfig, EvaluateOptions
from gmmc.data import sources
from gmmc.data.ood_sets import GENERATED
from gmmc.data.splits import Dataset
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.evaluations import validation
from gmmc.evaluations.detection import bootstrap, detect
from gmmc.evaluations.generation import draw
from gmmc.fid import features as feature_networks
from gmmc.fid.feature_cache import training_features
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.runs.folder import RunFolder
from gmmc.train.loop import train

RECIPE = "cifar10-denoising"  # its chains begin at the Gaussian of the class, with sigma_max = 5
# auto would not compile so short a training, and so measure a slower one than is meant.
COMMON = ("train.averages=[0.999, 0.9998]", "train.engine=compiled", "train.valid_every=10")
RUNS: dict[str, tuple[str, ...]] = {
    "base": (),
    "colour": ("generative.colour=0.4",),
    # λ = .5: 1/(lr·λ) is 2,900 updates at the peak rate, less than half of a run.
    "decay-smoothing": (
        "train.decoupled_decay=true",
        "generative.weight_decay=0.5",
        "denoising.label_smoothing=0.1",
    ),
    "width-6": ("model.backbone=smooth-28-6",),
    "scales-3": ("model.backbone=smooth-28-4-scales3",),
    "base-seed-1": ("train.seed=1",),  # other weights and order, the same validation images
}
REFERENCE = "base"
GENERATED_IMAGES, LEVEL_IMAGES, CLASS_IMAGES, REPLICATES, SEED = 10_000, 500, 5_000, 10, 0
TRIAL_SECONDS = 15.0
REHEARSAL = (
    *("train.engine=auto", "train.batch_size=32", "denoising.class_images=16", "generative.warmup=5"),
    *("train.log_every=2", "train.checkpoint_seconds=5", "sample.steps=4"),
    *("train.ema=0.9", "train.averages=[0.5, 0.98]"),  # so that they differ after few updates
)
ON_DIGITS = ("generative.shift=1", "generative.cutout=3", "denoising.flip=false", "generative.flip=false")


class Enough(Exception):
    """A trial is long enough."""


# --- a run ----------------------------------------------------------------------------------------


def recipe(name: str, arguments: argparse.Namespace) -> Config:
    changes = [*COMMON, *RUNS[name], *(REHEARSAL if arguments.rehearse else ())]
    if arguments.rehearse and not arguments.data:
        changes += ["data.name=digits", *ON_DIGITS]
    cfg = recipes.load(RECIPE, [*changes, *arguments.change])
    if arguments.rehearse:
        tiny = cfg.model.backbone.replace("28-4", "10-1").replace("28-6", "10-2")
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, backbone=tiny))
    return cfg


def load_data(arguments: argparse.Namespace) -> Dataset:
    """The data of all runs: one split. Test images are dropped here, so that nothing can look at them."""
    cfg = recipe(REFERENCE, arguments).data
    data = sources.load(DataConfig(cfg.name, str(arguments.data or ""), valid=cfg.valid), SEED)
    train_images, valid = data.train, data.valid
    if arguments.rehearse:
        train_images, valid = train_images[:640], valid[:100]
    return dataclasses.replace(data, train=train_images, valid=valid, test=valid[:0], name="search")


def images_per_second(cfg: Config, data: Dataset, seconds: float) -> float:
    """Median over lines of metrics with equally many updates, after the first third."""
    lines: list[dict[str, Any]] = []

    def watch(line: dict[str, Any]) -> None:
        lines.append(line)
        if len(lines) > 6 and line["seconds"] - lines[2]["seconds"] > seconds:
            raise Enough

    with TemporaryDirectory() as folder, suppress(Enough):
        train(cfg, folder, data, silent=True, on_metrics=watch)
    gaps = [
        (later["step"] - line["step"], later["seconds"] - line["seconds"])
        for line, later in itertools.pairwise(lines)
        if "valid_accuracy" not in later and "event" not in later
    ]
    rates = [cfg.train.batch_size * steps / seconds for steps, seconds in gaps]
    return statistics.median(rates[len(rates) // 3 :])


def epochs_for(cfg: Config, data: Dataset, arguments: argparse.Namespace) -> tuple[int, float]:
    """(epochs that take --seconds, images per second); measured once for each network."""
    place = arguments.runs / f"speed-{cfg.model.backbone}.json"
    if not place.exists():
        trial = min(TRIAL_SECONDS, arguments.seconds / 3)
        rate = images_per_second(cfg, data, trial)
        write_atomic(place, json.dumps({"images_per_second": rate}).encode())
    rate = json.loads(place.read_text())["images_per_second"]
    per_epoch = len(data.train) // cfg.train.batch_size * cfg.train.batch_size
    return max(1, int(arguments.seconds * rate / per_epoch)), rate


def run(name: str, data: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and measure one run; its entry of the JSON file."""
    cfg = recipe(name, arguments)
    epochs, rate = epochs_for(cfg, data, arguments)
    cfg = dataclasses.replace(cfg, generative=dataclasses.replace(cfg.generative, epochs=epochs))
    folder = arguments.runs / name
    entry = {
        "changes": [*COMMON, *RUNS[name], *arguments.change],
        "seconds": arguments.seconds,
        "epochs": epochs,
        "trial_images_per_second": rate,
    }
    try:
        model = train(cfg, folder, data)
    except Diverged as error:
        found = {"diverged": str(error), "training": course(folder, cfg.train.batch_size), "averages": {}}
        return entry | found | {"conditions": conditions(cfg, data, arguments)}
    places = {str(cfg.train.ema): folder}
    places |= {str(decay): folder / "averages" / str(decay) for decay in cfg.train.averages}
    return entry | {
        "parameters": model.trained["parameters"],
        "training": course(folder, cfg.train.batch_size),
        "averages": {decay: measure(place, data, arguments) for decay, place in places.items()},
        "conditions": {**conditions(cfg, data, arguments), "trained": model.trained},
    }


def conditions(cfg: Config, data: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "rehearsal": arguments.rehearse,
        "images": {"train": len(data.train), "valid": len(data.valid)},
        "data_sha256": data.fingerprint,
        "recipe": RECIPE,
        "hardware": provenance.hardware(pick_device(cfg.train.device)),
        "torch": torch.__version__,
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }


# --- the numbers of a model -----------------------------------------------------------------------


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
    """Of images as they are, without noise or augmentation."""
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


# --- the file -------------------------------------------------------------------------------------


def read(out: Path) -> dict[str, Any]:
    return json.loads(out.read_text())["runs"] if out.exists() else {}


def write(out: Path, entries: dict[str, Any]) -> None:
    ordered = {name: entries[name] for name in RUNS if name in entries}
    content = {"runs": ordered, "decisions": decisions(ordered), "rule": RULE}
    write_atomic(out, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())


def show(entries: dict[str, Any]) -> None:
    for name in RUNS:
        if "diverged" in entries.get(name, {}):
            print(f"{name:16s} diverged")
        for c in candidates_of(entries, [name] if name in entries else []):
            numbers = (
                f"FID {c.fid:7.2f} ±{c.half_width:.2f}  accuracy {c.accuracy:.2%}  cut-out {c.cutout:.3f}"
            )
            speed = entries[name]["training"]["images_per_second"]
            print(f"{name:16s} {c.decay:7s} {numbers}  {c.parameters:,} parameters  {speed:,.0f} images/s")
    for question, answer in decisions(entries).items():
        print(f"{question} {answer['chosen']['run']}, average {answer['chosen']['decay']}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with cifar10/; default $GMMC_DATA")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--runs", type=Path, help="folder of the trainings; default runs/NAME of --out")
    parser.add_argument("--seconds", type=float, default=240.0, help="of training, per run")
    parser.add_argument("--only", nargs="*", choices=list(RUNS), default=list(RUNS), help="runs to make")
    parser.add_argument("--features", default="auto", help="network of FID: auto, inception or a file")
    parser.add_argument("--change", nargs="*", default=[], help="more overrides, for all runs")
    parser.add_argument("--rehearse", action="store_true", help="tiny networks, few images")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or Path("runs") / arguments.out.stem
    return arguments


def main() -> None:
    arguments = parsed()
    data = load_data(arguments)
    if not arguments.rehearse:  # refuse before the work what cannot be measured after it
        feature_networks.find(arguments.features, data, torch.device("cpu"))
    entries = read(arguments.out)
    for entry in entries.values():
        asked = (arguments.seconds, arguments.rehearse)
        same_changes = entry["changes"][len(entry["changes"]) - len(arguments.change) :] == arguments.change
        if (entry["seconds"], entry["conditions"]["rehearsal"]) != asked or not same_changes:
            raise InputError(f"--out {arguments.out} holds runs with other settings; name another file")
    arguments.runs.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        if name not in entries:
            entries[name] = run(name, data, arguments)
            entries = read(arguments.out) | entries  # of another process
            write(arguments.out, entries)
            shutil.rmtree(arguments.runs / name / "resume", ignore_errors=True)
    show(entries)


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stopped:
        raise SystemExit(str(stopped)) from None
