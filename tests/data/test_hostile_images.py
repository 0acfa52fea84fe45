"""Image files that someone made to harm: they cost one line, not the memory or the time of a machine."""

import ast
import contextlib
import io
import json
import os
import struct
import subprocess
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import EpsImagePlugin, Image
from pyarrow import parquet as arrow_parquet

import gmmc
from conftest import make_model
from gmmc.base import limits
from gmmc.base.open_image import decoded_pixels, opened
from gmmc.classifier.predict_files import predict_files
from gmmc.cli import app
from gmmc.data import decode, decode_many, files, layout, parquet, shards
from gmmc.errors import InputError
from gmmc.generate import folder as drawn_folder
from gmmc.generate import to_folder
from gmmc.report.page import pictures
from gmmc.report.parts import Panel
from gmmc.report.reading import read_runs
from image_files import (
    CLASSES,
    IMAGES,
    LABELS,
    NAMES,
    encoded,
    features_of,
    load,
    png,
    write_folder,
    write_shard,
    write_table,
)
from processes import DEADLINE, python
from report_runs import make_run, page_of, samples_entry

SOURCE = Path(gmmc.__file__).parent


def refusal(act: Callable[[], object]) -> str:
    """The one line that it is refused with."""
    with pytest.raises(InputError) as caught:
        act()
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 600
    return line


def claiming(width: int, height: int) -> bytes:
    """A PNG file of 100 bytes whose header promises so many pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def photos(root: Path) -> Path:
    return write_folder(root, IMAGES, CLASSES)


# --- pixels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("resize", [True, False])
@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the first and refuses the second
def test_a_header_that_promises_too_many_pixels_is_refused(tmp_path, side, resize):
    (tmp_path / "huge.png").write_bytes(claiming(side, side))
    line = refusal(lambda: files.read_image(tmp_path / "huge.png", (1, 8, 8), resize=resize))
    assert "huge.png" in line
    assert "limits.PICTURE_PIXELS" in line


def test_the_bound_is_ours_where_pillow_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "huge.png").write_bytes(claiming(20_000, 10_000))
    line = refusal(lambda: files.read_image(tmp_path / "huge.png", (1, 8, 8), resize=True))
    assert "limits.PICTURE_PIXELS" in line
    assert "20000×10000" in line


def tiled(width: int, height: int) -> bytes:
    """A TIFF file of 8×8 grey pixels in one tile, which is this large and compressed to nothing."""
    tags = [(256, 8), (257, 8), (258, 8), (259, 8), (262, 1), (277, 1)]
    tags += [(322, width), (323, height), (324, 8), (325, 0)]
    pixels = zlib.compress(bytes(width * height)) if width * height < 2**20 else b""
    tags[-1] = (325, len(pixels))
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    directory = struct.pack("<H", len(tags)) + entries + b"\0" * 4
    return struct.pack("<2sHI", b"II", 42, 8 + len(pixels)) + pixels + directory


def test_a_tile_counts_with_all_its_pixels(tmp_path):
    (tmp_path / "small.tif").write_bytes(tiled(16, 16))
    files.read_image(tmp_path / "small.tif", (1, 8, 8), resize=False)
    with opened(tmp_path / "small.tif", "it") as image:
        assert (image.size, decoded_pixels(image)) == ((8, 8), 256)
    (tmp_path / "huge.tif").write_bytes(tiled(25_600, 25_600))
    line = refusal(lambda: files.read_image(tmp_path / "huge.tif", (1, 8, 8), resize=True))
    assert "655,360,000" in line
    assert "limits.PICTURE_PIXELS" in line


def test_an_image_that_a_model_has_to_take_is_smaller_than_one_to_be_resized(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "IMAGE_SIDE", 3)
    root = photos(tmp_path / "photos")
    line = refusal(lambda: load(root))
    assert "000.png" in line
    assert "limits.IMAGE_SIDE" in line
    assert "data.size" in line
    assert load(root, size=2).shape == (3, 2, 2)
    line = refusal(lambda: files.read_image(root / "cat" / "000.png", (3, 4, 4)))
    assert "limits.IMAGE_SIDE" in line
    assert files.read_image(root / "cat" / "000.png", (3, 4, 4), resize=True).shape == (3, 4, 4)


def test_a_split_takes_a_share_of_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "MEMORY_SHARE", 1e-12)
    monkeypatch.setattr(decode_many, "_decode_some", once(decode_many._decode_some))
    line = refusal(lambda: load(photos(tmp_path / "photos")))
    assert "limits.MEMORY_SHARE" in line
    assert "30 of 4×4" in line
    assert "data.size" in line


def once(function):
    """The function, which is called once: nothing more is decoded when the first image shows the size."""
    calls = []

    def called(*arguments, **options):
        calls.append(1)
        assert len(calls) == 1
        return function(*arguments, **options)

    return called


def test_digits_take_a_share_of_the_memory_too(monkeypatch):
    monkeypatch.setattr(decode, "MEMORY_SHARE", 1e-12)
    line = refusal(lambda: load("digits", size=16))
    assert "limits.MEMORY_SHARE" in line
    assert "1,797 of 16×16" in line


def test_few_large_images_are_decoded_at_a_time(tmp_path, monkeypatch):
    sizes = []

    def counted(some, wanted):
        sizes.append(len(some))
        return real(some, wanted)

    real = decode_many._decode_some
    root = photos(tmp_path / "photos")
    expected = load(root).train.images
    monkeypatch.setattr(decode_many, "PIXELS_AT_ONCE", 2 * 4 * 4)
    monkeypatch.setattr(decode_many, "_decode_some", counted)
    assert torch.equal(load(root).train.images, expected)
    assert sum(sizes) == 30
    assert max(sizes) <= 2


def test_threads_wait_for_room():
    room = decode.Room(10)
    inside, most, together = 0, 0, threading.Lock()

    def enter(pixels: int) -> None:
        nonlocal inside, most
        with room.taken(pixels):
            with together:
                inside += min(pixels, 10)
                most = max(most, inside)
            with together:
                inside -= min(pixels, 10)

    threads = [threading.Thread(target=enter, args=(pixels,)) for pixels in [4, 5, 99, 10, 1, 6] * 20]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert 0 < most <= 10
    with room.taken(10):
        pass


def test_a_failure_leaves_its_room():
    room = decode.Room(10)
    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"), room.taken(10):
            raise ValueError("damaged")


# --- bytes ----------------------------------------------------------------------------------------


def test_a_large_file_is_refused_unread(tmp_path):
    root = photos(tmp_path / "photos")
    with (root / "dog" / "001.png").open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no place on the disk
    line = refusal(lambda: load(root))
    assert "001.png" in line
    assert "limits.PICTURE_BYTES" in line
    assert "limits.PICTURE_BYTES" in refusal(lambda: files.read_image(root / "dog" / "001.png", (3, 4, 4)))


def test_a_photo_that_is_not_compressed_may_be_as_large_as_any(tmp_path):
    Image.new("RGB", (6000, 4000)).save(tmp_path / "photo.bmp")
    assert (tmp_path / "photo.bmp").stat().st_size > limits.ENCODED_BYTES
    assert files.read_image(tmp_path / "photo.bmp", (3, 4, 4), resize=True).shape == (3, 4, 4)


def test_a_large_cell_is_refused_by_its_row(tmp_path, monkeypatch):
    cells = encoded(IMAGES)
    cells[17] += bytes(10_000)
    path = write_table(tmp_path / "all.parquet", {"img": cells, "label": LABELS})
    assert len(load(path).train) == 22  # trailing bytes are no error by themselves
    monkeypatch.setattr(parquet, "ENCODED_BYTES", 10_000)
    line = refusal(lambda: load(path))
    assert "all.parquet row 17" in line
    assert "limits.ENCODED_BYTES" in line


def test_rows_are_read_by_their_bytes(tmp_path, monkeypatch):
    path = write_shard(tmp_path / "all.parquet", IMAGES, LABELS, NAMES)
    expected = load(path).train.images
    sizes = []

    def watched(batches, *arguments):
        def each():
            for batch in batches:
                sizes.append([len(image) for image, _ in batch])
                yield batch

        return read_all(each(), *arguments)

    read_all = decode_many.read_all
    monkeypatch.setattr(parquet, "read_all", watched)
    monkeypatch.setattr(parquet, "PARQUET_BYTES", 400)
    assert torch.equal(load(path).train.images, expected)
    assert sum(map(len, sizes)) == 30
    assert max(map(sum, sizes)) <= 400
    assert max(map(len, sizes)) > 1


def test_a_column_that_is_compressed_too_well_is_refused_unread(tmp_path, monkeypatch):
    cells = [cell + bytes(10_000) for cell in encoded(IMAGES)]
    table = pa.table({"img": cells, "label": LABELS})
    arrow_parquet.write_table(table, tmp_path / "all.parquet", compression="zstd", use_dictionary=False)
    monkeypatch.setattr(parquet, "PARQUET_BYTES", 100_000)
    monkeypatch.setattr(parquet, "_rows", lambda _: pytest.fail("rows were read"))
    line = refusal(lambda: load(tmp_path / "all.parquet"))
    assert "all.parquet" in line
    assert "limits.PARQUET_RATIO" in line


def test_a_footer_as_long_as_the_file_is_refused_unread(tmp_path):
    with (tmp_path / "all.parquet").open("wb") as file:
        file.truncate(2**34)
        file.seek(0, os.SEEK_END)
        file.write(struct.pack("<I", 2**31 - 1) + b"PAR1")
    line = refusal(lambda: load(tmp_path / "all.parquet"))
    assert "all.parquet" in line
    assert "limits.DOCUMENT_BYTES" in line


@pytest.mark.parametrize("rows", [-5, 29, 31, 10**15])
def test_a_number_of_rows_that_is_not_true_is_refused(tmp_path, monkeypatch, rows):
    path = write_shard(tmp_path / "all.parquet", IMAGES, LABELS, NAMES)
    opened = parquet._open
    monkeypatch.setattr(parquet, "_open", lambda *arguments: replace(opened(*arguments), rows=rows))
    line = refusal(lambda: load(path))
    assert "all.parquet" in line or "limits.MEMORY_SHARE" in line


PEAK = """
import sys
import gmmc.data
from gmmc.config.sections import DataConfig
from gmmc.data import folder, parquet
from gmmc.errors import InputError
import pyarrow.compute, pyarrow.parquet

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024

before = peak()
try:
    print(gmmc.data.load(DataConfig(sys.argv[1], size=int(sys.argv[2])), seed=0).shape)
except InputError as error:
    print(error)
print(before, peak())
"""


def peak_memory(path: Path, size: int = 0) -> tuple[str, int]:
    """(what came of reading it, the MiB that it took)."""
    outcome, numbers = python(PEAK, path, size).stdout.splitlines()
    before, after = map(int, numbers.split())
    return outcome, after - before


def repeated_cell(path: Path) -> Path:
    """130 rows of one cell of 30 MB: a file of 6 kB."""
    cell = png(IMAGES[0]) + bytes(30_000_000)
    images = pa.DictionaryArray.from_arrays(pa.array([0] * 130, pa.int32()), pa.array([cell]))
    table = pa.table({"image": images, "label": [i % 2 for i in range(130)]})
    arrow_parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 20_000
    return path


def shared_prefix(path: Path) -> Path:
    """16 rows of 30 MB, each of which is stored as one that begins like the row before."""
    cell = png(IMAGES[0]) + bytes(30_000_000)
    table = pa.table({"image": [cell] * 16, "label": [i % 2 for i in range(16)]})
    encodings = {"image": "DELTA_BYTE_ARRAY", "label": "PLAIN"}
    arrow_parquet.write_table(
        table, path, compression="zstd", use_dictionary=False, column_encoding=encodings
    )
    assert path.stat().st_size < 20_000
    return path


def one_huge_cell(path: Path) -> Path:
    """A page that expands to 400 MB."""
    table = pa.table({"image": [png(IMAGES[0]), bytes(400_000_000)], "label": [0, 1]})
    arrow_parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    return path


def huge_pictures(path: Path) -> Path:
    """Six pictures of 88 megapixels in colour."""
    content = io.BytesIO()
    Image.new("RGB", (9400, 9400)).save(content, "PNG", compress_level=1)
    for i in range(6):
        (path / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (path / "ab"[i % 2] / f"{i}.png").write_bytes(content.getvalue())
    return path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("make", "size", "outcome"),
    [
        (repeated_cell, 0, "(3, 4, 4)"),
        (shared_prefix, 0, "(3, 4, 4)"),
        (one_huge_cell, 0, "limits.PARQUET_RATIO"),
        (huge_pictures, 0, "limits.IMAGE_SIDE"),
        (huge_pictures, 16, "(3, 16, 16)"),
    ],
)
def test_small_files_take_little_memory(tmp_path, make, size, outcome):
    result, taken = peak_memory(make(tmp_path / "bomb.parquet"), size)
    assert outcome in result
    assert taken < 1500


# --- formats --------------------------------------------------------------------------------------

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def no_processes(monkeypatch):
    def fail(*_, **__):
        pytest.fail("a process was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", fail)
    monkeypatch.setattr(subprocess, "Popen", fail)


def test_postscript_is_not_run(tmp_path, no_processes):
    root = photos(tmp_path / "photos")
    photo = root / "cat" / "photo.png"
    photo.write_bytes(POSTSCRIPT)
    assert "photo.png" in refusal(lambda: load(root))
    assert "photo.png" in refusal(lambda: files.read_image(photo, (3, 4, 4), resize=True))
    assert not drawn_folder._bears(photo, {"seed": 0})
    with pytest.raises(InputError):
        pictures.fitted(POSTSCRIPT, 10)
    table = write_table(tmp_path / "all.parquet", {"img": [POSTSCRIPT] * 2, "label": [0, 1]})
    assert "all.parquet row 0" in refusal(lambda: load(table))


def test_every_image_is_opened_by_its_formats():
    calls = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Image.open"):
                calls.append(path)
                assert "formats" in [keyword.arg for keyword in node.keywords], path
    assert calls


@pytest.mark.parametrize("suffix", ["bmp", "gif", "jp2", "jpg", "pbm", "pgm", "png", "ppm", "tif", "webp"])
def test_every_format_that_is_promised_is_read(tmp_path, suffix):
    mode = {"pbm": "1", "pgm": "L"}.get(suffix, "RGB")
    Image.new(mode, (8, 8)).save(tmp_path / f"photo.{suffix}")
    assert files.read_image(tmp_path / f"photo.{suffix}", (3, 8, 8)).shape == (3, 8, 8)


def test_photos_of_phones_are_read(tmp_path):
    """They hold a second picture, of depth or in other exposure, in the format MPO."""
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    first.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[second])
    image = files.read_image(tmp_path / "photo.jpg", (3, 8, 8))
    assert image[0].min() > 200
    assert image[2].max() < 50


def damaged_tiff() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "TIFF", compression="tiff_lzw")
    content = bytearray(file.getvalue())
    content[8:40] = b"\xff" * 32
    return bytes(content)


def test_libtiff_prints_no_line_of_its_own(tmp_path, run, capfd):
    (tmp_path / "photo.tif").write_bytes(damaged_tiff())
    with pytest.raises(SystemExit) as end:
        app.main(["predict", str(run), str(tmp_path / "photo.tif")])
    assert end.value.code == 2
    printed = capfd.readouterr().err
    assert "photo.tif" in printed
    assert len(printed.splitlines()) == 1
    with contextlib.suppress(OSError), Image.open(tmp_path / "photo.tif") as picture:
        picture.load()
    assert capfd.readouterr().err  # elsewhere in the process, libtiff prints as before


# --- what is no regular file ----------------------------------------------------------------------


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize("make", [pipe, loop])
class TestNoRegularFiles:
    def test_in_a_class_folder(self, tmp_path, make):
        root = photos(tmp_path / "photos")
        make(root / "dog" / "zzz.png")
        assert "zzz.png" in refusal(lambda: load(root))

    def test_as_a_parquet_file(self, tmp_path, make):
        root = tmp_path / "tables"
        root.mkdir()
        make(root / "train.parquet")
        assert "train.parquet" in refusal(lambda: load(root))
        make(root / "test.parquet")  # two files of equal size are compared
        assert ".parquet" in refusal(lambda: load(root))
        refusal(lambda: load(root / "train.parquet"))

    def test_to_be_classified(self, tmp_path, make, run, capsys):
        path = make(tmp_path / "photo.png")
        rows, (line,) = predict_files(make_model(), [path], resize=True)
        assert rows == []
        assert "photo.png" in line
        with pytest.raises(SystemExit) as end:
            app.main(["predict", str(run), str(path)])
        assert end.value.code == 2
        printed = capsys.readouterr().err
        assert "photo.png" in printed
        assert len(printed.splitlines()) == 1

    def test_where_a_sample_should_be(self, tmp_path, make):
        model, labels = make_model(), torch.tensor([0, 1])
        name = drawn_folder.file_name("class 1", 1)
        make(tmp_path / name)
        assert name in refusal(lambda: to_folder(model, labels, 0, tmp_path))
        assert not (tmp_path / name).is_file()
        assert list(tmp_path.iterdir()) == [tmp_path / name]

    def test_in_a_report(self, tmp_path, make):
        run = make_run(tmp_path / "run", {"samples": samples_entry(["samples/by_class.png"])})
        (run / "samples").mkdir()
        make(run / "samples" / "by_class.png")
        assert "samples/by_class.png" in page_of(run, out=tmp_path / "page.html").words


def test_a_copy_is_looked_for_in_regular_files_only(tmp_path):
    paths = [pipe(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    with pytest.raises(OSError, match="not a regular file"):
        shards._refuse_copies(paths)


def test_folders_are_followed_to_a_depth(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "FOLDER_DEPTH", 5)
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    (tmp_path / "a/b/c/d/file").touch()
    assert list(layout.visible_files(tmp_path)) == [tmp_path / "a/b/c/d/file"]
    (tmp_path / "a/b/c/d/e").mkdir()
    assert "limits.FOLDER_DEPTH" in refusal(lambda: list(layout.visible_files(tmp_path)))


# --- metadata and names ---------------------------------------------------------------------------


def with_metadata(path: Path, metadata: bytes) -> Path:
    table = pa.table({"img": encoded(IMAGES), "label": LABELS}).replace_schema_metadata(
        {"huggingface": metadata}
    )
    arrow_parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("depth", [2000, 100_000])
@pytest.mark.parametrize("start", ["", '{"info": {"features": {"label": {"_type": "ClassLabel", "names": '])
def test_metadata_nested_too_deeply_say_nothing(tmp_path, depth, start):
    path = with_metadata(tmp_path / "all.parquet", f"{start}{'[' * depth}".encode())
    assert load(path).class_names == ("0", "1", "2")


@pytest.mark.parametrize("metadata", [b"\xff\xfe", b'{"info": {"features": 3}}', b"9" * 5000, b"null"])
def test_metadata_of_others_say_nothing(tmp_path, metadata):
    assert load(with_metadata(tmp_path / "all.parquet", metadata)).class_names == ("0", "1", "2")


@pytest.mark.parametrize("name", ["label", "img"])
def test_two_columns_of_one_name_are_refused(tmp_path, name):
    columns = {"img": pa.array(encoded(IMAGES)), "label": pa.array(LABELS)}
    table = pa.Table.from_arrays([*columns.values(), columns[name]], names=[*columns, name])
    arrow_parquet.write_table(table, tmp_path / "all.parquet")
    line = refusal(lambda: load(tmp_path / "all.parquet"))
    assert "all.parquet" in line
    assert f"'{name}'" in line


def damaged_strings(strings: list[bytes]) -> pa.Array:
    cells = pa.array(strings, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(cells), cells.buffers())


def test_labels_that_are_no_text_are_refused(tmp_path):
    labels = damaged_strings([b"cat", b"d\xffg", b"emu"] * 10)
    arrow_parquet.write_table(pa.table({"img": encoded(IMAGES), "label": labels}), tmp_path / "all.parquet")
    assert "all.parquet" in refusal(lambda: load(tmp_path / "all.parquet"))


@pytest.mark.parametrize("name", [b"label", b"other"])
def test_a_column_name_that_is_no_text_is_refused(tmp_path, name):
    table = pa.table({"img": encoded(IMAGES), "label": LABELS, "other": LABELS})
    arrow_parquet.write_table(table, tmp_path / "all.parquet", store_schema=False)
    content = (tmp_path / "all.parquet").read_bytes()
    (tmp_path / "all.parquet").write_bytes(content.replace(name, b"\xff" * 5))
    assert "all.parquet" in refusal(lambda: load(tmp_path / "all.parquet"))


def test_a_long_label_is_refused_by_its_row(tmp_path):
    labels = [*CLASSES[:12], "x" * 5000, *CLASSES[13:]]
    line = refusal(
        lambda: load(write_table(tmp_path / "all.parquet", {"img": encoded(IMAGES), "label": labels}))
    )
    assert "all.parquet row 12" in line
    assert "limits.CLASS_NAME" in line


def test_labels_in_a_dictionary_are_read(tmp_path):
    columns = {"img": encoded(IMAGES), "label": pa.array(CLASSES).dictionary_encode()}
    assert load(write_table(tmp_path / "all.parquet", columns)).class_names == NAMES


def test_true_and_false_are_read_as_the_first_two_named_classes(tmp_path):
    columns = {"img": encoded(IMAGES), "label": [i % 2 == 0 for i in range(len(IMAGES))]}
    found = load(write_table(tmp_path / "all.parquet", columns, features_of("cat", "dog")))
    assert found.class_names == ("cat", "dog")
    assert sum(len(part) for part in (found.train, found.valid, found.test)) == len(IMAGES)
    assert found.class_counts.sum() == len(found.train)


UNUSABLE = ["d\ud800g", "d\0g", "d\x1b[2Jg", "d\ng", " ", "", "cat", "x" * 201, "\u202edog"]


# Half a character makes all of the metadata unusable, which then count as missing.
@pytest.mark.parametrize("name", [*UNUSABLE[1:], None, ["dog"], {"dog": 1}])
def test_class_names_of_metadata_that_cannot_be_used_are_refused(tmp_path, name):
    metadata = json.dumps({"info": {"features": features_of("cat", name, "emu")}}).encode()
    assert "all.parquet" in refusal(lambda: load(with_metadata(tmp_path / "all.parquet", metadata)))


@pytest.mark.parametrize("name", ["d\0g", "d\x1b[2Jg", "d\ng", " ", ""])
def test_labels_that_cannot_be_used_are_refused(tmp_path, name):
    columns = {"img": encoded(IMAGES), "label": ["cat", name, "emu"] * 10}
    assert "all.parquet" in refusal(lambda: load(write_table(tmp_path / "all.parquet", columns)))


@pytest.mark.parametrize("name", [b"d\xffg", b"d\x1b[2Jg", b"d\ng", b" ", b"x" * 201])
def test_folders_whose_names_cannot_be_used_are_refused_before_anything_is_read(tmp_path, monkeypatch, name):
    root = write_folder(tmp_path / "photos", IMAGES, ["cat", os.fsdecode(name), "emu"] * 10)
    monkeypatch.setattr(decode_many, "decode", lambda *_, **__: pytest.fail("an image was decoded"))
    assert "photos" in refusal(lambda: load(root))


@pytest.mark.parametrize("name", UNUSABLE)
def test_class_names_of_python_that_cannot_be_used_are_refused(name):
    images = torch.zeros(30, 1, 8, 8, dtype=torch.uint8)
    assert "class_names" in refusal(lambda: gmmc.data.from_arrays(images, LABELS, ["cat", name, "emu"]))


def test_file_names_are_printed_without_effect(tmp_path):
    root = photos(tmp_path / "photos")
    (root / "dog" / "z\x1b[2J.png").write_bytes(b"no image")
    assert r"z\x1b[2J.png" in refusal(lambda: load(root))
    (root / "dog" / "z\x1b[2J.png").rename(root / "dog" / "z.\x1b[2J")
    assert all(note.isprintable() for note in load(root).notes)


# --- reports --------------------------------------------------------------------------------------


def shown(run: Path, file: str) -> Panel:
    return pictures.panel(read_runs([run])[0], file, 10_000, several=False)


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns of the first and refuses the second
def test_a_picture_of_too_many_pixels_is_not_shown(tmp_path, side, recwarn):
    run = make_run(tmp_path / "run", {"samples": samples_entry(["samples/film.png"])})
    (run / "samples").mkdir()
    (run / "samples" / "film.png").write_bytes(claiming(side, side))
    panel = shown(run, "samples/film.png")
    assert "samples/film.png" in panel.missing
    assert not panel.picture
    assert not recwarn.list


@pytest.mark.parametrize("file", ["samples/a\0b.png", "samples/\ud800.png", "samples/" + "x" * 300])
def test_what_cannot_be_a_file_name_is_not_shown(tmp_path, file):
    panel = shown(make_run(tmp_path / "run", {"samples": samples_entry([])}), file)
    assert panel.missing.isprintable()
    assert not panel.picture


def test_a_large_file_is_not_shown(tmp_path):
    run = make_run(tmp_path / "run", {"samples": samples_entry([])})
    with (run / "film.png").open("wb") as file:
        file.truncate(2**40)
    assert "film.png" in shown(run, "film.png").missing


def test_a_picture_longer_than_its_format_allows_is_made_smaller():
    content = io.BytesIO()
    Image.effect_noise((20_000, 10), 50).save(content, "PNG")
    kind, smaller = pictures.fitted(content.getvalue(), 100_000)
    assert kind == "webp"
    assert len(smaller) * 4 / 3 <= 100_000


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [8, 20_000])
def test_a_stamp_that_is_nested_too_deeply_is_not_ours(tmp_path, side):
    text = b"gmmc\0" + b"[" * 100_000
    stamp = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(b"tEXt" + text))
    whole = claiming(side, side)
    (tmp_path / "a.png").write_bytes(whole[:33] + stamp + whole[33:])
    assert not drawn_folder._bears(tmp_path / "a.png", {"seed": 0})
