"""The section of a comparison: a line per run, what it changed and what came of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report import pictures
from gmmc.report.compare.rows import EVALUATION, NOT_EVALUATED
from gmmc.report.numbers import percent, plain, score
from gmmc.report.parts import Group, having, per_run
from gmmc.report.reading import Entry, Run


def rounded(value: float) -> str:
    return plain(round(value))


# Of results.json, run/column: its heading, and how its numbers are written.
COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "seconds": ("seconds", rounded),
    "valid_accuracy": ("accuracy", partial(percent, digits=1)),
    "fresh_fid": ("FID fresh", score),
    "buffer_fid": ("FID buffer", score),
    "real_energy": ("E real", plain),
    "sampled_energy": ("E sampled", plain),
    "force_ratio": ("R", plain),
    "bounded": ("bounded", partial(percent, digits=1)),
    "loss": ("loss", plain),
    "skipped": ("skipped", partial(percent, digits=1)),
    "rollbacks": ("rollbacks", plain),
    "updates": ("updates", plain),
}
NAME = "comparison"  # in results.json
PICTURE = "comparison.png"
EVALUATE = f"gmmc evaluate RUN {EVALUATION}"
ALT = "FID and accuracy on validation images against the seconds of training, a line per run."


def written(column: str, value: float | None) -> str:
    return MISSING if value is None else COLUMNS[column][1](value)


def comparison(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    groups = []
    for run, entry in having(name, runs):
        noise = entry.conditions.get("noise")
        missing = to_evaluate(entry.conditions)
        told = [
            f"Chance: {noise}." if noise else "",
            f"No validation results of {', '.join(missing)}; to add them: {EVALUATE}." if missing else "",
        ]
        groups.append(Group(per_run(run, runs), [table(entry)], text=" ".join(filter(None, told))))
        shown = [pictures.panel(run, file, picture_bytes, several=False) for file in entry.files]
        panels = [replace(panel, title="What each second of training brought", alt=ALT) for panel in shown]
        groups.append(Group(panels=panels, broad=True))
    return groups


def to_evaluate(conditions: dict[str, Any]) -> list[str]:
    """Return the names of the finished runs without validation results."""
    return [name for name, told in conditions["runs"].items() if told["state"] == NOT_EVALUATED]


def columns_of(values: Mapping[str, float]) -> list[str]:
    """Columns that some run has a number for."""
    known = {key.rpartition("/")[2] for key in values}
    return [column for column in COLUMNS if column in known]


def table(entry: Entry) -> Table:
    columns = columns_of(entry.values)
    lines = [
        Line(f"{row}: {differences(row, entry.conditions)}", [number(entry, row, key) for key in columns])
        for row in entry.conditions["runs"]
    ]
    return Table([COLUMNS[column][0] for column in columns], lines, corner="run: what differs", dense=True)


def differences(row: str, conditions: dict[str, Any]) -> str:
    """What a run changed; a state is told only where it is not the usual one."""
    told = conditions["runs"][row]
    words = ", ".join(told["changes"]) or "nothing"
    words = "the baseline" if row == conditions["baseline"] else words
    return words + ("" if told["state"] == "finished" else f" ({told['state']})")


def number(entry: Entry, row: str, column: str) -> Cell:
    key = f"{row}/{column}"
    low, high = entry.intervals.get(key, (None, None))
    below = "" if low is None else f"{written(column, low).removesuffix('%')}–{written(column, high)}"
    return Cell(written(column, entry.values.get(key)), below)
