"""From image files to images of a model: `gmmc.read_images`, and folders in `gmmc predict`."""

import doctest
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import gmmc
from conftest import make_model
from gmmc.classifier import image_files
from gmmc.cli import app
from gmmc.data.files import read_image
from gmmc.errors import InputError
from gmmc.export import hub
from gmmc.runs import model_file
from image_files import load, pictures, png, write_folder


def paths_in(root, count=3, size=8):
    """Grey image files in `root`, in order."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [root / f"{i}.png" for i in range(count)]
    for path, pixels in zip(paths, pictures(count, size, channels=1), strict=True):
        path.write_bytes(png(pixels))
    return paths


def test_the_example_runs():
    found = doctest.DocTestFinder().find(image_files.read_images, globs={})
    assert sum(len(test.examples) for test in found) > 3
    runner = doctest.DocTestRunner()
    for test in found:
        runner.run(test)
    assert runner.summarize().failed == 0


def test_files_folders_and_pictures_are_the_same_images(tmp_path):
    model = make_model()
    paths = paths_in(tmp_path / "new")
    expected = torch.stack([read_image(path, model.shape) for path in paths])
    opened = [Image.open(path) for path in paths]
    for given in (paths, [str(path) for path in paths], tmp_path / "new", str(tmp_path / "new"), opened):
        assert torch.equal(gmmc.read_images(given, model), expected)
    assert torch.equal(gmmc.read_images(iter([opened[1], paths[0]]), model), expected[[1, 0]])
    assert torch.equal(gmmc.read_images(opened[2], model), expected[2:])
    for picture in opened:
        picture.close()


def test_a_picture_stays_open_and_as_it_was(tmp_path):
    with Image.open(paths_in(tmp_path, 1)[0]) as picture:
        before = np.array(picture)
        gmmc.read_images([picture, picture], make_model())
        assert np.array_equal(np.array(picture), before)


def test_a_model_takes_what_is_read(digits, tmp_path):
    model, _ = digits
    found = gmmc.read_images(paths_in(tmp_path), model)
    assert (found.dtype, tuple(found.shape)) == (torch.uint8, (3, 1, 8, 8))
    assert model.predict_proba(found).shape == (3, 10)
    assert len(model.answer(found).names) == 3


def test_no_images_are_no_images():
    assert gmmc.read_images([], make_model()).shape == (0, 1, 8, 8)


def test_an_estimator_gets_rows_as_it_was_fitted_on(tmp_path):
    """Whatever the layout and range of its images, equal images have equal answers."""
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = (rng.integers(0, 100, (40, 8, 8, 3)) + 120 * y[:, None, None, None]).astype(np.uint8)
    Image.fromarray(x[5]).save(tmp_path / "five.png")
    settings = {"discriminative.epochs": 1}
    for rows in (x, x / 255, x.transpose(0, 3, 1, 2)):
        model = gmmc.GMMCClassifier(beta=0, settings=settings, min_updates=1, random_state=0).fit(rows, y)
        found = gmmc.read_images(tmp_path / "five.png", model)
        assert found.dtype == rows.dtype
        np.testing.assert_allclose(found, rows[5:6], atol=1e-6)
        np.testing.assert_allclose(model.predict_proba(found), model.predict_proba(rows[5:6]), rtol=1e-4)


@pytest.mark.parametrize("resize", [None, False, True])
@pytest.mark.parametrize("place", ["run", "resized", "hub"])
def test_resizing_is_that_of_predict(place, resize, run, tmp_path):
    """By default as the training images were; a model from elsewhere resizes."""
    if place == "hub":
        model = gmmc.from_pretrained(hub.save_pretrained(run, tmp_path / "hub"))
    else:
        model = make_model(data={"size": 8}) if place == "resized" else model_file.load(run)
    path = paths_in(tmp_path / "new", 1, size=20)[0]
    if resize or (resize is None and place != "run"):
        found = gmmc.read_images(path, model, resize=resize)
        assert torch.equal(found[0], read_image(path, model.shape, resize=True))
    else:
        with pytest.raises(InputError, match=r"8×8 pixels .*20×20.*resize"):
            gmmc.read_images(path, model, resize=resize)


def test_the_shipped_model_resizes():
    assert gmmc.load("cifar10").resizes


def test_conversions_are_counted(tmp_path, capsys):
    model = make_model(shape=(3, 8, 8))
    Image.new("RGBA", (8, 8), (9, 9, 9, 252)).save(tmp_path / "nearly.png")
    Image.new("RGBA", (8, 8), (9, 9, 9, 255)).save(tmp_path / "opaque.png")
    (tmp_path / "readme.txt").write_text("not an image")
    assert gmmc.read_images(tmp_path, model).unique().tolist() == [9]
    err = capsys.readouterr().err
    assert "1 nearly opaque, 1 opaque images" in err
    assert "1 files (.txt)" in err


def not_images(tmp_path):
    paths = paths_in(tmp_path / "good", 1)
    Image.new("LA", (8, 8), (9, 100)).save(tmp_path / "clear.png")
    (tmp_path / "empty").mkdir()
    clear = Image.new("LA", (8, 8), (9, 100))
    model = make_model()
    return {
        "missing": (tmp_path / "none.png", model, "none.png"),
        "transparent": (tmp_path / "clear.png", model, r"clear\.png must be opaque"),
        "picture": ([paths[0], clear], model, r"paths\[1\] must be opaque"),
        "mode": ([Image.new("F", (8, 8))], model, r"paths\[0\] must be grey or RGB, got the mode F"),
        "empty folder": (tmp_path / "empty", model, "empty must hold image files"),
        "nothing": (None, model, "paths must be .*, got NoneType"),
        "number": (3, model, "paths must be .*, got int"),
        "empty path": (["", paths[0]], model, "paths must be .*, got ''"),
        "no pixels": ([Image.new("L", (0, 0))], model, r"paths\[0\] must have .*, got 0×0"),
        "array": ([np.zeros((8, 8))], model, "paths must be .*, got ndarray"),
        "model": (paths, "cifar10", "model must be .*, got str"),
        "not fitted": (paths, gmmc.GMMCClassifier(), "model must be .*, got GMMCClassifier"),
        "vectors": (paths, make_model(shape=(5, 1, 1), model={"backbone": "mlp-1-8"}), "rows of 5 numbers"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "missing",
        "transparent",
        "picture",
        "mode",
        "empty folder",
        "nothing",
        "number",
        "empty path",
        "no pixels",
        "array",
        "model",
        "not fitted",
        "vectors",
    ],
)
def test_what_cannot_be_read_is_named(name, tmp_path):
    paths, model, message = not_images(tmp_path)[name]
    with pytest.raises(InputError, match=message):
        gmmc.read_images(paths, model)


def test_a_closed_picture_is_named(tmp_path):
    picture = Image.open(paths_in(tmp_path, 1)[0])
    picture.close()
    with pytest.raises(InputError, match=r"paths\[0\]"):
        gmmc.read_images(picture, make_model())


def test_a_picture_in_memory_has_the_bounds_of_a_file(monkeypatch):
    monkeypatch.setattr("gmmc.base.open_image.PICTURE_PIXELS", 100)
    with pytest.raises(InputError, match=r"paths\[0\] must have at most 100 pixels"):
        gmmc.read_images(Image.new("L", (11, 10)), make_model(), resize=True)


def predicted(capsys, *arguments):
    """(exit status, predictions, standard error) of gmmc predict."""
    with pytest.raises(SystemExit) as stop:
        app.main(["predict", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    return stop.value.code, [json.loads(line) for line in out.splitlines()], err


def test_predict_takes_a_folder(run, tmp_path, capsys):
    """Its image files and those of sub-folders, in order, beside single files."""
    inside = [*paths_in(tmp_path / "new" / "a"), *paths_in(tmp_path / "new" / "b")]
    (tmp_path / "new" / "notes.txt").write_text("hello")
    shutil.copy(inside[0], tmp_path / "new" / ".hidden.png")
    single = paths_in(tmp_path / "other", 1)[0]
    status, rows, err = predicted(capsys, run, tmp_path / "new", single)
    assert status == 0
    assert [row["image"] for row in rows] == [str(path) for path in [*inside, single]]
    assert ".txt" in err
    assert predicted(capsys, run, *inside, single)[1] == rows


def test_a_bad_file_of_a_folder_does_not_hide_the_others(run, tmp_path, capsys):
    """Every other file gets the answer of its own pixels."""
    good = paths_in(tmp_path / "new", 3)
    (tmp_path / "new" / "0-bad.png").write_text("hello")  # the first to be read
    status, rows, err = predicted(capsys, run, tmp_path / "new")
    assert (status, [row["image"] for row in rows]) == (2, [str(path) for path in good])
    assert "0-bad.png" in err.splitlines()[-1]
    assert rows == predicted(capsys, run, *good)[1]
    assert len({row["value"] for row in rows}) == 3


def test_a_bad_folder_does_not_hide_the_others(run, tmp_path, capsys):
    good = paths_in(tmp_path / "new", 2)
    (tmp_path / "empty").mkdir()
    status, rows, err = predicted(capsys, run, tmp_path / "empty", tmp_path / "new")
    assert (status, [row["image"] for row in rows]) == (2, [str(path) for path in good])
    assert str(tmp_path / "empty") in err.splitlines()[-1]


def test_predict_refuses_an_empty_path(run, capsys):
    status, rows, err = predicted(capsys, run, "")
    assert (status, rows, len(err.splitlines())) == (2, [], 1)
    assert "''" in err


def test_predict_has_the_bound_of_memory(run, tmp_path, capsys, monkeypatch):
    paths = paths_in(tmp_path, 2)
    monkeypatch.setattr("gmmc.data.decode.MEMORY_SHARE", 1e-12)
    status, rows, err = predicted(capsys, run, *paths)
    assert (status, rows) == (2, [])
    assert "MEMORY_SHARE" in err


def test_predict_refuses_a_folder_without_images(run, tmp_path, capsys):
    status, rows, err = predicted(capsys, run, tmp_path)
    assert (status, rows, len(err.splitlines())) == (2, [], 1)
    assert str(tmp_path) in err


def test_predict_counts_nearly_opaque_images(run, tmp_path, capsys):
    for i in range(2):
        Image.new("LA", (8, 8), (9, 250 + i)).save(tmp_path / f"{i}.png")
    status, rows, err = predicted(capsys, run, tmp_path)
    assert (status, len(rows)) == (0, 2)
    assert "2 nearly opaque images" in err


def test_a_folder_to_train_on_may_hold_nearly_opaque_images(tmp_path, capsys):
    root = write_folder(tmp_path / "photos", pictures(10), ["cat", "dog"] * 5)
    with Image.open(root / "cat" / "000.png") as picture:
        pixels = np.array(picture)
        picture.putalpha(251)
        picture.save(root / "cat" / "000.png")
    data = load(root)
    every = torch.cat([data.train.images, data.valid.images, data.test.images])
    assert (every == torch.from_numpy(pixels).permute(2, 0, 1)).flatten(1).all(1).sum() == 1
    assert "1 nearly opaque image" in capsys.readouterr().err
