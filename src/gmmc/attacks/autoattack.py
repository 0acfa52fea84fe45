"""The four parts of AutoAttack (Croce & Hein 2020), by its authors' code, each by itself."""

import logging
import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gmmc.attacks.target import Target
from gmmc.attacks.threats import Threat
from gmmc.errors import InputError

Part = Literal["apgd-ce", "apgd-t", "fab-t", "square"]
PARTS: tuple[Part, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")
BLACK_BOX = "square"
TARGETS = 9  # classes, those with the largest logits; AutoAttack's standard
QUERIES = 5000  # likewise
NORMS: dict[str, Literal["Linf", "L2"]] = {"linf": "Linf", "l2": "L2"}


@dataclass(frozen=True)
class AutoAttackPart:
    """With the standard settings, but for Square's queries and where there are fewer classes."""

    part: Part
    classes: int
    queries: int = QUERIES
    notes: dict[str, None] = field(default_factory=dict, compare=False)  # what AutoAttack says, each once
    tries: int = 1

    @property
    def targets(self) -> int:
        return min(TARGETS, self.classes - 1)

    @property
    def possible(self) -> bool:
        """APGD-T's loss compares four logits."""
        return self.part != "apgd-t" or self.classes >= 4

    @property
    def cost(self) -> int:
        gradients = {"apgd-ce": 100, "apgd-t": 100 * self.targets, "fab-t": 200 * self.targets}
        return gradients.get(self.part, self.queries // 3)

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        library = imported()
        seed = int(torch.randint(2**31 - 1, (), generator=source))
        logits: Any = lambda points: attached(target(points), points)  # noqa: E731
        with own_randomness(), self.listening():
            attack = library.AutoAttack(
                logits,
                norm=NORMS[threat.norm],
                eps=threat.eps,
                seed=seed,
                device=x.device,
            )
            attack.attacks_to_run = [self.part]
            attack.apgd_targeted.n_target_classes = attack.fab.n_target_classes = self.targets
            attack.square.n_queries = self.queries
            moved, _ = attack.run_standard_evaluation(x, y, batch_size=len(x))
        # The code allows itself a rounding of its own; ours is the smaller one.
        return threat.project(moved, x)

    def note(self, record: logging.LogRecord) -> None:
        """Without its pointer to other pages, and without counts: they differ from batch to batch."""
        said = re.sub(r"\d+ points", "points", record.getMessage().split(" See ")[0])
        self.notes[f"AutoAttack says: {said}"] = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """What it has to say goes with the result, not to the terminal."""
        logger = logging.getLogger("auto-attack")
        handler = logging.Handler(logging.WARNING)
        handler.emit = self.note
        before, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = before


def attached(logits: Tensor, images: Tensor) -> Tensor:
    """A network that does not look at its images has a gradient too, of zero."""
    return logits.float() + 0 * images.flatten(1).sum(1, keepdim=True)


def imported():
    try:
        import pyautoattack
    except ImportError:
        raise InputError("AutoAttack is not installed; pip install pyautoattack==0.2.0") from None
    return pyautoattack


@contextmanager
def own_randomness() -> Iterator[None]:
    """AutoAttack seeds the global generators and ends tracing; afterwards all is as it was."""
    trace = sys.gettrace()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            sys.settrace(trace)
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
