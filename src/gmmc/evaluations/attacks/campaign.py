"""Attacks one after the other on the same images: which of them each one broke, kept on disk as it goes."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gmmc.base.atomic import write_atomic
from gmmc.base.seeds import generator
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.evaluations.attacks.gradient import Attack
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat

SAVE_EVERY = 5.0  # seconds
WAITING, WITHSTOOD, BROKEN = 0, 1, 2


class Store:
    """Tensors by name in one file, for this key only: what is there of another is begun anew."""

    def __init__(self, path: Path | None, key: str):
        self.path, self.key = path, key
        self.tensors: dict[str, Tensor] = {}
        self.notes: dict[str, None] = {}  # doubts, each once
        self._saved = time.monotonic()
        if path is not None and path.exists():
            try:
                tensors, info, _ = unpack(path)
                if info["key"] == key:
                    self.tensors, self.notes = tensors, dict.fromkeys(info["notes"])
            except (Damaged, KeyError):
                pass  # of a disk that failed: it only costs time

    def put(self, name: str, tensor: Tensor) -> None:
        self.tensors[name] = tensor
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        if self.path is not None:
            write_atomic(self.path, pack(self.tensors, {"key": self.key, "notes": list(self.notes)})[0])
        self._saved = time.monotonic()


def content_key(*parts: object) -> str:
    """A hash of tensors by their bytes and of all else by its words."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


@dataclass
class Campaign:
    """Of an exposed target. An image that is wrong without any attack counts as broken by all of them."""

    target: Target
    images: Tensor  # as the target takes them
    labels: Tensor
    seed: int
    store: Store
    on_progress: Callable[[float, str], object] = lambda done, status: None
    done: float = 0.0  # gradients, of `work`

    def __post_init__(self):
        parts = zip(self.images.split(self.target.batch), self.labels.split(self.target.batch), strict=True)
        self.right = torch.cat([self.target.names(x, y) for x, y in parts]).cpu()

    def work(self, attack: Attack) -> float:
        """Gradients that an attack takes at most, where every image withstands."""
        return float(attack.cost * attack.tries * len(self.labels))

    def run(self, name: str, attack: Attack, threat: Threat, already: Tensor | None = None) -> Tensor:
        """(N,): the images that are broken, with those that are `already` and are not attacked again."""
        place = f"{threat.name}/{name}"
        state = self.store.tensors.get(place, torch.full((len(self.labels),), WAITING, dtype=torch.uint8))
        state = state.masked_fill(~self.right if already is None else ~self.right | already, BROKEN)
        waiting = (state == WAITING).nonzero().flatten()
        before, share = self.done, self.work(attack) / len(state)
        self._tell(before + share * (len(state) - len(waiting)), place, state)
        for rows in waiting.split(self.target.batch) if len(waiting) else ():
            broken = self._attack(place, attack, threat, rows)
            state = state.clone()
            state[rows] = torch.where(broken, BROKEN, WITHSTOOD).to(torch.uint8)
            self.store.put(place, state)
            self._tell(self.done + share * len(rows), place, state)
        self._tell(before + self.work(attack), place, state)
        return state == BROKEN

    def _attack(self, place: str, attack: Attack, threat: Threat, rows: Tensor) -> Tensor:
        """(len(rows),): which of these images one of the attempts broke."""
        first = int(rows[0])
        x, y = (part[rows.to(part.device)] for part in (self.images, self.labels))
        broken = torch.zeros(len(rows), dtype=torch.bool)
        for number in range(attack.tries):
            left = (~broken).nonzero().flatten()
            if len(left) == 0:
                break
            here = left.to(x.device)
            source = generator(self.seed, place, number, first)
            moved = attack.attempt(self.target, x[here], y[here], threat, number, source).detach()
            broken[left] = self.judged(place, moved, x[here], y[here], threat).cpu()
        return broken

    def judged(self, place: str, moved: Tensor, x: Tensor, y: Tensor, threat: Threat) -> Tensor:
        """(N,): misnamed by the model as users get it, and within ε, whatever the attack says of itself."""
        allowed = threat.allows(moved, x)
        if not allowed.all():
            self.store.notes[f"{place} moved images further than allowed; those do not count"] = None
        wrong = ~self.target.names(moved.nan_to_num(0).clamp(0, 1), y)
        return wrong & allowed

    def _tell(self, done: float, place: str, state: Tensor) -> None:
        self.done = done
        tried = int((state != WAITING).sum())
        left = int((state == WITHSTOOD).sum())
        self.on_progress(done, f"{place}: {left} of {tried} hold")
