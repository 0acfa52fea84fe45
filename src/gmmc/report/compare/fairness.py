"""May the numbers of these runs be compared, and how far does chance alone go?"""

from collections.abc import Sequence
from typing import Any

from gmmc.report.compare.rows import Row
from gmmc.report.compare.section import COLUMNS, written
from gmmc.report.conditions import in_words, short_commit

# Conditions of an evaluation that should be the same for all; "trained.": those of the training.
SAME = {
    "data": "data",
    "split": "images",
    "images": "number of validation images",
    "generated": "number of fresh chains",
    "buffer": "number of buffer images",
    "features": "feature network",
    "reference": "reference",
    "steps": "steps of the fresh chains",
    "start": "start of the fresh chains",
    "alpha": "step of the sampler",
    "labels": "labels of the chains",
    "precision": "precision",
    "hardware": "hardware",
    "commit": "commit that measured",
    "trained.commit": "commit that trained",
    "trained.precision": "precision of the training",
    "trained.engine": "engine of the training",
    "trained.processes": "number of processes",
}
FEW = 3  # runs that are named one by one
EQUAL_TIME = 0.1  # within this share of the baseline's


def noise(rows: Sequence[Row]) -> str:
    """The spread between runs of one recipe: a change that brought less may have brought nothing."""
    same = [row for row in rows if _same(row, rows[0]) or _repeats(row)]
    if len(same) < 2:
        return f"not known: no other run has the recipe of {rows[0].name}, but for the seed"
    names = f"{', '.join(row.name for row in same[:-1])} and {same[-1].name}"
    what = "the seed alone" if any(row.changes for row in same) else "nothing"
    spreads = []
    for column in ("valid_accuracy", "fresh_fid", "buffer_fid"):
        values = [row.values[column] for row in same if column in row.values]
        if len(values) > 1:
            spread = written(column, max(values) - min(values))
            ends = [row.intervals[column] for row in same if column in row.intervals]
            half = max(((high - low) / 2 for low, high in ends), default=None)
            own = "" if half is None else f" (each ±{written(column, half)} by its number of images)"
            spreads.append(f"{COLUMNS[column][0]} {spread}{own}")
    return f"{names} differ in {what}: {', '.join(spreads) or 'not evaluated yet'}"


def _same(row: Row, first: Row) -> bool:
    return not row.changes and _start(row) == _start(first)


def _start(row: Row) -> str | None:
    """A hash of the weights that it began with: a path may hold others by now."""
    start = (row.conditions.get("trained") or {}).get("start")
    return start.get("sha256") if isinstance(start, dict) else None


def _repeats(row: Row) -> bool:
    """Another seed has other validation images, and so must begin with weights of its own."""
    return "train.seed" in row.changes and not row.changes.keys() - {"train.seed", "train.start"}


def doubts(rows: Sequence[Row]) -> list[str]:
    told = {words: {row.name: _found(row, key) for row in rows} for key, words in SAME.items()}
    watched = [row for row in rows if "buffer_fid" in row.curves]
    told["weights at the start"] = {row.name: (_start(row) or "")[:10] for row in rows}
    told["buffer images of a point of the FID curve"] = {row.name: row.fid_images for row in watched}
    flags = [
        f"not the same for all runs: {words}: {groups}" for words in told if (groups := _groups(told[words]))
    ]
    return [*flags, *_unequal_times(rows)]


def _found(row: Row, key: str) -> Any:
    section, dot, name = key.rpartition(".")
    value = (row.conditions.get(section) or {}).get(name) if dot else row.conditions.get(name)
    if key == "buffer" and isinstance(value, dict):  # beside its size it tells, for example, its update
        return value.get("chains")
    return short_commit(value) if name == "commit" and isinstance(value, str) else value


def _groups(told: dict[str, Any]) -> str:
    """'10 000 (base, beta), 5 000 (short)'; nothing where all that is told is the same."""
    runs: dict[str, list[str]] = {}
    for name, value in told.items():
        if value:  # of a model that draws no samples, no number of them
            runs.setdefault(in_words(value), []).append(name)
    if len(runs) < 2:
        return ""
    return "; ".join(
        f"{value} ({', '.join(names) if len(names) <= FEW else f'{len(names)} runs'})"
        for value, names in runs.items()
    )


def _unequal_times(rows: Sequence[Row]) -> list[str]:
    times = {
        row.name: row.values["seconds"]
        for row in rows
        if row.state.startswith("finished") and "seconds" in row.values
    }
    first = times.get(rows[0].name)
    if not first:
        return []
    far = [
        f"{name} {seconds:.3g} s" for name, seconds in times.items() if abs(seconds / first - 1) > EQUAL_TIME
    ]
    return [f"not at equal time: {rows[0].name} {first:.3g} s, {', '.join(far)}"] if far else []
