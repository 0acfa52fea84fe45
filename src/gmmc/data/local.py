"""Data sets in files: found, decoded or taken from the cache, and their splits put together."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gmmc.base.class_names import check_class_names
from gmmc.config.sections import DataConfig
from gmmc.data import folder, parquet, shards
from gmmc.data.cache import Entry
from gmmc.data.decode import TO_RGB, Conversion, conversion_note
from gmmc.data.decode_many import Reading, Wanted
from gmmc.data.layout import SUFFIXES, WHOLE, Found, SplitFiles, shown, visible_files
from gmmc.data.splits import LabelledImages, Parts, hold_out_test
from gmmc.errors import InputError
from gmmc.pixels import Shape


def find(path: Path, *, labelled: bool) -> Found:
    """The splits of a parquet file or of a folder. Without labels, missing files are no error."""
    if path.is_file():
        if path.suffix.lower() != shards.SUFFIX:
            raise InputError(f"a data set must be a folder or a {shards.SUFFIX} file, got {path}")
        return Found({WHOLE: SplitFiles(path, (path,))})
    try:
        files = list(visible_files(path))
        tables = [file for file in files if file.suffix.lower() == shards.SUFFIX]
        if tables:
            return shards.find(path, tables, complete=labelled)
        if any(file.suffix.lower() in SUFFIXES for file in files):
            return folder.find(path, files, labelled=labelled)
    except OSError as error:
        raise InputError(f"cannot read {shown(error.filename or path)}: {error.strerror}") from None
    raise InputError(f"{path} must hold images in one sub-folder per class, or parquet files, got neither")


def load(path: Path, cfg: DataConfig, name: str = "") -> Parts:
    """Training, test and perhaps validation images with their labels."""
    name = name or path.resolve().name
    found = find(path, labelled=True)
    if WHOLE not in found.splits and "train" not in found.splits:
        raise InputError(f"{path} must hold training images, got only {' and '.join(found.splits)}")
    wanted = Wanted(height=cfg.size, width=cfg.size, label=cfg.label)
    readings = {split: _read(files, split, wanted, name) for split, files in found.splits.items()}
    parts, class_names = _together(readings, path)
    notes = [*found.notes, *conversion_notes(readings.values())]
    train = parts["train" if "train" in parts else WHOLE]
    test = parts.get("test")
    if test is None:
        train, test = hold_out_test(train)
        notes.append(f"no test split; {len(test)} of its images, always the same, serve as test images")
    valid = parts.get("validation")
    if valid is not None:
        notes.append(f"its own {len(valid)} validation images are used, not a share of the training images")
    return Parts(name, train, test, class_names, valid, tuple(f"{name}: {note}" for note in notes))


def load_unlabelled(path: Path, shape: Shape, name: str = "") -> tuple[Tensor, tuple[str, ...]]:
    """(the test images or, if none are told apart, all images in the wanted shape, notes)."""
    name = name or path.resolve().name
    found = find(path, labelled=False)
    wanted = Wanted(channels=shape[0], height=shape[1], width=shape[2], label=None)
    chosen = ["test"] if "test" in found.splits else list(found.splits)
    readings = [_read(found.splits[split], split, wanted, name) for split in chosen]
    notes = [*found.notes, *conversion_notes(readings)]
    return torch.cat([reading.images for reading in readings]), tuple(f"{name}: {note}" for note in notes)


def _read(files: SplitFiles, split: str, wanted: Wanted, name: str) -> Reading:
    kind = parquet if files.paths[0].suffix.lower() == shards.SUFFIX else folder
    if wanted.label and kind is folder:
        raise InputError(
            f"data.label is for parquet files, got {wanted.label!r} with class folders in {files.root}"
        )
    try:
        entry = Entry(files, split, wanted)
    except OSError as error:
        raise InputError(f"cannot read {shown(error.filename)}: {error.strerror}") from None
    reading = entry.read()
    if reading is None:
        reading = kind.read(files, wanted, f"reading {name} {split}".strip())
        entry.write(reading)
    return reading


def _together(readings: dict[str, Reading], path: Path) -> tuple[dict[str, LabelledImages], tuple[str, ...]]:
    """The splits with the same classes and the same shape: in colour if any of them is."""
    classes = _common_classes(list(readings.values()), path)
    sizes = {tuple(reading.images.shape[2:]) for reading in readings.values()}
    if len(sizes) > 1:
        each = ", ".join(
            f"{r.images.shape[3]}×{r.images.shape[2]} in {split}" for split, r in readings.items()
        )
        raise InputError(f"all images of {path} must have one size, got {each}; data.size=… resizes them")
    channels = max(reading.images.shape[1] for reading in readings.values())
    position = {name: i for i, name in enumerate(classes)}
    parts = {}
    for split, reading in readings.items():
        positions = torch.tensor([position[name] for name in reading.classes])
        images = reading.images.expand(-1, channels, -1, -1).contiguous()
        parts[split] = LabelledImages(images, positions[reading.labels])
    names = check_class_names([str(name) for name in classes], f"the class names of {shown(path)}")
    return parts, names


def _common_classes(readings: Sequence[Reading], path: Path) -> list[str | int]:
    """Those that the files name, in their order; else all that occur, sorted."""
    if any(reading.named for reading in readings):
        if len({reading.classes for reading in readings}) > 1:
            raise InputError(f"all splits of {path} must name the same classes")
        return list(readings[0].classes)
    occurring = {name for reading in readings for name in reading.classes}
    if len({type(name) for name in occurring}) > 1:
        raise InputError(
            f"the labels of {path} must be of one type, got numbers in one split and strings in another"
        )
    return sorted(occurring)


def conversion_notes(readings: Iterable[Reading]) -> list[str]:
    """What was done to how many images, in one line; none if nothing was."""
    tally: Counter[Conversion] = Counter()
    grey = colour = 0
    for reading in readings:
        tally.update(reading.conversions)
        grey += reading.grey
        colour += len(reading.images) - reading.grey
    if grey and colour:
        tally["grey", TO_RGB] += grey
    return [note] if (note := conversion_note(tally)) else []
