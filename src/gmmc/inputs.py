"""Read files that others wrote: regular files of bounded size, JSON and TOML whose errors are one line."""

import json
import os
import stat
import tomllib
from io import BufferedReader
from pathlib import Path
from typing import Any

from gmmc.errors import InputError
from gmmc.limits import DOCUMENT_BYTES
from gmmc.text import printable


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; OSError for anything else, where reading could wait for ever."""
    # Opening a pipe without O_NONBLOCK waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(None, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: int | None = DOCUMENT_BYTES, bound: str = "DOCUMENT_BYTES") -> bytes:
    """Read a regular file of at most `most` bytes; `bound` is the name of that constant in `limits`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(None, f"it has {size:,} bytes, more than {most:,} (limits.{bound})", str(path))
        return file.read(size)


def parse_json(content: str | bytes, where: str) -> Any:
    """Parse JSON; InputError in one line that names `where`."""
    try:
        return json.loads(content)
    except ValueError as error:  # also text that is no UTF-8, and integers of thousands of digits
        raise InputError(f"{where} is not valid JSON: {printable(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where} is not valid JSON: its brackets are nested too deeply") from None


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; InputError in one line that names `where`."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"{where} is not valid TOML: {printable(str(error))}") from None
    except RecursionError:
        raise InputError(f"{where} is not valid TOML: its brackets are nested too deeply") from None
