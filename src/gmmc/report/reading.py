"""What the report knows of a run: its files, as they are at this moment."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gmmc.base.inputs import kind_of
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.text import printable, shortened
from gmmc.config.recipes import read_toml
from gmmc.errors import InputError
from gmmc.runs import shipped
from gmmc.runs.layout import CARD, CONFIG, LAST_GOOD, MODEL, RESULTS, is_training
from gmmc.runs.metrics import read_metrics
from gmmc.runs.results import read_results

# measured: results without a training, of a benchmark for example
State = Literal["finished", "diverged", "in progress", "stopped", "measured"]
PARTS = {"values": dict, "intervals": dict, "curves": dict, "files": list, "flags": list, "conditions": dict}


@dataclass(frozen=True)
class Entry:
    """One evaluation of results.json; what an older version did not write is empty."""

    values: dict[str, Any]
    intervals: dict[str, Any]
    curves: dict[str, Any]
    files: list[str]
    flags: list[str]
    conditions: dict[str, Any]


@dataclass(frozen=True)
class Run:
    path: Path
    name: str
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    results: dict[str, Entry]
    state: State
    card: dict[str, Any] | None = None
    pictures: Mapping[str, bytes] = field(
        default_factory=dict
    )  # by file name, those that are not written yet

    @property
    def data(self) -> str:
        """As measured; a run may have been trained on arrays, of which its recipe knows nothing."""
        told = [entry.conditions["data"] for entry in self.results.values() if "data" in entry.conditions]
        named = str(self.config.get("data", {}).get("name", "unknown data"))
        return str(told[-1]) if told else Path(named).name

    @property
    def trained(self) -> dict[str, Any]:
        """What the newest evaluations tell about the training."""
        facts: dict[str, Any] = {}
        for entry in self.results.values():
            told = entry.conditions.get("trained")
            facts |= told if isinstance(told, dict) else {}
        return facts

    @property
    def commits(self) -> list[str]:
        """Of the code that measured, in the order of first use."""
        told = [str(entry.conditions.get("commit", "")) for entry in self.results.values()]
        return [commit for commit in dict.fromkeys(told) if commit]


def read_runs(folders: Sequence[str | Path], without: Sequence[Path] = ()) -> list[Run]:
    """Read each run once, in order: `base *` names the first twice.

    `without`: what the command itself writes, which `*` names from the second time on.
    """
    by_place: dict[str, Path] = {}
    for path in map(shipped.newest, folders):
        by_place.setdefault(os.path.realpath(path), path)
    left_out = set(map(os.path.realpath, without))
    paths = [path for place, path in by_place.items() if place not in left_out]
    if not paths:
        raise InputError("RUN must be at least one run folder, got none")
    for path in paths:
        if not (path / CONFIG).is_file() and not (path / RESULTS).is_file():
            models = shipped.listed("; models that ship with gmmc")
            kind = "has none" if path.is_dir() else kind_of(path)
            shown = f"{shortened(str(path), LONG_SHOWN)}, which {kind}"
            raise InputError(f"RUN must be a run folder, with a {CONFIG} in it, got {shown}{models}")
    return [_read(path, name) for path, name in zip(paths, _names(paths), strict=True)]


@contextmanager
def damage_refused(name: str, runs: Sequence[Run]) -> Iterator[None]:
    """End in one line where the block fails on an entry of results.json that has not the form of its kind."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        places = ", ".join(str(run.path / RESULTS) for run in runs if name in run.results)
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"the entry {shortened(name)} in {places} cannot be shown ({why}); evaluate it again"
        ) from None


def _read(path: Path, name: str) -> Run:
    results = {str(key): _entry(path / RESULTS, key, entry) for key, entry in read_results(path).items()}
    if _is_at_paper_gamma2(results):
        results["accuracy"] = _at_paper_gamma2(results["accuracy"])
    recipe = read_toml(path / CONFIG) if (path / CONFIG).is_file() else {}
    for section, table in recipe.items():
        if not isinstance(table, dict):
            rule = f"[{shortened(section)[1:-1]}] must be a table"
            raise InputError(f"{path / CONFIG} is damaged: {rule}, got {shortened(table)}")
    state = _state(path, results)  # before the metrics: at worst they are newer
    metrics = read_metrics(path)
    if state == "stopped" and metrics and metrics[-1].get("event") == "diverged":
        state = "diverged"
    card = read_toml(path / CARD) if (path / CARD).is_file() else None
    return Run(path, name, recipe, metrics, results, state, card)


def _state(path: Path, results: dict[str, Entry]) -> State:
    if not (path / CONFIG).is_file():
        return "measured"
    if (path / MODEL).exists():
        return "finished"
    if is_training(path):
        return "in progress"
    # What was evaluated was finished; its weights may have stayed where it was trained.
    if any("trained" in entry.conditions for entry in results.values()):
        return "finished"
    return "diverged" if (path / LAST_GOOD).exists() else "stopped"


def _entry(file: Path, name: str, entry: Any) -> Entry:
    parts = {key: entry.get(key, kind()) for key, kind in PARTS.items()} if isinstance(entry, dict) else {}
    if not parts or any(not isinstance(parts[key], kind) for key, kind in PARTS.items()):
        shown = shortened(name)
        raise InputError(f"{file} is damaged in entry {shown}; run gmmc evaluate with {shown[1:-1]} again")
    return Entry(**parts)


def _is_at_paper_gamma2(results: Mapping[str, Entry]) -> bool:
    """Whether an older gmmc measured accuracy at the paper's γ², as it did where a model has one.

    Only models with class means have that γ². Calibration and scores of other images then have values at it.
    """
    if "accuracy" not in results or "temperature" in results["accuracy"].conditions:
        return False
    calibration, ood = (results[name].values if name in results else {} for name in ("calibration", "ood"))
    return any(key.startswith("paper/") for key in calibration) or any("/paper/" in key for key in ood)


def _at_paper_gamma2(entry: Entry) -> Entry:
    """Name the temperature of NLL and Brier score, and drop the warning that follows from it."""
    values = {f"paper/{key}" if key in ("nll", "brier") else key: v for key, v in entry.values.items()}
    flags = [flag for flag in entry.flags if "knowing nothing" not in str(flag)]
    return replace(entry, values=values, flags=flags)


def _names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell all of them apart; the same folder twice is numbered.

    A model that ships with gmmc has no more than its name.
    """
    whole = [(path.name,) if shipped.is_shipped(path) else path.resolve().parts for path in paths]
    depth = 1
    while depth < max(map(len, whole)) and len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    names = [printable("/".join(parts[-depth:])) for parts in whole]
    return [
        f"{name} ({names[: i + 1].count(name)})" if name in names[:i] else name
        for i, name in enumerate(names)
    ]
