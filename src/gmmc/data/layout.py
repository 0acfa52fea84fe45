"""Which files of a folder belong to which split."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gmmc.base.limits import FOLDER_DEPTH
from gmmc.base.text import printable, shortened
from gmmc.errors import InputError

SUFFIXES = {".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif"}
SUFFIXES |= {".tiff", ".webp"}
# How folders and files may call a split.
SPLITS = {
    "train": "train",
    "test": "test",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
}
WHOLE = ""  # the only split of a source that does not tell any apart


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, in order, and the folder that their names are relative to."""

    root: Path
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Found:
    """The splits of a source by name, and what there is to say about its files."""

    splits: dict[str, SplitFiles]
    notes: tuple[str, ...] = ()


def visible_files(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """All files below a folder in the order of their names, hidden ones left out. Links are followed."""
    above |= {os.path.realpath(folder)}
    if len(above) > FOLDER_DEPTH:
        rule = f"must be at most {FOLDER_DEPTH} deep (limits.FOLDER_DEPTH)"
        raise InputError(f"folders inside each other {rule}, got {shortened(str(folder))}")
    with os.scandir(folder) as entries:
        visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
    for entry in visible:
        path = folder / entry.name
        if not entry.is_dir():
            yield path
        elif os.path.realpath(path) not in above:  # a link to a folder above it would never end
            yield from visible_files(path, above)


def with_known_suffix(paths: Sequence[Path]) -> tuple[list[Path], tuple[str, ...]]:
    """(image files by their names, a note on how many others there are, if any)."""
    images = [path for path in paths if path.suffix.lower() in SUFFIXES]
    others = sorted({path.suffix.lower() or path.name for path in paths} - SUFFIXES)
    notes = (f"not read: {len(paths) - len(images)} files ({listed(others)})",) if others else ()
    return images, notes


def shown(path: Path) -> str:
    """Path of a file of others, made safe to print."""
    return printable(str(path))


def listed(names: list[str], most: int = 5) -> str:
    """'a, b, c' or 'a, b, … (12)', made safe to print."""
    names = [printable(name) for name in names]
    return ", ".join(names) if len(names) <= most else f"{', '.join(names[:most])}, … ({len(names)})"
