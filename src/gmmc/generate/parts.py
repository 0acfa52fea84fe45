"""Images in a tensor, and finished parts of them in a folder, so that drawing can be interrupted."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from gmmc.base.atomic import leftovers, write_atomic
from gmmc.base.outputs import PARTS, removed_on_failure
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.classifier.build import recipe_of
from gmmc.classifier.drawing import Drawer, OnProgress
from gmmc.classifier.model import Classifier
from gmmc.errors import InputError
from gmmc.pixels import Shape, to_uint8

EMPTY = torch.empty(0)
PART_SECONDS = 3.0  # of work in a part: what a kill may cost


def fingerprint(model: Classifier, steps: int | None = None) -> str:
    """A hash of all that decides what a label and a seed look like: weights, sampler, steps, precision."""
    drawer = model.drawer()
    settings = {
        "shape": model.shape,
        # A key of earlier versions, whose images are to stay recognised.
        "model": asdict(recipe_of(model).model) | {"activation": "default"},
        "sampler": drawer.sampler_settings(),
        "start": model.start.name,
        "steps": drawer.settings.steps if steps is None else steps,
        "device": model.device.type,
        "precision": drawer.precision,
    }
    return pack(model.state_dict(), settings)[1]


def drawn(
    model: Classifier,
    labels: Sequence[int] | Tensor,
    seed: int = 0,
    *,
    steps: int | None = None,
    folder: Path | None = None,
    on_progress: OnProgress | None = None,
    drawer: Drawer | None = None,
) -> Tensor:
    """uint8 images on the CPU, one per label; image i is that of seed + i.

    With a folder, finished parts are kept there, a few seconds of work each. A later call for the same images
    takes them and goes on, to the same bits (on a CPU, with as many threads); parts of anything else are
    deleted. `drawer`: that of the model, for a caller with several draws.
    """
    drawer = drawer or model.drawer()
    y = model.label_tensor(labels, len(labels))
    report = on_progress or silent
    if folder is not None:
        return drawn_in(folder, model, y, seed, steps, report, drawer)[0]
    return torch.cat(
        [torch.empty(0, *model.shape, dtype=torch.uint8), *_rest(drawer, y, seed, steps, 0, report)]
    )


def silent(done: float) -> None:
    pass


def drawn_in(
    folder: Path,
    model: Classifier,
    labels: Tensor,
    seed: int,
    steps: int | None,
    report: OnProgress,
    drawer: Drawer | None = None,
) -> tuple[Tensor, int]:
    """(all images, how many of them were in the folder)."""
    drawer = drawer or model.drawer()
    drawer.blocks(labels, seed, steps=steps)  # refuses what cannot be drawn before anything is touched
    made_by = fingerprint(model, steps)
    images = [torch.empty(0, *model.shape, dtype=torch.uint8)]
    with held(folder):
        images += _kept_parts(folder, made_by, labels, seed, model.shape)
        there = done = sum(map(len, images))
        report(done)
        for part in _in_parts(_rest(drawer, labels, seed, steps, done, report)):
            info = {"made_by": made_by, "seed": seed + done}
            content, _ = pack({"images": part, "labels": labels[done : done + len(part)]}, info)
            write_atomic(_part_path(folder, seed + done), content)
            images.append(part)
            done += len(part)
    return torch.cat(images), there


def _rest(
    drawer: Drawer, labels: Tensor, seed: int, steps: int | None, done: int, report: OnProgress
) -> Iterator[Tensor]:
    """The images after the first `done`, block by block."""
    before = done
    blocks = drawer.blocks(
        labels[done:], seed + done, steps=steps, on_progress=lambda images: report(before + images)
    )
    for block in blocks:
        yield to_uint8(block).cpu()
        done += len(block)
        report(done)


def _in_parts(blocks: Iterable[Tensor]) -> Iterator[Tensor]:
    """Blocks put together: a file for each would be too many where they take no time."""
    part, begun = [], time.monotonic()
    for block in blocks:
        part.append(block)
        if time.monotonic() - begun >= PART_SECONDS:
            yield torch.cat(part)
            part, begun = [], time.monotonic()
    if part:
        yield torch.cat(part)


def _kept_parts(folder: Path, made_by: str, labels: Tensor, seed: int, shape: Shape) -> list[Tensor]:
    """The parts of these images, in order up to the first that is missing or damaged. Others are deleted."""
    parts, kept, done = [], set(), 0
    while done < len(labels):
        path = _part_path(folder, seed + done)
        try:
            tensors, info, _ = unpack(path)
        except (Damaged, OSError):
            break
        if info != {"made_by": made_by, "seed": seed + done}:
            break
        images, its_labels = tensors.get("images", EMPTY), tensors.get("labels", EMPTY)
        if images.shape[1:] != shape or images.dtype != torch.uint8 or not len(images):
            break
        if its_labels.tolist() != labels[done : done + len(images)].tolist():
            break
        parts.append(images)
        kept.add(path)
        done += len(images)
    for path in [*folder.glob(PARTS), *leftovers(folder, PARTS)]:
        if path not in kept:
            path.unlink()
    return parts


def _part_path(folder: Path, seed: int) -> Path:
    return folder / f"part-{seed:09d}.safetensors"


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; a block that fails before it writes a file leaves no folder.

    One process at a time: a second would take what the first is writing for leftovers of a killed one.
    """
    with removed_on_failure(folder):
        folder.mkdir(parents=True, exist_ok=True)
        place = os.open(folder, os.O_RDONLY)
        try:
            _lock(place, folder)
            yield
        finally:
            os.close(place)


def _lock(place: int, folder: Path) -> None:
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(f"another process is drawing into {folder}; wait for it or stop it") from None
    except OSError:
        pass  # a file system without locks
