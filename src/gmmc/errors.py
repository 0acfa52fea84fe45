"""The ways a command ends early for a reason worth one line."""

import os
import sys
from typing import NoReturn


class InputError(ValueError):
    """What was asked for cannot be done; the message names the argument, the rule and the value."""


class Diverged(RuntimeError):
    """Training left the range where it can recover; the last state on disk is from before."""


class Interrupted(RuntimeError):
    """Training was asked to stop, and saved its state."""


def end_at_once(message: str, status: int) -> NoReturn:
    """Print one line and end, from any thread and without an exception. Files are whole or not there."""
    try:
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # the live bar hides it
        os.write(2, f"{show_cursor}gmmc: {message}\n".encode())
    finally:  # standard error may be gone
        os._exit(status)


def is_out_of_memory(error: Exception) -> bool:
    """torch has a class for it on GPUs only."""
    words = ("out of memory", "not enough memory", "can't allocate memory", "Unable to allocate")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def is_lost_process(error: Exception) -> bool:
    """torch has classes for some of these errors only, and no common one."""
    words = ("gloo", "NCCL", "TCPStore", "recv")
    kind = type(error).__name__
    return kind.startswith("Dist") or (kind == "RuntimeError" and any(word in str(error) for word in words))
