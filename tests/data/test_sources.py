"""Data sets in folders and parquet files: every layout gives the same bits; what is wrong is named."""

import io

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from gmmc.config.sections import DataConfig
from gmmc.data import decode_many, sources
from gmmc.errors import InputError
from image_files import (
    CLASSES,
    IMAGES,
    LABELS,
    NAMES,
    class_label,
    encoded,
    hub_layout,
    image_layout,
    load,
    pictures,
    png,
    write_folder,
    write_shard,
    write_table,
)


def rows(part):
    """The images of a split with their labels, in an order that does not depend on the files."""
    return sorted(
        (image.numpy().tobytes(), label)
        for image, label in zip(part.images, part.labels.tolist(), strict=True)
    )


def given(images, labels):
    return sorted(
        (image.transpose(2, 0, 1).tobytes(), label) for image, label in zip(images, labels, strict=True)
    )


# --- layouts --------------------------------------------------------------------------------------


def flat_layout(root):
    write_shard(root / "train.parquet", IMAGES[:20], LABELS[:20], NAMES)
    write_shard(root / "test.parquet", IMAGES[20:], LABELS[20:], NAMES)
    return root


def sub_folder_layout(root):
    write_shard(root / "default" / "train" / "0000.parquet", IMAGES[:10], LABELS[:10], NAMES)
    write_shard(root / "default" / "train" / "0001.parquet", IMAGES[10:20], LABELS[10:20], NAMES)
    write_shard(root / "default" / "test" / "0000.parquet", IMAGES[20:], LABELS[20:], NAMES)
    return root


LAYOUTS = [hub_layout, flat_layout, sub_folder_layout, image_layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_images_and_labels(tmp_path, layout):
    got = load(layout(tmp_path / "animals"), valid=0.2)
    assert got.name == "animals"
    assert got.class_names == NAMES
    assert got.shape == (3, 4, 4)
    assert rows(got.test) == given(IMAGES[20:], LABELS[20:])
    assert sorted(rows(got.train) + rows(got.valid)) == given(IMAGES[:20], LABELS[:20])
    assert len(got.valid) == 4
    assert got.notes == ()


@pytest.mark.parametrize("called", ["validation", "valid", "val"])
def test_a_validation_split_of_its_own_is_used(tmp_path, called):
    for kind in ("tables", "images"):
        root = tmp_path / kind
        if kind == "tables":
            hub_layout(root)
            extra = root / "plain_text" / f"{called}-00000-of-00001.parquet"
            write_shard(extra, pictures(6, seed=9), LABELS[:6], NAMES)
        else:
            image_layout(root)
            write_folder(root / called, pictures(6, seed=9), CLASSES[:6])
        got = load(root, valid=0.5)
        assert rows(got.valid) == given(pictures(6, seed=9), LABELS[:6])
        assert rows(got.test) == given(IMAGES[20:], LABELS[20:])
        assert len(got.train) == 20
        assert got.notes == (
            f"{kind}: its own 6 validation images are used, not a share of the training images",
        )


def test_without_a_test_split_the_same_images_are_always_held_out(tmp_path, capsys):
    table = write_shard(tmp_path / "all.parquet", IMAGES, LABELS, NAMES)
    folder = write_folder(tmp_path / "photos", IMAGES, CLASSES)
    for path in (table, folder):
        a, b = (sources.load(DataConfig(name=str(path), valid=0.2), seed) for seed in (0, 1))
        assert torch.equal(a.test.images, b.test.images)
        assert not torch.equal(a.valid.images, b.valid.images)
        assert a.test.labels.bincount().tolist() == [2, 2, 2]
        assert sorted(rows(a.train) + rows(a.valid) + rows(a.test)) == given(IMAGES, LABELS)
    note = "photos: no test split; 6 of its images, always the same, serve as test images"
    assert a.notes == (note,)
    assert note in capsys.readouterr().err


def test_shards_are_read_in_the_order_of_their_numbers(tmp_path):
    levels = [np.full((4, 4), i, np.uint8) for i in range(24)]
    for i in range(12):
        shard = tmp_path / f"train-{i:05d}-of-00012.parquet"
        write_shard(shard, levels[2 * i : 2 * i + 2], [0, 1], ("a", "b"))
    write_shard(tmp_path / "test-00000-of-00001.parquet", levels[:5], [0, 1, 0, 1, 0], ("a", "b"))
    got = load(tmp_path, valid=0)
    assert got.train.images[:, 0, 0, 0].tolist() == list(range(24))
    assert got.train.labels.tolist() == [0, 1] * 12


def test_links_are_followed_but_not_around_in_circles(tmp_path):
    real = write_folder(tmp_path / "real", IMAGES, CLASSES)
    (tmp_path / "photos").mkdir()
    for name in NAMES:
        (tmp_path / "photos" / name).symlink_to(real / name)
    (tmp_path / "photos" / "cat" / "again").symlink_to(tmp_path / "photos")
    got = load(tmp_path / "photos")
    assert len(got.train) + len(got.valid) + len(got.test) == 30


def test_a_class_may_be_called_train(tmp_path):
    write_folder(tmp_path, IMAGES, [("bus", "car", "train")[label] for label in LABELS])
    assert load(tmp_path).class_names == ("bus", "car", "train")


def test_what_is_no_image_is_left_aside_and_stated(tmp_path):
    write_folder(tmp_path / "photos", IMAGES, CLASSES)
    for name in (".DS_Store", "cat/.hidden.png", "cat/Thumbs.db", "readme.txt"):
        (tmp_path / "photos" / name).write_text("no image")
    (tmp_path / "photos" / ".cache").mkdir()
    (tmp_path / "photos" / "overview.png").write_bytes(png(IMAGES[0]))
    got = load(tmp_path / "photos")
    assert got.class_names == NAMES
    assert got.notes[:2] == (
        "photos: not read: 2 files (.db, .txt)",
        "photos: not used: 1 of the images, in no class folder",
    )


def test_files_of_other_splits_are_not_used_and_stated(tmp_path):
    root = hub_layout(tmp_path / "svhn", sub="")
    write_shard(root / "extra-00000-of-00001.parquet", pictures(3, seed=7), [0, 1, 2], NAMES)
    got = load(root)
    assert len(got.train) + len(got.valid) == 20
    assert got.notes == ("svhn: not used: extra-00000-of-00001.parquet",)


def test_a_split_may_lack_a_class(tmp_path):
    write_folder(tmp_path / "train", IMAGES[:20], CLASSES[:20])
    write_folder(tmp_path / "test", IMAGES[1:3], ["dog", "emu"])
    assert load(tmp_path).test.labels.tolist() == [1, 2]


def test_other_folders_beside_splits_are_not_used_and_stated(tmp_path):
    root = image_layout(tmp_path / "photos")
    write_folder(root / "annotations", IMAGES[:2], ["drawn", "drawn"])
    got = load(root)
    assert got.class_names == NAMES
    assert got.notes == ("photos: not used: 2 of the images, in no class folder",)


# --- columns --------------------------------------------------------------------------------------


def test_the_image_column_is_the_one_that_is_said_to_be_or_looks_like_it(tmp_path):
    told = {"picture": {"_type": "Image"}, "mask": {"_type": "Other"}}
    cells = [{"bytes": png(image), "path": "x.png"} for image in IMAGES]
    wrong = encoded(pictures(30, seed=5))
    tables = {
        "told": write_table(tmp_path / "1.parquet", {"mask": wrong, "picture": cells, "label": LABELS}, told),
        "struct": write_table(
            tmp_path / "2.parquet", {"raw": wrong, "image": encoded(IMAGES), "label": LABELS}
        ),
        "binary": write_table(tmp_path / "3.parquet", {"id": LABELS, "x": encoded(IMAGES), "label": LABELS}),
    }
    for path in tables.values():
        got = load(path)
        assert sorted(rows(got.train) + rows(got.valid) + rows(got.test)) == given(IMAGES, LABELS)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([10, 2, 33], ("2", "10", "33")),  # numbers by their size, not by their digits
        (["b", "a", "c"], ("a", "b", "c")),
        ([True, False, True], ("False", "True")),
        (pa.array(["b", "a", "c"]).dictionary_encode(), ("a", "b", "c")),
    ],
)
def test_without_names_the_classes_are_the_values_that_occur(tmp_path, values, names):
    plain = values if isinstance(values, list) else values.to_pylist()
    column = plain * 10 if isinstance(values, list) else pa.array(plain * 10).dictionary_encode()
    path = write_table(tmp_path / "all.parquet", {"img": encoded(IMAGES), "label": column})
    got = load(path)
    assert got.class_names == names
    expected = [names.index(str(value)) for value in plain * 10]
    assert sorted(rows(got.train) + rows(got.valid) + rows(got.test)) == given(IMAGES, expected)


@pytest.mark.parametrize(
    ("columns", "features", "label", "names"),
    [
        (
            ["coarse_label", "fine_label"],
            ["coarse_label", "fine_label"],
            "",
            ("fine_label 0", "fine_label 1"),
        ),
        (["fine_label", "label"], ["fine_label", "label"], "", ("label 0", "label 1")),
        (["target"], [], "", ("0", "1")),
        (["species"], ["species"], "", ("species 0", "species 1")),
        (
            ["coarse_label", "fine_label"],
            ["coarse_label"],
            "coarse_label",
            ("coarse_label 0", "coarse_label 1"),
        ),
        (["height"], [], "height", ("0", "1")),
    ],
)
def test_the_label_column_is_found_or_given(tmp_path, columns, features, label, names):
    told = {name: class_label(f"{name} 0", f"{name} 1") for name in features}
    cells = {name: [i % 2 for i in range(30)] for name in columns}
    path = write_table(tmp_path / "all.parquet", {"img": encoded(IMAGES), **cells}, told)
    assert load(path, label=label).class_names == names


@pytest.mark.parametrize("metadata", [b"{not json", b'{"info": 3}', b'{"info": {"features": {"label": 1}}}'])
def test_metadata_of_another_kind_say_nothing(tmp_path, metadata):
    path = write_shard(tmp_path / "all.parquet", IMAGES, LABELS)
    table = parquet.read_table(path).replace_schema_metadata({b"huggingface": metadata})
    parquet.write_table(table, path)
    assert load(path).class_names == ("0", "1", "2")


# --- conversions ----------------------------------------------------------------------------------


def palette_png():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 9, 0, 0])
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_conversions_are_counted_in_one_line(tmp_path, capsys):
    root = write_folder(tmp_path / "photos", pictures(20), ["a", "b"] * 10)
    for i in range(3):
        (root / "a" / f"palette{i}.png").write_bytes(palette_png())
    Image.new("CMYK", (4, 4)).save(root / "b" / "inks.tif")
    (root / "b" / "grey.png").write_bytes(png(pictures(1, channels=1)[0]))
    got = load(root)
    line = "photos: 1 CMYK, 1 grey, 3 palette images converted to RGB"
    assert got.notes[0] == line
    assert line in capsys.readouterr().err


def test_a_set_is_grey_only_if_every_image_is(tmp_path):
    grey = pictures(20, channels=1)
    only = load(write_shard(tmp_path / "grey.parquet", grey, LABELS[:20]))
    assert only.shape == (1, 4, 4)
    assert not any("converted" in note for note in only.notes)
    for place in (0, 7, 19):  # a colour image among grey ones, wherever it is
        mixed = [*grey[:place], IMAGES[0], *grey[place + 1 :]]
        got = load(write_shard(tmp_path / f"{place}.parquet", mixed, LABELS[:20]))
        assert got.shape == (3, 4, 4)
        expected = [image if image.ndim == 3 else np.stack([image] * 3, axis=-1) for image in mixed]
        assert sorted(rows(got.train) + rows(got.valid) + rows(got.test)) == given(expected, LABELS[:20])
        assert got.notes[0] == f"{place}.parquet: 19 grey images converted to RGB"


def test_a_grey_split_beside_one_in_colour_becomes_colour(tmp_path):
    write_folder(tmp_path / "train", IMAGES[:20], CLASSES[:20])
    write_folder(tmp_path / "test", pictures(6, channels=1), CLASSES[:6])
    got = load(tmp_path)
    assert got.test.images.shape == (6, 3, 4, 4)
    assert torch.equal(got.test.images[:, 0], got.test.images[:, 2])


def test_sizes_are_made_alike_on_request_only(tmp_path):
    square, wide = np.full((4, 4), 7, np.uint8), np.full((6, 18), 7, np.uint8)
    root = write_folder(tmp_path / "photos", [square, wide] * 5, ["a", "b"] * 5)
    with pytest.raises(
        InputError, match=r"one size, got 18×6 in .*b.001.png and 4×4 in .*a.000.png; data.size="
    ):
        load(root)
    got = load(root, size=5)
    assert got.shape == (1, 5, 5)
    assert (got.train.images == 7).all()


def test_a_set_that_fits_into_no_memory_is_refused():
    with pytest.raises(InputError, match=r"limits\.MEMORY_SHARE.*1(,000){5} of 4×4.*data\.size=…"):
        decode_many.Stack(10**15).add(IMAGES[0], "it")
