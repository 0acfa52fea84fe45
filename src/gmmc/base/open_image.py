"""Open pictures of others: of a known format, of bounded size, and no more than their headers."""

import contextlib
import ctypes
import io
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from gmmc.base.inputs import check_size, open_regular
from gmmc.base.limits import PICTURE_BYTES, PICTURE_PIXELS
from gmmc.base.text import printable
from gmmc.errors import InputError

# Formats of data.layout.SUFFIXES. Pillow has more, and starts Ghostscript for one of them.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")
Source = Path | bytes | Image.Image  # a file, its bytes, or a picture that the caller opened
TIFF_TILE = (322, 323)  # the tags TileWidth and TileLength


@contextlib.contextmanager
def pillow_rules() -> Iterator[None]:
    """Around all decoding: a picture too large to be meant is an error, and Pillow's other doubts are quiet.

    The filters belong to the whole process, so this is entered once and not in each thread.
    """
    with warnings.catch_warnings(), _silent_libtiff():
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextlib.contextmanager
def _silent_libtiff() -> Iterator[None]:
    """Let libtiff print no errors of its own: Pillow raises them, and a refusal is one line."""
    try:
        set_handler = ctypes.CDLL(Image.core.__file__).TIFFSetErrorHandler
    except (OSError, AttributeError):  # a Pillow that hides its libtiff, or has none
        yield
        return
    set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
    before = set_handler(None)
    try:
        yield
    finally:
        set_handler(before)


@contextlib.contextmanager
def opened(source: Source, where: str) -> Iterator[Image.Image]:
    """A picture of bounded size, of which only the header is decoded. Errors in the block name `where`."""
    try:
        with _picture(source) as image:
            if decoded_pixels(image) > PICTURE_PIXELS:
                bound = f"{PICTURE_PIXELS:,} pixels (limits.PICTURE_PIXELS)"
                got = f"{decoded_pixels(image):,}, at {image.width}×{image.height}"
                raise InputError(f"{where} must have at most {bound}, got {got}")
            yield image
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no image file {where!r}: it does not exist") from None
    except UnidentifiedImageError:
        raise InputError(
            f"cannot read {where} as an image: its format is none of {', '.join(FORMATS)}"
        ) from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        reason = str(error).split(",")[0]  # the rest guesses at a motive
        raise InputError(f"cannot read {where} as an image: {reason} (limits.PICTURE_PIXELS)") from None
    except Exception as error:  # from damaged bytes the decoders raise almost anything
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {where} as an image: {printable(reason)}") from None


@contextlib.contextmanager
def _picture(source: Source) -> Iterator[Image.Image]:
    if isinstance(source, Image.Image):
        yield source  # the caller's, who also closes it
        return
    with _file(source) as file, Image.open(file, formats=FORMATS) as image:
        yield image


@contextlib.contextmanager
def _file(source: Path | bytes) -> Iterator[BinaryIO]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    with open_regular(source) as file:
        check_size(file, source, PICTURE_BYTES, "PICTURE_BYTES")
        yield file


def decoded_pixels(image: Image.Image) -> int:
    """Return how many pixels a decoder makes of the picture: tiles of a TIFF may be larger than all of it."""
    tile = [image.tag_v2.get(tag, 0) for tag in TIFF_TILE] if isinstance(image, TiffImageFile) else [0]
    return max(image.width * image.height, math.prod(tile))
