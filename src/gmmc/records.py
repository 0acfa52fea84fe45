"""What a run folder tells without its weights: reading it needs no torch."""

import fcntl
import json
import re
from pathlib import Path
from typing import Any

from gmmc.atomic import write_atomic
from gmmc.errors import InputError

CONFIG, METRICS, RESULTS, REPORT = "config.toml", "metrics.jsonl", "results.json", "report.html"
MODEL = "model.safetensors"
LAST_GOOD = "last-good.safetensors"  # the model of a training that the guard gave up
LOCK = ".lock"  # held by the process that trains


def is_training(run: Path) -> bool:
    """Whether some process holds the folder at this moment."""
    try:
        with (run / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut short by a kill, or still being written, is left out."""
    path = run / METRICS
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()
    lines = []
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
            int(line["step"])
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path} is damaged in line {number}; remove that line") from None
        lines.append(line)
    return lines


def read_results(run: Path) -> dict[str, Any]:
    """The entries of results.json by the name of the evaluation."""
    path = run / RESULTS
    if not path.exists():
        return {}
    try:
        results = json.loads(path.read_bytes())
        if not isinstance(results, dict):
            raise ValueError("it holds no object")
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}; delete it and evaluate again") from None
    return results


def write_results(run: Path, results: dict[str, Any]) -> None:
    """These entries, beside the others of results.json."""
    text = json.dumps({**read_results(run), **results}, indent=2, ensure_ascii=False, allow_nan=False)
    # A list of numbers is one line; no string holds a line break.
    text = re.sub(r"\[\n[-+\d.e,\snul]*\]", lambda found: " ".join(found[0].split()), text)
    write_atomic(run / RESULTS, text.encode() + b"\n")
