"""What a run folder tells without its weights: reading it needs no torch."""

import fcntl
import json
import math
import re
from pathlib import Path
from typing import Any

from gmmc.atomic import write_atomic
from gmmc.errors import InputError
from gmmc.inputs import parse_json, read_bytes
from gmmc.limits import DOCUMENT_BYTES, METRICS_BYTES
from gmmc.text import shortened

CONFIG, METRICS, RESULTS, REPORT = "config.toml", "metrics.jsonl", "results.json", "report.html"
MODEL = "model.safetensors"
LAST_GOOD = "last-good.safetensors"  # the model of a training that the guard gave up
COUNTS = {"step", "to", "rollbacks"}  # keys of metrics.jsonl
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
    whole = _read(path, METRICS_BYTES, "METRICS_BYTES").rpartition(b"\n")[0].splitlines()
    return [
        _metrics_line(text, f"{path} is damaged in line {number}") for number, text in enumerate(whole, 1)
    ]


def _metrics_line(text: bytes, damaged: str) -> dict[str, Any]:
    try:
        line = parse_json(text, "it")
        _check_metrics(line)
    except InputError as error:
        raise InputError(f"{damaged}: {error}; remove that line") from None
    return line


def _check_metrics(line: Any) -> None:
    """Refuse what the readers of a line cannot count with; its other values may be missing or not finite."""
    if not isinstance(line, dict) or "step" not in line:
        raise InputError(f"it must be an object with the key step, got {shortened(line)}")
    for key in COUNTS & line.keys():
        if type(line[key]) is not int or line[key] < 0:
            raise InputError(f"{key} must be a whole number, at least 0, got {shortened(line[key])}")
    seconds = line.get("seconds", 0)
    if type(seconds) not in (int, float) or not math.isfinite(seconds):
        raise InputError(f"seconds must be a finite number, got {shortened(seconds)}")


def read_results(run: Path) -> dict[str, Any]:
    """The entries of results.json by the name of the evaluation."""
    path = run / RESULTS
    if not path.exists():
        return {}
    try:
        results = parse_json(_read(path), "it")
        if not isinstance(results, dict):
            raise InputError("it holds no object")
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}; delete it and evaluate again") from None
    return results


def _read(path: Path, most: int = DOCUMENT_BYTES, bound: str = "DOCUMENT_BYTES") -> bytes:
    try:
        return read_bytes(path, most, bound)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def write_results(run: Path, results: dict[str, Any]) -> None:
    """These entries, beside the others of results.json."""
    text = json.dumps({**read_results(run), **results}, indent=2, ensure_ascii=False, allow_nan=False)
    # A list of numbers is one line; no string holds a line break.
    text = re.sub(r"\[\n[-+\d.e,\snul]*\]", lambda found: " ".join(found[0].split()), text)
    write_atomic(run / RESULTS, text.encode() + b"\n")
