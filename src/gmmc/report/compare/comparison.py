"""What each change brought: runs side by side, the first of them the baseline. No model is loaded for it.

Files of the runs → `rows` → `fairness` (may they be compared?) and `picture` → one entry of results.json.
`gmmc report` compares the runs of its page by these functions.
"""

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gmmc import __version__
from gmmc.base.atomic import write_atomic
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.outputs import PNG_MARK, check_replaceable, has_mark
from gmmc.base.tables import print_table
from gmmc.base.text import print_line, shortened
from gmmc.errors import InputError
from gmmc.report.compare import fairness, picture
from gmmc.report.compare.rows import EVALUATION, Row, rows_of, settings, without_folder
from gmmc.report.compare.section import (
    COLUMNS,
    EVALUATE,
    NAME,
    PICTURE,
    columns_of,
    differences,
    to_evaluate,
    written,
)
from gmmc.report.conditions import short_commit
from gmmc.report.reading import Entry, Run, damage_refused, read_runs
from gmmc.runs.layout import CONFIG
from gmmc.runs.results import check_keeps_results, listed_files, read_results, write_results

WIDTH = 44  # of the differences in the printed table
# Of the conditions of an evaluation those that are told elsewhere, or of each run.
NOT_SHARED = {"trained", "settings", "commit", "hardware", "gmmc", "torch"}


@dataclass(frozen=True)
class Comparison:
    """A comparison before it is written: the entry of results.json and the picture, a PNG."""

    entry: dict[str, Any]
    picture: bytes | None

    def as_run(self, folder: Path) -> Run:
        """Return what a page reads from the folder once the comparison is written."""
        pictures = {PICTURE: self.picture} if self.picture else {}
        entries = {NAME: Entry(**self.entry)}
        return Run(folder, folder.name, {}, [], entries, "measured", pictures=pictures)


def compare(folders: Sequence[str | Path], out: str | Path) -> dict[str, Any]:
    """Compare with the first; the entry that results.json in `out` holds then, beside the picture."""
    out = Path(out)
    _check_out(out, folders)
    comparison = compare_runs(_read(folders, out))
    write(comparison, out)
    return comparison.entry


def comparable(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return the runs that a page of several compares, and a line for each reason against comparing.

    A page compares two or more recipes once one of them has its validation results. Runs without these
    results keep their line in the table.
    """
    trained = [run for run in runs if run.config]
    if len(trained) < 2:
        return [], []
    if not any(EVALUATION in run.results for run in trained):
        names = ", ".join(run.name for run in trained)
        return [], [f"not compared: no validation results of {names}; to add them: {EVALUATE}"]
    readable, notes = [], []
    for run in trained:
        try:
            settings(run)
            readable.append(run)
        except InputError as error:
            notes.append(f"{run.name} is not compared: {error}")
    return (readable if len(readable) > 1 else []), notes


def compare_runs(runs: Sequence[Run]) -> Comparison:
    """Compare with the first run; nothing is written."""
    with damage_refused(EVALUATION, runs):
        rows = rows_of(runs)
        drawn = picture.draw(rows)
        entry = {
            "values": {f"{row.name}/{column}": value for row in rows for column, value in row.values.items()},
            "intervals": {
                f"{row.name}/{column}": ends for row in rows for column, ends in row.intervals.items()
            },
            "curves": {row.name: row.curves | row.health for row in rows if row.curves or row.health},
            "files": [PICTURE] if drawn else [],
            "flags": fairness.doubts(rows),
            "conditions": conditions(runs, rows),
        }
        json.dumps(entry, allow_nan=False)  # refuse what results.json cannot hold before a page is rendered
    return Comparison(entry, drawn)


def check_replaces_own_files(out: Path) -> None:
    """Refuse a folder whose results.json or picture gmmc did not write."""
    check_keeps_results(out, "--out")
    # Before pictures had a mark, results.json alone told whose they are.
    listed = PICTURE in listed_files(read_results(out))
    check_replaceable(out / PICTURE, "--out", lambda picture: listed or has_mark(picture, PNG_MARK))


def write(comparison: Comparison, out: Path) -> None:
    """Write results.json and the picture into the folder; other entries of results.json stay."""
    if comparison.picture:
        write_atomic(out / PICTURE, comparison.picture)
    write_results(out, {NAME: comparison.entry})


def _check_out(out: Path, folders: Sequence[str | Path]) -> None:
    if out == Path():
        raise InputError("--out must be a folder of its own, got the current one")
    if out.resolve() in [Path(folder).resolve().parent for folder in folders]:
        raise InputError(
            f"--out must be a folder of its own, got {shortened(str(out), LONG_SHOWN)}, which holds the runs"
        )
    if out.exists() and not out.is_dir():
        raise InputError(f"--out must be a folder, got the file {shortened(str(out), LONG_SHOWN)}")
    if any((folder / CONFIG).exists() for folder in (out, *out.resolve().parents)):
        raise InputError(
            f"--out must be a folder of its own, got {shortened(str(out), LONG_SHOWN)}, in a run folder"
        )
    check_replaces_own_files(out)


def _read(folders: Sequence[str | Path], out: Path) -> list[Run]:
    runs = read_runs(folders, without=[out])
    for run in runs:
        if not run.config:
            raise InputError(
                f"RUN must be a run folder, with a {CONFIG} in it, got {shortened(str(run.path), LONG_SHOWN)}"
            )
    return runs


def conditions(runs: Sequence[Run], rows: Sequence[Row]) -> dict[str, Any]:
    """How the numbers of all runs are defined, and what differs from run to run."""
    evaluated = [row.conditions for row in rows if row.conditions]
    shared = _shared(evaluated)
    commits = [str(told["commit"]) for told in evaluated if told.get("commit")]
    hardware = [str(told["hardware"]) for told in evaluated if told.get("hardware")]
    return {
        "data": runs[0].data,
        **{key: without_folder(value) for key, value in shared.items()},
        "baseline": rows[0].name,
        "noise": fairness.noise(rows),
        "energies": "E, R and bounded: means over the last epoch",
        "runs": {row.name: row.told | _own(row, shared) for row in rows},
        "commits": [short_commit(commit) for commit in dict.fromkeys(commits)],
        "hardware": list(dict.fromkeys(hardware)),
        "gmmc": __version__,
        "settings": {
            section: {key: without_folder(value) for key, value in table.items()}
            for section, table in settings(runs[0]).items()
        },
    }


def _shared(evaluated: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all say that say it at all: a model without samples tells nothing of chains."""
    told: dict[str, list[Any]] = {}
    for conditions in evaluated:
        for key, value in conditions.items():
            if key not in NOT_SHARED and (value or key != "generated"):
                told.setdefault(key, []).append(value)
    return {key: values[0] for key, values in told.items() if all(value == values[0] for value in values)}


def _own(row: Row, shared: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in row.conditions.items() if key not in NOT_SHARED | shared.keys()}
    return {"evaluated": {key: without_folder(value) for key, value in own.items()}} if own else {}


def show(entry: dict[str, Any]) -> None:
    """The table on standard output, a line per run and more where it differs in much."""
    rows: list[list[str]] = []
    columns = columns_of(entry["values"])
    for name in entry["conditions"]["runs"]:
        first, *more = _wrapped(differences(name, entry["conditions"]))
        rows.append([name, first, *(written(c, entry["values"].get(f"{name}/{c}")) for c in columns)])
        rows += [["", line, *[""] * len(columns)] for line in more]
    headings = [COLUMNS[column][0] for column in columns]
    print_table(["run", "what differs", *headings], rows, words=2)
    print()
    print_line(f"noise: {entry['conditions']['noise']}")
    if missing := to_evaluate(entry["conditions"]):
        print_line(f"to fill in {', '.join(missing)}: {EVALUATE}")
    for flag in entry["flags"]:
        print_line(f"! {flag}")


def _wrapped(changes: str) -> list[str]:
    """In lines that break only between two changes."""
    kept_together = re.sub("(?<!,) ", "\N{NO-BREAK SPACE}", changes)
    lines = textwrap.wrap(kept_together, WIDTH, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
