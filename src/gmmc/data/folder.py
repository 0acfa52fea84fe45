"""Images in files, one sub-folder per class."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gmmc.base.class_names import check_class_names
from gmmc.data.decode_many import BATCH, Encoded, Reading, Wanted, read_all
from gmmc.data.layout import SPLITS, WHOLE, Found, SplitFiles, shown, with_known_suffix
from gmmc.errors import InputError


def find(root: Path, paths: Sequence[Path], *, labelled: bool) -> Found:
    """The splits of the image files below `root`. Not `labelled`: the images need no class folders."""
    images, others = with_known_suffix(paths)
    notes = list(others)
    splits = {}
    for folder in _split_folders(root) or [root]:
        split = SPLITS[folder.name.lower()] if folder != root else WHOLE
        if split in splits:
            raise InputError(
                f"{root} must have one {split} folder, got {splits[split].root.name}, {folder.name}"
            )
        inside = [path for path in images if path.is_relative_to(folder)]
        if labelled:
            inside = _in_class_folders(folder, inside)
        if inside:
            splits[split] = SplitFiles(folder, tuple(inside))
    if not splits:
        splits[WHOLE] = SplitFiles(root, tuple(images))  # empty folders of splits tell nothing
    unused = len(images) - sum(len(files.paths) for files in splits.values())
    if unused:
        notes.append(f"not used: {unused} of the images, in no {'class' if labelled else 'split'} folder")
    return Found(splits, tuple(notes))


def read(files: SplitFiles, wanted: Wanted, title: str) -> Reading:
    def batches() -> Iterator[list[Encoded]]:
        for start in range(0, len(files.paths), BATCH):
            yield [(path, shown(path)) for path in files.paths[start : start + BATCH]]

    reading = read_all(batches(), len(files.paths), wanted, title)
    if wanted.label is None:
        return reading
    classes = [path.relative_to(files.root).parts[0] for path in files.paths]
    names = sorted(set(classes))
    position = {name: i for i, name in enumerate(names)}
    return replace(reading, labels=torch.tensor([position[name] for name in classes]), classes=tuple(names))


def _split_folders(root: Path) -> list[Path]:
    """Sub-folders that are splits. Beside other folders, one called `train` may well be a class."""
    folders = _folders(root)
    called = [folder for folder in folders if folder.name.lower() in SPLITS]
    if len(called) == len(folders) or any(_folders(folder) for folder in called):
        return called
    return []


def _in_class_folders(folder: Path, images: Sequence[Path]) -> list[Path]:
    classes = _folders(folder)
    if not classes:
        raise InputError(f"{shown(folder)} must hold one sub-folder of images per class, got no sub-folders")
    filled = {path.relative_to(folder).parts[0] for path in images}
    for name in classes:
        if name.name not in filled:
            rule = "every class folder must hold images"
            raise InputError(f"{rule}, got none in {shown(name)}; fill or remove it")
    check_class_names([name.name for name in classes], f"the class folders of {shown(folder)}")
    return [path for path in images if path.parent != folder]


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
