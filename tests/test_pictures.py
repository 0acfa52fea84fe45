"""Grids of images: tiles keep their pixels, and captions name classes in any script and of any length."""

import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image, ImageChops, ImageColor

from gmmc import pictures
from gmmc.pictures import CAPTION_WIDTH, CAPTIONED_TILE, GAP, class_captions, grid

BACKGROUND = ImageColor.getrgb(pictures.BACKGROUND)


def images(count: int, size: int = 8, channels: int = 3) -> torch.Tensor:
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def contains(canvas: Image.Image, tile: Image.Image, x: int, y: int) -> bool:
    box = (x, y, x + tile.width, y + tile.height)
    return ImageChops.difference(canvas.crop(box), tile.convert("RGB")).getbbox() is None


@pytest.mark.parametrize("size", [8, 32, 100])
@pytest.mark.parametrize("name", ["7", "automobile", "Golden retriever, long-haired, from the front" * 5])
def test_captions_leave_room_for_every_image(size, name):
    shown, columns = images(5, size), 3
    canvas = grid(shown, columns, captions=[name] * 5)
    zoom = max(1, CAPTIONED_TILE // size)
    across, down = (canvas.width - GAP) // columns, (canvas.height - GAP) // 2
    assert across <= max(size * zoom, CAPTION_WIDTH) + GAP
    for i, image in enumerate(shown):
        tile = pictures.to_image(image).resize((size * zoom, size * zoom), Image.Resampling.NEAREST)
        x = GAP + i % columns * across + (across - GAP - tile.width) // 2
        assert contains(canvas, tile, x, GAP + i // columns * down)


def test_a_caption_is_below_its_own_image():
    shown = images(4)
    plain, named = (grid(shown, 2, captions=["8", "8", text, "8"]) for text in ("8", "3"))
    left, top, right, bottom = ImageChops.difference(plain, named).getbbox()
    assert right < plain.width / 2  # the third image: first column, second row
    assert top > plain.height / 2 + CAPTIONED_TILE
    assert bottom <= plain.height
    assert left > GAP


def test_a_long_name_stays_between_its_neighbours():
    canvas = grid(torch.zeros(2, 1, 8, 8), 2, captions=["", "W" * 1000])
    pixels = np.array(canvas.crop((0, 0, GAP + (canvas.width - GAP) // 2, canvas.height)))
    others = np.unique(pixels.reshape(-1, 3), axis=0).tolist()
    assert sorted(others) == sorted([[0, 0, 0], list(BACKGROUND)])  # the black image, and nothing of the name


def test_names_in_most_scripts_are_shown_and_others_by_their_place():
    names = ["cat", "größe", "Кошка", "γάτα", "猫", "été"]
    assert class_captions(names) == ["cat", "größe", "Кошка", "γάτα", "class 4", "été"]
    decomposed = [unicodedata.normalize("NFD", name) for name in names]
    assert class_captions(decomposed) == class_captions(names)


def test_names_cannot_break_the_picture():
    shown = class_captions(["a\nb", "\x1b[31mred"])
    assert shown == ["a\\nb", "\\x1b[31mred"]
    assert grid(images(1), 1, captions=["a\nb"]).size == grid(images(1), 1, captions=["a"]).size


def test_without_captions_images_have_a_frame_only():
    canvas = grid(images(3), 2)
    side = 8 * (pictures.TILE // 8)
    assert canvas.size == (2 * (side + GAP) + GAP, 2 * (side + GAP) + GAP)
