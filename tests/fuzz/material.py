"""Valid content that cases start from: a run, a folder of the Hub, photos, a recipe, an estimator."""

import json
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conftest import tiny_config
from gmmc.base.tensorfile import pack, unpack
from gmmc.estimator.classifier import GMMCClassifier
from gmmc.export import hub
from gmmc.runs.layout import CONFIG, METRICS, MODEL, RESULTS
from gmmc.train.loop import train
from image_files import NAMES, pictures, png
from report_runs import (
    accuracy_entry,
    calibration_entry,
    denoising_entry,
    entry,
    generation_entry,
    likelihood_entry,
    ood_entry,
    robustness_entry,
    samples_entry,
)

RUN, HUB, ESTIMATOR = "run", "hub", "estimator.pickle"
CARD = 'title = "Digits"\npurpose = "Tests."\nlimits = ["Few images.", "8×8 pixels."]\nlicence = "mit"\n'
SETTINGS = {"discriminative.epochs": 1, "generative.epochs": 1, "sampler.steps": 2}


@dataclass(frozen=True)
class Material:
    """A folder of valid files, made once and never changed."""

    root: Path

    def run(self, folder: Path) -> Path:
        """Copy the run, with results.json and card.toml."""
        return shutil.copytree(self.root / RUN, folder / RUN)

    def hub(self, folder: Path) -> Path:
        return shutil.copytree(self.root / HUB, folder / HUB)

    def model(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the tensors and the header of the run's model."""
        tensors, info, _ = unpack(self.root / RUN / MODEL)
        return tensors, info

    def estimator(self) -> GMMCClassifier:
        return pickle.loads((self.root / ESTIMATOR).read_bytes())


def build(root: Path, run: Path | None = None) -> Material:
    """Make all material below `root`, from a finished run or with a training of a second."""
    if run is None:
        run = root / "trained"
        train(tiny_config(train={"batch_size": 128}, buffer={"size": 200}), run, silent=True)
    (root / RUN).mkdir()
    shutil.copy(run / CONFIG, root / RUN / CONFIG)
    _copy_without_clock_and_commit(run, root / RUN)
    (root / RUN / RESULTS).write_text(json.dumps(results()))
    (root / RUN / "card.toml").write_text(CARD)
    hub.save_pretrained(root / RUN, root / HUB)
    rows = np.random.default_rng(0).normal(size=(40, 3))
    estimator = GMMCClassifier(min_updates=0, settings=SETTINGS, random_state=0, device="cpu")
    estimator.fit(rows, (rows[:, 0] > 0).astype(int))
    (root / ESTIMATOR).write_bytes(pickle.dumps(estimator))
    return Material(root)


def _copy_without_clock_and_commit(run: Path, to: Path) -> None:
    """Copy metrics and model; otherwise a case would damage other bytes in each run and after each commit."""
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    (to / METRICS).write_text("".join(json.dumps(line | {"seconds": line["step"]}) + "\n" for line in lines))
    tensors, info, _ = unpack(run / MODEL)
    info["trained"]["commit"] = "0" * 40
    (to / MODEL).write_bytes(pack(tensors, info)[0])


def results() -> dict[str, Any]:
    """Entries of results.json, with short curves."""
    return {
        "accuracy": accuracy_entry(),
        "calibration": calibration_entry(("paper",)),
        "ood": ood_entry(("noise",)),
        "robustness": robustness_entry({"paper_pgd": 0, "worst_case": 0}),
        "samples": samples_entry(),
        "denoising": denoising_entry(),
        "likelihood": likelihood_entry(),
        "generation": generation_entry(),
        "validation": entry(
            {"top1": 0.9, "fresh/fid": 60.0, "fresh/kid": 0.04, "buffer/fid": 54.0},
            {"top1": [0.89, 0.91]},
            split="validation",
            buffer={"chains": 90, "step": 7},
            trained={"updates": 40, "seconds": 20.0, "start": {"sha256": "0" * 64}},
        ),
    }


def recipe(data: str) -> dict[str, dict[str, Any]]:
    """Return a recipe as a tree; its training takes some hundredths of a second."""
    return {
        "data": {"name": data, "valid": 0.2},
        "model": {"backbone": "mlp-1-8", "dim": 4},
        "train": {
            "batch_size": 8,
            "beta": 0.5,
            "device": "cpu",
            "precision": "fp32",
            "engine": "plain",
            "threads": 1,
        },
        "discriminative": {"epochs": 1, "lr": 1e-3},
        "generative": {"epochs": 1, "lr": 1e-3, "noise": 0.1},
        "sampler": {"steps": 2, "alpha": 0.03},
        "buffer": {"size": 16, "reinit": 0.1},
        "sample": {"steps": 2},
        "evaluate": {"samples": 4},
    }


def write_photos(root: Path, count: int = 24, size: int = 8) -> Path:
    """Write grey pictures of three classes, a folder for each."""
    for i, pixels in enumerate(pictures(count, size, channels=1)):
        place = root / NAMES[i % len(NAMES)] / f"{i:02d}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(png(pixels))
    return root
