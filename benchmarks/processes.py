"""How well two CPU processes do against one: trains on the digits, and reads the times from metrics.jsonl."""

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gmmc.base import provenance
from gmmc.runs.metrics import read_metrics

BATCH = 64
LIMIT = 100  # seconds of one training; there are four, and each should take a fraction of it
UNSTEADY = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/processes.json"), help="the JSON file to write"
    )
    parser.add_argument("--epochs", type=int, default=9, help="of about 20 updates at a batch of 64")
    arguments = parser.parse_args()
    epochs = arguments.epochs
    before = seconds_per_update(processes=1, batch=BATCH, epochs=epochs)
    shared = seconds_per_update(processes=2, batch=BATCH, epochs=epochs)
    doubled = seconds_per_update(processes=2, batch=2 * BATCH, epochs=2 * epochs)
    after = seconds_per_update(processes=1, batch=BATCH, epochs=epochs)
    one = mean([before, after])
    found = {
        "seconds_per_update": {
            f"1 process, batch {BATCH}, before and after": [before, after],
            f"2 processes, batch {BATCH}": shared,
            f"2 processes, batch {2 * BATCH}": doubled,
        },
        "efficiency": {"same batch in all": one / (2 * shared), "same batch per process": one / doubled},
        "flags": doubts(before, after),
        "conditions": conditions(epochs),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


def seconds_per_update(*, processes: int, batch: int, epochs: int) -> float:
    """Of generative updates, as `gmmc train` writes them down."""
    keys = {
        "train.devices": processes,
        "train.batch_size": batch,
        "train.threads": 1,
        "train.device": "cpu",
        "train.log_every": 5,
        "train.checkpoint_seconds": 1000.0,
        "discriminative.epochs": 0,
        "generative.epochs": epochs,
        "train.ramp": 0,
    }
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        overrides = [f"{key}={value}" for key, value in keys.items()]
        command = [sys.executable, "-m", "gmmc", "train", "digits", *overrides, "--out", str(out)]
        subprocess.run(command, check=True, timeout=LIMIT)
        return steady(read_metrics(out))


def doubts(before: float, after: float) -> list[str]:
    """The same thing twice must take the same time."""
    if max(before, after) <= (1 + UNSTEADY) * min(before, after):
        return []
    took = f"{1000 * before:.0f} ms per update before and {1000 * after:.0f} ms after the others"
    return [f"unsteady: one process took {took}; is something else running?"]


def steady(lines: list[dict[str, Any]]) -> float:
    """Seconds per update after the first third, where processes start and libraries choose their ways.

    The median over the lines: some of them also hold a validation or a saved state.
    """
    late = lines[len(lines) // 3 :]
    each = [(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in pairwise(late)]
    if not each:
        raise SystemExit("--epochs must give at least three lines of metrics")
    return median(each)


def conditions(epochs: int) -> dict[str, Any]:
    return {
        "data": "digits",
        "recipe": "digits, generative only",
        "epochs": epochs,
        "threads_per_process": 1,
        "hardware": provenance.hardware(torch.device("cpu")),
        "torch": torch.__version__,
        "commit": provenance.commit(),
    }


if __name__ == "__main__":
    main()
