"""Read files that others wrote: regular files of bounded size, JSON and TOML whose errors are one line."""

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from gmmc.base.limits import DOCUMENT_BYTES, NESTING, TOML_CHARACTERS, WHOLE_NUMBER
from gmmc.base.text import printable, shortened
from gmmc.errors import InputError

# A TOML document is read as tomllib reads it, so that only keys are searched, not strings and comments.
# Nothing is given back once it is read, and what is not closed goes on to its end: the time is linear.
COMMENT = r"#[^\n]*+"
LONG_STRING = r'''"""(?:[^"\\]++|\\[\s\S]|"(?!""))*+"{0,5}+|'{3}(?:[^']++|'(?!''))*+'{0,5}+'''
PART_OF_KEY = r"""(?:[\w-]++|"(?:[^"\\\n]++|\\.)*+"?+|'[^'\n]*+'?+)[ \t]*+"""
LONG_KEY = rf"{PART_OF_KEY}(?:\.[ \t]*+{PART_OF_KEY}){{{NESTING},}}+"
SHORT_KEY = rf"(?!{LONG_KEY}){PART_OF_KEY}(?:\.[ \t]*+{PART_OF_KEY})*+"
UP_TO_LONG_KEY = re.compile(rf"(?:[^\w\"'#-]++|{COMMENT}|{LONG_STRING}|{SHORT_KEY})*+{LONG_KEY}")


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; OSError for anything else, where reading could wait for ever."""
    # Opening a pipe without O_NONBLOCK waits for a writer.
    return _regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)


def open_lock(path: Path) -> BufferedReader:
    """Open a file to hold a lock on, made where there is none; never a pipe, and never through a link."""
    # Read-only, so that who may read a run of others can wait for it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return _regular(descriptor, path)


def _regular(descriptor: int, path: Path) -> BufferedReader:
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
        return file.read(check_size(file, path, most, bound))


def check_size(file: BufferedReader, path: Path, most: int | None, bound: str) -> int:
    """Return the size of a file; OSError if it is above `most`, the constant `bound` of `limits`."""
    size = os.fstat(file.fileno()).st_size
    if most is not None and size > most:
        raise OSError(None, f"it has {size:,} bytes, more than {most:,} (limits.{bound})", str(path))
    return size


def expanded(name: str | os.PathLike[str]) -> Path:
    """Return the path with ~ replaced; as it is where there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def kind_of(path: Path) -> str:
    """Return "does not exist", "is a folder" or "is a file", for an error about a path."""
    try:
        if path.is_dir():
            return "is a folder"
        return "is a file" if path.exists() else "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def parse_json(content: str | bytes, where: str) -> Any:
    """Parse JSON; InputError in one line that names `where`."""
    return _parsed(JSON.decode, content, f"{where} is not valid JSON")


def parse_toml(content: str | bytes, where: str) -> dict[str, Any]:
    """Parse TOML; InputError in one line that names `where`."""
    return _parsed(_loads_toml, content, f"{where} is not valid TOML")


def _parsed(loads: Callable[[str], Any], content: str | bytes, wrong: str) -> Any:
    try:
        text = content if isinstance(content, str) else content.decode()
        value = loads(text)
        if "\\u" in text:  # an escape may stand for half a character, which cannot be written again
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except ValueError as error:  # also text that is no UTF-8, and integers of thousands of digits
        raise InputError(f"{wrong}: {printable(str(error))}") from None
    except RecursionError:
        raise InputError(f"{wrong}: its brackets are nested too deeply") from None
    if _is_deeper(value, NESTING):
        raise InputError(f"{wrong}: its brackets are nested deeper than {NESTING} (limits.NESTING)")
    return value


def _loads_toml(text: str) -> dict[str, Any]:
    """Refuse a.a.a.a and so on before it is parsed: tomllib's memory grows with the square of its length."""
    if len(text) > TOML_CHARACTERS:
        raise ValueError(
            f"it has {len(text):,} characters, more than {TOML_CHARACTERS:,} (limits.TOML_CHARACTERS)"
        )
    if UP_TO_LONG_KEY.match(text):
        raise ValueError(f"a key has more than {NESTING} parts (limits.NESTING)")
    return tomllib.loads(text)


def _whole_number(digits: str) -> int:
    """Refuse integers with which torch and numpy raise OverflowError."""
    number = int(digits)
    if abs(number) > WHOLE_NUMBER:
        raise ValueError(f"{shortened(number)} is above {WHOLE_NUMBER} (limits.WHOLE_NUMBER)")
    return number


JSON = json.JSONDecoder(parse_int=_whole_number)


def _is_deeper(value: Any, most: int) -> bool:
    """Whether lists and tables are nested in more than `most` levels; readers walk them recursively."""
    level = [value]
    for _ in range(most + 1):
        if not level:
            return False
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
    return bool(level)


def read_document(path: Path, most: int, bound: str) -> bytes:
    """Return the bytes of a file; `bound` is the name of the limit `most`."""
    try:
        return read_bytes(path, most, bound)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
