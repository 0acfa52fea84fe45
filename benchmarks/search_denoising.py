"""CIFAR-10 by denoising: the search for a recipe of half an hour, in runs of minutes on one GPU.

    python benchmarks/search_denoising.py --data DIR --out results/search-denoising.json --minutes 24
    python benchmarks/search_denoising.py --data DIR --out FILE --minutes 24 --winner   # the last session
    python benchmarks/search_denoising.py --data DIR --out FILE --only width-6          # one run
    python benchmarks/search_denoising.py --rehearse --out runs/rehearsal.json      # some minutes on a CPU

DIR holds cifar10/ as parquet files. `base` is recipes/cifar10.toml, every other run has one change to it. A
run is an entry of the JSON file, written when it ends, also where it diverged; runs that are there are not
repeated. An interrupted run goes on in --runs, where the trainings are.

Equal time: the images per second of each kind of update are measured in a short training first. A run gets as
many epochs of its cosine as fit into --seconds; compiling comes on top. `base` keeps three averages of the
weights.

Runs are made in the order of RUNS. With --minutes, a run is begun only if it still fits; a later call makes
the others. With --winner, time is kept for a run that has every change that the rule chose. After it come a
second seed of it and the FID of its chains by steps, guidance and start. A winner is named by its changes:
where later runs decide otherwise, another is trained. If it is `base`, diverges or does not fit, the chains
of `base` are measured.

Only training and validation images are looked at; search_measure.py lists the numbers. The rule that decides
stands in search_rule.py, and was written before any run.
"""

import argparse
import dataclasses
import hashlib
import itertools
import json
import shutil
import statistics
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from denoising_runs import course
from search_measure import by_sampling, measure
from search_rule import RULE, adopted, candidates_of, choose_sampling, decisions

import gmmc
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.classifier.model import pick_device
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.data.splits import Dataset
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.fid import features as feature_networks
from gmmc.train.loop import train

RECIPE = "cifar10"
# auto would not compile so short a training, and so measure a slower one than is meant.
COMMON = ("train.engine=compiled", "train.valid_every=10")
AVERAGES = ("train.averages=[0.999, 0.9998]",)
RUNS: dict[str, tuple[str, ...]] = {  # in the order in which they are made
    "base": AVERAGES,
    "isotropic": ("denoising.gaussian=isotropic",),
    "width-6": ("model.backbone=smooth-28-6",),
    # λ = .5: 1/(lr·λ) is 2,900 updates at the peak rate, less than half of a run of four minutes.
    "decay-smoothing": (
        "train.decoupled_decay=true",
        "generative.weight_decay=0.5",
        "denoising.label_smoothing=0.1",
    ),
    "class-.1": ("denoising.class_weight=0.1",),
    "lr-high": ("generative.lr=1.4e-3",),
    "step": ("denoising.h=0.1",),
    "class-.01": ("denoising.class_weight=0.01",),
    "colour": ("generative.colour=0.4",),
    "attention": ("model.backbone=smooth-28-4-attention",),
    "class-half": ("denoising.class_images=128",),
    "lr-low": ("generative.lr=3.5e-4",),
    "scales-3": ("model.backbone=smooth-28-4-scales3",),
    "base-seed-1": ("train.seed=1",),  # other weights and order, the same validation images
}
DECAY = str(recipes.load(RECIPE).train.ema)
REFERENCE, SEED_1 = "base", "-seed-1"
SEED = 0
TRIAL_SECONDS = 15.0
OVERHEAD, GRID = 60.0, 90.0  # seconds beside the training of a run, until one is known; of the chains
REHEARSAL = (
    *("train.engine=auto", "train.batch_size=32", "denoising.class_images=16", "generative.warmup=5"),
    *("train.log_every=2", "train.checkpoint_seconds=5", "sample.steps=4"),
)
REHEARSED = {  # in place of values that a tiny training would not notice
    "denoising.class_images=128": "denoising.class_images=8",
    "train.averages=[0.999, 0.9998]": "train.averages=[0.5, 0.98]",
}
ON_DIGITS = ("generative.shift=1", "generative.cutout=3", "denoising.flip=false", "generative.flip=false")


class Enough(Exception):
    """A trial is long enough."""


# --- a run ----------------------------------------------------------------------------------------


def recipe(changes: tuple[str, ...], arguments: argparse.Namespace) -> Config:
    if not arguments.rehearse:
        return recipes.load(RECIPE, [*COMMON, *changes, *arguments.change])
    changes = tuple(REHEARSED.get(change, change) for change in changes)
    digits = () if arguments.data else ("data.name=digits", *ON_DIGITS)
    cfg = recipes.load(RECIPE, [*COMMON, *REHEARSAL, *digits, *changes, *arguments.change])
    tiny = cfg.model.backbone.replace("28-4", "10-1").replace("28-6", "10-2")
    return dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, backbone=tiny))


def load_data(arguments: argparse.Namespace) -> Dataset:
    """The data of all runs: one split. Test images are dropped here, so that nothing can look at them."""
    cfg = recipe(RUNS[REFERENCE], arguments).data
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
    """(epochs that take --seconds, images per second); measured once for each kind of update."""
    kind = f"{cfg.model.backbone}-{cfg.denoising.class_images}"
    place = arguments.runs / f"speed-{kind}.json"
    if not place.exists():
        trial = min(TRIAL_SECONDS, arguments.seconds / 3)
        rate = images_per_second(cfg, data, trial)
        write_atomic(place, json.dumps({"images_per_second": rate}).encode())
    rate = json.loads(place.read_text())["images_per_second"]
    per_epoch = len(data.train) // cfg.train.batch_size * cfg.train.batch_size
    return max(1, int(arguments.seconds * rate / per_epoch)), rate


def run(name: str, changes: tuple[str, ...], data: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and measure one run; its entry of the JSON file."""
    started = time.monotonic()
    cfg = recipe(changes, arguments)
    folder = arguments.runs / name
    entry: dict[str, Any] = {
        "changes": [*COMMON, *changes, *arguments.change],
        "settings": settings_of(arguments),
        "averages": {},
    }
    try:
        epochs, rate = epochs_for(cfg, data, arguments)
        entry |= {"epochs": epochs, "trial_images_per_second": rate}
        cfg = dataclasses.replace(cfg, generative=dataclasses.replace(cfg.generative, epochs=epochs))
        model = train(cfg, folder, data)
    except Diverged as error:
        entry["diverged"] = str(error)
        conditions = conditions_of(cfg, data, arguments)
    else:
        entry["training"] = course(folder, cfg.train.batch_size)
        entry["parameters"] = model.trained["parameters"]
        # Beside training and measuring: compiling, calibration. A resumed run took longer than this call.
        entry["seconds_beside"] = max(0.0, time.monotonic() - started - arguments.seconds)
        places = {str(cfg.train.ema): folder}
        places |= {str(decay): folder / "averages" / str(decay) for decay in cfg.train.averages}
        measuring = time.monotonic()
        entry["averages"] = {decay: measure(place, data, arguments) for decay, place in places.items()}
        entry["seconds_beside"] += (time.monotonic() - measuring) / len(places)
        conditions = {**conditions_of(cfg, data, arguments), "trained": model.trained}
    return entry | {"conditions": conditions}


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What runs must share to be compared."""
    base = recipes.to_toml(recipes.load(RECIPE))
    return {
        "seconds": arguments.seconds,
        "change": arguments.change,
        "features": arguments.features,
        "rehearsal": arguments.rehearse,
        "recipe_sha256": hashlib.sha256(base.encode()).hexdigest(),
    }


def conditions_of(cfg: Config, data: Dataset, arguments: argparse.Namespace) -> dict[str, Any]:
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


# --- the order of runs ----------------------------------------------------------------------------


class Budget:
    """Time left of --minutes, and what runs take."""

    def __init__(self, minutes: float | None, seconds: float):
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.seconds = seconds

    def fits(self, entries: dict[str, Any], *, runs: int, more: float = 0.0) -> bool:
        """Whether so many runs and `more` seconds still fit."""
        beside = [entry["seconds_beside"] for entry in entries.values() if "seconds_beside" in entry]
        each = self.seconds + (statistics.median(beside) if beside else OVERHEAD)
        return self.end is None or time.monotonic() + runs * each + more <= self.end


def make_runs(data: Dataset, arguments: argparse.Namespace) -> None:
    """Make the runs that are asked for and not there yet, then the winner's, as far as they fit."""
    budget = Budget(arguments.minutes, arguments.seconds)

    def make(name: str, changes: tuple[str, ...], *, runs: int = 1, more: float = 0.0) -> bool:
        """Make a run unless it is there; whether it is there in the end and has a model."""
        known = read(arguments.out)["runs"]
        if name not in known and budget.fits(known, runs=runs, more=more):
            entry = run(name, changes, data, arguments)
            keep(arguments.out, runs={name: entry})
            shutil.rmtree(arguments.runs / name / "resume", ignore_errors=True)
        return bool(read(arguments.out)["runs"].get(name, {}).get("averages"))

    for name in arguments.only:
        make(name, RUNS[name], runs=2 if arguments.winner else 1, more=GRID if arguments.winner else 0.0)
    answers = decisions(read(arguments.out)["runs"])
    if not (arguments.winner and answers):
        return
    changes, decay = winning_changes(answers)
    name = winner_name(changes)
    if changes and make(name, changes, more=GRID):
        make(f"{name}{SEED_1}", (*changes, "train.seed=1"), more=GRID)
        place = arguments.runs / name
    else:
        name, place = REFERENCE, arguments.runs / REFERENCE
        place = place / "averages" / decay if decay != DECAY else place
    if (place / "model.safetensors").exists():
        keep(arguments.out, sampling={name: by_sampling(place, data, arguments)})


def winning_changes(answers: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """(overrides of the winner, decay of its average) by the answers to all questions.

    Another average of `base` is no other training.
    """
    chosen = [answer["chosen"] for answer in answers.values()]
    changes = tuple(change for one in chosen if one["run"] != REFERENCE for change in RUNS[one["run"]])
    decay = next((one["decay"] for one in chosen if one["run"] == REFERENCE and one["decay"] != DECAY), DECAY)
    if changes and decay != DECAY:
        changes = (*changes, f"train.ema={decay}")
    return changes, decay


def winner_name(changes: tuple[str, ...]) -> str:
    return f"winner-{hashlib.sha256(' '.join(changes).encode()).hexdigest()[:8]}"


# --- the file -------------------------------------------------------------------------------------


def read(out: Path) -> dict[str, Any]:
    """Runs, and what chains of which run gave."""
    kept = json.loads(out.read_text()) if out.exists() else {}
    return {"runs": kept.get("runs", {}), "sampling": kept.get("sampling", {})}


def keep(out: Path, *, runs: dict[str, Any] | None = None, sampling: dict[str, Any] | None = None) -> None:
    """Add to the file, which another call may have written meanwhile."""
    kept = read(out)
    runs, sampling = kept["runs"] | (runs or {}), kept["sampling"] | (sampling or {})
    ordered = {name: runs[name] for name in sorted(runs, key=lambda name: [*RUNS, name].index(name))}
    content = {"rule": RULE, "runs": ordered, "sampling": sampling}
    write_atomic(out, as_json(content))  # before the rule is applied, which must cost no run
    content |= {
        "decisions": decisions(ordered),
        "adopted": {name: adopted(ordered, name) for name in ordered if is_winner(name)},
        "chains": {name: choose_sampling(found) for name, found in sampling.items()},
    }
    write_atomic(out, as_json(content))


def is_winner(name: str) -> bool:
    return name not in RUNS and not name.endswith(SEED_1)


def as_json(content: dict[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode()


def show(out: Path) -> None:
    content = json.loads(out.read_text())
    for name, entry in content["runs"].items():
        if "diverged" in entry:
            print(f"{name:24s} diverged: {entry['diverged']}")
        for c in candidates_of(content["runs"], [name]):
            numbers = (
                f"FID {c.fid:7.2f} ±{c.half_width:.2f}  accuracy {c.accuracy:.2%}  cut-out {c.cutout:.3f}"
            )
            speed = entry["training"]["images_per_second"]
            print(f"{name:24s} {c.decay:7s} {numbers}  {c.parameters:,} parameters  {speed:,.0f} images/s")
    for question, answer in content.get("decisions", {}).items():
        print(f"{question} {answer['chosen']['run']}, average {answer['chosen']['decay']}")
    for name, is_adopted in content.get("adopted", {}).items():
        print(f"{name} becomes the recipe: {'yes' if is_adopted else 'no'}")
    for name, found in content.get("sampling", {}).items():
        for words, values in found.items():
            print(f"{name}: {words}: FID {values['fid']:.2f}")
        print(f"{name}: chains with {content['chains'][name]}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with cifar10/; default $GMMC_DATA")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--runs", type=Path, help="folder of the trainings; default runs/NAME of --out")
    parser.add_argument("--winner", action="store_true", help="train and measure the winner as well")
    parser.add_argument("--seconds", type=float, default=180.0, help="of training, per run")
    parser.add_argument("--minutes", type=float, help="of all runs; default: no limit")
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
    for name, entry in read(arguments.out)["runs"].items():
        if entry["settings"] != settings_of(arguments):
            rule = f"--out {arguments.out} holds the run {name} with other settings"
            raise InputError(f"{rule} (seconds, change, features or recipe); name another file")
    arguments.runs.mkdir(parents=True, exist_ok=True)
    make_runs(data, arguments)
    if arguments.out.exists():
        show(arguments.out)


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stopped:
        raise SystemExit(str(stopped)) from None
