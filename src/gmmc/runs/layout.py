"""Names of the files in a run folder, and whether a process trains in it."""

import fcntl
from pathlib import Path

from gmmc.base.inputs import open_regular, read_bytes
from gmmc.errors import InputError

CONFIG, METRICS, RESULTS, REPORT = "config.toml", "metrics.jsonl", "results.json", "report.html"
MODEL = "model.safetensors"
DESCRIPTION = "config.json"  # of a model in the layout of the Hugging Face Hub
LAST_GOOD = "last-good.safetensors"  # the model of a training that the guard gave up
LOCK = ".lock"  # held by the process that trains
RESULTS_LOCK = ".results.lock"  # held for the moment in which results.json is changed


def is_training(run: Path) -> bool:
    """Whether some process holds the folder at this moment."""
    try:
        with open_regular(run / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_document(path: Path, most: int, bound: str) -> bytes:
    """Return the bytes of a file of the folder; `bound` is the name of the limit `most`."""
    try:
        return read_bytes(path, most, bound)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
