"""Images in one file: .npz or .parquet."""

import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from gmmc import pictures
from gmmc.base.atomic import write_atomic
from gmmc.base.inputs import open_regular
from gmmc.base.outputs import check_within, remove_parts
from gmmc.base.progress import Progress
from gmmc.base.text import printable
from gmmc.classifier.drawing import OnProgress
from gmmc.classifier.model import Classifier
from gmmc.errors import InputError
from gmmc.generate.folder import file_name
from gmmc.generate.parts import drawn_in, fingerprint, silent
from gmmc.pixels import as_unit

ROW_GROUP = 1000  # images; viewers read one group at a time


class Series(NamedTuple):
    """Which images: what is compared with a file that is there already."""

    made_by: str
    labels: list[int]
    seeds: list[int]


class Form(NamedTuple):
    """A kind of file."""

    content: Callable[[Tensor, Series, Sequence[str]], bytes]  # of images, with the names of the classes
    holds: Callable[[Path, Series], bool]  # whether a file holds these images; any other may be an error


def to_file(
    model: Classifier,
    labels: Tensor,
    seed: int,
    path: Path,
    *,
    steps: int | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """All images in one .npz or .parquet file; gives how many were there already, also of a killed call.

    Until the file is written, parts of it are in a hidden folder beside it. A file of other images or from
    elsewhere is not overwritten.
    """
    form = FILES[path.suffix.lower()]
    series = Series(fingerprint(model, steps), labels.tolist(), list(range(seed, seed + len(labels))))
    parts = path.with_name(f".{path.name}.parts")
    if os.path.lexists(path):  # also a link to nothing, which would be replaced
        if not _holds(form, path, series):
            rule = "--out must be a new file"
            raise InputError(f"{rule}, got {printable(str(path))}, which holds something else")
        remove_parts(parts)
        return len(labels)
    check_within(parts, path.parent, "--out")
    images, there = drawn_in(parts, model, labels, seed, steps, on_progress or silent)
    write_atomic(path, form.content(images, series, model.class_names))
    remove_parts(parts)
    return there


def _holds(form: Form, path: Path, series: Series) -> bool:
    try:
        return form.holds(path, series)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return False


def _npz(images: Tensor, series: Series, class_names: Sequence[str]) -> bytes:
    """`arr_0` (N, H, W, C) of uint8, where FID tools look for images, and what they are beside it."""
    file = io.BytesIO()
    np.savez(
        file,
        arr_0=images.permute(0, 2, 3, 1).numpy(),
        labels=np.array(series.labels, dtype=np.int64),
        seeds=np.array(series.seeds, dtype=np.int64),
        class_names=np.array(class_names, dtype=np.str_),
        made_by=np.array(series.made_by),
    )
    return file.getvalue()


def _in_npz(path: Path, series: Series) -> bool:
    # Opened here: numpy leaves the file open when it cannot read it.
    with open_regular(path) as raw, np.load(raw, allow_pickle=False) as file:
        if sum(part.file_size for part in file.zip.infolist()) > path.stat().st_size:
            return False  # ours are not compressed
        held = Series(str(file["made_by"]), file["labels"].tolist(), file["seeds"].tolist())
        return held == series and len(file["arr_0"]) == len(series.labels)  # read as a whole: damage is seen


def _parquet(images: Tensor, series: Series, class_names: Sequence[str]) -> bytes:
    """As the Hugging Face Hub keeps images: PNG and class, with the names of the classes; and the seed."""
    import pyarrow as pa
    from pyarrow import parquet

    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(class_names), "_type": "ClassLabel"},
        "seed": {"dtype": "int64", "_type": "Value"},
    }
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", image), ("label", pa.int64()), ("seed", pa.int64())],
        {"huggingface": json.dumps({"info": {"features": features}}), "made_by": series.made_by},
    )
    file = io.BytesIO()
    with parquet.ParquetWriter(file, schema) as table, Progress("writing", len(images)) as bar:
        for first in range(0, len(images), ROW_GROUP):
            group = slice(first, first + ROW_GROUP)
            labels, seeds = series.labels[group], series.seeds[group]
            names = [file_name(class_names[y], seed) for y, seed in zip(labels, seeds, strict=True)]
            encoded = [pictures.png(pictures.to_image(as_unit(x))) for x in images[group]]
            cells = [{"bytes": png, "path": name} for png, name in zip(encoded, names, strict=True)]
            table.write_table(pa.table({"image": cells, "label": labels, "seed": seeds}, schema))
            bar.update(first + len(cells))
    return file.getvalue()


def _in_parquet(path: Path, series: Series) -> bool:
    from pyarrow import parquet

    with open_regular(path) as raw, parquet.ParquetFile(raw) as file:
        if file.metadata.num_rows != len(series.labels):
            return False
        table = file.read(columns=["label", "seed"])
    made_by = table.schema.metadata[b"made_by"].decode()
    return Series(made_by, table["label"].to_pylist(), table["seed"].to_pylist()) == series


FILES = {".npz": Form(_npz, _in_npz), ".parquet": Form(_parquet, _in_parquet)}
