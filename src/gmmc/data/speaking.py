"""What is said while images are read: by one of several processes only."""

from gmmc.progress import Progress
from gmmc.ranks import is_leader


def progress(title: str, total: float) -> Progress:
    return Progress(title, total, silent=not is_leader())


def say(line: str) -> None:
    progress("", 0).say(line)
