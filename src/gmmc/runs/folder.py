"""The run folder: configuration, metrics, weights, resume states, results.

Files are written whole or not at all (metrics.jsonl grows line by line, and a cut line is dropped).
Weights and states carry a hash of their content and are refused when it does not match. Nothing is unpickled.
"""

import dataclasses
import fcntl
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmmc import __version__, config
from gmmc.base.atomic import leftovers, naming, write_atomic
from gmmc.base.inputs import open_lock
from gmmc.base.leader import is_leader
from gmmc.base.limits import LONG_SHOWN, MODEL_BYTES, STATE_COUNTS
from gmmc.base.outputs import check_within, remove_parts
from gmmc.base.progress import Progress
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.base.text import shortened
from gmmc.classifier.model import Classifier, pick_device
from gmmc.config import Config
from gmmc.errors import InputError
from gmmc.runs import results as records
from gmmc.runs import shipped as pretrained
from gmmc.runs.restore import DENSITY_GAMMA2, NEIGHBOURS, REFERENCE, restore
from gmmc.runs.results import CONFIG, DESCRIPTION, LAST_GOOD, LOCK, METRICS, MODEL

RESUME = "resume"
STATES_KEPT = 2
RECALIBRATED = "thresholds were fitted again since: `gmmc evaluate RUN ood` measures what is accepted now"


# --- a folder that is being trained in ------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Everything of one moment of a training, as one of its processes holds it."""

    step: int
    tensors: dict[str, Tensor]  # the same in all processes
    shard: dict[str, Tensor]  # this process's own; all processes together make the whole
    info: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Of both, what is named "name.…", without that."""
        own, both = f"{name}.", self.tensors | self.shard
        return {key.removeprefix(own): tensor for key, tensor in both.items() if key.startswith(own)}


class RunFolder:
    def __init__(self, path: str | Path):
        self.path = Path(path)

    @contextmanager
    def opened_for(self, cfg: Config) -> Iterator[None]:
        """Create the folder or check that it belongs to the same recipe; hold it against other trainings."""
        if self.has_recipe:
            self._check_same(cfg)
        else:
            self._check_free()
        for place in (RESUME, METRICS):
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
            if not (
                self.path / MODEL
            ).exists():  # a finished run keeps what `gmmc calibrate` may have changed
                self._write_config(config.to_toml(cfg).encode())
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
        changed = config.differences(self.recipe(), cfg)
        if changed:
            raise InputError(
                f"{self.path} was made with another configuration ({'; '.join(changed)}); "
                "give the old values to resume it, or another --out"
            )

    def recipe(self) -> Config:
        """Read config.toml; InputError names the file if it is damaged."""
        try:
            return config.stored(config.read_toml(self.path / CONFIG))[0]
        except InputError as error:
            raise InputError(f"{self.path / CONFIG} is damaged: {error}") from None

    @property
    def has_recipe(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def begun(self) -> bool:
        """Whether there is something to go on with; a state is there once rank 0's file is."""
        return (self.path / MODEL).exists() or any((self.path / RESUME).glob("step-*-rank-0-*.safetensors"))

    # resume states: a file per process, that of rank 0 with all they share, written last

    def save_state(self, state: State, rank: int = 0, barrier: Callable[[], object] = lambda: None) -> None:
        """Every process calls this; the state is there once rank 0's file is, and all wait for that."""
        if rank == 0:
            barrier()  # the others have written theirs
        content, digest = pack(
            state.shard | state.tensors if rank == 0 else state.shard, {**state.info, "step": state.step}
        )
        path = self.path / RESUME / self._state_name(state.step, rank, digest)
        write_atomic(path, content)
        if rank != 0:
            barrier()
            barrier()  # until rank 0 has written: without its file, the states before are still needed
        for other in self._state_files(rank):
            # Of one moment the last written counts; later moments are of a course that was rolled back.
            if other != path and _moment(other) >= _moment(path):
                other.unlink(missing_ok=True)
        if rank == 0:
            self._forget_old_states(state.info.get("good", []))
            barrier()

    def _forget_old_states(self, good: list[int]) -> None:
        """Keep the newest states, and those that the guard may roll back to."""
        kept = {_moment(path) for path in self._state_files(0)[:STATES_KEPT]} | {_named(s) for s in good}
        for path in sorted((self.path / RESUME).glob("step-*.safetensors")):
            if _moment(path) not in kept:
                path.unlink(missing_ok=True)

    def load_state(self, rank: int = 0, processes: int = 1) -> tuple[State | None, list[str]]:
        """The newest state intact in all its files, and a line about each damaged one.

        None for a run that has not begun. Damaged files are set aside, not deleted: rank 0 loads first. If
        nothing intact is left the run is not restarted from zero behind the user's back.
        """
        complaints = []
        for path in self._state_files(0):
            try:
                return self._read_state(path, rank, processes), complaints
            except Damaged as error:
                complaints.append(str(error))
        if complaints or any((self.path / RESUME).glob("*.damaged")) or self.metrics():
            lines = "; ".join([*complaints, f"no intact state is left in {self.path / RESUME}"])
            raise InputError(f"{lines}: delete {self.path} to train from the start")
        return None, []

    def load_good(self, state: State, rank: int = 0, processes: int = 1) -> tuple[list[State], list[str]]:
        """The good states before this one that were saved with it, and a line about each damaged one."""
        files = {_moment(path): path for path in reversed(self._state_files(0))}
        names = [_named(step) for step in state.info.get("good", []) if step < state.step]
        states, complaints = [], []
        for path in (files[name] for name in names if name in files):
            try:
                states.append(self._read_state(path, rank, processes))
            except Damaged as error:
                complaints.append(f"{error}; the guard cannot roll back to it")
        return states, complaints

    def _read_state(self, path: Path, rank: int, processes: int) -> State:
        tensors, info = self._unpack_state(path)
        rest = tensors.get("model.start.rest")  # of a Gaussian start: once per pixel, now per cosine
        if "processes" not in info or (rest is not None and rest.dim() == 2):
            raise InputError(
                f"{path} was written by an older gmmc; finish it with that, or start a new --out"
            )
        step, count = info["step"], info["processes"]
        shards = [{name: tensors.pop(name) for name in list(tensors) if name.startswith("buffer.")}]
        for other in range(1, count):
            shards.append(self._read_shard(path, info, other))
        return State(step, tensors, deal(shards, rank, processes), info)

    def _read_shard(self, path: Path, info: dict[str, Any], rank: int) -> dict[str, Tensor]:
        """The part of another process that was written together with rank 0's file."""
        for part in self._state_files(rank):
            if _moment(part) == _moment(path):
                tensors, its_info = self._unpack_state(part)
                if all(its_info.get(key) == info.get(key) for key in ("processes", "lines", "rollbacks")):
                    return tensors
        raise Damaged(f"{path} lacks the part of process {rank} of {info['processes']}")

    def _unpack_state(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        try:
            tensors, info, digest = unpack(path)
            if not _is_info(info):
                raise Damaged(f"{path} is not the state of a training")
            if f"-{digest[:16]}." not in path.name or _moment(path) != _named(info["step"]):
                raise Damaged(f"{path} was altered: its content does not match its name")
        except Damaged:
            path.rename(path.with_suffix(".damaged"))
            raise
        return tensors, info

    @staticmethod
    def _state_name(step: int, rank: int, digest: str) -> str:
        return f"{_named(step)}-rank-{rank}-{digest[:16]}.safetensors"

    def _state_files(self, rank: int) -> list[Path]:
        """Newest first."""
        pattern = re.compile(rf"step-\d{{9}}-rank-{rank}-[0-9a-f]{{16}}\.safetensors")
        return sorted((p for p in (self.path / RESUME).iterdir() if pattern.fullmatch(p.name)), reverse=True)

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
        return records.read_metrics(self.path)

    def rewind_metrics(self, count: int) -> int:
        """Forget what was logged after the state that training goes on from; the number of lines left.

        Lines are counted: after a rollback the same step is logged twice.
        """
        lines = [json.dumps(line) + "\n" for line in self.metrics()[:count]]
        write_atomic(self.path / METRICS, "".join(lines).encode())
        return len(lines)

    # a finished model

    def replace_model(self, model: Classifier) -> None:
        """Store a model whose thresholds were fitted again, and flag what the former ones accepted."""
        # The recipe's own: a rollback may have lowered the model's sampler.alpha.
        changed = config.to_toml(dataclasses.replace(self.recipe(), abstain=model.cfg.abstain))
        try:
            save_model(self.path / MODEL, model)
            self._write_config(changed.encode())
            records.change_results(self.path, _flag_recalibrated)
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
        return records.read_results(self.path)

    def save_results(self, results: dict[str, Any]) -> None:
        records.write_results(self.path, results)


def _is_info(info: Any) -> bool:
    """Whether the header of a state has the counts that reading it needs; older ones lack some."""
    if not isinstance(info, dict) or "step" not in info:
        return False
    counts = [(info[name], most) for name, most in STATE_COUNTS.items() if name in info]
    good = info.get("good", [])
    if not isinstance(good, list) or len(good) > 2:
        return False
    counts += [(step, STATE_COUNTS["step"]) for step in good]
    return all(type(count) is int and 0 <= count <= most for count, most in counts)


def _flag_recalibrated(results: dict[str, Any]) -> dict[str, Any]:
    measured = results.get("ood")
    if not measured or RECALIBRATED in measured.get("flags", []):
        return results
    return results | {"ood": measured | {"flags": [*measured.get("flags", []), RECALIBRATED]}}


def _named(step: int) -> str:
    return f"step-{step:09d}"


def _moment(path: Path) -> str:
    """'step-000000120' of the name of a state's file."""
    return path.name[: len(_named(0))]


def deal(shards: list[dict[str, Tensor]], rank: int, processes: int) -> dict[str, Tensor]:
    """This process's part of what the processes of an earlier call held.

    With another number of processes the rows are dealt out anew, one by one: the parts are sorted by class,
    and every process needs some of all.
    """
    if len(shards) == processes:
        return shards[rank]
    whole = {name: torch.stack([shard[name] for shard in shards], 1).flatten(0, 1) for name in shards[0]}
    return {name: tensor[rank::processes] for name, tensor in whole.items()}


# --- weights --------------------------------------------------------------------------------------


def save_model(path: Path, model: Classifier) -> None:
    """Weights, γ², priors and all that is needed to use them, in one file."""
    info = {
        "gmmc": __version__,
        "trained": model.trained,
        "config": config.to_toml(model.cfg),
        "shape": model.shape,
        "class_names": model.class_names,
        DENSITY_GAMMA2: 1.0,
    }
    write_atomic(path, pack(stored_weights(model) | _reference_tensors(model), info)[0])


def stored_weights(model: Classifier) -> dict[str, Tensor]:
    """The state of the model as its recipe wants it stored; the head is small and stays as it is."""
    state = model.state_dict()
    if model.cfg.train.weights == "fp32":
        return state
    large = [name for name in state if not name.startswith("head.") and state[name].is_floating_point()]
    return state | {name: state[name].bfloat16() for name in large}


def _reference_tensors(model: Classifier) -> dict[str, Tensor]:
    """All that a model needs to abstain."""
    tensors = {} if model.neighbours is None else {NEIGHBOURS: model.neighbours.features}
    if model.reference is None:
        return tensors
    dtype = torch.float64 if model.cfg.train.weights == "fp32" else torch.float32
    scores = {f"{REFERENCE}{name}": values.to(dtype) for name, values in model.reference.scores.items()}
    gamma2 = torch.tensor(model.reference.gamma2, dtype=torch.float64)
    return tensors | {f"{REFERENCE}gamma2": gamma2, **scores}


def load(path: str | Path, device: str = "cpu") -> Classifier:
    """The model of a run folder, of a model.safetensors file or of a name that ships with gmmc.

    On 'cpu', 'cuda' or 'auto'.
    """
    place = pick_device(device)
    path = pretrained.find(path)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise InputError(_no_model(path))
    try:
        tensors, info, _ = unpack(file, MODEL_BYTES, "MODEL_BYTES")
    except Damaged as error:
        raise InputError(f"{error}{_restored_by(file)}") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    try:
        model, notes = restore(tensors, info)
    except InputError as error:
        raise InputError(f"{file} is not a model of this version of gmmc ({error})") from None
    if pretrained.is_shipped(file) or (file.parent / DESCRIPTION).is_file():
        model.resizes = True  # who trained it is elsewhere, and so is what the images were like
    for note in notes:
        Progress("", 0, silent=not is_leader()).say(f"{file}: {note}")
    return model.to(place).eval()


def _restored_by(file: Path) -> str:
    if pretrained.is_shipped(file):
        return "; install gmmc again"
    restorable = file.name == MODEL and (file.parent / CONFIG).is_file()
    return "; the same `gmmc train` command restores it" if restorable else ""


def _no_model(path: Path) -> str:
    if not path.exists():
        shipped = pretrained.listed("; models that ship with gmmc")
        return f"no run folder or model file {shortened(str(path), LONG_SHOWN)}: it does not exist{shipped}"
    if (path / LAST_GOOD).is_file():
        return f"{path} diverged and has no finished model; its last good weights are {path / LAST_GOOD}"
    if records.is_training(path):
        return f"{path} is still being trained and has no finished model yet"
    if (path / CONFIG).is_file():
        return f"{path} holds no finished model; run the same `gmmc train` command again to finish it"
    return f"{path} is not a run folder: it has no {MODEL}"
