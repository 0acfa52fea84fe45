"""One line of a comparison: what a run changed, and what came of it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeGuard

from gmmc.config import former, recipes, schema
from gmmc.errors import InputError
from gmmc.report.reading import Run
from gmmc.runs.layout import CONFIG

EVALUATION = "validation"
NOT_EVALUATED = "finished but not evaluated"
# Columns that `gmmc evaluate RUN validation` fills, and those that the last epoch of the training does.
EVALUATED = {"valid_accuracy": "top1", "fresh_fid": "fresh/fid", "buffer_fid": "buffer/fid"}
TRAINED = ("real_energy", "sampled_energy", "force_ratio", "bounded", "loss", "skipped")
# x and y of a curve, and where metrics.jsonl has them
CURVES = (("seconds", "valid_accuracy"), ("fid_seconds", "buffer_fid"))
# curves over the updates
ENERGIES, LOSSES = ("real_energy", "contrast_energy", "sampled_energy"), ("loss", "class_loss")
HEALTH = (*ENERGIES, *LOSSES, "grad_norm", "weight_norm")
NOT_TRAINING = {"evaluate"}  # sections that say nothing about the training

Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A run beside the first, which changed nothing. `conditions` are those of its evaluation."""

    name: str
    state: str
    seed: int
    changes: dict[str, str]
    fid_images: int  # of the buffer, for each point of its curve
    values: dict[str, float]
    intervals: dict[str, list[float]]
    curves: dict[str, list[float]]  # over the seconds
    health: dict[str, list[float | None]]  # over the updates
    conditions: dict[str, Any]

    @property
    def told(self) -> dict[str, Any]:
        """As the conditions of results.json tell it."""
        changes = [f"{key} {value}" for key, value in self.changes.items()]
        return {"changes": changes, "seed": self.seed, "state": self.state}


def rows_of(runs: Sequence[Run]) -> list[Row]:
    first = settings(runs[0])
    return [_row(run, first) for run in runs]


def _row(run: Run, first: Settings) -> Row:
    evaluation = run.results.get(EVALUATION)
    values = _training_values(run)
    intervals = {}
    if evaluation:
        found = {column: evaluation.values.get(name) for column, name in EVALUATED.items()}
        values = {column: float(value) for column, value in found.items() if is_number(value)} | values
        ends = {column: evaluation.intervals.get(name) for column, name in EVALUATED.items()}
        intervals = {column: list(pair) for column, pair in ends.items() if pair and column in values}
    cfg, watched = _recipe(run), former.value_in(run.config, "train.fid_images")
    return Row(
        name=run.name,
        state=run.state if evaluation or run.state != "finished" else NOT_EVALUATED,
        seed=cfg.train.seed,
        changes=changes(first, settings(run)),
        fid_images=min(watched, cfg.buffer.size // (cfg.train.devices * cfg.train.nodes)),
        values=values,
        intervals=intervals,
        curves=_curves(run),
        health=_health(run),
        conditions=dict(evaluation.conditions) if evaluation else {},
    )


# --- the recipe -----------------------------------------------------------------------------------


def _recipe(run: Run) -> schema.Config:
    """What the version that trained it did not know has its default."""
    try:
        return recipes.stored(run.config)[0]
    except InputError as error:
        raise InputError(f"{run.path / CONFIG}: {error}") from None


def settings(run: Run) -> Settings:
    """The recipe, without where it was computed and how it is evaluated."""
    cfg = _recipe(run)
    tables = {part.name: getattr(cfg, part.name) for part in fields(cfg) if part.name not in NOT_TRAINING}
    return {
        name: {key.name: getattr(table, key.name) for key in fields(table) if not key.metadata.get("place")}
        for name, table in tables.items()
    }


def without_folder(value: Any) -> Any:
    """Where something lies on one machine is of no use on another: of an absolute path, its name."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def changes(first: Settings, other: Settings) -> dict[str, str]:
    """Key → its other value. Epochs go last: runs of equal time must differ in them."""
    found = {
        f"{section}.{key}": written_as(value)
        for section, table in other.items()
        for key, value in table.items()
        if value != first[section][key]
    }
    return dict(sorted(found.items(), key=lambda change: change[0].endswith(".epochs")))


def written_as(value: Any) -> str:
    """As a recipe writes it, but without quotes."""
    if isinstance(value, str):
        return without_folder(value) or "none"
    return json.dumps(value)


# --- the training ---------------------------------------------------------------------------------


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _training_values(run: Run) -> dict[str, float]:
    """As metrics.jsonl ends; where there is none, as the evaluations remember it."""
    counts = {key: run.trained.get(key) for key in ("rollbacks", "updates", "seconds")}
    lines = [line for line in run.metrics if "event" not in line]
    values = {}
    if lines:
        last = lines[-1]
        values = _means_of_last_epoch(run.metrics)
        rollbacks = max(line.get("rollbacks", 0) for line in run.metrics)
        counts = {"rollbacks": rollbacks, "updates": last["step"], "seconds": last.get("seconds")}
    return values | {key: count for key, count in counts.items() if is_number(count)}


def _means_of_last_epoch(metrics: Sequence[dict[str, Any]]) -> dict[str, float]:
    """A line counts for the updates it covers; what a rollback undid does not count."""
    before, covered = 0, []
    for line in metrics:
        if line.get("event") == "rollback":
            before, covered = line.get("to", line["step"]), []
        elif "event" not in line:
            covered.append((line["step"] - before, line))
            before = line["step"]
    last = covered[-1][1].get("epoch") if covered else None
    epoch = [(updates, line) for updates, line in covered if line.get("epoch") == last]
    means = {}
    for key in TRAINED:
        known = [(updates, line[key]) for updates, line in epoch if is_number(line.get(key))]
        if total := sum(updates for updates, _ in known):
            means[key] = sum(updates * value for updates, value in known) / total
    return means


def _curves(run: Run) -> dict[str, list[float]]:
    curves = {}
    for x, y in CURVES:
        lines = [line for line in run.metrics if is_number(line.get("seconds")) and is_number(line.get(y))]
        if lines:
            curves |= {x: [line["seconds"] for line in lines], y: [line[y] for line in lines]}
    return curves


def _health(run: Run) -> dict[str, list[float | None]]:
    known = [key for key in HEALTH if any(is_number(line.get(key)) for line in run.metrics)]
    curves = {key: [_short(line.get(key)) for line in run.metrics] for key in known}
    return {"updates": [line["step"] for line in run.metrics], **curves} if known else {}


def _short(value: Any) -> float | None:
    """Four digits are enough to look at."""
    return float(f"{value:.4g}") if is_number(value) else None
