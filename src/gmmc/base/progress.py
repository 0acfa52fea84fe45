"""Progress for people: a live bar on a terminal, plain lines elsewhere. Both go to standard error."""

import contextlib
import sys
import time
from collections import deque

from gmmc.base.text import printable

PLAIN_EVERY = 5.0  # seconds between plain lines


_quiet = False


def set_quiet(quiet: bool) -> None:
    """Show no progress from now on, or show it again; lines of `say` are not progress."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


class Progress:
    """`with Progress("training", total) as bar: bar.update(done, "real 3.1")`. `total`: any unit of work."""

    def __init__(self, title: str, total: float, *, silent: bool = False):
        self.silent = silent  # also `say`: one of several processes, or a function in Python
        self.hidden = silent or _quiet
        self.title = printable(title)
        self.total = total
        self._bar = None
        self._marks: deque[tuple[float, float]] = deque(maxlen=500)  # (time, done): the speed of late

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty() and not self.hidden:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress
            from rich.table import Column

            status = Column(no_wrap=True, overflow="ellipsis")  # on a narrow terminal it alone gives way
            columns = (
                TextColumn(
                    "{task.description}", markup=False, table_column=Column(min_width=len(self.title))
                ),
                BarColumn(bar_width=10, table_column=Column(min_width=10)),
                TextColumn("{task.fields[status]}", markup=False, table_column=status),
                TextColumn("{task.fields[left]}", table_column=Column(min_width=len("0:00:00 left"))),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True, highlight=False, emoji=False))
            self._bar.start()
            self._task = self._bar.add_task(self.title, total=self.total, status="", left="")
        self._last_line = time.monotonic()
        return self

    def update(self, done: float, status: str = "") -> None:
        if self.hidden:
            return
        now, status = time.monotonic(), printable(status)
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # the work went back
        self._marks.append((now, done))
        if self._bar:
            self._bar.update(self._task, completed=done, status=status, left=self._left())
        elif now - self._last_line >= PLAIN_EVERY or done >= self.total:
            self._last_line = now
            share = f"{100 * done / self.total:3.0f}%" if self.total else "100%"
            _print("  ".join(filter(None, [self.title, share, status, self._left()])))

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.silent:
            return
        line = printable(line)
        if self._bar:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        else:
            _print(line)

    def _left(self) -> str:
        (start, done_then), (now, done) = self._marks[0], self._marks[-1]
        if done >= self.total or done <= done_then:
            return ""
        seconds = round((self.total - done) * (now - start) / (done - done_then))
        return f"{clock(seconds)} left"

    def __exit__(self, *_) -> None:
        if self._bar:
            self._bar.stop()


def clock(seconds: int) -> str:
    """h:mm:ss, or m:ss below an hour."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _print(line: str) -> None:
    # Nobody reading any more (a closed pipe, a lost connection) is no reason to stop the work.
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
