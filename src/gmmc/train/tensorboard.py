"""Metrics as TensorBoard event files, beside metrics.jsonl (`train.log=tensorboard`)."""

import time
from pathlib import Path
from typing import Any

from gmmc.base.extras import import_extra
from gmmc.base.outputs import check_within
from gmmc.errors import InputError
from gmmc.runs.metrics import read_metrics

FOLDER = "tensorboard"
PATTERN = "events.out.tfevents.*"


def check_installed() -> None:
    """Refuse train.log=tensorboard where the package is missing."""
    import_extra("tensorboard", "tensorboard", "train.log=tensorboard")


def check_place(run: Path) -> None:
    """Refuse a run folder with a file or a link out of it where the event files go."""
    place = run / FOLDER
    check_within(place, run, "--out")
    if place.exists() and not place.is_dir():
        raise InputError(f"train.log=tensorboard needs the folder {place}, which is a file; move it")


class EventFiles:
    """Write the numbers of each metrics line as scalars.

    A resumed training adds a file, in which TensorBoard finds from which step on to forget the others. Where
    there is none, because `train.log` was set later, the file holds the earlier lines too.
    """

    def __init__(self, run: Path):
        self.run, self.place = run, run / FOLDER
        check_place(run)
        self._writer: Any = None

    def __call__(self, line: dict[str, Any]) -> None:
        """Add a line that metrics.jsonl has already."""
        lines = [line] if self._writer else self._open(line)
        for each in lines:
            self._write(each)
        self._writer.flush()

    def _open(self, newest: dict[str, Any]) -> list[dict[str, Any]]:
        """Begin a file; return the lines to write."""
        from torch.utils.tensorboard import SummaryWriter

        earlier = any(self.place.glob(PATTERN))
        self._writer = SummaryWriter(str(self.place), purge_step=newest["step"] if earlier else None)
        self._began = time.time() - newest["seconds"]
        return [newest] if earlier else read_metrics(self.run)

    def _write(self, line: dict[str, Any]) -> None:
        when = self._began + line.get("seconds", 0.0)  # older lines lack it
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, float(value), line["step"], walltime=when)

    def close(self) -> None:
        if self._writer:
            self._writer.close()
