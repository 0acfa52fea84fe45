"""Images and labels in parquet files, as the Hugging Face Hub keeps them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gmmc.data.layout import SplitFiles, listed
from gmmc.data.reading import BATCH, Encoded, Reading, Wanted, read_all
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
    label: str | None
    names: tuple[str, ...]  # of the classes; empty where the file does not tell


def read(files: SplitFiles, wanted: Wanted, title: str) -> Reading:
    """All rows in the order of the files. Whatever cannot be used is named by file and row."""
    shards = [_open(path, wanted.label) for path in files.paths]
    for shard in shards[1:]:
        if shard.names != shards[0].names:
            raise InputError(f"{shard.path} must name the same classes as {shards[0].path}")
    values: list[str | int] = []
    count = sum(shard.rows for shard in shards)
    if count == 0:
        raise InputError(
            f"{files.root} must hold images, got no rows in {listed([p.name for p in files.paths])}"
        )
    reading = read_all(_batches(shards, values), count, wanted, title)
    if wanted.label is None:
        return reading
    if shards[0].names:
        return replace(reading, labels=torch.tensor(values), classes=shards[0].names, named=True)
    if len({type(value) for value in values}) > 1:
        raise InputError(f"the column {shards[0].label!r} must be of one type in all files of {files.root}")
    names = sorted(set(values))
    position = {name: i for i, name in enumerate(names)}
    return replace(reading, labels=torch.tensor([position[v] for v in values]), classes=tuple(names))


def _batches(shards: Sequence[Shard], values: list[str | int]) -> Iterator[list[Encoded]]:
    """Encoded images, a few at a time. Their labels are added to `values`."""
    for shard in shards:
        row = 0
        for images, labels in _rows(shard):
            batch: list[Encoded] = []
            for i, (image, label) in enumerate(zip(images, labels, strict=True), row):
                if image is None:
                    raise InputError(f"{_at(shard, i)} must have an image in {shard.image!r}, got null")
                if shard.label:
                    values.append(_checked(label, shard, i))
                batch.append((image, _at(shard, i)))
            yield batch
            row += len(images)


def _at(shard: Shard, row: int) -> str:
    return f"{shard.path} row {row}"


def _checked(label: str | int | None, shard: Shard, row: int) -> str | int:
    if label is None:
        raise InputError(f"{_at(shard, row)} must have a label in {shard.label!r}, got null")
    if shard.names and not (isinstance(label, int) and 0 <= label < len(shard.names)):
        raise InputError(f"{_at(shard, row)} must have a label in 0..{len(shard.names) - 1}, got {label!r}")
    return label


def _rows(shard: Shard) -> Iterator[tuple[list[bytes | None], list[Any]]]:
    """(encoded images, labels) of a few rows at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = [shard.image, shard.label] if shard.label else [shard.image]
    try:
        with parquet.ParquetFile(shard.path) as file:
            for batch in file.iter_batches(BATCH, columns=columns):
                cells = batch.column(shard.image).to_pylist()
                images = [cell["bytes"] if isinstance(cell, dict) else cell for cell in cells]
                labels = batch.column(shard.label).to_pylist() if shard.label else [None] * len(images)
                yield images, labels
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(shard.path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(f"cannot read {path} as a parquet file, it may be cut short: {reason}")


# --- which columns --------------------------------------------------------------------------------


def _open(path: Path, label: str | None) -> Shard:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from None
    features = _features(schema)
    image = _image_column(path, schema, features)
    column = None if label is None else _label_column(path, schema, features, label)
    names = _class_names(features, column) if column else ()
    return Shard(path, rows, image, column, names)


def _features(schema) -> dict[str, dict[str, Any]]:
    """What the Hub's libraries say about the columns; what does not look like theirs says nothing."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
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
        raise InputError(f"{path} must have a column of images, got the columns {listed(schema.names, 20)}")
    return usable[0]


def _label_column(path: Path, schema, features: dict[str, dict[str, Any]], label: str) -> str:
    columns = listed(schema.names, 20)
    if label and label not in schema.names:
        raise InputError(f"data.label must be a column of {path}, one of {columns}, got {label!r}")
    found = [name for name in schema.names if name in LABELS or _class_names(features, name)]
    found = [label] if label else [name for name in PREFERRED if name in found] or found
    if not found:
        raise InputError(f"{path} must have a column of labels, got {columns}; choose one with data.label=…")
    if len(found) > 1 and found[0] not in PREFERRED:
        raise InputError(
            f"{path} must have one column of labels, got {listed(found)}; choose with data.label=…"
        )
    _check_label_type(path, schema, found[0])
    return found[0]


def _class_names(features: dict[str, dict[str, Any]], column: str) -> tuple[str, ...]:
    feature = features.get(column, {})
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _check_label_type(path: Path, schema, label: str) -> None:
    from pyarrow import types

    kind = schema.field(label).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    checks = (types.is_integer, types.is_boolean, types.is_string, types.is_large_string)
    if not any(check(kind) for check in checks):
        raise InputError(f"the labels in {label!r} of {path} must be whole numbers or strings, got {kind}")
