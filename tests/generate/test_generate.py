"""Many images: what is finished is never drawn again, and an interruption changes no bit."""

import math
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_model
from gmmc import generate, pictures
from gmmc.classifier.drawing import BLOCK
from gmmc.cli.app import main
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.data.files import read_image
from gmmc.data.sources import local
from gmmc.errors import InputError
from gmmc.generate import files, folder, parts
from gmmc.pixels import to_uint8
from gmmc.runs import model_file
from gmmc.sampling import engine
from processes import finished

COUNT = 3 * BLOCK["cpu"] + 4
LABELS = torch.arange(COUNT) % 3


class Stop(Exception):
    pass


def stop_after(wanted):
    def on_progress(done):
        if done >= wanted:
            raise Stop

    return on_progress


@pytest.fixture
def small_parts(monkeypatch):
    """A part per block."""
    monkeypatch.setattr(parts, "PART_SECONDS", 0.0)


@pytest.fixture
def expected(model):
    return to_uint8(model.sample(COUNT, LABELS, seed=5))


def draw(model, place=None, **options):
    return generate.drawn(model, LABELS, 5, folder=place, **options)


def no_more_drawing(monkeypatch):
    monkeypatch.setattr(engine, "new_gradient", lambda *_: pytest.fail("something was drawn"))


@pytest.fixture
def gradients(monkeypatch):
    """The gradients that are built."""
    built, new_gradient = [], engine.new_gradient

    def counted(*arguments):
        built.append(new_gradient(*arguments))
        return built[-1]

    monkeypatch.setattr(engine, "new_gradient", counted)
    return built


# --- blocks ---------------------------------------------------------------------------------------


def test_blocks_are_the_samples(model):
    blocks = list(model.drawer().blocks(LABELS, 5))
    assert [len(block) for block in blocks] == [BLOCK["cpu"]] * 3 + [4]
    assert torch.equal(torch.cat(blocks), model.sample(COUNT, LABELS, seed=5))
    assert list(model.drawer().blocks([])) == []


@pytest.mark.parametrize("way", ["auto", "plain"])
def test_a_drawer_builds_one_gradient_for_all_calls(gradients, way):
    model = make_model(train={"engine": way})
    drawer = model.drawer()
    assert not gradients
    images = drawer.sample(COUNT, LABELS, seed=5)
    film = drawer.film([0, 1], 5, frames=[0, 3])
    again = torch.cat(list(drawer.blocks(LABELS, 5)))
    assert len(gradients) == 1
    assert torch.equal(again, images)
    assert torch.equal(film[-1], model.sample(2, [0, 1], seed=5))


@pytest.mark.parametrize("way", ["auto", "plain"])
def test_a_drawer_draws_by_the_weights_of_the_moment(way):
    model = make_model(train={"engine": way})
    drawer = model.drawer()
    before = drawer.sample(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    after = drawer.sample(3)
    assert not torch.equal(after, before)
    assert torch.equal(after, model.sample(3))


def test_a_folder_with_holes_needs_one_gradient(model, tmp_path, gradients):
    generate.to_folder(model, LABELS, 5, tmp_path)
    paths = png_files(tmp_path)
    for i in (3, 40, 41, 90):
        paths[i].unlink()
    gradients.clear()
    assert generate.to_folder(model, LABELS, 5, tmp_path) == COUNT - 4
    assert len(gradients) == 1


def test_the_sample_command_builds_one_gradient_for_a_folder_with_a_hole(run, tmp_path, gradients):
    def draw_by(command):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert not end.value.code

    command = ["sample", str(run), "-n", "9", "--steps", "2", "--out", str(tmp_path / "drawn"), "--quiet"]
    draw_by(command)
    before = {path.name: path.read_bytes() for path in png_files(tmp_path / "drawn")}
    for path in png_files(tmp_path / "drawn")[3:9:2]:  # three stretches of one
        path.unlink()
    gradients.clear()
    draw_by(command)
    assert len(gradients) == 1
    assert {path.name: path.read_bytes() for path in png_files(tmp_path / "drawn")} == before


def test_every_step_but_the_last_of_a_block_is_progress(model):
    told = []
    blocks = list(model.drawer().blocks(LABELS, 5, steps=4, on_progress=told.append))
    size = BLOCK["cpu"]
    starts = [(first, min(size, COUNT - first)) for first in range(0, COUNT, size)]
    assert told == [first + count * share for first, count in starts for share in (0, 1 / 4, 2 / 4, 3 / 4)]
    silent = model.drawer().blocks(LABELS, 5, steps=4)
    assert all(torch.equal(a, b) for a, b in zip(blocks, silent, strict=True))


def test_progress_of_all_ways_to_draw_grows_to_the_number_of_images(model, tmp_path):
    ways = {
        "sample": lambda report: model.sample(COUNT, LABELS, on_progress=report),
        "drawn": lambda report: generate.drawn(model, LABELS, on_progress=report),
        "file": lambda report: generate.to_file(model, LABELS, 0, tmp_path / "a.npz", on_progress=report),
        "folder": lambda report: generate.to_folder(model, LABELS, 0, tmp_path / "b", on_progress=report),
    }
    for name, draw_it in ways.items():
        told = []
        draw_it(told.append)
        assert told == sorted(told), name
        assert told[-1] == COUNT, name
        assert len(set(told)) >= 4 * model.drawing.steps, name


def test_progress_of_a_film_ends_before_the_last_step(model):
    told = []
    film = model.drawer().film([0, 1], 5, frames=[0, 4], on_progress=told.append)
    assert told == [0, 0.5, 1, 1.5]
    assert torch.equal(film, model.drawer().film([0, 1], 5, frames=[0, 4]))


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_between_blocks_the_mode_is_the_caller_s(model, mode):
    expected = model.sample(COUNT, LABELS)
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        blocks = []
        for block in model.drawer().blocks(LABELS):
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
            blocks.append(block)
        abandoned = model.drawer().blocks(LABELS)
        next(abandoned)
        del abandoned
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert not model.sample(1).is_inference()
    assert torch.equal(torch.cat(blocks), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 3]}, r"labels must lie in 0..2, got 0..3"),
        ({"labels": [0.5]}, "labels must be 1 whole numbers"),
        ({"labels": [0], "seed": -1}, "seed must be at least 0, got -1"),
        ({"labels": [0], "steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_impossible_images_are_refused_before_anything_happens(model, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        model.drawer().blocks(**arguments)
    generate.drawn(model, [0], folder=tmp_path / "parts")
    before = sorted((tmp_path / "parts").iterdir())
    for place in (tmp_path / "parts", tmp_path / "new"):
        with pytest.raises(InputError, match=message):
            generate.drawn(model, **arguments, folder=place)
    assert sorted((tmp_path / "parts").iterdir()) == before
    assert not (tmp_path / "new").exists()


# --- parts ----------------------------------------------------------------------------------------


def test_drawn_images_are_the_samples_as_bytes(model, tmp_path, expected):
    told = []
    for place in (None, tmp_path / "a" / "b"):
        images = draw(model, place, on_progress=told.append)
        assert images.dtype == torch.uint8
        assert torch.equal(images, expected)
    size = BLOCK["cpu"]
    finished_blocks = [size, 2 * size, 3 * size, COUNT]
    assert [done for done in told if type(done) is int] == [*finished_blocks, 0, *finished_blocks]
    assert generate.drawn(model, [], folder=tmp_path).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_an_interrupted_drawing_goes_on(model, tmp_path, expected, small_parts, blocks):
    with pytest.raises(Stop):
        draw(model, tmp_path, on_progress=stop_after(blocks * BLOCK["cpu"]))
    told = []
    assert torch.equal(draw(model, tmp_path, on_progress=told.append), expected)
    assert told[0] == blocks * BLOCK["cpu"]


def test_all_parts_are_taken_by_a_model_that_was_saved(model, tmp_path, expected, small_parts, monkeypatch):
    draw(model, tmp_path / "parts")
    model.trained = {}
    model_file.save_model(tmp_path / "model.safetensors", model)
    again = model_file.load(tmp_path / "model.safetensors")
    no_more_drawing(monkeypatch)
    assert torch.equal(draw(again, tmp_path / "parts"), expected)


def test_more_images_go_on_after_fewer(model, tmp_path, expected, small_parts):
    generate.drawn(model, LABELS[:40], 5, folder=tmp_path)
    told = []
    assert torch.equal(draw(model, tmp_path, on_progress=told.append), expected)
    assert told[0] == 40


def test_quick_blocks_share_a_part(model, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "PART_SECONDS", math.inf)  # quick on any machine
    draw(model, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "delete"])
def test_a_damaged_part_is_drawn_anew(model, tmp_path, expected, small_parts, harm):
    draw(model, tmp_path)
    victim = sorted(tmp_path.iterdir())[1]
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    if harm == "delete":
        victim.unlink()
    else:
        victim.write_bytes({"flip": content, "cut": content[:-10], "empty": b""}[harm])
    told = []
    assert torch.equal(draw(model, tmp_path, on_progress=told.append), expected)
    assert told[0] == BLOCK["cpu"]
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("other", ["model", "labels", "seed", "steps", "sampler", "fewer"])
def test_parts_of_other_images_are_discarded(model, tmp_path, expected, small_parts, other):
    if other == "model":
        draw(make_model(seed=1), tmp_path)
    elif other == "sampler":
        draw(make_model(sampler={"alpha": 0.02}), tmp_path)
    elif other == "steps":
        draw(model, tmp_path, steps=2)
    elif other == "fewer":
        generate.drawn(model, LABELS.repeat(2), 5, folder=tmp_path)
    else:
        labels, seed = ((LABELS + 1) % 3, 5) if other == "labels" else (LABELS, 4)
        generate.drawn(model, labels, seed, folder=tmp_path)
    mine = tmp_path / "mine.txt"
    mine.write_text("kept")
    (tmp_path / ".part-000000005.safetensors.77.tmp").write_text("half of a part")
    assert torch.equal(draw(model, tmp_path), expected)
    assert len(list(tmp_path.iterdir())) == 4 + 1
    assert mine.read_text() == "kept"


def test_two_at_a_time_are_refused(model, tmp_path):
    refused = pytest.raises(InputError, match="another process is drawing into")
    with parts.held(tmp_path):
        with refused:
            draw(model, tmp_path)
        with refused:
            generate.to_folder(model, LABELS, 5, tmp_path)
    draw(model, tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
import gmmc
from gmmc import generate
from gmmc.generate import parts
torch.set_num_threads(1)
parts.PART_SECONDS = 0.0
def kill(done):
    if done >= 64:
        os.kill(os.getpid(), signal.SIGKILL)
model, out = gmmc.load(sys.argv[1]), Path(sys.argv[2])
labels = torch.arange(100) % 3
for to_place, name in ((generate.to_folder, "folder"), (generate.to_file, "drawn.npz")):
    if os.fork() == 0:
        to_place(model, labels, 5, out / name, on_progress=kill)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
"""


def test_a_killed_drawing_goes_on(model, tmp_path, expected):
    model.trained = {}
    model_file.save_model(tmp_path / "model.safetensors", model)
    finished([sys.executable, "-W", "ignore", "-c", KILLED, tmp_path / "model.safetensors", tmp_path])
    assert generate.to_folder(model, LABELS, 5, tmp_path / "folder") == 2 * BLOCK["cpu"]
    assert generate.to_file(model, LABELS, 5, tmp_path / "drawn.npz") == 2 * BLOCK["cpu"]
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "drawn.npz", "model.safetensors"}
    with np.load(tmp_path / "drawn.npz", allow_pickle=False) as file:
        assert np.array_equal(file["arr_0"], expected.permute(0, 2, 3, 1))


# --- fingerprint ----------------------------------------------------------------------------------


def test_a_fingerprint_is_of_what_decides_the_images(model):
    own = generate.fingerprint(model)
    assert generate.fingerprint(model, model.drawing.steps) == own
    assert generate.fingerprint(make_model()) == own
    others = [
        make_model(seed=1),
        make_model(sampler={"name": "sgld"}),
        make_model(model={"scale": 9.0}),
        make_model(buffer={"start": "gaussian"}),
        make_model(train={"precision": "bf16", "engine": "graph"}),
        make_model(sample={"steps": 4}),
    ]
    assert len({own, *map(generate.fingerprint, others)}) == 1 + len(others)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_an_npz_holds_the_images(tmp_path, channels):
    model = make_model(shape=(channels, 8, 8))
    images = draw(model)
    assert generate.to_file(model, LABELS, 5, tmp_path / "drawn.npz") == 0
    with np.load(tmp_path / "drawn.npz", allow_pickle=False) as file:
        assert file["arr_0"].dtype == np.uint8
        assert np.array_equal(file["arr_0"], images.permute(0, 2, 3, 1))
        assert np.array_equal(file["labels"], LABELS)
        assert np.array_equal(file["seeds"], range(5, 5 + COUNT))
        assert file["class_names"].tolist() == ["class 0", "class 1", "class 2"]
        model.predict(file["arr_0"])  # as it is


@pytest.mark.parametrize("channels", [1, 3])
def test_a_parquet_file_is_a_data_set(tmp_path, monkeypatch, channels):
    monkeypatch.setattr(files, "ROW_GROUP", 30)
    model = make_model(shape=(channels, 8, 8))
    path = tmp_path / "drawn.parquet"
    assert generate.to_file(model, LABELS, 5, path) == 0
    images, notes = local.load_unlabelled(path, model.shape)
    assert torch.equal(images, draw(model))
    assert notes == ()
    found = sources.load(DataConfig(name=str(path), valid=0.1), seed=0)
    assert tuple(found.class_names) == model.class_names
    labels = torch.cat([part.labels for part in (found.train, found.valid, found.test)])
    assert labels.bincount().tolist() == LABELS.bincount().tolist()
    assert tuple(found.train.images.shape[1:]) == model.shape


def test_a_parquet_file_tells_the_seeds(model, tmp_path):
    from pyarrow import parquet

    generate.to_file(model, LABELS, 5, tmp_path / "drawn.parquet")
    rows = parquet.read_table(tmp_path / "drawn.parquet").to_pylist()
    assert [row["seed"] for row in rows] == list(range(5, 5 + COUNT))
    assert [row["label"] for row in rows] == LABELS.tolist()
    assert rows[4]["image"]["path"] == "class 1_seed000009.png"


@pytest.mark.parametrize("name", ["drawn.npz", "drawn.parquet"])
class TestFiles:
    def test_an_interruption_changes_no_byte(self, model, tmp_path, name, small_parts):
        whole, cut = tmp_path / "whole" / name, tmp_path / "cut" / name
        generate.to_file(model, LABELS, 5, whole)
        with pytest.raises(Stop):
            generate.to_file(model, LABELS, 5, cut, on_progress=stop_after(BLOCK["cpu"]))
        assert not cut.exists()
        assert generate.to_file(model, LABELS, 5, cut) == BLOCK["cpu"]
        assert cut.read_bytes() == whole.read_bytes()
        assert list(cut.parent.iterdir()) == [cut]

    def test_a_finished_file_is_left_alone(self, model, tmp_path, name, monkeypatch):
        path = tmp_path / name
        generate.to_file(model, LABELS, 5, path)
        before = path.stat()
        no_more_drawing(monkeypatch)
        assert generate.to_file(model, LABELS, 5, path) == COUNT
        assert path.stat().st_mtime_ns == before.st_mtime_ns

    @pytest.mark.parametrize("other", ["text", "empty", "cut", "array", "seed", "labels", "steps", "model"])
    def test_another_file_is_not_overwritten(self, model, tmp_path, name, other):
        path = tmp_path / name
        if other in ("text", "empty"):
            path.write_text({"text": "mine", "empty": ""}[other])
        elif other == "array":
            with path.open("wb") as file:
                np.save(file, np.zeros(3))
        else:
            maker = make_model(seed=1) if other == "model" else model
            labels = LABELS.flip(0) if other == "labels" else LABELS
            generate.to_file(
                maker, labels, 6 if other == "seed" else 5, path, steps=1 if other == "steps" else None
            )
        if other == "cut":
            path.write_bytes(path.read_bytes()[:-200])
        before = path.read_bytes()
        with pytest.raises(InputError, match=f"must be a new file, got .*{name}, which holds something"):
            generate.to_file(model, LABELS, 5, path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]


# --- a folder -------------------------------------------------------------------------------------


def png_files(place):
    return sorted(place.glob("*_seed*.png"), key=lambda path: path.name[-10:])


def pixels(model, place):
    return torch.stack([read_image(path, model.shape) for path in png_files(place)])


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_holds_the_images(tmp_path, channels):
    model = make_model(shape=(channels, 8, 8))
    assert generate.to_folder(model, LABELS, 5, tmp_path) == 0
    assert torch.equal(pixels(model, tmp_path), draw(model))
    assert png_files(tmp_path)[4].name == "class 1_seed000009.png"


def test_only_what_is_missing_or_damaged_is_drawn(model, tmp_path, expected):
    generate.to_folder(model, LABELS, 5, tmp_path)
    paths = png_files(tmp_path)
    content = paths[60].read_bytes()
    paths[3].unlink()
    paths[60].write_bytes(content[:-20])
    paths[61].write_bytes(content[:60] + b"?" + content[61:])
    paths[62].write_bytes(paths[61].read_bytes())
    (tmp_path / ".class 0_seed000005.png.tmp").write_text("half of an image")
    before = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    assert generate.to_folder(model, LABELS, 5, tmp_path) == COUNT - 4
    assert torch.equal(pixels(model, tmp_path), expected)
    changed = {path for path in before if path.stat().st_mtime_ns != before[path]}
    assert changed == {paths[60], paths[61], paths[62]}
    assert not list(tmp_path.glob(".*"))


def test_images_of_other_seeds_stay_and_are_used(model, tmp_path, expected):
    generate.to_folder(model, LABELS[40:60], 45, tmp_path)
    assert generate.to_folder(model, LABELS, 5, tmp_path) == 20
    assert generate.to_folder(model, LABELS[:10], 5, tmp_path) == 10
    assert torch.equal(pixels(model, tmp_path), expected)


@pytest.mark.parametrize("other", ["model", "steps"])
def test_images_of_the_same_name_but_of_another_model_are_replaced(model, tmp_path, expected, other):
    generate.to_folder(model, LABELS, 5, tmp_path)
    if other == "model":
        generate.to_folder(make_model(seed=1), LABELS[:10], 5, tmp_path)
    else:
        generate.to_folder(model, LABELS[:10], 5, tmp_path, steps=1)
    assert not torch.equal(pixels(model, tmp_path), expected)
    assert generate.to_folder(model, LABELS, 5, tmp_path) == COUNT - 10
    assert torch.equal(pixels(model, tmp_path), expected)


def test_the_grid_shows_the_first(model, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "IN_GRID", 20)
    generate.to_folder(model, LABELS, 5, tmp_path / "many")
    generate.to_folder(model, LABELS[:20], 5, tmp_path / "few")
    assert (tmp_path / "many" / "grid.png").read_bytes() == (tmp_path / "few" / "grid.png").read_bytes()


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1], [2, 2, 0, 1, 2], [1] * 12])
def test_the_grid_names_the_class_of_every_image(model, tmp_path, labels):
    generate.to_folder(model, torch.tensor(labels), 5, tmp_path)
    names = [f"class {y}" for y in labels]
    shown = torch.stack(
        [read_image(tmp_path / folder.file_name(name, 5 + i), model.shape) for i, name in enumerate(names)]
    )
    expected = pictures.grid(shown / 255, min(10, len(labels)), captions=names)
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.tobytes() == expected.tobytes()


def test_classes_with_a_slash_do_not_stand_for_others(tmp_path):
    model = make_model()
    model.class_names = ("a/b", "a_b", "c")
    generate.to_folder(model, torch.tensor([0]), 5, tmp_path)
    assert [path.name for path in png_files(tmp_path)] == ["a_b_seed000005.png"]
    assert generate.to_folder(model, torch.tensor([1]), 5, tmp_path) == 0
    assert torch.equal(pixels(model, tmp_path), to_uint8(model.sample(1, [1], seed=5)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_interrupted_drawing_goes_on_on_a_gpu(tmp_path, small_parts):
    model = make_model(train={"device": "cuda", "precision": "bf16"}).to("cuda")
    labels = torch.arange(600) % 3
    expected = to_uint8(model.sample(600, labels, seed=5)).cpu()
    with pytest.raises(Stop):
        generate.drawn(model, labels, 5, folder=tmp_path, on_progress=stop_after(BLOCK["cuda"]))
    assert torch.equal(generate.drawn(model, labels, 5, folder=tmp_path), expected)
