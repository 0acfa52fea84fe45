"""Images to try a model on, chosen by a rule that never asks the model.

- The first test image, in stored order. For a model that ships with gmmc, whose data may be absent: images
  that it drew itself, of the first classes and seeds.
- The first of these turned to the left by 90°, or by 180° where it is not square.
- Uniform noise, of seed 0.
"""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from gmmc import __version__, pictures
from gmmc.base.atomic import write_atomic
from gmmc.base.outputs import PNG_MARK, check_replaceable, check_within, check_writable, has_mark
from gmmc.base.seeds import generator
from gmmc.classifier.image_files import check_images
from gmmc.data.files import read_image
from gmmc.data.ood_sets import GENERATED
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.pixels import as_uint8, as_unit
from gmmc.runs import shipped
from gmmc.runs.finished import load_model
from gmmc.runs.training_data import load_data


class Example(NamedTuple):
    name: str
    image: Tensor  # uint8 (channels, height, width)
    words: str  # where it comes from


def held_out(data: Dataset) -> Example:
    """The first test image."""
    if not len(data.test):
        raise InputError("examples need at least one test image, got none")
    name = data.class_names[data.test.labels[0]]
    return Example("held-out", as_uint8(data.test.images[0]), f"the first test image, of class {name}")


def drawn(images: dict[str, Tensor]) -> list[Example]:
    """Images of the model, by the names of their files."""
    return [Example(name, image, "drawn by the model itself") for name, image in images.items()]


def with_others(own: list[Example]) -> list[Example]:
    """The examples, noise of their shape, and the first of them turned."""
    first = own[0]
    _, height, width = first.image.shape
    quarters = 1 if height == width else 2
    noise = GENERATED["noise"](first.image[None], generator(0, "examples"))[0]
    turned = first.image.rot90(quarters, (1, 2))
    return [
        *own,
        Example("noise", noise, "uniform noise"),
        Example("turned", turned, f"{first.name}.png turned by {90 * quarters}°"),
    ]


def write(examples: list[Example], folder: Path) -> dict[Path, Example]:
    """Write PNG files; one that gmmc did not write is refused before any is written."""
    placed = {folder / f"{example.name}.png": example for example in examples}
    for path in placed:
        check_replaceable(path, "RUN", lambda path: has_mark(path, PNG_MARK))
    for path, example in placed.items():
        picture = pictures.to_image(as_unit(example.image))
        write_atomic(path, pictures.png(picture, {"gmmc": __version__}))
    return placed


def write_examples(run: str) -> dict[Path, Example]:
    """Write images to try `gmmc predict` on; see the top of this module for the rule that chooses them."""
    model = load_model(run, "cpu")
    check_images(model)
    place = shipped.workplace(run)
    folder = place / "examples"
    check_within(folder, place, "RUN")
    check_writable(folder, "RUN")
    images = {path.stem: read_image(path, model.shape) for path in shipped.drawn_images(run)}
    own = drawn(images) if images else [held_out(load_data(model, run))]
    return write(with_others(own), folder)
