"""Images for people to look at."""

import functools
import io
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from gmmc.base.text import cut, printable
from gmmc.pixels import to_uint8

TILE = 48  # small images are enlarged to about this many pixels
CAPTIONED_TILE = 64  # room for most class names below the image
GAP = 4
FONT = 16
CAPTION_FONT = 12
CAPTION_WIDTH = 128  # pixels, unless the image is wider
CAPTION_LETTERS = 100  # more are never measured: names may be long
GRID_COLUMNS = 10
BACKGROUND = "slategray"  # neither the black nor the white of a digit
NO_CHARACTER = "\uffff"  # every font draws it as its box for a missing glyph


def to_image(image: Tensor) -> Image.Image:
    """One image in [0, 1], (channels, height, width)."""
    array = to_uint8(image).permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def grid(
    images: Tensor,
    columns: int,
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    captions: Sequence[str] = (),
) -> Image.Image:
    """Images in [0, 1] in rows, each pixel enlarged by a whole number so that 8×8 can be seen.

    Captions are one per image, drawn below it and cut to `CAPTION_WIDTH` pixels.
    """
    row_names, column_names = list(map(printable, row_names)), list(map(printable, column_names))
    rows = -(-len(images) // columns)
    zoom = max(1, (CAPTIONED_TILE if captions else TILE) // images.shape[-1])
    height, width = images.shape[-2] * zoom, images.shape[-1] * zoom
    captions = [_fitted(printable(caption), max(width, CAPTION_WIDTH)) for caption in captions]
    across = max([width, *(_width(caption, CAPTION_FONT) for caption in captions)])
    down = height + (CAPTION_FONT + GAP if captions else 0)
    font = _font(FONT)
    left = max((_width(name, FONT) + 12 for name in row_names), default=0)
    top = FONT + 8 if column_names else 0
    size = (left + columns * (across + GAP) + GAP, top + rows * (down + GAP) + GAP)
    canvas = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for row, name in enumerate(row_names):
        middle = top + row * (down + GAP) + GAP + height / 2
        draw.text((left - 8, middle), name, fill="white", font=font, anchor="rm")
    for column, name in enumerate(column_names):
        middle = left + column * (across + GAP) + GAP + across / 2
        draw.text((middle, top), name, fill="white", font=font, anchor="mb")
    for i, image in enumerate(images):
        tile = to_image(image).resize((width, height), Image.Resampling.NEAREST)
        x, y = left + GAP + i % columns * (across + GAP), top + GAP + i // columns * (down + GAP)
        canvas.paste(tile, (x + (across - width) // 2, y))
        if captions:
            place = (x + across / 2, y + height + GAP / 2)
            draw.text(place, captions[i], fill="white", font=_font(CAPTION_FONT), anchor="ma")
    return canvas


def class_captions(class_names: Sequence[str]) -> list[str]:
    """Names as the font can draw them; "class 3" for one in a script that it lacks, Chinese for example."""
    # macOS decomposes file names, and most letters with a separate accent have no glyph of their own.
    names = [printable(unicodedata.normalize("NFC", name)) for name in class_names]
    return [name if _is_drawable(name) else f"class {i}" for i, name in enumerate(names)]


def _is_drawable(name: str) -> bool:
    """Whether the font has all of its letters."""
    missing = _drawn(NO_CHARACTER)
    return all(_drawn(letter) != missing for letter in set(name[:CAPTION_LETTERS]))


def _drawn(letter: str) -> bytes:
    canvas = Image.new("L", (2 * CAPTION_FONT, 2 * CAPTION_FONT))
    ImageDraw.Draw(canvas).text((0, 0), letter, fill="white", font=_font(CAPTION_FONT))
    return canvas.tobytes()


def _fitted(caption: str, width: int) -> str:
    """The caption, or as much of it as fits into so many pixels."""
    shown = cut(caption, CAPTION_LETTERS)
    for letters in range(len(shown), 1, -1):
        if _width(shown, CAPTION_FONT) <= width:
            break
        shown = cut(caption, letters - 1)
    return shown


def _width(text: str, size: int) -> int:
    return int(_font(size).getlength(text))


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with Matplotlib: Pillow's own font has ASCII letters only."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)


def png(image: Image.Image, texts: dict[str, str] | None = None) -> bytes:
    """Encode an image, with these texts by their keywords."""
    content, info = io.BytesIO(), PngInfo()
    for keyword, text in (texts or {}).items():
        info.add_text(keyword, text)
    image.save(content, format="PNG", pnginfo=info)
    return content.getvalue()
