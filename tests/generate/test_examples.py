"""Images to try a model on: they follow from the data alone, and replace nothing of the user's."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_model, tiny_data
from gmmc.cli import app
from gmmc.data import sources as data_sources
from gmmc.data.files import read_image
from gmmc.data.splits import LabelledImages
from gmmc.errors import InputError
from gmmc.generate import examples
from gmmc.generate.examples import Example
from gmmc.runs import layout, model_file

NAMES = {"held-out.png", "noise.png", "turned.png"}


def gmmc(*arguments, capsys):
    """(exit status, standard output, standard error) of the command, in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.fixture
def copied(run, tmp_path):
    """A run folder to write to, as far as the command needs one."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / layout.MODEL).write_bytes((run / layout.MODEL).read_bytes())
    return tmp_path / "run"


def test_the_first_test_image_is_taken_whatever_it_shows():
    data = tiny_data()
    for first in range(3):
        rolled = dataclasses.replace(data, test=data.test[torch.arange(18).roll(-first)])
        found = examples.held_out(rolled)
        assert torch.equal(found.image, data.test.images[first])
        assert found.words.endswith(f"class {data.class_names[data.test.labels[first]]}")


def test_images_in_unit_range_become_bytes():
    data = tiny_data()
    unit = LabelledImages(data.test.images.float() / 255, data.test.labels)
    found = examples.held_out(dataclasses.replace(data, train=unit, valid=unit, test=unit))
    assert torch.equal(found.image, data.test.images[0])


@pytest.mark.parametrize(("height", "width", "quarters"), [(8, 8, 1), (6, 9, 2)])
def test_turned_is_the_same_image_turned(height, width, quarters):
    image = torch.randint(256, (3, height, width), dtype=torch.uint8)
    own = [Example("photo", image, ""), Example("other", image + 1, "")]
    *first, noise, turned = examples.with_others(own)
    assert first == own
    assert torch.equal(turned.image.rot90(-quarters, (1, 2)), image)
    assert f"photo.png turned by {90 * quarters}°" in turned.words
    assert noise.image.shape == image.shape


def test_noise_is_uniform_and_always_the_same():
    def noise(value: int):
        return examples.with_others([Example("any", torch.full((1, 64, 64), value, dtype=torch.uint8), "")])[
            1
        ]

    assert torch.equal(noise(0).image, noise(255).image)
    counts = noise(0).image.flatten().int().bincount(minlength=256)
    assert ((counts - 16).square() / 16).sum() < 255 + 5 * (2 * 255) ** 0.5  # χ², five standard deviations


def test_no_test_image_is_refused():
    data = tiny_data()
    with pytest.raises(InputError, match="test image, got none"):
        examples.held_out(dataclasses.replace(data, test=data.test[:0]))


def test_the_command_writes_images_that_predict_takes(copied, capsys):
    status, out, err = gmmc("examples", copied, capsys=capsys)
    assert (status, err) == (0, "")
    assert {path.name for path in (copied / "examples").iterdir()} == NAMES
    *lines, last = out.splitlines()
    assert [line.split(": ")[0] for line in lines] == sorted(map(str, (copied / "examples").iterdir()))
    assert last == f"Next: gmmc predict {copied} {copied / 'examples'}"
    cfg = model_file.load(copied).cfg
    test = data_sources.load(cfg.data, cfg.train.seed).test
    held_out = read_image(copied / "examples" / "held-out.png", (1, 8, 8))
    assert torch.equal(held_out, test.images[0])
    assert f"class {test.labels[0]}\n" in out
    status, out, _ = gmmc("predict", copied, *sorted((copied / "examples").iterdir()), capsys=capsys)
    assert status == 0
    assert len(out.splitlines()) == 4


def test_the_command_again_replaces_its_own_files_with_the_same(copied, capsys):
    gmmc("examples", copied, capsys=capsys)
    before = {path: path.read_bytes() for path in (copied / "examples").iterdir()}
    assert gmmc("examples", copied / layout.MODEL, capsys=capsys)[0] == 0
    assert {path: path.read_bytes() for path in (copied / "examples").iterdir()} == before


def test_an_image_of_the_user_is_not_replaced(copied, capsys):
    (copied / "examples").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(copied / "examples" / "turned.png")
    before = (copied / "examples" / "turned.png").read_bytes()
    status, out, err = gmmc("examples", copied, capsys=capsys)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "turned.png" in err
    assert (copied / "examples" / "turned.png").read_bytes() == before
    assert len(list((copied / "examples").iterdir())) == 1


def test_nothing_is_written_behind_a_link(copied, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    (copied / "examples").symlink_to(tmp_path / "elsewhere")
    assert gmmc("examples", copied, capsys=capsys)[0] == 2
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_model_without_images_or_without_its_data_is_refused(tmp_path, capsys):
    vectors = make_model(shape=(5, 1, 1), model={"backbone": "mlp-1-8"})
    arrays = make_model(data={"name": "arrays"})
    for model, reason in ((vectors, "rows of 5 numbers"), (arrays, "trained on arrays")):
        model_file.save_model(tmp_path / "run" / layout.MODEL, model)
        status, out, err = gmmc("examples", tmp_path / "run", capsys=capsys)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert reason in err
        assert not (tmp_path / "run" / "examples").exists()
