"""Images and labels in parquet files, as the Hugging Face Hub keeps them.

A small file can expand to a huge one: cells repeat an entry of a dictionary, or begin like the cell before,
and pages are compressed. So a few rows are read at a time, and columns that are compressed too well to be
encoded images are refused. One hole remains: a file that lies about the size of its columns can make Arrow
decompress one page of up to 2 GiB before any of its rows can be checked.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from gmmc.base.class_names import check_class_names
from gmmc.base.inputs import open_regular, parse_json
from gmmc.base.limits import CLASS_NAME, DOCUMENT_BYTES, ENCODED_BYTES, PARQUET_BYTES, PARQUET_RATIO, MiB
from gmmc.base.text import printable, shortened
from gmmc.data.decode_many import BATCH, Encoded, Reading, Wanted, read_all
from gmmc.data.layout import SplitFiles, listed, shown
from gmmc.errors import InputError

# Columns that hold the classes by their name. One of the preferred is taken even if there are others.
PREFERRED = ("label", "fine_label")
LABELS = (*PREFERRED, "labels", "class", "target", "category")


@dataclass(frozen=True)
class Shard:
    """One file: how many rows it has, and which of its columns are wanted."""

    path: Path
    rows: int
    image: str
    is_struct: bool  # whether the images are in a field "bytes" of their column
    label: str | None
    names: tuple[str, ...]  # of the classes; empty where the file does not tell

    @property
    def columns(self) -> list[str]:
        image = f"{self.image}.bytes" if self.is_struct else self.image
        return [image, self.label] if self.label else [image]


def read(files: SplitFiles, wanted: Wanted, title: str) -> Reading:
    """All rows in the order of the files. Whatever cannot be used is named by file and row."""
    shards = [_open(path, wanted.label) for path in files.paths]
    for shard in shards[1:]:
        if shard.names != shards[0].names:
            raise InputError(f"{shown(shard.path)} must name the same classes as {shown(shards[0].path)}")
    values: list[str | int] = []
    count = sum(shard.rows for shard in shards)
    if count == 0:
        raise InputError(
            f"{shown(files.root)} must hold images, got no rows in {listed([p.name for p in files.paths])}"
        )
    reading = read_all(_batches(shards, values), count, wanted, title)
    if wanted.label is None:
        return reading
    if shards[0].names:
        return replace(
            reading, labels=torch.tensor(values, dtype=torch.int64), classes=shards[0].names, named=True
        )
    if len({type(value) for value in values}) > 1:
        where = f"{shortened(shards[0].label)} must be of one type in all files of {shown(files.root)}"
        raise InputError(f"the column {where}")
    names = sorted(set(values))
    position = {name: i for i, name in enumerate(names)}
    return replace(reading, labels=torch.tensor([position[v] for v in values]), classes=tuple(names))


def _batches(shards: Sequence[Shard], values: list[str | int]) -> Iterator[list[Encoded]]:
    """Encoded images, at most BATCH and PARQUET_BYTES at a time. Their labels are added to `values`."""
    batch: list[Encoded] = []
    size = 0
    for shard in shards:
        row = 0
        for row, (image, label) in enumerate(_rows(shard), 1):
            if row > shard.rows:
                break
            if shard.label:
                values.append(_checked(label, shard, row - 1))
            if batch and (len(batch) == BATCH or size + len(image) > PARQUET_BYTES):
                yield batch
                batch, size = [], 0
            batch.append((image, _at(shard, row - 1)))
            size += len(image)
        if row != shard.rows:
            raise InputError(
                f"{shown(shard.path)} must have {shard.rows:,} rows as its footer says, got others"
            )
    if batch:
        yield batch


def _at(shard: Shard, row: int) -> str:
    return f"{shown(shard.path)} row {row}"


def _checked(label: str | int | None, shard: Shard, row: int) -> str | int:
    if label is None:
        raise InputError(f"{_at(shard, row)} must have a label in {shortened(shard.label)}, got null")
    if shard.names and not (isinstance(label, int) and 0 <= label < len(shard.names)):
        rule = f"must have a label in 0..{len(shard.names) - 1}"
        raise InputError(f"{_at(shard, row)} {rule}, got {shortened(label)}")
    return label


def _rows(shard: Shard) -> Iterator[tuple[bytes, Any]]:
    """(encoded image, label) of each row."""
    most = max(1, PARQUET_BYTES // ENCODED_BYTES)
    row = 0
    with _opened(shard.path) as file:
        # Handing a few rows over to other threads takes longer than reading them.
        for batch in file.iter_batches(most, columns=shard.columns, use_threads=False):
            yield from zip(_images(batch, shard, row), _labels(batch, shard, row), strict=True)
            row += len(batch)


def _images(batch, shard: Shard, row: int) -> list[bytes]:
    """Encoded images of a few rows, of which `row` is the first."""
    column = batch.column(shard.image)
    column = column.flatten()[0] if shard.is_struct else column
    _check_lengths(column, shard, row, ENCODED_BYTES, "ENCODED_BYTES")
    cells = column.to_pylist()
    if None in cells:
        place = _at(shard, row + cells.index(None))
        raise InputError(f"{place} must have an image in {shortened(shard.image)}, got null")
    return cells


def _labels(batch, shard: Shard, row: int) -> list[Any]:
    """Labels of a few rows; None where there are none."""
    from pyarrow import types

    if shard.label is None:
        return [None] * len(batch)
    column = batch.column(shard.label)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not types.is_primitive(column.type):
        _check_lengths(column, shard, row, 4 * CLASS_NAME, "CLASS_NAME")  # a character has 4 bytes at most
    return column.to_pylist()


def _check_lengths(cells, shard: Shard, row: int, most: int, bound: str) -> None:
    """Refuse long cells before Python's objects are made of them."""
    from pyarrow import compute

    lengths = compute.call_function("binary_length", [cells])
    for i, length in enumerate(lengths.to_pylist(), row):
        if length is not None and length > most:
            rule = f"must have cells of at most {most:,} bytes (limits.{bound})"
            raise InputError(f"{_at(shard, i)} {rule}, got {length:,}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A ParquetFile whose footer is of bounded size. Errors of Arrow in the block name the file."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with open_regular(path) as raw:
            _check_footer(raw)
            # With a buffer, Arrow does not read all that the file says a column has.
            with parquet.ParquetFile(raw, buffer_size=MiB) as file:
                yield file
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise InputError(
            f"cannot read {shown(path)} as a parquet file, it may be cut short: {printable(reason)}"
        ) from None


def _check_footer(raw: BinaryIO) -> None:
    """Arrow reads all of the footer, whose length is in the last 8 bytes of the file."""
    raw.seek(-min(8, raw.seek(0, os.SEEK_END)), os.SEEK_END)
    length = int.from_bytes(raw.read(4), "little")
    if length > DOCUMENT_BYTES:
        rule = f"more than {DOCUMENT_BYTES:,} (limits.DOCUMENT_BYTES)"
        raise ValueError(f"its footer has {length:,} bytes, {rule}")


# --- which columns --------------------------------------------------------------------------------


def _open(path: Path, label: str | None) -> Shard:
    from pyarrow import types

    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        features = _features(schema)
        image = _image_column(path, schema, features)
        column = None if label is None else _label_column(path, schema, features, label)
        names = _class_names(features, column) if column else []
        if names:
            names = check_class_names(names, f"the class names of {shown(path)}")
        is_struct = types.is_struct(schema.field(image).type)
        shard = Shard(path, rows, image, is_struct, column, tuple(names))
        _check_expansion(file.metadata, shard)
    return shard


def _check_expansion(metadata, shard: Shard) -> None:
    """Refuse columns that a few bytes would make huge, by what the file says about them."""
    places = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path in shard.columns]
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, places):
            size, stored = column.total_uncompressed_size, column.total_compressed_size
            if size > max(PARQUET_BYTES, PARQUET_RATIO * stored):
                most = f"{PARQUET_RATIO} times their compressed size (limits.PARQUET_RATIO)"
                raise InputError(
                    f"{shown(shard.path)} must have columns of at most {most}, got {size:,} bytes from "
                    f"{stored:,}; write it with smaller row groups"
                )


def _refuse_doubles(path: Path, schema, name: str) -> None:
    if schema.names.count(name) > 1:
        raise InputError(f"{shown(path)} must have one column {shortened(name)}, got several")


def _features(schema) -> dict[str, dict[str, Any]]:
    """What the Hub's libraries say about the columns; what does not look like theirs says nothing."""
    try:
        features = parse_json((schema.metadata or {})[b"huggingface"], "")["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _image_column(path: Path, schema, features: dict[str, dict[str, Any]]) -> str:
    """The first column that is said to hold images, else that looks like it."""
    from pyarrow import types

    def encoded(kind) -> bool:
        return types.is_binary(kind) or types.is_large_binary(kind)

    def with_path(kind) -> bool:
        return types.is_struct(kind) and any(field.name == "bytes" and encoded(field.type) for field in kind)

    told = [f.name for f in schema if features.get(f.name, {}).get("_type") == "Image"]
    structs = [field.name for field in schema if with_path(field.type)]
    binaries = [field.name for field in schema if encoded(field.type)]
    usable = [name for name in (*told, *structs, *binaries) if name in structs or name in binaries]
    if not usable:
        columns = listed(schema.names, 20)
        raise InputError(f"{shown(path)} must have a column of images, got the columns {columns}")
    _refuse_doubles(path, schema, usable[0])
    return usable[0]


def _label_column(path: Path, schema, features: dict[str, dict[str, Any]], label: str) -> str:
    columns, where = listed(schema.names, 20), shown(path)
    if label and label not in schema.names:
        raise InputError(f"data.label must be a column of {where}, one of {columns}, got {shortened(label)}")
    found = [name for name in schema.names if name in LABELS or _class_names(features, name)]
    found = [label] if label else [name for name in PREFERRED if name in found] or found
    if not found:
        raise InputError(f"{where} must have a column of labels, got {columns}; choose one with data.label=…")
    if len(found) > 1 and found[0] not in PREFERRED:
        raise InputError(
            f"{where} must have one column of labels, got {listed(found)}; choose with data.label=…"
        )
    _refuse_doubles(path, schema, found[0])
    _check_label_type(path, schema, found[0])
    return found[0]


def _class_names(features: dict[str, dict[str, Any]], column: str) -> list[Any]:
    """Names that the Hub's libraries gave, not checked; numbers as strings."""
    feature = features.get(column, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return [str(name) if isinstance(name, int) else name for name in names] if isinstance(names, list) else []


def _check_label_type(path: Path, schema, label: str) -> None:
    from pyarrow import types

    kind = schema.field(label).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    checks = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string)
    if not any(check(kind) for check in checks):
        where = f"{shortened(label)} of {shown(path)}"
        raise InputError(
            f"the labels in {where} must be whole numbers or strings, got {shortened(str(kind))}"
        )
