"""Names of the files in a run folder, and whether a process trains in it."""

import fcntl
from pathlib import Path

from gmmc.base.inputs import open_regular

CONFIG, METRICS, RESULTS, REPORT = "config.toml", "metrics.jsonl", "results.json", "report.html"
MODEL = "model.safetensors"
DESCRIPTION = "config.json"  # of a model in the layout of the Hugging Face Hub
LAST_GOOD = "last-good.safetensors"  # the model of a training that the guard gave up
AVERAGES = "averages"  # a run folder for each further average of the weights, named by its decay
RESUME = "resume"  # the folder of resume states
CARD = "card.toml"  # what a model is for, in the words of who made it; a run need not have one
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
