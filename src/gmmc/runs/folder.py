"""The run folder: configuration, metrics, weights, resume states, results.

Files are written whole or not at all (metrics.jsonl grows line by line, and a cut line is dropped).
States carry a hash of their content (`resume`), weights are checked by `restore`. Nothing is unpickled.
"""

import dataclasses
import fcntl
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gmmc.base.atomic import leftovers, naming, write_atomic
from gmmc.base.inputs import open_lock
from gmmc.base.outputs import check_within, remove_parts
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.errors import InputError
from gmmc.runs.layout import AVERAGES, CONFIG, LAST_GOOD, LOCK, METRICS, MODEL, RESUME
from gmmc.runs.metrics import read_metrics
from gmmc.runs.model_file import save_model
from gmmc.runs.results import change_results, read_results, write_results
from gmmc.runs.resume import ResumeStates

RECALIBRATED = "thresholds were fitted again since: `gmmc evaluate RUN ood` measures what is accepted now"


class RunFolder(ResumeStates):
    """All that a run keeps; inherits the resume states of `runs/resume.py`."""

    @contextmanager
    def opened_for(self, cfg: Config) -> Iterator[None]:
        """Create the folder or check that it belongs to the same recipe; hold it against other trainings."""
        if self.has_recipe:
            self._check_same(cfg)
        else:
            self._check_free()
        for place in (RESUME, METRICS, AVERAGES):
            check_within(self.path / place, self.path, "--out")
        try:
            (self.path / RESUME).mkdir(parents=True, exist_ok=True)
            lock = open_lock(self.path / LOCK)
        except OSError as error:
            raise InputError(f"cannot write to --out {self.path}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another process is training in {self.path}; wait for it or stop it"
                ) from None
            self._remove_leftovers()
            # A finished run keeps what `gmmc calibrate` may have changed.
            if not (self.path / MODEL).exists():
                self._write_config(recipes.to_toml(cfg).encode())
            yield

    def _remove_leftovers(self) -> None:
        """Remove what a process left that was killed while writing; other hidden files are the user's."""
        for name in (CONFIG, METRICS, MODEL, LAST_GOOD):
            for path in leftovers(self.path, name):
                path.unlink()
        for path in leftovers(self.path / RESUME, "step-*.safetensors"):
            path.unlink()

    def _write_config(self, content: bytes) -> None:
        """Also of a run that goes on: it may have moved to other devices."""
        path = self.path / CONFIG
        if not path.exists() or path.read_bytes() != content:
            write_atomic(path, content)

    def _check_free(self) -> None:
        """A folder without a configuration may only hold what a training killed in its first moments left."""
        if self.path.is_dir():
            others = [p.name for p in self.path.iterdir() if p.name != RESUME and not p.name.startswith(".")]
            if others:
                raise InputError(f"--out {self.path} holds files but no {CONFIG}; name a new or empty folder")

    def _check_same(self, cfg: Config) -> None:
        changed = recipes.differences(self.recipe(), cfg)
        if changed:
            raise InputError(
                f"{self.path} was made with another configuration ({'; '.join(changed)}); "
                "give the old values to resume it, or another --out"
            )

    def recipe(self) -> Config:
        """Read config.toml; InputError names the file if it is damaged."""
        try:
            return recipes.stored(recipes.read_toml(self.path / CONFIG))[0]
        except InputError as error:
            place = self.path / CONFIG
            raise InputError(f"{place} is damaged, or not of this version of gmmc: {error}") from None

    @property
    def has_recipe(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with; a state is there once rank 0's file is."""
        return (self.path / MODEL).exists() or any((self.path / RESUME).glob("step-*-rank-0-*.safetensors"))

    # metrics

    def append_metrics(self, line: dict[str, Any]) -> dict[str, Any]:
        """Write a line of JSON, and return it as written: None stands for numbers that are not finite."""
        sound = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        path = self.path / METRICS
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sound, allow_nan=False) + "\n")
        return sound

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; a last line cut short by a kill is left out."""
        return read_metrics(self.path)

    def rewind_metrics(self, count: int) -> int:
        """Forget what was logged after the state that training goes on from; the number of lines left.

        Lines are counted: after a rollback the same step is logged twice.
        """
        lines = [json.dumps(line) + "\n" for line in self.metrics()[:count]]
        write_atomic(self.path / METRICS, "".join(lines).encode())
        return len(lines)

    # a finished model

    def save_average(self, decay: float, model: Classifier) -> None:
        """Write a further average of the weights as a run folder of its own, without metrics."""
        average = RunFolder(self.path / AVERAGES / str(decay))
        check_within(average.path, self.path, "--out")
        average._write_config(recipes.to_toml(recipe_of(model)).encode())
        save_model(average.path / MODEL, model)

    def replace_model(self, model: Classifier) -> None:
        """Store a model whose thresholds were fitted again, and flag what the former ones accepted."""
        # The recipe's own: a rollback may have lowered the model's sampler.alpha.
        changed = recipes.to_toml(dataclasses.replace(self.recipe(), abstain=model.abstain))
        try:
            save_model(self.path / MODEL, model)
            self._write_config(changed.encode())
            change_results(self.path, _flag_recalibrated)
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {error.strerror}") from None

    # results

    def work(self, name: str) -> Path:
        """Where an evaluation keeps what it has so far."""
        place = self.path / "work" / name
        check_within(place, self.path, "the run folder")
        return place

    def forget(self, work: Path | None) -> None:
        """The result is kept; other evaluations, and those with other settings, may still have something."""
        if work is None:
            return
        if not work.is_dir():
            work.unlink(missing_ok=True)
        folders = [path for path in work.rglob("*") if path.is_dir() and not path.is_symlink()]
        for folder in (*sorted(folders, reverse=True), work, work.parent, self.path / "work"):
            remove_parts(folder)

    def results(self) -> dict[str, Any]:
        return read_results(self.path)

    def save_results(self, results: dict[str, Any]) -> None:
        write_results(self.path, results)


def _flag_recalibrated(results: dict[str, Any]) -> dict[str, Any]:
    measured = results.get("ood")
    if not measured or RECALIBRATED in measured.get("flags", []):
        return results
    return results | {"ood": measured | {"flags": [*measured.get("flags", []), RECALIBRATED]}}
