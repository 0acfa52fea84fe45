"""Child processes of tests: one thread each, waited for with a deadline, ended in any case."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gmmc.base.leader import PARENT, RANKS

DEADLINE = 600.0  # seconds; what takes seconds on a quiet machine may take minutes on a busy one

Command = Sequence[str | bytes | Path | int]


def gmmc_command(*arguments: str | bytes | Path | int) -> list[str | bytes]:
    """Return the command line of gmmc with these arguments."""
    return [sys.executable, "-m", "gmmc", *_words(arguments)]


def _words(command: Command) -> list[str | bytes]:
    return [word if isinstance(word, bytes) else str(word) for word in command]


@contextmanager
def started(
    command: Command, env: dict[str, str] | None = None, **options: Any
) -> Iterator[subprocess.Popen]:
    """Start a command in a session of its own; at the end, kill all its processes and wait for them.

    `env` is added to the environment.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in RANKS}
    environment = inherited | {"OMP_NUM_THREADS": "1"} | (env or {})
    # A child would inherit a SIGINT that is ignored, as in a suite that a script runs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(_words(command), env=environment, start_new_session=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        wait_until(lambda: not alive_in(process.pid))


def ended(process: subprocess.Popen, status: int | None = 0) -> subprocess.CompletedProcess:
    """Wait for a process; return its output. Fail on another exit status or a traceback; None: any status."""
    out, err = process.communicate(timeout=DEADLINE)
    assert status is None or process.returncode == status, f"exit status {process.returncode}: {err}"
    assert "Traceback" not in (err.decode(errors="replace") if isinstance(err, bytes) else err or ""), err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def finished(
    command: Command, status: int | None = 0, env: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess:
    """Run a command to its end and return its output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started(command, env, **pipes | options) as process:
        return ended(process, status)


def python(code: str, *arguments: str | Path | int, **options: Any) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own."""
    return finished([sys.executable, "-c", code, *arguments], **options)


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen | None = None, pause: float = 0.005
) -> None:
    """Wait for a condition; fail after the deadline, or as soon as the process ends without it."""
    deadline = time.monotonic() + DEADLINE
    while True:
        is_over = process is not None and process.poll() is not None
        if condition():
            return
        assert not is_over, f"ended with status {process and process.returncode}"
        assert time.monotonic() < deadline, f"still waiting after {DEADLINE:g} seconds"
        time.sleep(pause)


def alive_in(group: int) -> list[str]:
    """Command lines of the processes in a process group, without zombies."""
    return [_command_line(process) for process, _, own_group in _alive() if own_group == group]


def children_of(parent: int) -> list[int]:
    """Ids of the further processes of a training."""
    return [process for process, own, _ in _alive() if own == parent and _is_further(process, parent)]


def _is_further(process: int, parent: int) -> bool:
    """Whether a training started this process; not a copy of it that is about to become `git`."""
    try:
        return f"{PARENT}={parent}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False


def _alive() -> Iterator[tuple[int, int, int]]:
    """(id, id of the parent, process group) of every process that is no zombie."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            # After the name, which is in brackets and may hold anything: state, parent, group, ...
            state, parent, group, *_ = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                yield int(place.name), int(parent), int(group)


def _command_line(process: int) -> str:
    """Words of a command line; none of a process that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""


def shown_on_terminal(code: str, **env: str) -> bytes:
    """Run Python code with a terminal as its standard error; return what the terminal received."""
    main, side = pty.openpty()
    try:
        with started([sys.executable, "-c", code], {"TERM": "xterm"} | env, stderr=side) as process:
            os.close(side)
            shown = b"".join(iter(lambda: _read(main), b""))
            assert process.wait(DEADLINE) == 0, shown
            return shown
    finally:
        os.close(main)


def _read(terminal: int) -> bytes:
    """Return the next bytes; none at the end."""
    ready, _, _ = select.select([terminal], [], [], DEADLINE)
    assert ready, f"nothing was written for {DEADLINE:g} seconds"
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux reports the end of a terminal so
        return b""
