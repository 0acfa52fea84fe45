import numpy as np
import pytest
import torch
from PIL import Image

from gmmc.errors import InputError
from gmmc.pixels import as_batch, as_uint8, to_signed, to_uint8, to_unit


def test_every_byte_survives_the_round_trip():
    bytes_ = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_uint8(to_unit(to_signed(bytes_))), bytes_)
    assert to_signed(bytes_).min() == -1
    assert to_signed(bytes_).max() == 1


def test_uint8_and_unit_images_mean_the_same():
    bytes_ = torch.arange(256, dtype=torch.uint8)
    assert torch.allclose(to_signed(bytes_), to_signed(bytes_.float() / 255), atol=1e-6)
    assert torch.equal(as_uint8(bytes_.double() / 255), as_uint8(bytes_))


def test_brighter_is_never_darker_also_beyond_the_range():
    """Bytes are cut at both ends, not wrapped around."""
    levels = to_uint8(torch.linspace(-1.5, 2.5, 401)).int()
    assert (levels.diff() >= 0).all()
    assert (levels[0], levels[-1]) == (0, 255)


def test_float64_stays_float64():
    images = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    assert to_signed(as_batch(images, (1, 8, 8))).dtype == torch.float64
    assert (to_unit(to_signed(images)) - images).abs().max() < 1e-15


@pytest.mark.parametrize("layout", [(4, 1, 8, 9), (4, 8, 9), (4, 8, 9, 1)])
def test_grey_layouts(layout):
    values = np.arange(4 * 72, dtype=np.uint8).reshape(4, 1, 8, 9)
    assert torch.equal(as_batch(values.reshape(layout), (1, 8, 9)), torch.from_numpy(values))


def test_channels_last_and_first_agree():
    first = torch.rand(2, 3, 8, 8)
    assert torch.equal(as_batch(first.permute(0, 2, 3, 1).numpy(), (3, 8, 8)), first)


def test_read_only_arrays_are_no_matter():
    values = np.zeros((2, 8, 8), np.uint8)
    values.flags.writeable = False
    assert as_batch(values, (1, 8, 8)).shape == (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 9, 9), np.uint8), r"\(N, 1, 8, 8\), got \(2, 9, 9\)"),
        (np.zeros((8, 8), np.uint8), r"got \(8, 8\)"),
        (np.full((2, 8, 8), 16.0), r"\[0, 1\], got values from 16 to 16"),
        (np.full((2, 8, 8), np.nan), "got values from nan"),
        (np.full((2, 8, 8), -1.0), "got values from -1"),
        (np.zeros((2, 8, 8), np.int64), "got torch.int64"),
        (np.zeros((2, 8, 8), ">f4"), "images must be an array of uint8 or floating point"),
        (np.zeros((2, 8, 8), object), "images must be an array of uint8 or floating point"),
        ("photo.png", "images must be an array of uint8 or floating point.*read_images"),
        (Image.new("L", (8, 8)), r"shape \(N, 1, 8, 8\), got \(8, 8\); gmmc.read_images"),
    ],
)
def test_what_is_no_image_is_refused(images, message):
    with pytest.raises(InputError, match=message):
        as_batch(images, (1, 8, 8))
