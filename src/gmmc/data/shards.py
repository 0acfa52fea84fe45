"""The parquet files of a folder: their splits, and whether any is missing or there twice."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from gmmc.base.inputs import open_regular
from gmmc.base.text import printable
from gmmc.data.layout import SPLITS, WHOLE, Found, SplitFiles, listed, shown
from gmmc.errors import InputError

SUFFIX = ".parquet"
# train-00000-of-00002, also with the hash that older uploads have at the end
SHARD = re.compile(r"(?P<series>.*)-(?P<index>\d+)-of-(?P<total>\d+)(-[0-9a-f]{8,})?")


def find(root: Path, paths: Sequence[Path], *, complete: bool) -> Found:
    """The splits of the parquet files below `root`. Not `complete`: missing files are only stated."""
    homes = {path: _home(path.relative_to(root)) for path in paths}
    told_apart = {path: home for path, home in homes.items() if home[1] != WHOLE}
    unused = [str(path.relative_to(root)) for path in paths if told_apart and path not in told_apart]
    used = told_apart or homes
    folders = sorted({folder for folder, _ in used.values()})
    if len(folders) > 1:
        raise InputError(
            f"{root} must hold one data set, got parquet files of several: {listed(folders)}; "
            f"choose one, as in {shown(root / folders[0])}"
        )
    splits = defaultdict(list)
    for path, (_, split) in used.items():
        splits[split].append(path)
    _refuse_copies(list(used))
    notes = [f"not used: {listed(unused)}"] if unused else []
    for files in splits.values():
        notes += _check_series(files, complete)
    home = root / folders[0]
    return Found({split: SplitFiles(home, tuple(files)) for split, files in splits.items()}, tuple(notes))


def _home(path: Path) -> tuple[str, str]:
    """(the folder of its data set, its split): a sub-folder or the start of the name tells the split."""
    for depth, part in enumerate(path.parts[:-1]):
        if part.lower() in SPLITS:
            return str(Path(*path.parts[:depth])), SPLITS[part.lower()]
    start = re.split(r"[-_.]", path.name.lower(), maxsplit=1)[0]
    return str(path.parent), SPLITS.get(start, WHOLE)


def _check_series(files: Sequence[Path], complete: bool) -> list[str]:
    """Notes on missing files of a split, by the numbers in their names; an error where all are needed."""
    series: dict[Path, dict[int, tuple[Path, int]]] = defaultdict(dict)
    for path in files:
        match = SHARD.fullmatch(path.stem)
        if match is None:
            continue
        index, total = int(match["index"]), int(match["total"])
        seen = series[path.with_name(match["series"])]
        other = seen.get(index) or next((shard for shard in seen.values() if shard[1] != total), None)
        if other:
            raise InputError(
                f"{shown(path)} must not lie beside {printable(other[0].name)}: they are of two copies; "
                "remove one"
            )
        seen[index] = (path, total)
    notes = []
    for name, seen in series.items():
        total = next(iter(seen.values()))[1]
        if len(seen) < total and complete:
            first = next(i for i in range(total) if i not in seen)
            example = f"{name.name}-{first:05d}-of-{total:05d}{SUFFIX}"
            rule = f"must hold all {total} files of {printable(name.name)}"
            raise InputError(f"{shown(name.parent)} {rule}, got no {printable(example)}")
        if len(seen) < total:
            notes.append(
                f"only {len(seen)} of the {total} files of {printable(name.name)} are there; "
                "their images are used"
            )
    return notes


def _refuse_copies(files: Sequence[Path]) -> None:
    """Images that are there twice would count twice, or be trained on and tested on."""
    by_size = defaultdict(list)
    for path in files:
        by_size[path.stat().st_size].append(path)
    for alike in by_size.values():
        seen: dict[bytes, Path] = {}
        for path in alike if len(alike) > 1 else ():
            with open_regular(path) as file:
                digest = hashlib.file_digest(file, "sha256").digest()
            if digest in seen:
                raise InputError(
                    f"{shown(path)} must not be a copy of {shown(seen[digest])}; remove one of them"
                )
            seen[digest] = path
