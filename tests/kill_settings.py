"""The commands that tests/kill.py kills: trainings of many kinds, drawings, attacks."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import make_model, tiny_config
from gmmc.config import recipes
from processes import Command, gmmc_command

HURRIED = Path(__file__).with_name("hurried.py")
EMA_BATCH_NORM = ("model.norm=batch", "train.ema=0.9")
# The guard goes back several times, before training gets past the trouble.
WILD = (
    "train.beta=1",
    "train.ramp=30",
    "discriminative.lr=5e-3",
    "generative.lr=0.02",
    "sampler.alpha=3",
    "guard.every=6",
    "guard.rollbacks=20",
    "objective.shape=huber",
    "guard.energy=0.6",
)


def lines_of_metrics(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def files_drawn(out: Path) -> int:
    """Images in the folder, or finished parts of a file."""
    return sum(name.endswith((".png", ".safetensors")) for name in names_in(out))


def names_in(out: Path) -> Iterator[str]:
    """Names of all files below a folder, some of which may vanish meanwhile."""
    return (name for _, _, files in os.walk(out) for name in files)


@dataclass(frozen=True)
class Setting:
    """A command, as a function of its folder, and a count of what it has done so far."""

    name: str
    command: Callable[[Path, Path], Command]  # of the folder for models and of the command's own
    progress: Callable[[Path], int] = lines_of_metrics
    stride: int = 8  # by how much the progress may grow from one kill to the next; 0: it is not counted
    processes: int = 1
    of_a_run: bool = False  # the command works in a copy of a finished run


def training(name: str, *options: str, processes: int = 1, recipe: str = "tiny.toml") -> Setting:
    """50 updates, each with a line of metrics and a state on disk."""

    def command(models: Path, out: Path) -> Command:
        more = [f"train.devices={processes}", *options]
        return gmmc_command("train", models / recipe, *more, "--out", out)

    return Setting(name, command, processes=processes)


def drawing(name: str, place: str) -> Setting:
    def command(models: Path, out: Path) -> Command:
        words = ["sample", models / "run", "-n", 300, "--steps", 400, "--device", "cpu", "--out", out / place]
        return [sys.executable, HURRIED, *words]

    return Setting(name, command, progress=files_drawn, stride=60 if place == "images" else 3)


def evaluation(name: str) -> Setting:
    def command(models: Path, out: Path) -> Command:
        return [sys.executable, HURRIED, "evaluate", out, name, "--attacked", 8, "--device", "cpu"]

    return Setting(name, command, stride=0, of_a_run=True)


SETTINGS = (
    training("gmmc"),
    training("two processes", processes=2),
    training("guard", *WILD),
    training("noise injected", "sampler.name=noise_injected"),
    drawing("folder", "images"),
    training(
        "balanced", "objective.name=balanced", "buffer.chains=64", "buffer.size=1000", "buffer.labels=batch"
    ),
    training("saved seldom", "train.checkpoint_seconds=0.3", *EMA_BATCH_NORM),
    training("linear", "model.head=linear", "sampler.name=sgld", "objective.name=balanced"),
    evaluation("autoattack"),
    training("two with batch norm", *EMA_BATCH_NORM, "objective.name=balanced", processes=2),
    training(
        "jem", "model.head=lda", "objective.name=balanced", "sampler.name=sgld_jem", "train.weights=bf16"
    ),
    drawing("npz", "drawn.npz"),
    training("frozen", "model.norm=batch_then_frozen", "train.weights=bf16", "buffer.start=gaussian"),
    training("transfer", recipe="transfer.toml"),
    training("streamed", "train.memory=0.000001", "train.ema=0.9", "train.averages=[0.5]"),
    drawing("parquet", "drawn.parquet"),
    training("guard of two", *WILD, processes=2),
    training("transfer of two", "train.ema=0.9", processes=2, recipe="transfer.toml"),
    training("guard, saved seldom", *WILD, "train.checkpoint_seconds=0.3"),
    evaluation("robustness"),
)


def prepare(models: Path) -> None:
    """Write the recipe and train the model that is drawn from and attacked."""
    from gmmc.runs.model_file import save_model
    from gmmc.train.loop import train

    models.mkdir(parents=True)
    sections = {
        "train": {"batch_size": 128, "log_every": 1, "checkpoint_seconds": 0.0},
        "buffer": {"size": 200},
        "discriminative": {"epochs": 2},
        "generative": {"epochs": 3},
    }
    cfg = tiny_config(**sections)
    (models / "tiny.toml").write_text(recipes.to_toml(cfg))
    start = models / "other-classes.safetensors"
    save_model(start, make_model(seed=1))
    phases = {"transfer": {"frozen_epochs": 2, "epochs": 1, "lr": 1e-3}}
    phases["discriminative"] = {**sections["discriminative"], "flip": True}
    transfer = tiny_config(**(sections | phases | {"train": {**sections["train"], "start": str(start)}}))
    (models / "transfer.toml").write_text(recipes.to_toml(transfer))
    train(cfg, models / "run", silent=True)


def begin(setting: Setting, models: Path, out: Path) -> None:
    """Make the folder of a command."""
    if setting.of_a_run:
        shutil.copytree(models / "run", out)
    elif setting.progress is files_drawn:
        out.mkdir(parents=True)
