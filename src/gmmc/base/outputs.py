"""Where commands write. Checked before the work: nothing is computed for a place that refuses its result.

gmmc replaces only files that gmmc wrote, and knows them by a mark in their content.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile

from gmmc.base.atomic import leftovers
from gmmc.base.inputs import open_regular
from gmmc.base.limits import MARK_BYTES
from gmmc.base.text import printable, shortened
from gmmc.errors import InputError

PARTS = "part-*.safetensors"  # images drawn so far, see generate/parts.py
PNG_MARK = b"tEXtgmmc\0"  # a text chunk with the keyword gmmc
PAGE_MARK = b'<meta name="generator" content="gmmc '


def check_writable(folder: Path, name: str) -> None:
    """Refuse a folder, there or to be made, in which no file can be made; `name` is that of the argument."""
    place = folder
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        TemporaryFile(dir=place).close()
    except OSError as error:
        raise InputError(f"cannot write to {name} {printable(str(folder))}: {error.strerror}") from None


def check_replaceable(path: Path, name: str, is_ours: Callable[[Path], bool]) -> None:
    """Refuse a path where something is that gmmc did not write."""
    try:
        is_there = path.exists() or path.is_symlink()
    except OSError as error:
        raise InputError(f"cannot write to {name} {shortened(str(path))}: {error.strerror}") from None
    if is_there and not is_ours(path):
        rule = f"{name} must not replace what gmmc did not write"
        raise InputError(f"{rule}, got {printable(str(path))}; move that file, or name another place")


def check_within(place: Path, folder: Path, name: str) -> None:
    """Refuse a place below `folder` that is behind a link out of it; `name` is that of the folder's argument.

    Files that are written whole replace a link. So this is for the folders they are in, and for files that
    are appended to.
    """
    actual = Path(os.path.realpath(place))
    if not actual.is_relative_to(os.path.realpath(folder)):
        rule = f"{name} must hold its files in itself, not behind links"
        got = f"{printable(str(place))}, which is {printable(str(actual))}"
        raise InputError(f"{rule}, got {got}; link to the whole folder instead")


@contextlib.contextmanager
def removed_on_failure(folder: Path) -> Iterator[None]:
    """Remove the folders that the block made on the way to `folder`, if it fails and they are empty."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


def has_mark(path: Path, mark: bytes) -> bool:
    """Whether this is a regular file with the mark in its head."""
    try:
        with open_regular(path) as file:
            return mark in file.read(MARK_BYTES)
    except OSError:
        return False


def remove_parts(folder: Path) -> None:
    """Remove finished parts of a drawing, and their folder if nothing else is in it."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in [*folder.glob(PARTS), *leftovers(folder, PARTS)]:
        path.unlink()
    with contextlib.suppress(OSError):  # there are files of others
        folder.rmdir()
