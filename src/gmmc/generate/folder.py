"""Images as PNG files in a folder."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageColor
from torch import Tensor

from gmmc import pictures
from gmmc.base.atomic import naming, write_atomic
from gmmc.base.inputs import parse_json
from gmmc.base.open_image import opened, pillow_rules
from gmmc.base.outputs import PNG_MARK, check_replaceable, has_mark
from gmmc.classifier.drawing import OnProgress
from gmmc.classifier.model import Classifier
from gmmc.data.files import read_image
from gmmc.errors import InputError
from gmmc.generate.parts import fingerprint, held, silent
from gmmc.pixels import as_unit

IN_GRID = 100  # images
GRID = "grid.png"
NAME_BYTES = 200  # of a class name in a file name, which has at most 255


def to_folder(
    model: Classifier,
    labels: Tensor,
    seed: int,
    folder: Path,
    *,
    steps: int | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Write PNG files named by class and seed, and a grid of the first ones; return how many existed.

    Each file holds a stamp of what it was drawn by, so that images of another model are replaced. A file
    without a stamp is refused before anything is drawn, except for an empty image, which a power cut may
    leave, and the grid.png of an older gmmc, recognised by its frame.
    The class of each image is below it in grid.png.
    """
    drawer = model.drawer()
    drawer.blocks(labels, seed, steps=steps)  # refuses what cannot be drawn before anything is touched
    made_by = fingerprint(model, steps)
    report = on_progress or silent

    def stamp(i: int) -> dict[str, str | int]:
        return {"made_by": made_by, "label": int(labels[i]), "seed": seed + i}

    def path(i: int) -> Path:
        return folder / file_name(model.class_names[labels[i]], seed + i)

    with held(folder):
        for leftover in folder.glob(".*_seed*.png.tmp"):
            leftover.unlink()
        with pillow_rules():
            _check_replaceable(map(path, range(len(labels))), folder / GRID)
            missing = [not _bears(path(i), stamp(i)) for i in range(len(labels))]
        there = done = missing.count(False)
        report(done)
        for stretch in _stretches(missing):
            i = stretch.start
            blocks = drawer.blocks(
                labels[i : stretch.stop],
                seed + i,
                steps=steps,
                on_progress=lambda images, before=done: report(before + images),
            )
            for block in blocks:
                for place, image in enumerate(block.cpu(), i):
                    _write_png(path(place), image, stamp(place))
                i += len(block)
                done += len(block)
                report(done)
        first = [as_unit(read_image(path(i), model.shape)) for i in range(min(IN_GRID, len(labels)))]
        names = pictures.class_captions(model.class_names)
        columns = min(pictures.GRID_COLUMNS, len(first))
        grid = pictures.grid(torch.stack(first), columns, captions=[names[y] for y in labels[: len(first)]])
        write_atomic(folder / GRID, _stamped(grid, {"made_by": made_by}))
    return there


def _stretches(wanted: Sequence[bool]) -> Iterator[range]:
    """Wanted places that follow each other."""
    for is_wanted, places in itertools.groupby(range(len(wanted)), wanted.__getitem__):
        if is_wanted:
            first, *others = places
            yield range(first, first + 1 + len(others))


def _write_png(path: Path, image: Tensor, stamp: dict[str, str | int]) -> None:
    """Whole or not at all when killed. Not forced to the disk, which would take longer than drawing."""
    content = _stamped(pictures.to_image(image), stamp)
    temporary = path.with_name(f".{path.name}.tmp")
    with naming(path):
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _stamped(picture: Image.Image, stamp: dict[str, str | int]) -> bytes:
    """A PNG with the stamp as its text; see `base.outputs.PNG_MARK`."""
    return pictures.png(picture, {"gmmc": json.dumps(stamp)})


def _check_replaceable(images: Iterable[Path], grid: Path) -> None:
    def is_ours(image: Path) -> bool:
        return has_mark(image, PNG_MARK) or (image.is_file() and image.stat().st_size == 0)

    for path in images:
        check_replaceable(path, "--out", is_ours)
    check_replaceable(grid, "--out", lambda picture: has_mark(picture, PNG_MARK) or _has_our_frame(picture))


def _has_our_frame(path: Path) -> bool:
    """Whether this is a grid as `pictures` draws it, by the colour of its upper and left edge."""
    try:
        with opened(path, str(path)) as picture:
            if picture.format != "PNG" or picture.mode != "RGB":
                return False
            width, height = picture.size
            edges = [picture.crop((0, 0, width, pictures.GAP)), picture.crop((0, 0, pictures.GAP, height))]
            colours = {colour for edge in edges for _, colour in edge.getcolors() or [(0, None)]}
            return colours == {ImageColor.getrgb(pictures.BACKGROUND)}
    except InputError:
        return False


def _bears(path: Path, stamp: dict[str, str | int]) -> bool:
    """Whether this is an intact image of ours with this stamp."""
    try:
        with opened(path, str(path)) as picture:
            if picture.format != "PNG":
                return False
            text = picture.info["gmmc"]
            picture.verify()
            return parse_json(text, str(path)) == stamp
    except InputError:
        return False


def file_name(class_name: str, seed: int) -> str:
    name = class_name.replace("/", "_").encode()[:NAME_BYTES].decode(errors="ignore")
    return f"{name}_seed{seed:06d}.png"
