"""One encoded image → 8-bit grey or RGB.

What can be converted without a choice is converted and reported; anything else is refused by name.
"""

import contextlib
import math
import os
import struct
import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, ImageOps
from PIL.TiffImagePlugin import TiffImageFile

from gmmc.base.limits import IMAGE_SIDE, MEMORY_SHARE, PIXELS_AT_ONCE
from gmmc.base.open_image import Source, decoded_pixels, opened
from gmmc.errors import InputError
from gmmc.pixels import Shape

Conversion = tuple[str, str]  # what an image was, and what was done to it

UPRIGHT: Conversion = ("rotated", "turned upright (EXIF)")
FIRST_FRAME: Conversion = ("animated", "cut to the first frame")
NO_ALPHA: Conversion = ("opaque", "taken without the alpha channel")
NEARLY_NO_ALPHA: Conversion = ("nearly opaque", "taken without the alpha channel")
HIGH_BITS: Conversion = ("16-bit grey", "cut to the 8 high bits")
TO_GREY, TO_RGB = "converted to grey", "converted to RGB"

PLAIN = {"L": "L", "1": "L", "LA": "L"} | dict.fromkeys(("RGB", "RGBA", "P", "PA", "CMYK", "YCbCr"), "RGB")
CONVERSIONS: dict[str, Conversion] = {
    "1": ("1-bit", TO_GREY),
    "P": ("palette", TO_RGB),
    "PA": ("palette", TO_RGB),
    "CMYK": ("CMYK", TO_RGB),
    "YCbCr": ("YCbCr", TO_RGB),
}
SIXTEEN_BITS = "I;16"
OPAQUE = 255
NEARLY_OPAQUE = 250  # least alpha that is taken for opaque: editors leave such edges, and nobody sees them
TIFF_BITS = 258  # the tag BitsPerSample


def check_memory(count: int, shape: Shape) -> None:
    """Refuse images that would take too much of this machine's memory, before they are decoded."""
    most = int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    needed = count * math.prod(shape)
    if needed > most:
        bound = f"{MEMORY_SHARE:.0%} of this machine's memory (limits.MEMORY_SHARE)"
        got = f"{count:,} of {shape[2]}×{shape[1]}, which take {needed / 2**30:,.1f} GiB"
        raise InputError(f"the images must fit into {bound}, got {got}; data.size=… shrinks them")


class Room:
    """Pixels that threads share: each waits until there is room for its picture."""

    def __init__(self, pixels: int):
        self._pixels = pixels
        self._free = pixels
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        pixels = min(pixels, self._pixels)  # a picture larger than the room is decoded alone
        with self._changed:
            self._changed.wait_for(lambda: pixels <= self._free)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()


ROOM = Room(PIXELS_AT_ONCE)


def decode(
    source: Source, where: str, *, mode: str = "", height: int = 0, width: int = 0
) -> tuple[Image.Image, tuple[Conversion, ...]]:
    """(an upright image, what was done to get it). Errors name it by `where`.

    Without a mode, L or RGB as the file has it. Without a height and width, the size of the file, which a
    model has to take: such an image must be smaller.
    """
    with opened(source, where) as image, ROOM.taken(decoded_pixels(image)):
        if not height and max(image.size) > IMAGE_SIDE:
            bound = f"{IMAGE_SIDE:,} pixels wide and high (limits.IMAGE_SIDE)"
            remedy = "data.size=… or --resize shrinks it"
            raise InputError(f"{where} must be at most {bound}, got {image.width}×{image.height}; {remedy}")
        picture, conversions = _plain(image, where)
        if mode:
            picture = picture.convert(mode)
        if height:
            picture = fit(picture, height, width)
    return picture, conversions


def fit(image: Image.Image, height: int, width: int) -> Image.Image:
    """The largest part around the centre with these proportions, resized without aliasing."""
    return image if image.size == (width, height) else ImageOps.fit(image, (width, height))


def _plain(image: Image.Image, where: str) -> tuple[Image.Image, tuple[Conversion, ...]]:
    """(the image upright in the mode L or RGB, what was done to get it)."""
    mode = _true_mode(image)
    animated = bool(getattr(image, "is_animated", False))
    turned = _is_turned(image)
    upright = ImageOps.exif_transpose(image) if turned else image
    if mode == SIXTEEN_BITS:
        picture, conversions = _high_bits(upright, where)
    else:
        picture, conversions = _eight_bits(upright, mode, where)
    return picture, (FIRST_FRAME,) * animated + (UPRIGHT,) * turned + conversions


def _true_mode(image: Image.Image) -> str:
    """Pillow's mode, but one name for 16 bits, and none for fewer bits that are stored in 16."""
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # 16 bits at most
        return SIXTEEN_BITS
    if not image.mode.startswith("I;16"):
        return image.mode
    bits = image.tag_v2.get(TIFF_BITS, (1,)) if isinstance(image, TiffImageFile) else (16,)
    return SIXTEEN_BITS if bits == (16,) else f"grey of {bits[0]} bits"


def _is_turned(image: Image.Image) -> bool:
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except (SyntaxError, ValueError, TypeError, KeyError, struct.error):
        return False  # unreadable EXIF data say nothing; the pixels are judged on their own


def _high_bits(image: Image.Image, where: str) -> tuple[Image.Image, tuple[Conversion, ...]]:
    """16 bits → the 8 high ones. Pillow's own conversion would clip at 255 instead."""
    values = np.asarray(image)
    if "transparency" in image.info and (values == image.info["transparency"]).any():
        raise _transparent(where)
    return Image.fromarray((values >> 8).astype(np.uint8)), (HIGH_BITS,)


def _eight_bits(image: Image.Image, mode: str, where: str) -> tuple[Image.Image, tuple[Conversion, ...]]:
    if mode not in PLAIN:
        raise InputError(f"{where} must be grey or RGB, got the mode {mode}; save it as 8-bit grey or RGB")
    conversions = (CONVERSIONS[mode],) if mode in CONVERSIONS else ()
    image.load()
    if image.has_transparency_data:
        # By way of the full alpha channel: a palette or a single colour may be what is transparent.
        image = image.convert("LA" if PLAIN[mode] == "L" else "RGBA")
        least = np.asarray(image.getchannel("A")).min()
        if least < NEARLY_OPAQUE:
            raise _transparent(where)
        conversions += (NO_ALPHA if least == OPAQUE else NEARLY_NO_ALPHA,)
    return image if image.mode == PLAIN[mode] else image.convert(PLAIN[mode]), conversions


def _transparent(where: str) -> InputError:
    return InputError(f"{where} must be opaque, got transparent pixels; flatten it onto a background first")


def conversion_note(tally: Counter[Conversion]) -> str:
    """Return one line about how many images were converted and how; empty if none were."""
    by_result: dict[str, list[tuple[int, str]]] = {}
    for (was, done), count in sorted(tally.items()):
        by_result.setdefault(done, []).append((count, was))
    phrases = []
    for done, counts in by_result.items():
        noun = "image" if sum(count for count, _ in counts) == 1 else "images"
        phrases.append(f"{', '.join(f'{count} {was}' for count, was in counts)} {noun} {done}")
    return "; ".join(phrases)
