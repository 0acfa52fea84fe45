"""Run one case and judge how it ended."""

import hashlib
import os
import re
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from gmmc.base.limits import MESSAGE
from gmmc.base.text import printable
from gmmc.cli import app
from gmmc.errors import Diverged, InputError

# Warnings of scikit-learn about rows and labels are meant for its users.
SKLEARN = "/sklearn/"  # in the path of its files
ADVICE = "The number of unique classes is greater than 50%"  # which names the caller's file instead
SECONDS = 60
BYTES = 2 * 10**9
# Lines that may precede an error: notes about a recipe or the data, and what a training prints.
NOTES = re.compile(
    r"deprecated settings: .*|\S.*: \w+\.\w+=.* of its recipe is not used|(reading .*|report) +\d+%.*|"
    r".*: (no test split; |its own \d+ validation images|not used: |not read: |read from |"
    r"only \d+ of the \d+ files|\d+ .* images? ).*"
)
PROGRESS = re.compile(
    r"(reading|training|calibrating) .*|\d+ training images in batches of .*|update \d+: .*|"
    r"generative\.cutout=.*"
)
CRASHES = ("Traceback (most recent call last)", "Exception ignored", "Warning:")


@dataclass(frozen=True)
class Case:
    """One call on hostile input. All of its files are in `folder`."""

    name: str
    folder: Path
    call: list[str] | Callable[[], object]  # arguments of the command line, or a call of the Python API
    # Takes the output of a success; AssertionError if that is implausible.
    verify: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `failure` is empty for a case that passed."""

    name: str
    status: int
    seconds: float
    failure: str
    errors: str = ""
    peak: int = 0  # bytes


def check(case: Case) -> Outcome:
    """Run a case in this process. Peak memory and a limit on time are for the caller."""
    before = listing(case.folder)
    begin = time.perf_counter()
    with chdir(case.folder), captured() as printed, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        status, crash = (run_command if isinstance(case.call, list) else run_call)(case.call)
    seconds = time.perf_counter() - begin
    output, errors, stray = printed
    own = [w for w in warned if SKLEARN not in w.filename and not str(w.message).startswith(ADVICE)]
    problems = [crash, *(f"Python warning: {w.category.__name__}: {w.message}" for w in own)]
    problems += [f"a library printed {stray[:200]!r}"] if stray else []
    if not crash:
        problems += judge(status, output, errors, isinstance(case.call, list))
        problems += changes(before, listing(case.folder)) if status == 2 else []
        problems += implausible(case, output) if status == 0 else []
    return Outcome(case.name, status, seconds, "; ".join(filter(None, problems)), errors)


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Return the exit status of a command, and a description of its crash."""
    try:
        app.main(arguments)
    except SystemExit as stop:
        return (stop.code if isinstance(stop.code, int) else -1), ""
    except BaseException as error:
        return -1, crash_of(error)


def run_call(call: Callable[[], object]) -> tuple[int, str]:
    """Return 0 for a call that returns and 2 for one that refuses."""
    try:
        call()
    except AssertionError as error:
        return -1, crash_of(error)
    except (Diverged, ValueError, TypeError) as error:
        return 2, "" if is_refusal(error) else crash_of(error)
    except BaseException as error:
        return -1, crash_of(error)
    return 0, ""


def is_refusal(error: Exception) -> bool:
    """Whether gmmc refused in one printable line, or scikit-learn in its own words."""
    if isinstance(error, (InputError, Diverged)):
        return bool(str(error)) and printable(str(error)) == str(error)
    return any(SKLEARN in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def crash_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "gmmc" in Path(frame.filename).parts] or frames
    place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    return f"{type(error).__name__} at {place}: {' '.join(str(error).split())[:300]}"


def judge(status: int, output: str, errors: str, is_command: bool) -> Iterator[str]:
    """Yield what is wrong with an exit status and the lines that were printed."""
    for word in CRASHES:
        if word in errors + output:
            yield f"{word!r} was printed"
    lines = errors.splitlines()
    failures = [line for line in lines if line.startswith("gmmc: ")]
    if status not in (0, 1, 2):
        yield f"exit status {status}"
    elif status == 0 or not is_command:
        if failures:
            yield "a success printed an error"
    elif not lines or failures != lines[-1:]:
        yield f"standard error must end in its only line that begins with 'gmmc: ', got {lines[-3:]}"
    else:
        allowed = (NOTES, PROGRESS) if status == 1 else (NOTES,)
        yield from (
            f"another line on standard error: {line!r}"
            for line in lines[:-1]
            if not any(pattern.fullmatch(line) for pattern in allowed)
        )
        if "not enough memory" in lines[-1]:  # no case needs more than the limit
            yield "it asked for more memory than there is"
        if printable(lines[-1]) != lines[-1] or len(lines[-1]) > MESSAGE + len("gmmc: "):
            yield "the error is too long or cannot be printed"


def implausible(case: Case, output: str) -> Iterator[str]:
    """Yield what is wrong with the results of a success."""
    try:
        if case.verify:
            case.verify(output)
    except Exception as error:
        yield f"implausible success: {crash_of(error)}"


def listing(folder: Path) -> dict[str, str]:
    """Return the name of each file below `folder`, with its kind, or its size and a hash of its content."""
    return {str(path.relative_to(folder)): described(path) for path in sorted(folder.rglob("*"))}


def described(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {path.readlink()}"
    if path.is_file() and path.stat().st_size < 2**24:  # larger ones are sparse
        return f"{path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return f"{path.stat().st_mode:o} {path.stat().st_size if path.is_file() else ''}"


def changes(before: dict[str, str], after: dict[str, str]) -> Iterator[str]:
    """Yield the files that a refusal wrote, changed or removed."""
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            done = "wrote" if name not in before else "removed" if name not in after else "changed"
            yield f"a refusal {done} {printable(name)}"


@contextmanager
def captured() -> Iterator[list[str]]:
    """Capture standard output, standard error, and what C libraries print; the list is filled at the end."""
    printed: list[str] = []
    with text_file() as output, text_file() as errors, text_file() as stray:
        try:
            with redirect_stdout(output), redirect_stderr(errors), sent_to(stray, 1), sent_to(stray, 2):
                yield printed
        finally:
            for file in (output, errors, stray):
                file.seek(0)
                printed.append(file.read())


def text_file() -> TextIO:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace")


@contextmanager
def sent_to(file: TextIO, number: int) -> Iterator[None]:
    """Let a file descriptor lead to the file."""
    saved = os.dup(number)
    os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)
