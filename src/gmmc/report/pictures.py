"""Pictures of a run folder inside the page, small enough for it."""

import base64
import io
import os
from collections.abc import Sequence
from pathlib import Path

from gmmc.base.inputs import read_bytes
from gmmc.base.limits import ENCODED_BYTES
from gmmc.base.open_image import opened, pillow_rules
from gmmc.base.text import printable
from gmmc.report.parts import Panel, having
from gmmc.report.reading import Run
from gmmc.runs.results import evaluation_of

ALL_PICTURES = 3_500_000  # bytes of a page
QUALITIES = (90, 75, 50)
WEBP_SIDE = 16383  # pixels that the format allows
CAPTIONS = {
    "samples/by_class.png": ("Fresh samples by class", "a row per class, the first seeds, none left out"),
    "samples/unconditional.png": ("Fresh samples of any class", "the first seeds, none left out"),
    "samples/nearest.png": ("Samples nearest to their class mean", "chosen: the least energy of each class"),
    "samples/farthest.png": (
        "Samples farthest from their class mean",
        "chosen: the most energy of each class",
    ),
    "samples/film.png": (
        "From noise to image",
        "a chain per row; above its number of steps, or the noise level σ of an estimate of the image",
    ),
    "generation/fresh.png": ("Fresh samples", "the first seeds, classes in turn, none left out"),
    "generation/by_steps.png": (
        "Fresh samples by number of steps",
        "a row per number of steps, a seed per column, classes in turn, none left out",
    ),
    "generation/nearest.png": (
        "Nearest training images",
        "first a sample, then the training images nearest to it in feature space",
    ),
    "generation/buffer.png": ("Replay buffer", "images as the training left them, none selected"),
    "validation/fresh.png": ("Fresh samples by class", "a row per class, the first seeds, none left out"),
    "validation/buffer.png": ("Replay buffer by class", "a row per class as training left it, none selected"),
    "robustness/noises.png": (
        "Adversarial noise",
        "C&W: image, noise as (x_adv − x)/2 around grey, the same stretched, attacked image",
    ),
}


def share(runs: list[Run]) -> int:
    """Bytes that each picture may take."""
    count = sum(len(entry.files) for run in runs for entry in run.results.values())
    return ALL_PICTURES // max(count, 1)


def panels(name: str, runs: Sequence[Run], most: int) -> list[Panel]:
    """The pictures of an evaluation; those of a kind stand together, run below run."""
    files = dict.fromkeys(str(file) for _, entry in having(name, runs) for file in entry.files)
    order = [file for known in CAPTIONS for file in files if usual(file) == known]
    order += [file for file in files if file not in order]
    return [
        panel(run, file, most, several=len(runs) > 1)
        for file in order
        for run, entry in having(name, runs)
        if file in entry.files
    ]


def usual(file: str) -> str:
    """Path of the same picture at the model's own noise level."""
    folder, slash, name = file.partition("/")
    return f"{evaluation_of(folder)[0]}{slash}{name}"


def panel(run: Run, file: str, most: int, *, several: bool) -> Panel:
    """A picture that results.json names; one that is gone is told, not left out."""
    shown = printable(file)
    title, detail = CAPTIONS.get(usual(file), (shown, ""))
    alt = f"{title} of the run {run.name}{', ' + detail if detail else ''}."
    detail = " · ".join(filter(None, [run.name if several else "", detail]))
    try:
        original = run.pictures.get(file)
        if original is None:
            # Path.resolve raises for a link to itself.
            if not Path(os.path.realpath(run.path / file)).is_relative_to(os.path.realpath(run.path)):
                why = "lies outside the run folder: not shown"
                return Panel(title, detail, missing=f"{shown} {why}", wide=not several)
            original = read_bytes(run.path / file, ENCODED_BYTES, "ENCODED_BYTES")
        kind, content = fitted(original, most)
    except (OSError, ValueError) as error:  # ValueError: what cannot be a file name, or no picture
        gone = isinstance(error, FileNotFoundError)
        why = "is not in the run folder any more" if gone else "is no picture that can be read"
        return Panel(title, detail, missing=f"{shown} {why}", wide=not several)
    if content != original:
        detail = ", ".join(filter(None, [detail, f"compressed for this page; the original is {shown}"]))
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
    return Panel(title, detail, picture=source, alt=alt, wide=not several)


def fitted(content: bytes, most: int) -> tuple[str, bytes]:
    """(kind, content) of a picture within so many bytes: as it is, else compressed, else also smaller."""
    with pillow_rules(), opened(content, "the picture") as original:
        kind = (original.format or "").lower()
        if kind in ("png", "jpeg", "gif", "webp") and len(content) * 4 / 3 <= most:
            original.verify()
            return kind, content
        picture = original.convert("RGB")
    while max(picture.size) > WEBP_SIDE:
        picture = picture.reduce(2)
    while True:
        for quality in QUALITIES:
            smaller = io.BytesIO()
            picture.save(smaller, format="WEBP", quality=quality)
            if smaller.tell() * 4 / 3 <= most or max(picture.size) < 64:
                return "webp", smaller.getvalue()
        picture = picture.reduce(2)
