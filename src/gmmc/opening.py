"""Open pictures of others: of a known format, of bounded size, and no more than their headers."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from gmmc.errors import InputError
from gmmc.inputs import read_bytes
from gmmc.limits import ENCODED_BYTES, PICTURE_PIXELS
from gmmc.text import printable

# Those of data.folder.SUFFIXES. Pillow has more, and starts Ghostscript for one of them.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "PPM", "TIFF", "WEBP", "JPEG2000")


@contextlib.contextmanager
def pillow_rules() -> Iterator[None]:
    """Around all decoding: a picture too large to be meant is an error, and Pillow's other doubts are quiet.

    The filters belong to the whole process, so this is entered once and not in each thread.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextlib.contextmanager
def opened(source: Path | bytes, where: str) -> Iterator[Image.Image]:
    """A picture of bounded size, of which only the header is decoded. Errors in the block name `where`."""
    try:
        content = source if isinstance(source, bytes) else read_bytes(source, ENCODED_BYTES, "ENCODED_BYTES")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > PICTURE_PIXELS:
                bound = f"{PICTURE_PIXELS:,} pixels (limits.PICTURE_PIXELS)"
                raise InputError(f"{where} must have at most {bound}, got {image.width}×{image.height}")
            yield image
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"no image file {where!r}") from None
    except UnidentifiedImageError:
        raise InputError(f"cannot read {where} as an image: it has no known format") from None
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        reason = str(error).split(",")[0]  # the rest guesses at a motive
        raise InputError(f"cannot read {where} as an image: {reason} (limits.PICTURE_PIXELS)") from None
    except Exception as error:  # from damaged bytes the decoders raise almost anything
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"cannot read {where} as an image: {printable(reason)}") from None
