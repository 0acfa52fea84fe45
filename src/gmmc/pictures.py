"""Images for people to look at."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from gmmc.pixels import to_uint8
from gmmc.text import printable

TILE = 48  # small images are enlarged to about this many pixels
GAP = 4
FONT = 16
GRID_COLUMNS = 10
BACKGROUND = "slategray"  # neither the black nor the white of a digit


def to_image(image: Tensor) -> Image.Image:
    """One image in [0, 1], (channels, height, width)."""
    array = to_uint8(image).permute(1, 2, 0).cpu().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def grid(
    images: Tensor, columns: int, row_names: Sequence[str] = (), column_names: Sequence[str] = ()
) -> Image.Image:
    """Images in [0, 1] in rows, each pixel enlarged by a whole number so that 8×8 can be seen."""
    row_names, column_names = list(map(printable, row_names)), list(map(printable, column_names))
    rows = -(-len(images) // columns)
    zoom = max(1, TILE // images.shape[-1])
    height, width = images.shape[-2] * zoom, images.shape[-1] * zoom
    font = ImageFont.load_default(size=FONT)
    left = max((int(font.getlength(name)) + 12 for name in row_names), default=0)
    top = FONT + 8 if column_names else 0
    size = (left + columns * (width + GAP) + GAP, top + rows * (height + GAP) + GAP)
    canvas = Image.new("RGB", size, BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    for row, name in enumerate(row_names):
        middle = top + row * (height + GAP) + GAP + height / 2
        draw.text((left - 8, middle), name, fill="white", font=font, anchor="rm")
    for column, name in enumerate(column_names):
        middle = left + column * (width + GAP) + GAP + width / 2
        draw.text((middle, top), name, fill="white", font=font, anchor="mb")
    for i, image in enumerate(images):
        tile = to_image(image).resize((width, height), Image.Resampling.NEAREST)
        place = (left + GAP + i % columns * (width + GAP), top + GAP + i // columns * (height + GAP))
        canvas.paste(tile, place)
    return canvas


def png(image: Image.Image, texts: dict[str, str] | None = None) -> bytes:
    """Encode an image, with these texts by their keywords."""
    content, info = io.BytesIO(), PngInfo()
    for keyword, text in (texts or {}).items():
        info.add_text(keyword, text)
    image.save(content, format="PNG", pnginfo=info)
    return content.getvalue()
