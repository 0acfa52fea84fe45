"""Files that are written whole or not at all."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """All of the content or none of it, also after a power cut."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def leftovers(folder: Path, name: str) -> list[Path]:
    """Temporary files that killed calls of `write_atomic` left of files with this name, a pattern."""
    found = folder.glob(f".{name}.*.tmp")
    return [path for path in found if re.fullmatch(r"\d+", path.name.split(".")[-2])]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system name this file: those of `write` and `fsync` name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
