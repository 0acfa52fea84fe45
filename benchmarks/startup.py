"""Start-up of commands, in this checkout and in others by turns: wall and CPU time, modules imported."""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image

from gmmc.base import provenance
from gmmc.base.atomic import write_atomic

HERE = Path(__file__).resolve().parents[1]
COUNTED = """
import sys
from gmmc.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print("\\nMODULES", *sys.modules)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, help="further checkouts, of an earlier commit say")
    parser.add_argument("--repeats", type=int, default=7, help="calls of each command in each checkout")
    parser.add_argument("--out", type=Path, default=Path("runs/startup.json"), help="the JSON file to write")
    arguments = parser.parse_args()
    checkouts = {commit_of(path): path.resolve() for path in [HERE, *arguments.checkouts]}
    with TemporaryDirectory() as folder:
        image = Path(folder) / "image.png"
        Image.new("RGB", (32, 32), "grey").save(image)
        commands = {
            "gmmc --help": ["--help"],
            "gmmc models": ["models"],
            "gmmc predict cifar10 image.png": ["predict", "cifar10", str(image)],
            "gmmc train --help": ["train", "--help"],
        }
        found = {name: measure(command, checkouts, arguments.repeats) for name, command in commands.items()}
    result = {
        "commands": found,
        "conditions": {
            "checkouts": list(checkouts),
            "repeats": arguments.repeats,
            "order": "by turns, after one call of each that is not counted",
            "hardware": provenance.hardware(torch.device("cpu")),
            "torch": torch.__version__,
        },
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(arguments.out, (json.dumps(result, indent=2) + "\n").encode())
    print(json.dumps(result, indent=2))


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(command: list[str], checkouts: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Seconds of each call and the number of modules of gmmc that it imports, for each checkout."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
    for turn in range(repeats + 1):
        for name, path in checkouts.items():
            taken = call([sys.executable, "-m", "gmmc", *command], path)
            if turn:
                times[name].append(taken)
    return {
        name: {
            "seconds": median(wall for wall, _ in taken),
            "range": [min(wall for wall, _ in taken), max(wall for wall, _ in taken)],
            "cpu_seconds": median(cpu for _, cpu in taken),
            "modules": count_modules(command, checkouts[name]),
        }
        for name, taken in times.items()
    }


def call(command: list[str], checkout: Path) -> tuple[float, float]:
    """Wall time and CPU time of a process."""
    cpu, start = cpu_of_children(), time.perf_counter()
    subprocess.run(command, env=environment(checkout), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start, cpu_of_children() - cpu


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def count_modules(command: list[str], checkout: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *command],
        env=environment(checkout),
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(name.split(".")[0] == "gmmc" for name in done.stdout.splitlines()[-1].split())


def environment(checkout: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(checkout / "src")}


if __name__ == "__main__":
    main()
