"""Image files for `gmmc predict`, and folders of images to train on."""

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fuzz.material import Material, recipe, write_photos
from fuzz.models import verify_predictions
from fuzz.mutating import mutated_bytes, replace_file, toml
from fuzz.recipes import verify

# Formats, and modes that Pillow writes them in.
MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["L", "RGB", "CMYK"],
    "GIF": ["L", "P", "RGB"],
    "BMP": ["1", "L", "P", "RGB", "RGBA"],
    "PPM": ["1", "L", "RGB", "I;16"],
    "TIFF": ["1", "L", "LA", "RGB", "RGBA", "CMYK", "I;16", "F", "I"],
    "WEBP": ["L", "RGB", "RGBA"],
    "JPEG2000": ["L", "RGB", "RGBA"],
    "TGA": ["RGBA"],
}
SIZES = [(8, 8)] * 6 + [(1, 1), (1, 40), (16, 8), (33, 31), (300, 2)]
NAMES = [
    "image.png",
    "image.jpg",
    "image",
    "ima ge.PNG",
    "é😀.png",
    "a\nb.png",
    "-x.png",
    ".hidden.png",
    "x" * 200 + ".gif",
]
NAMES += ["\x1b[2J.png", "\udcff.png", "image.eps", "\x7f.png"]


def command(draw: random.Random, folder: Path, given: Material) -> tuple[list[str], Any]:
    """Classify one to three files, by name or as a folder, or train on a folder with some of them."""
    if draw.random() < 0.3:
        return train_command(draw, folder)
    paths = []
    for name in draw.sample(NAMES, draw.choice([1, 1, 1, 2, 3])):
        paths.append(folder / name)
        write(draw, paths[-1])
    options = [option for option in ("--resize", "--json") if draw.random() < 0.8]
    places = [folder] if draw.random() < 0.2 else paths
    arguments = ["predict", str(given.root / "run"), *options, "--", *map(str, places)]
    return arguments, verify_predictions if "--json" in options else None


def train_command(draw: random.Random, folder: Path) -> tuple[list[str], Any]:
    """Train on three folders of images, of which one file or folder is odd."""
    photos = write_photos(folder / "photos")
    kind = draw.randrange(6)
    place = draw.choice(sorted(photos.rglob("*.png")))
    if kind < 2:
        write(draw, place)
    elif kind == 2:
        write(draw, place.with_name(draw.choice(NAMES)))
    elif kind == 3:
        replace_file(draw, place)
    elif kind == 4:
        name = draw.choice(["train", "test", "é", "a\nb", " ", ".git", "\udcff", "x" * 210, "dog "])
        place.parent.rename(photos / name)
    else:
        replace_file(draw, place.parent)
    if draw.random() < 0.2:
        photos = photos.rename(folder / draw.choice(NAMES))
    tree = recipe("")
    tree["data"]["size"] = draw.choice([0, 0, 8, 5])
    (folder / "recipe.toml").write_text(toml(tree))
    out = folder / draw.choice(["out", "out", "o\x7f", "o\udcff"])
    arguments = ["train", str(folder / "recipe.toml"), f"data.name={photos}", "--out", str(out)]
    return arguments, lambda _: verify(out)


def write(draw: random.Random, path: Path) -> None:
    """Write a picture, mostly a damaged one."""
    content, kind = encoded(draw), draw.randrange(8)
    if kind < 3:
        content = mutated_bytes(draw, content)
    elif kind == 3:
        content = repaired(mutated_bytes(draw, png(draw)))
    elif kind == 4:
        content = claiming(png(draw), draw.choice([0, 1, 9, 5000, 9400, 20_000, 2**31 - 1, 2**32 - 1]))
    elif kind == 5 and draw.random() < 0.3:
        content = draw.randbytes(draw.choice([0, 1, 100, 5000]))
    path.write_bytes(content)
    if kind == 6 and draw.random() < 0.3:
        replace_file(draw, path)


def encoded(draw: random.Random) -> bytes:
    """Draw a valid picture of any format, mode and size."""
    kind = draw.choice(sorted(MODES))
    mode, (width, height) = draw.choice(MODES[kind]), draw.choice(SIZES)
    pixels = np.frombuffer(draw.randbytes(width * height), np.uint8).reshape(height, width)
    image = Image.fromarray(pixels.astype(np.uint16) * 257 if mode == "I;16" else pixels)
    file = io.BytesIO()
    options = (
        draw.choice([{}, {}, {"compression": "tiff_lzw"}, {"compression": "tiff_adobe_deflate"}])
        if kind == "TIFF"
        else {}
    )
    if kind in ("GIF", "TIFF", "WEBP") and draw.random() < 0.2:
        options |= {"save_all": True, "append_images": [image.convert("L")] * 2}
    (image if mode == "I;16" else image.convert(mode)).save(file, kind, **options)
    return file.getvalue()


def png(draw: random.Random) -> bytes:
    file = io.BytesIO()
    Image.frombytes("L", (8, 8), draw.randbytes(64)).convert(draw.choice(MODES["PNG"][:-1])).save(file, "PNG")
    return file.getvalue()


def chunks(content: bytes) -> list[tuple[bytes, bytes]]:
    """Split a PNG file into its chunks as far as their lengths are right."""
    found, at = [], 8
    while at + 12 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        found.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + min(length, 2**20)]))
        at += 12 + length
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    framed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


def repaired(content: bytes) -> bytes:
    """Return a PNG file with lengths and checksums that fit, so that damage reaches its decoder."""
    return joined(chunks(content))


def claiming(content: bytes, side: int) -> bytes:
    """Return a PNG file that claims to have another width and height."""
    parts = chunks(content)
    return joined([(parts[0][0], struct.pack(">II", side, side) + parts[0][1][8:]), *parts[1:]])
