"""Small image files and data sets on disk, in the layouts that people have."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

from gmmc.config.sections import DataConfig
from gmmc.data import sources


def load(path: Path, **options) -> sources.Dataset:
    return sources.load(DataConfig(name=str(path), **options), seed=0)


def png(pixels: np.ndarray, **options) -> bytes:
    """(height, width) of grey or (height, width, 3) of colour → the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def pictures(count: int, size: int = 4, channels: int = 3, seed: int = 0) -> list[np.ndarray]:
    shape = (count, size, size, channels) if channels > 1 else (count, size, size)
    return list(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def write_table(path: Path, columns: dict, features: dict | None = None, row_group: int = 3) -> Path:
    """A parquet file; cells that are bytes become the struct of bytes and path that the Hub uses."""
    columns = {
        name: [{"bytes": cell, "path": None} for cell in cells] if name in ("img", "image", "mask") else cells
        for name, cells in columns.items()
    }
    table = pa.table(columns)
    if features is not None:
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=row_group)
    return path


def features_of(*names: str) -> dict:
    return {"img": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}


def write_shard(path: Path, images: list[np.ndarray], labels: list, names: tuple[str, ...] = ()) -> Path:
    columns = {"img": [png(image) for image in images], "label": labels}
    return write_table(path, columns, features_of(*names) if names else None)


def write_folder(root: Path, images: list[np.ndarray], classes: list[str]) -> Path:
    """One sub-folder per class; the files are numbered in the order of the images."""
    for i, (image, name) in enumerate(zip(images, classes, strict=True)):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / f"{i:03d}.png").write_bytes(png(image))
    return root


# One set in many layouts: 20 training images and 10 test images.
NAMES = ("cat", "dog", "emu")
IMAGES = pictures(30)
LABELS = [i % 3 for i in range(30)]
CLASSES = [NAMES[label] for label in LABELS]


def hub_layout(root, sub="plain_text"):
    write_shard(root / sub / "train-00000-of-00002.parquet", IMAGES[:10], LABELS[:10], NAMES)
    write_shard(root / sub / "train-00001-of-00002.parquet", IMAGES[10:20], LABELS[10:20], NAMES)
    write_shard(root / sub / "test-00000-of-00001.parquet", IMAGES[20:], LABELS[20:], NAMES)
    return root


def image_layout(root):
    write_folder(root / "train", IMAGES[:20], CLASSES[:20])
    write_folder(root / "test", IMAGES[20:], CLASSES[20:])
    return root


def encoded(images):
    return [png(image) for image in images]


def class_label(*names):
    return {"names": list(names), "_type": "ClassLabel"}
