"""Files that are written whole or not at all."""

import glob
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """All of the content or none of it, also after a power cut."""
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        temporary = _temporary(path)
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


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside `path` that can be renamed to it; whatever is left in it at the end is removed."""
    _remove_leftovers(path)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def leftovers(folder: Path, name: str) -> list[Path]:
    """Temporary files and folders, of any process, for paths of this name, which is a pattern."""
    found = folder.glob(f".{name}.*.tmp")
    return [path for path in found if re.fullmatch(r"\d{1,9}", path.name.split(".")[-2])]


def _remove_leftovers(path: Path) -> None:
    """Remove what killed processes left of this file or folder; one that is alive is still writing."""
    for leftover in leftovers(path.parent, glob.escape(path.name)):
        if _is_alive(int(leftover.name.split(".")[-2])):
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Whether another process has this number; one in a container may have had our own."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    return True


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the system name this file: those of `write` and `fsync` name none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
