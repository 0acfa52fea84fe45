"""The state of a training apart from its tensors, and the clock it is timed by."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

PACE = {"lr": 1.0, "beta": 1.0, "alpha": 1.0}


@dataclass(frozen=True)
class TrainingState:
    """Counters and factors of a training at one moment, the same in all processes."""

    step: int = 0  # updates done
    lines: int = 0  # of metrics.jsonl, so that a resumed run can tell when some are missing
    seconds: float = 0.0  # of training before this call, those of its start included
    pace: Mapping[str, float] = field(default_factory=PACE.copy)  # factors, lowered by rollbacks
    rollbacks: int = 0
    trouble_at: int = -1  # the last update at which training was rolled back
    failed: int = 0  # rollbacks in a row that did not lead past that update
    start: Mapping[str, Any] | None = None  # facts about the model that training began with

    def to_info(self) -> dict[str, Any]:
        """The state as JSON; the number of updates stands elsewhere in a resume state."""
        info = {name: value for name, value in vars(self).items() if name != "step"}
        return info | {"pace": dict(self.pace), "start": self.start and dict(self.start)}

    @classmethod
    def from_info(cls, step: int, info: Mapping[str, Any]) -> "TrainingState":
        """Read a state back; KeyError, TypeError or ValueError where it is not one."""
        return cls(
            step=step,
            lines=info["lines"],
            seconds=float(info["seconds"]),
            pace={name: float(info["pace"][name]) for name in PACE},
            rollbacks=int(info["rollbacks"]),
            trouble_at=int(info["trouble_at"]),
            failed=int(info["failed"]),
            start=info.get("start"),
        )

    def advanced(self) -> "TrainingState":
        """The state after one more update."""
        return replace(self, step=self.step + 1)

    def logged(self) -> "TrainingState":
        """The state after one more line of metrics."""
        return replace(self, lines=self.lines + 1)


class Stopwatch:
    """Seconds of training, without those of pauses."""

    def __init__(self, seconds: float):
        self._seconds, self._since = seconds, time.monotonic()

    def read(self) -> float:
        now = time.monotonic()
        self._seconds += now - self._since
        self._since = now
        return self._seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of this block."""
        self.read()
        yield
        self._since = time.monotonic()
