"""Parquet files to train on, and as images from outside."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from fuzz.images import encoded
from fuzz.material import Material, recipe
from fuzz.mutating import mutated, mutated_bytes, replace_file, toml
from fuzz.recipes import verify
from image_files import features_of, pictures, png

ROWS = 24
COLUMNS = ["img", "label", "class", "id", "", "é", "a.b", "bytes", "x" * 300, "a\nb"]
LABELS = [
    lambda: pa.array([i % 3 for i in range(ROWS)]),
    lambda: pa.array(["cat", "dog", "emu"] * 8),
    lambda: pa.array(["cat", "dog", "emu"] * 8).dictionary_encode(),
    lambda: pa.array([i % 2 == 0 for i in range(ROWS)]),
    lambda: pa.array([i % 3 for i in range(ROWS)], pa.uint64()),
    lambda: pa.array([2**63 + i % 3 for i in range(ROWS)], pa.uint64()),
    lambda: pa.array([-(2**63) + i % 3 for i in range(ROWS)]),
    lambda: pa.array([None, 1, 2] * 8),
    lambda: pa.array([0.5] * ROWS),
    lambda: pa.array([None] * ROWS),
    lambda: pa.array([[1]] * ROWS),
    lambda: pa.array([i % 3 for i in range(ROWS)], pa.timestamp("s")),
    lambda: pa.array([0, 1, 2] * 8).dictionary_encode(),
    lambda: pa.array(["a\nb", "\0", "x" * 300] * 8),
    lambda: pa.array(["a", "a ", ""] * 8),
    lambda: pa.array([str(i) for i in range(ROWS)]),
    lambda: pa.array([0] * ROWS),
    lambda: pa.array([b"a", b"\xff", b"c"] * 8),
]
NAMES = [
    "all.parquet",
    "train.parquet",
    "test.parquet",
    "train-00000-of-00001.parquet",
    "train-00000-of-00002.parquet",
]
NAMES += ["validation-00000-of-00001.parquet", "é.parquet", "train.PARQUET"]


def command(draw: random.Random, folder: Path, given: Material) -> tuple[list[str], Any]:
    """Train on one or two tables."""
    root = folder / "tables"
    root.mkdir()
    paths = [root / name for name in draw.sample(NAMES, draw.choice([1, 1, 1, 2]))]
    for path in paths:
        write(draw, path)
    source = root if draw.random() < 0.7 else paths[0]
    if draw.random() < 0.1:
        run = given.run(folder)
        return ["evaluate", str(run), "ood", "--ood", str(source)], None
    tree = recipe(str(source))
    tree["data"]["size"] = draw.choice([0, 0, 8])
    tree["data"]["label"] = draw.choice(["", "", "", "label", *COLUMNS])
    (folder / "recipe.toml").write_text(toml(tree))
    out = folder / "out"
    return ["train", str(folder / "recipe.toml"), "--out", str(out)], lambda _: verify(out)


def write(draw: random.Random, path: Path) -> None:
    """Write a table, mostly with an odd column, odd metadata or damaged bytes."""
    kind = draw.randrange(6)
    labels = draw.choice(LABELS) if kind == 0 else LABELS[draw.randrange(2)]
    columns = {"img": images(draw, odd=kind == 1), "label": labels()}
    if kind == 2:
        columns = {draw.choice(COLUMNS): column for column in columns.values()}
        columns[draw.choice(COLUMNS)] = draw.choice(LABELS)()
    table = pa.table(columns)
    info: Any = {"info": {"features": features_of("cat", "dog", "emu")}}
    if kind == 3:
        info = mutated(draw, info)
    if kind == 3 or draw.random() < 0.3:
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    compression = draw.choice(["snappy", "zstd", "gzip", "none"])
    parquet.write_table(
        table[: draw.choice([ROWS] * 8 + [0, 1])], path, draw.choice([3, 100]), compression=compression
    )
    if kind == 4:
        path.write_bytes(mutated_bytes(draw, path.read_bytes()))
    elif kind == 5 and draw.random() < 0.3:
        replace_file(draw, path)


def images(draw: random.Random, *, odd: bool) -> pa.Array:
    """Make a column of encoded images; an odd one has another type, nulls or damaged cells."""
    cells: list[Any] = [png(pixels) for pixels in pictures(ROWS, 8, channels=1)]
    kind = draw.randrange(8) if odd else -1
    at = draw.randrange(ROWS)
    if kind == 0:
        cells[at] = None
    elif kind == 1:
        cells[at] = mutated_bytes(draw, cells[at])
    elif kind == 2:
        cells[at] = encoded(draw)
    elif kind == 3:
        return pa.array(cells, draw.choice([pa.binary(), pa.large_binary()]))
    elif kind == 4:
        return pa.array([list(cell) for cell in cells], pa.list_(pa.uint8()))
    elif kind == 5:
        return pa.array(["photo.png"] * ROWS)
    elif kind == 6:
        return pa.array(
            [{"bytes": None, "path": "photo.png"}] * ROWS,
            pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        )
    structs = [
        {"bytes": cell, "path": None} if cell is not None or draw.random() < 0.5 else None for cell in cells
    ]
    return pa.array(structs, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
