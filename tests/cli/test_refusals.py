"""Whatever is wrong with a data set on disk is named in one line, by file and row."""

import re
import shutil

import numpy as np
import pyarrow as pa
import pytest

import gmmc
from conftest import tiny_data
from gmmc.bench import summary
from gmmc.config.sections import DataConfig
from gmmc.data.ood_sets import find_outside
from gmmc.errors import InputError
from gmmc.evaluations.result import Result
from image_files import (
    CLASSES,
    IMAGES,
    LABELS,
    NAMES,
    class_label,
    encoded,
    features_of,
    hub_layout,
    image_layout,
    load,
    pictures,
    png,
    write_folder,
    write_shard,
    write_table,
)


def tables(root, **changes):
    """Two good shards and a test split; `changes` replace cells of the second shard by row."""
    hub_layout(root, sub="")
    cells = {"img": encoded(IMAGES[10:20]), "label": list(LABELS[10:20])}
    for column, (row, value) in changes.items():
        cells[column][row] = value
    write_table(root / "train-00001-of-00002.parquet", cells, features_of(*NAMES))
    return root


def one_class(root):
    return write_folder(root, IMAGES[:5], ["cat"] * 5)


def bad_image_file(root):
    write_folder(root, IMAGES, CLASSES)
    (root / "dog" / "001.png").write_bytes(png(IMAGES[1])[:40])
    return root


def dangling_link(root):
    write_folder(root, IMAGES, CLASSES)
    (root / "dog" / "zzz.png").symlink_to(root / "nowhere.png")
    return root


def empty_class(root):
    write_folder(root, IMAGES, CLASSES)
    (root / "ferret").mkdir()
    (root / "ferret" / "notes.txt").write_text("to do")
    return root


def copy_of_a_shard(root):
    hub_layout(root, sub="")
    shutil.copy(root / "train-00000-of-00002.parquet", root / "train_copy.parquet")
    return root


def trained_on_the_test(root):
    hub_layout(root, sub="")
    shutil.copy(root / "train-00000-of-00002.parquet", root / "test-00000-of-00001.parquet")
    return root


def two_copies(root):
    hub_layout(root, sub="")
    write_shard(root / "train-00000-of-00001.parquet", IMAGES[:20], LABELS[:20], NAMES)
    return root


def of_two_numberings(root):
    write_shard(root / "train-00000-of-00001.parquet", IMAGES[:10], LABELS[:10], NAMES)
    write_shard(root / "train-00001-of-00002.parquet", IMAGES[10:], LABELS[10:], NAMES)
    return root


def of_two_uploads(root):
    for upload, seed in (("0a1b2c3d4e5f6071", 1), ("1a1b2c3d4e5f6071", 2)):
        path = root / f"train-00000-of-00001-{upload}.parquet"
        write_shard(path, pictures(9, seed=seed), LABELS[:9], NAMES)
    return root


def names_change(root):
    hub_layout(root, sub="")
    write_shard(root / "train-00001-of-00002.parquet", IMAGES[10:20], LABELS[10:20], ("dog", "cat", "emu"))
    return root


def far_down(root):
    """Null in row 150, which is not in the first batch that is read."""
    labels = [i % 3 if i != 150 else None for i in range(200)]
    return write_shard(root / "all.parquet", pictures(200), labels)


def missing_shard(root):
    hub_layout(root, sub="")
    (root / "train-00001-of-00002.parquet").unlink()
    return root


def cut_short(root):
    hub_layout(root, sub="")
    path = root / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    return root


def damaged_inside(root):
    hub_layout(root, sub="")
    path = root / "train-00001-of-00002.parquet"
    whole = bytearray(path.read_bytes())
    whole[4:200] = bytes(196)
    path.write_bytes(whole)
    return root


def only_test(root):
    write_shard(root / "test-00000-of-00001.parquet", IMAGES, LABELS, NAMES)
    return root


def two_sets(root):
    hub_layout(root, sub="cropped_digits")
    write_shard(root / "full_numbers" / "train-00000-of-00001.parquet", pictures(3, seed=4), [0, 1, 2], NAMES)
    return root


def other_names(root):
    hub_layout(root, sub="")
    write_shard(root / "test-00000-of-00001.parquet", IMAGES[20:], LABELS[20:], ("dog", "cat", "emu"))
    return root


def unknown_class_in_test(root):
    write_folder(root / "train", IMAGES[:20], CLASSES[:20])
    return write_folder(root / "test", IMAGES[20:], ["zebra"] * 10).parent


def two_validation_folders(root):
    image_layout(root)
    write_folder(root / "val", IMAGES[:3], NAMES)
    write_folder(root / "valid", IMAGES[:3], NAMES)
    return root


def one_table(root, columns, features=None):
    return write_table(root / "all.parquet", columns, features)


def images_only(root):
    return one_table(root, {"img": encoded(IMAGES), "celeba_id": LABELS, "age": LABELS})


def ambiguous_labels(root):
    columns = {"img": encoded(IMAGES), "shape": LABELS, "colour": LABELS}
    return one_table(root, columns, {"shape": class_label(*NAMES), "colour": class_label(*NAMES)})


def loose_images(root):
    root.mkdir()
    (root / "a.png").write_bytes(png(IMAGES[0]))
    return root


def empty_folder(root):
    root.mkdir()
    return root


def no_table(root):
    root.mkdir()
    (root / "labels.csv").write_text("a,b")
    return root / "labels.csv"


def empty_table(root):
    return one_table(root, {"x": pa.array([], pa.binary()), "label": pa.array([], pa.int64())})


SECOND = r"train-00001-of-00002.parquet row "
BAD = [
    (lambda root: tables(root, img=(4, b"no image")), SECOND + "4 as an image: its format is none of PNG, "),
    (lambda root: tables(root, img=(8, png(IMAGES[0])[:-30])), f"cannot read .*{SECOND}8 as an image"),
    (lambda root: tables(root, img=(0, None)), SECOND + "0 must have an image in 'img', got null"),
    (
        lambda root: tables(root, img=(5, png(pictures(1, size=6)[0]))),
        SECOND + "5 and 4×4 in .*-00002.parquet row 0",
    ),
    (lambda root: tables(root, label=(9, None)), SECOND + "9 must have a label in 'label', got null"),
    (lambda root: tables(root, label=(2, 3)), SECOND + r"2 must have a label in 0\.\.2, got 3"),
    (lambda root: tables(root, label=(2, -1)), SECOND + r"2 must have a label in 0\.\.2, got -1"),
    (one_class, "images of at least two classes, got 'cat'"),
    (bad_image_file, r"cannot read .*dog.001\.png as an image"),
    (dangling_link, r"cannot read .*zzz\.png: No such file"),
    (empty_class, r"every class folder must hold images, got none in .*ferret; fill or remove it"),
    (copy_of_a_shard, r"train_copy\.parquet must not be a copy of .*train-00000-of-00002\.parquet"),
    (trained_on_the_test, r"train-00000-of-00002\.parquet must not be a copy of .*test-00000"),
    (two_copies, r"train-00000-of-00002\.parquet must not lie beside train-00000-of-00001\.parquet"),
    (of_two_numberings, r"train-00001-of-00002\.parquet must not lie beside train-00000-of-00001\.parquet"),
    (of_two_uploads, r"-1a1b2c3d4e5f6071\.parquet must not lie beside train-00000-of-00001-0a1b2c3d4e5f6071"),
    (names_change, r"train-00001-of-00002\.parquet must name the same classes as .*train-00000-of-00002"),
    (far_down, r"all\.parquet row 150 must have a label in 'label', got null"),
    (missing_shard, r"must hold all 2 files of train, got no train-00001-of-00002\.parquet"),
    (cut_short, r"cannot read .*train-00001-of-00002\.parquet as a parquet file, it may be cut short"),
    (damaged_inside, r"cannot read .*train-00001-of-00002\.parquet"),
    (only_test, "must hold training images, got only test"),
    (two_sets, "must hold one data set, got parquet files of several: cropped_digits, full_numbers"),
    (other_names, "all splits of .* must name the same classes"),
    (unknown_class_in_test, "every class needs a training image, got none for zebra"),
    (two_validation_folders, "must have one validation folder, got val, valid"),
    (images_only, r"must have a column of labels, got img, celeba_id, age; choose one with data\.label=…"),
    (ambiguous_labels, r"must have one column of labels, got shape, colour; choose with data\.label=…"),
    (lambda root: one_table(root, {"label": LABELS}), "must have a column of images, got the columns label"),
    (
        lambda root: one_table(root, {"img": encoded(IMAGES), "label": [0.5] * 30}),
        "must be whole numbers or strings, got .double",
    ),
    (loose_images, "must hold one sub-folder of images per class, got no sub-folders"),
    (empty_folder, "must hold images in one sub-folder per class, or parquet files, got neither"),
    (no_table, r"a data set must be a folder or a \.parquet file, got .*labels\.csv"),
    (empty_table, "must hold images, got no rows in all.parquet"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_is_wrong_is_named_in_one_line(tmp_path, make, message):
    with pytest.raises(InputError, match=message) as refusal:
        load(make(tmp_path / "animals"))
    assert "\n" not in str(refusal.value)


def test_a_label_column_that_is_not_there(tmp_path):
    path = write_shard(tmp_path / "all.parquet", IMAGES, LABELS)
    with pytest.raises(
        InputError, match=r"data.label must be a column of .*, one of img, label, got 'lable'"
    ):
        load(path, label="lable")
    with pytest.raises(InputError, match=r"data.label is for parquet files, got 'kind' with class folders"):
        load(write_folder(tmp_path / "photos", IMAGES, CLASSES), label="kind")


def test_an_unknown_name_lists_the_known_ones():
    names = "digits, cifar10, cifar100, svhn, celeba, fashion_mnist"
    expected = f"data.name must be one of {names}, or a folder of images or parquet files, got 'cats'"
    with pytest.raises(InputError, match=re.escape(expected)):
        load("cats")
    with pytest.raises(InputError, match=r"data.name must be one of"):
        load("")


@pytest.mark.parametrize("second", ["train-00001-of-00002.parquet", "test-00000-of-00001.parquet"])
def test_numbers_in_one_file_and_strings_in_another(tmp_path, second):
    first = "train-00000-of-00002.parquet" if "train" in second else "train-00000-of-00001.parquet"
    write_shard(tmp_path / first, IMAGES[:15], LABELS[:15])
    write_shard(tmp_path / second, IMAGES[15:], [str(label) for label in LABELS[15:]])
    with pytest.raises(InputError, match="must be of one type"):
        load(tmp_path)


LONG = "\x1b[2J" + "x/" * 1500


@pytest.mark.parametrize(
    "call",
    [
        lambda: gmmc.load(LONG),
        lambda: gmmc.from_pretrained(LONG),
        lambda: gmmc.data.load(DataConfig(name=LONG), 0),
        lambda: gmmc.data.from_arrays(np.zeros((2, 8, 8)), [LONG, "a"], class_names=["a", "b"]),
        lambda: find_outside(LONG, tiny_data()),
    ],
)
def test_values_in_refusals_are_shortened(call):
    with pytest.raises(InputError) as caught:
        call()
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 1000


def test_a_column_in_a_refusal_is_shortened(tmp_path):
    with pytest.raises(InputError, match=r"data\.label") as caught:
        load(tables(tmp_path), label=LONG)
    assert len(str(caught.value)) < 1000


def test_names_in_a_benchmark_cannot_act_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(summary, "print_table", lambda *_, **__: None)
    monkeypatch.setattr(summary, "variant_table", lambda _: ())
    summary.show(Result({}, {}, flags=["\x1b[2J"], curves={"variants": {"\x1b[3J": []}}))
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed.count("x1b") == 2
