"""What is said while images are read: by one of several processes only."""

from gmmc.base.leader import is_leader
from gmmc.base.progress import Progress


def progress(title: str, total: float) -> Progress:
    return Progress(title, total, silent=not is_leader())


def say(line: str) -> None:
    progress("", 0).say(line)
