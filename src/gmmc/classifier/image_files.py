"""From image files to the images that a model takes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gmmc.base.inputs import expanded
from gmmc.base.text import shortened
from gmmc.classifier.model import Classifier
from gmmc.data.decode import Conversion, check_memory, conversion_note
from gmmc.data.files import find_images, read_converted
from gmmc.data.layout import shown
from gmmc.data.messages import say
from gmmc.errors import InputError
from gmmc.pixels import as_unit, is_vector

Picture = str | PathLike[str] | Image.Image


class Estimator(Protocol):
    """A fitted `GMMCClassifier`."""

    model_: Classifier

    def from_unit(self, images: Tensor) -> np.ndarray: ...


@overload
def read_images(
    paths: Picture | Iterable[Picture], model: Classifier, *, resize: bool | None = None
) -> Tensor: ...


@overload
def read_images(
    paths: Picture | Iterable[Picture], model: Estimator, *, resize: bool | None = None
) -> np.ndarray: ...


def read_images(paths: Picture | Iterable[Picture], model: Any, *, resize: bool | None = None) -> Any:
    """Read image files as a model takes them, in the way of `gmmc predict`.

    Photos are turned upright (EXIF) and converted to grey or RGB. A line on standard error reports how many
    were converted.

    Parameters
    ----------
    paths : path, PIL image, or iterable of these
        Image files, folders (with their sub-folders, in the order of the names) and PIL images.
    model : Classifier or fitted GMMCClassifier
        The model of images that will take the result.
    resize : bool, default=None
        Whether to crop an image of another size around its centre and resize it; False raises InputError.
        None: `model.resizes`, which is true if the training images were resized (`data.size`), if the model
        ships with gmmc, and if it comes from the Hugging Face Hub.

    Returns
    -------
    images : uint8 tensor of shape (n_images, channels, height, width)
        For `answer`, `predict_proba` and the other methods of the model. For a GMMCClassifier, an array of
        rows as `fit` was given them.

    Raises
    ------
    InputError
        If a file is missing, damaged, of an unknown format, transparent or too large (`gmmc.base.limits`).

    Examples
    --------
    >>> import gmmc
    >>> from PIL import Image
    >>> model = gmmc.load("cifar10")
    >>> images = gmmc.read_images([Image.new("RGB", (640, 480), "navy")], model)
    >>> images.shape
    torch.Size([1, 3, 32, 32])
    >>> model.predict_proba(images).shape
    torch.Size([1, 10])
    """
    classifier = getattr(model, "model_", model)
    if not isinstance(classifier, Classifier):
        kind = type(model).__name__
        raise InputError(f"model must be a gmmc.Classifier or a fitted GMMCClassifier, got {kind}")
    check_images(classifier)
    images, _ = read_pictures(paths, classifier, resize=resize)
    return images if classifier is model else model.from_unit(as_unit(images))


def read_pictures(
    paths: Picture | Iterable[Picture],
    model: Classifier,
    *,
    resize: bool | None,
    unread: list[str] | None = None,
) -> tuple[Tensor, list[Path | Image.Image]]:
    """(uint8 images of the shape of the model, the file or picture of each).

    `unread` takes a line about each that cannot be read; None: the first one is an error.
    """
    pictures, notes = with_folders(paths, unread)
    check_memory(len(pictures), model.shape)
    images = torch.empty(len(pictures), *model.shape, dtype=torch.uint8)
    tally: Counter[Conversion] = Counter()
    read: list[Path | Image.Image] = []
    for i, picture in enumerate(pictures):
        with errors_to(unread):
            image, conversions = read_picture(picture, model, resize=resize, where=f"paths[{i}]")
            images[len(read)] = image
            read.append(picture)
            tally.update(conversions)
    print_notes(notes, tally)
    return images[: len(read)], read


def with_folders(
    paths: Picture | Iterable[Picture], unread: list[str] | None = None
) -> tuple[list[Path | Image.Image], tuple[str, ...]]:
    """(files and pictures, folders replaced by the image files in them; notes on files left out)."""
    if isinstance(paths, str | PathLike | Image.Image) or not isinstance(paths, Iterable):
        paths = [paths]
    pictures: list[Path | Image.Image] = []
    notes: tuple[str, ...] = ()
    for place in paths:
        if isinstance(place, Image.Image):
            pictures.append(place)
            continue
        if not isinstance(place, str | PathLike) or place == "":
            got = shortened(place) if isinstance(place, str) else type(place).__name__
            raise InputError(f"paths must be image files, folders or PIL images, got {got}")
        path = expanded(place)
        if _is_folder(path):
            with errors_to(unread):
                found, others = find_images(path)
                pictures += found
                notes += tuple(f"{shown(path)}: {note}" for note in others)
        else:
            pictures.append(path)
    return pictures, notes


@contextmanager
def errors_to(lines: list[str] | None) -> Iterator[None]:
    """Add the line of an error to `lines` and go on; None: raise it."""
    try:
        yield
    except InputError as error:
        if lines is None:
            raise
        lines.append(str(error))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # opening it as a file names the reason
        return False


def read_picture(
    picture: Path | Image.Image, model: Classifier, *, resize: bool | None, where: str = ""
) -> tuple[Tensor, tuple[Conversion, ...]]:
    """(uint8 image of the shape of the model, conversions); a picture in memory is named by `where`."""
    if not isinstance(picture, Image.Image):
        where = shown(picture)
    elif 0 in picture.size:
        raise InputError(f"{where} must have at least one pixel, got {picture.width}×{picture.height}")
    return read_converted(picture, where, model.shape, resize=model.resizes if resize is None else resize)


def print_notes(notes: Sequence[str], tally: Counter[Conversion]) -> None:
    """Print notes and the number of conversions on standard error, as data sets do."""
    for note in notes:
        say(note)
    if tally:
        say(f"images: {conversion_note(tally)}")


def check_images(model: Classifier) -> None:
    """Refuse a model of a table, which has no image files."""
    if is_vector(model.shape):
        raise InputError(
            f"this is a model of rows of {model.shape[0]} numbers, not of images; use its estimator in Python"
        )
