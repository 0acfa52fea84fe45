"""Every kind of image file comes out right, is converted and counted, or is refused by name."""

import io
import random
import struct
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from gmmc.base.open_image import pillow_rules
from gmmc.data.decode import NEARLY_NO_ALPHA, NEARLY_OPAQUE, NO_ALPHA, UPRIGHT, conversion_note, decode
from gmmc.data.files import read_image
from gmmc.errors import InputError

GREY = np.arange(0, 240, 4, dtype=np.uint8).reshape(6, 10)
COLOUR = np.stack([GREY, GREY[::-1], 255 - GREY], axis=-1)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(source: bytes) -> tuple[np.ndarray, list[str]]:
    with pillow_rules():
        image, conversions = decode(source, "it")
    return np.asarray(image), [was for was, _ in conversions]


def with_alpha(pixels: np.ndarray, alpha: int | np.ndarray) -> Image.Image:
    image = Image.fromarray(pixels)
    image.putalpha(Image.fromarray(np.full(GREY.shape, alpha, np.uint8)))
    return image


def palette(pixels: np.ndarray) -> Image.Image:
    """An image with a palette entry for each pixel: nothing is lost."""
    image = Image.fromarray(np.arange(60, dtype=np.uint8).reshape(6, 10))
    image.putpalette(pixels.reshape(-1).tolist())
    return image


SIXTEEN = GREY.astype(np.uint16) * 256 + 77  # Pillow's own conversion would make almost all of it white

CONVERTED = {
    "grey": (encoded(Image.fromarray(GREY)), GREY, []),
    "RGB": (encoded(Image.fromarray(COLOUR)), COLOUR, []),
    "palette": (encoded(palette(COLOUR)), COLOUR, ["palette"]),
    "palette, GIF": (encoded(palette(COLOUR), "GIF"), COLOUR, ["palette"]),
    "palette, opaque": (
        encoded(palette(COLOUR), transparency=bytes([255] * 60)),
        COLOUR,
        ["palette", "opaque"],
    ),
    "1-bit": (encoded(Image.fromarray(GREY > 99)), (GREY > 99) * np.uint8(255), ["1-bit"]),
    "16-bit": (encoded(Image.fromarray(SIXTEEN)), GREY, ["16-bit grey"]),
    "16-bit, TIFF": (encoded(Image.fromarray(SIXTEEN), "TIFF"), GREY, ["16-bit grey"]),
    "16-bit, PGM": (b"P5 10 6 65535\n" + SIXTEEN.astype(">u2").tobytes(), GREY, ["16-bit grey"]),
    "opaque LA": (encoded(with_alpha(GREY, 255)), GREY, ["opaque"]),
    "opaque RGBA": (encoded(with_alpha(COLOUR, 255)), COLOUR, ["opaque"]),
    "unused transparent grey": (encoded(Image.fromarray(GREY), transparency=1), GREY, ["opaque"]),
    "unused transparent colour": (
        encoded(Image.fromarray(COLOUR), transparency=(1, 2, 3)),
        COLOUR,
        ["opaque"],
    ),
    "unused transparent 1-bit": (
        encoded(Image.fromarray(GREY > 255), transparency=1),
        GREY * 0,
        ["1-bit", "opaque"],
    ),
    "unused transparent 16-bit": (
        encoded(Image.fromarray(SIXTEEN), transparency=1),
        GREY,
        ["16-bit grey"],
    ),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_needs_no_choice_is_converted_exactly_and_counted(name):
    source, pixels, conversions = CONVERTED[name]
    got, done = decoded(source)
    np.testing.assert_array_equal(got, pixels)
    assert done == conversions


def test_inks_become_colours():
    inks = np.stack([255 - COLOUR[..., 0], 255 - COLOUR[..., 1], 255 - COLOUR[..., 2], 0 * GREY], axis=-1)
    got, done = decoded(encoded(Image.frombytes("CMYK", (10, 6), inks.tobytes()), "TIFF"))
    np.testing.assert_array_equal(got, COLOUR)  # without black ink, a colour is what its inks leave over
    assert done == ["CMYK"]


def test_ycbcr_becomes_rgb(monkeypatch):
    flat = Image.fromarray(np.full((6, 10, 3), (200, 60, 30), np.uint8)).convert("YCbCr")
    monkeypatch.setattr(
        Image, "open", lambda *_, **__: flat
    )  # not every Pillow reads the files that it writes
    got, done = decoded(b"")
    assert got.shape == (6, 10, 3)
    assert np.abs(got.astype(int) - (200, 60, 30)).max() <= 2  # it has no more bits than that
    assert done == ["YCbCr"]


HALF = np.where(GREY > 99, 255, NEARLY_OPAQUE - 1).astype(np.uint8)  # just transparent
NEARLY = np.where(GREY > 99, 255, NEARLY_OPAQUE).astype(np.uint8)


@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_nearly_opaque_image_is_taken_without_its_alpha_channel(pixels):
    got, done = decoded(encoded(with_alpha(pixels, NEARLY)))
    assert np.array_equal(got, pixels)
    assert done == ["nearly opaque"]


def test_nearly_opaque_images_are_counted_apart():
    note = conversion_note(Counter({NO_ALPHA: 2, NEARLY_NO_ALPHA: 1, UPRIGHT: 3}))
    assert "1 nearly opaque, 2 opaque images" in note
    assert "3 rotated" in note
    assert conversion_note(Counter()) == ""


@pytest.mark.parametrize(
    "source",
    [
        encoded(with_alpha(COLOUR, HALF)),
        encoded(with_alpha(GREY, HALF)),
        encoded(with_alpha(COLOUR, HALF), "WEBP", lossless=True),
        encoded(palette(COLOUR), transparency=7),
        encoded(palette(COLOUR), transparency=bytes([255] * 9 + [128])),
        encoded(palette(COLOUR), "GIF", transparency=7),
        encoded(Image.fromarray(GREY), transparency=int(GREY[2, 3])),
        encoded(Image.fromarray(COLOUR), transparency=tuple(COLOUR[2, 3].tolist())),
        encoded(Image.fromarray(SIXTEEN), transparency=int(SIXTEEN[2, 3])),
    ],
)
def test_real_transparency_is_refused(source):
    with pytest.raises(InputError, match=r"^it must be opaque, got transparent pixels; flatten it onto"):
        decoded(source)


def twelve_bits() -> bytes:
    """A TIFF file of 2×1 pixels of 12 bits, which Pillow gives as 16 bits without scaling them."""
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return (
        struct.pack("<2sHI", b"II", 42, 12) + b"\xab\xcd\xef\0" + struct.pack("<H", 9) + entries + b"\0" * 4
    )


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        (encoded(Image.new("F", (10, 6)), "TIFF"), "F"),
        (encoded(Image.new("LAB", (10, 6)), "TIFF"), "LAB"),
        (encoded(Image.new("I", (10, 6)), "TIFF"), "I"),
        (twelve_bits(), "grey of 12 bits"),
    ],
)
def test_what_would_need_a_choice_is_refused(source, mode):
    with pytest.raises(InputError, match=rf"^it must be grey or RGB, got the mode {mode}; save it as 8-bit"):
        decoded(source)


# What a viewer shows for each EXIF orientation, by its definition: where row 0 and column 0 are.
ORIENTED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a[:, ::-1].swapaxes(0, 1),
}


@pytest.mark.parametrize(("kind", "options"), [("PNG", {}), ("WEBP", {"lossless": True}), ("TIFF", {})])
@pytest.mark.parametrize("orientation", ORIENTED)
def test_pictures_are_turned_upright(kind, options, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    got, done = decoded(encoded(Image.fromarray(COLOUR), kind, exif=exif, **options))
    np.testing.assert_array_equal(got, ORIENTED[orientation](COLOUR))
    assert done == (["rotated"] if orientation > 1 else [])


def test_a_turned_picture_can_need_a_conversion_too():
    exif = Image.Exif()
    exif[0x0112] = 6
    got, done = decoded(encoded(Image.fromarray(SIXTEEN), exif=exif))
    np.testing.assert_array_equal(got, ORIENTED[6](GREY))
    assert done == ["rotated", "16-bit grey"]


def test_exif_data_that_make_no_sense_are_no_reason_to_refuse_the_pixels():
    broken = encoded(Image.fromarray(COLOUR), exif=b"Exif\0\0not what a TIFF header looks like")
    np.testing.assert_array_equal(decoded(broken)[0], COLOUR)


@pytest.mark.parametrize(("kind", "options"), [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_of_an_animation_the_first_frame_is_taken(kind, options):
    frames = [Image.fromarray(np.full((6, 10), level, np.uint8)) for level in (50, 150, 250)]
    source = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **options)
    got, done = decoded(source)
    assert (got == 50).all()
    assert "animated" in done


def refusal(source: bytes) -> str:
    try:
        pixels, _ = decoded(source)
    except InputError as error:
        return str(error)
    return "" if pixels.dtype == np.uint8 else f"got {pixels.dtype}\n"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_damaged_bytes_end_in_one_line_or_in_an_image(kind):
    whole = encoded(Image.fromarray(COLOUR), kind)
    choose = random.Random(kind)
    for _ in range(60):
        damaged = bytearray(whole[: choose.randrange(len(whole))] if choose.random() < 0.3 else whole)
        for _ in range(choose.randrange(4) if damaged else 0):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        line = refusal(bytes(damaged))
        assert "\n" not in line
        assert "object at 0x" not in line


class TestReadImage:
    def test_grey_and_colour_files(self, tmp_path):
        array = torch.arange(64, dtype=torch.uint8).reshape(8, 8)
        Image.fromarray(array.numpy()).save(tmp_path / "grey.png")
        assert torch.equal(read_image(tmp_path / "grey.png", (1, 8, 8))[0], array)
        assert torch.equal(read_image(tmp_path / "grey.png", (3, 8, 8))[2], array)
        Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
        assert read_image(tmp_path / "red.png", (3, 8, 8))[:, 0, 0].tolist() == [255, 0, 0]

    @pytest.mark.parametrize("name", CONVERTED)
    def test_converts_as_data_sets_do(self, tmp_path, name):
        source, pixels, _ = CONVERTED[name]
        (tmp_path / "image").write_bytes(source)
        got = read_image(tmp_path / "image", (3, 6, 10))
        colour = pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=-1)
        assert torch.equal(got, torch.from_numpy(colour).permute(2, 0, 1))

    def test_width_and_height_are_not_mixed_up(self, tmp_path):
        Image.new("L", (9, 8)).save(tmp_path / "wide.png")
        assert read_image(tmp_path / "wide.png", (1, 8, 9)).shape == (1, 8, 9)

    def test_resizing_is_asked_for(self, tmp_path):
        Image.new("L", (28, 20)).save(tmp_path / "big.png")
        with pytest.raises(InputError, match="must be 8×8 pixels like the training images, got 28×20"):
            read_image(tmp_path / "big.png", (1, 8, 8))
        assert read_image(tmp_path / "big.png", (1, 8, 8), resize=True).shape == (1, 8, 8)

    def test_resizing_crops_around_the_centre(self, tmp_path):
        ramp = np.tile(np.arange(48, dtype=np.uint8) * 5, (16, 1))  # column i has the level 5i
        Image.fromarray(ramp).save(tmp_path / "wide.png")
        row = read_image(tmp_path / "wide.png", (1, 8, 8), resize=True)[0, 3].float()
        expected = (16.5 + 2 * torch.arange(8)) * 5  # columns 16 to 31, two by two
        assert (row - expected).abs().max() <= 1

    def test_resizing_does_not_alias(self, tmp_path):
        stripes = np.zeros((64, 64), np.uint8)
        stripes[:, ::2] = 255  # every second column: no small image can show them
        Image.fromarray(stripes).save(tmp_path / "stripes.png")
        small = read_image(tmp_path / "stripes.png", (1, 8, 8), resize=True).float()
        assert (small - 127.5).abs().max() < 20

    def test_a_picture_too_large_to_be_meant_is_refused(self, tmp_path, monkeypatch):
        Image.new("L", (60, 60)).save(tmp_path / "huge.png")
        for most in (2000, 1000):  # Pillow warns of the first and refuses the second by itself
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
            with pytest.raises(InputError, match=r"cannot read .*huge.png as an image: .*3600 pixels"):
                read_image(tmp_path / "huge.png", (1, 8, 8), resize=True)

    def test_what_cannot_be_read_is_named(self, tmp_path):
        (tmp_path / "text.png").write_text("not an image")
        with pytest.raises(
            InputError, match=r"cannot read .*text.png as an image: its format is none of PNG, "
        ):
            read_image(tmp_path / "text.png", (1, 8, 8))
        with pytest.raises(InputError, match=r"no image file .*none.png"):
            read_image(tmp_path / "none.png", (1, 8, 8))
        with pytest.raises(InputError, match="cannot read"):
            read_image(tmp_path, (1, 8, 8))
        Image.new("L", (8, 8)).save(tmp_path / "cut.png")
        whole = (tmp_path / "cut.png").read_bytes()
        (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match=r"cannot read .*cut.png"):
            read_image(tmp_path / "cut.png", (1, 8, 8))
