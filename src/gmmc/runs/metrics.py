"""metrics.jsonl: a line per interval of training. Reading it needs no torch."""

import math
from pathlib import Path
from typing import Any

from gmmc.base.inputs import parse_json, read_document
from gmmc.base.limits import METRICS_BYTES
from gmmc.base.text import shortened
from gmmc.errors import InputError
from gmmc.runs.layout import METRICS

METRIC_COUNTS = {"step", "to", "rollbacks"}  # keys whose values are whole numbers


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut short by a kill, or still being written, is left out."""
    path = run / METRICS
    if not path.exists():
        return []
    whole = read_document(path, METRICS_BYTES, "METRICS_BYTES").rpartition(b"\n")[0].splitlines()
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
    for key in METRIC_COUNTS & line.keys():
        if type(line[key]) is not int or line[key] < 0:
            raise InputError(f"{key} must be a whole number, at least 0, got {shortened(line[key])}")
    seconds = line.get("seconds", 0)
    if type(seconds) not in (int, float) or not math.isfinite(seconds):
        raise InputError(f"seconds must be a finite number, got {shortened(seconds)}")
