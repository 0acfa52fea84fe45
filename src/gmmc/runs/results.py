"""results.json: read, checked, and changed by one process at a time. Needs no torch."""

import contextlib
import fcntl
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gmmc.base.atomic import write_atomic
from gmmc.base.inputs import open_lock, parse_json, read_document
from gmmc.base.limits import DOCUMENT_BYTES, RESULTS_KEPT
from gmmc.base.outputs import check_writable
from gmmc.base.text import shortened
from gmmc.errors import InputError
from gmmc.runs.layout import RESULTS, RESULTS_LOCK


def read_results(run: Path) -> dict[str, Any]:
    """The entries of results.json by the name of the evaluation."""
    path = run / RESULTS
    if not path.exists():
        return {}
    try:
        results = parse_json(read_document(path, DOCUMENT_BYTES, "DOCUMENT_BYTES"), "it")
        if not isinstance(results, dict):
            raise InputError("it holds no object")
        if len(results) > RESULTS_KEPT:
            raise InputError(
                f"it holds {len(results):,} entries, more than {RESULTS_KEPT} (limits.RESULTS_KEPT)"
            )
    except InputError as error:
        raise InputError(f"{path} is damaged, or not of gmmc: {error}; move it, and evaluate again") from None
    return results


def entry_name(evaluation: str, sigma: float | None = None) -> str:
    """Name of the entry of an evaluation: robustness, or robustness@0.25 at a noise level of choice."""
    return evaluation if sigma is None else f"{evaluation}@{sigma!r}"


def evaluation_of(entry: str) -> tuple[str, str]:
    """Name of the evaluation of an entry, and its noise level as text, empty where none was chosen."""
    evaluation, _, sigma = entry.partition("@")
    return evaluation, sigma


def outside_sets(results: dict[str, Any]) -> set[str]:
    """Names of the other sets of images in the entry of the evaluation `ood`."""
    found: Any = results
    for key in ("ood", "conditions", "outside"):
        found = found.get(key) if isinstance(found, dict) else None
    return set(found) if isinstance(found, dict) else set()


def listed_files(results: dict[str, Any]) -> set[str]:
    """Pictures that the entries of results.json name, as paths in its folder."""
    listed = [entry.get("files") for entry in results.values() if isinstance(entry, dict)]
    return {file for files in listed if isinstance(files, list) for file in files if isinstance(file, str)}


def own_results(run: Path) -> dict[str, Any]:
    """The entries of results.json; InputError for a file of that name that gmmc did not write."""
    results = read_results(run)
    for name, entry in results.items():
        has_form = isinstance(entry, dict) and isinstance(entry.get("values"), dict)
        if not has_form or not isinstance(entry.get("flags", []), list):
            rule = f"{run / RESULTS} must hold results of gmmc, each with its values"
            raise InputError(
                f"{rule}, got the entry {shortened(name)}; move that file, or name another place"
            )
    try:
        _as_text(results)
    except ValueError:
        raise InputError(f"{run / RESULTS} must hold finite numbers; delete it and evaluate again") from None
    return results


def check_keeps_results(run: Path, name: str) -> None:
    """Refuse a folder that cannot be written to or whose results.json gmmc did not write.

    `name` is that of the argument.
    """
    check_writable(run, name)
    own_results(run)


def write_results(run: Path, results: dict[str, Any]) -> None:
    """Set these entries of results.json; the others stay."""
    change_results(run, lambda entries: entries | results)


def change_results(run: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the entries of results.json by what `change` returns for them, while other writers wait."""
    with _results_held(run):
        before = own_results(run)
        after = change(before)
        if after != before:
            write_atomic(run / RESULTS, _as_text(after).encode())


def _as_text(results: dict[str, Any]) -> str:
    text = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
    # A list of numbers is one line; no string holds a line break.
    return re.sub(r"\[\n[-+\d.e,\snul]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


@contextlib.contextmanager
def _results_held(run: Path) -> Iterator[None]:
    """Wait for other writers of the same results, and hold them off. The lock is a file that stays."""
    run.mkdir(parents=True, exist_ok=True)
    with open_lock(run / RESULTS_LOCK) as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
