"""Resume states: everything of one moment of a training, hashed, two kept."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gmmc.base.atomic import write_atomic
from gmmc.base.limits import STATE_COUNTS
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.errors import InputError
from gmmc.runs.layout import RESUME
from gmmc.runs.metrics import read_metrics

STATES_KEPT = 2
SHARD = "shard"  # in the header: names of the tensors that are not the same in all processes


@dataclass(frozen=True)
class State:
    """Everything of one moment of a training, as one of its processes holds it."""

    step: int
    tensors: dict[str, Tensor]  # the same in all processes
    shard: dict[str, Tensor]  # this process's own; all processes together make the whole
    info: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Tensors under the prefix `name.`, prefix stripped."""
        own, both = f"{name}.", self.tensors | self.shard
        return {key.removeprefix(own): tensor for key, tensor in both.items() if key.startswith(own)}


class ResumeStates:
    """The folder resume/ of a run: a file per process, that of rank 0 with all they share, written last.

    With `read_only`, damaged files stay where they are.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False):
        self.path, self.read_only = Path(path), read_only

    def save_state(self, state: State, rank: int = 0, barrier: Callable[[], object] = lambda: None) -> None:
        """Every process calls this; the state is there once rank 0's file is, and all wait for that."""
        if rank == 0:
            barrier()  # the others have written theirs
        info = {**state.info, "step": state.step, SHARD: sorted(state.shard)}
        content, digest = pack(state.shard | state.tensors if rank == 0 else state.shard, info)
        path = self.path / RESUME / self._state_name(state.step, rank, digest)
        write_atomic(path, content)
        if rank != 0:
            barrier()
            barrier()  # until rank 0 has written: without its file, the states before are still needed
        for other in self._state_files(rank):
            # The last file of a moment counts; later moments belong to a course that was rolled back.
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
        if complaints or any((self.path / RESUME).glob("*.damaged")) or read_metrics(self.path):
            lines = "; ".join([*complaints, f"no intact state is left in {self.path / RESUME}"])
            advice = "" if self.read_only else f": delete {self.path} to train from the start"
            raise InputError(f"{lines}{advice}")
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
        former = [name for name in tensors if name.startswith("buffer.")]  # of versions that do not list them
        names = tensors.keys() & set(info.pop(SHARD, former))
        shards = [{name: tensors.pop(name) for name in sorted(names)}]
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
            if not self.read_only:
                path.rename(path.with_suffix(".damaged"))
            raise
        return tensors, info

    @staticmethod
    def _state_name(step: int, rank: int, digest: str) -> str:
        return f"{_named(step)}-rank-{rank}-{digest[:16]}.safetensors"

    def _state_files(self, rank: int) -> list[Path]:
        """Newest first."""
        pattern = re.compile(rf"step-\d{{9}}-rank-{rank}-[0-9a-f]{{16}}\.safetensors")
        return sorted((p for p in (self.path / RESUME).glob("*") if pattern.fullmatch(p.name)), reverse=True)


def deal(shards: list[dict[str, Tensor]], rank: int, processes: int) -> dict[str, Tensor]:
    """This process's part of what the processes of an earlier call held.

    With another number of processes the rows are dealt out anew, one by one: the parts are sorted by class,
    and every process needs some of all.
    """
    if len(shards) == processes:
        return shards[rank]
    whole = {name: torch.stack([shard[name] for shard in shards], 1).flatten(0, 1) for name in shards[0]}
    return {name: tensor[rank::processes] for name, tensor in whole.items()}


def _is_info(info: Any) -> bool:
    """Whether the header of a state has the counts that reading it needs; older ones lack some."""
    if not isinstance(info, dict) or "step" not in info:
        return False
    shard = info.get(SHARD, [])
    if not isinstance(shard, list) or not all(isinstance(name, str) for name in shard):
        return False
    counts = [(info[name], most) for name, most in STATE_COUNTS.items() if name in info]
    good = info.get("good", [])
    if not isinstance(good, list) or len(good) > 2:
        return False
    counts += [(step, STATE_COUNTS["step"]) for step in good]
    return all(type(count) is int and 0 <= count <= most for count, most in counts)


def _named(step: int) -> str:
    return f"step-{step:09d}"


def _moment(path: Path) -> str:
    """'step-000000120' of the name of a state's file."""
    return path.name[: len(_named(0))]
