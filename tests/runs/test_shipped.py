"""Models that ship with gmmc, by way of a small one that a test puts in their place."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import gmmc
from conftest import tiny_config
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.report.page import write_report
from gmmc.report.reading import read_runs
from gmmc.runs import model_file, shipped
from gmmc.train.loop import train

LIGHT = ["model.safetensors", "config.toml", "metrics.jsonl"]  # no states to resume from
RESULTS = {"accuracy": {"values": {"top1": 0.5}, "files": ["pictures/grid.png"]}}


@pytest.fixture
def small(run, tmp_path, monkeypatch):
    """The only model that ships, "small"; the current folder is another, empty one."""
    folder = tmp_path / "package" / "small"
    (folder / "pictures").mkdir(parents=True)
    for name in LIGHT:
        shutil.copy(run / name, folder)
    (folder / "results.json").write_text(json.dumps(RESULTS))
    Image.new("L", (8, 8)).save(folder / "pictures" / "grid.png")
    monkeypatch.setattr(shipped, "SHIPPED", folder.parent)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.fixture
def untouched(small):
    """The package is as it was when the test ends."""
    before = contents(small)
    yield small
    assert contents(small) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def command(*arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        app.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


# --- finding --------------------------------------------------------------------------------------


def test_only_folders_with_a_model_are_models(small):
    (small.parent / "__pycache__").mkdir()
    (small.parent / "__init__.py").touch()
    assert shipped.names() == ["small"]


def test_a_shipped_model_is_found_by_its_bare_name(small):
    for name in ("small", "small/"):
        assert shipped.find(name) == small
        assert shipped.is_shipped(name)
    for other in ("./small", "runs/small", "smal", ""):
        assert shipped.find(other) == Path(other)
        assert not shipped.is_shipped(other)


@pytest.mark.parametrize("file", shipped.MAKES_A_RUN)
def test_a_local_run_of_that_name_wins(small, file):
    Path("small").mkdir()
    Path("small", file).touch()
    assert shipped.find("small") == Path("small")
    assert shipped.workplace("small") == Path("small")
    assert shipped.own_copy("small") == Path("small")
    assert not shipped.is_shipped("small")


def test_a_local_file_of_that_name_wins(small):
    Path("small").touch()
    assert shipped.find("small") == Path("small")


def test_a_folder_of_data_does_not_hide_a_model(small):
    Path("small").mkdir()
    Path("small", "train.parquet").touch()
    assert shipped.find("small") == small


def test_what_is_made_with_a_run_goes_beside_it_or_to_runs(small, run):
    assert shipped.workplace(run) == run
    assert shipped.workplace(run / "model.safetensors") == run
    for inside in ("small", small, small / "model.safetensors"):
        assert shipped.workplace(inside) == Path("runs/small")
    assert not Path("runs").exists()


def test_loaded_by_name_it_is_the_same_model(small, run):
    ours, theirs = gmmc.load("small"), model_file.load(run)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_an_unknown_name_is_told_what_ships(small, capsys):
    with pytest.raises(InputError, match=r"'smal'.*does not exist; models that ship with gmmc: small$"):
        gmmc.load("smal")
    for verb in ("evaluate", "report", "sample"):
        status, out, err = command(verb, "smal", capsys=capsys)
        assert (status, out) == (2, "")
        assert err.endswith("; models that ship with gmmc: small\n")
        assert len(err.splitlines()) == 1


def test_where_none_ships_nothing_is_listed(small):
    shutil.rmtree(small)
    assert shipped.names() == []
    assert shipped.listed("; models") == ""
    with pytest.raises(InputError, match=r"'small'.*does not exist$"):
        gmmc.load("small")


def test_a_damaged_one_is_not_to_be_trained_again(small):
    content = bytearray((small / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (small / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"; install gmmc again$"):
        gmmc.load("small")


# --- a copy to write to ---------------------------------------------------------------------------


def test_the_copy_is_whole_and_may_be_written_to(untouched):
    for file in untouched.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    own = shipped.own_copy("small")
    for file in untouched.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    assert own == Path("runs/small")
    assert contents(own) == contents(untouched)
    assert all(file.stat().st_mode & 0o200 for file in own.rglob("*"))
    assert [path.name for path in Path("runs").iterdir()] == ["small"]


def test_a_copy_that_is_there_is_used(small):
    own = shipped.own_copy("small")
    (own / "results.json").write_text("{}")
    assert shipped.own_copy("small") == own
    assert (own / "results.json").read_text() == "{}"


def test_a_folder_of_samples_and_a_report_becomes_the_copy(small):
    (small / "samples").mkdir()
    (small / "samples" / "grid.png").write_bytes(b"theirs")
    (small / "samples" / "more.png").write_bytes(b"theirs")
    Path("runs/small/samples").mkdir(parents=True)
    Path("runs/small/samples/grid.png").write_bytes(b"mine")
    Path("runs/small/report.html").write_bytes(b"mine")
    own = shipped.own_copy("small")
    mine = {"samples/grid.png": b"mine", "report.html": b"mine"}
    assert contents(own) == contents(small) | mine


def test_a_copy_that_was_cut_short_is_completed(small):
    Path("runs/small").mkdir(parents=True)
    shutil.copy(small / "config.toml", "runs/small")
    assert contents(shipped.own_copy("small")) == contents(small)


def test_nothing_is_left_of_a_copy_that_fails(small, monkeypatch):
    def full_disk(source, target):
        if source.name == "results.json":
            raise OSError(28, "No space left on device")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(shipped.shutil, "copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        shipped.own_copy("small")
    assert list(Path("runs").iterdir()) == []


@pytest.mark.parametrize("file", shipped.MAKES_A_RUN)
def test_another_run_in_its_place_is_refused_and_left_alone(untouched, file, capsys):
    Path("runs/small").mkdir(parents=True)
    Path("runs/small", file).write_text("another")
    for verb in ("sample", "evaluate", "report"):
        status, out, err = command(verb, "small", capsys=capsys)
        assert (status, out) == (2, "")
        assert err.startswith("gmmc: runs/small is another run than the small that ships with gmmc; rename")
        assert len(err.splitlines()) == 1
    assert contents(Path("runs")) == {f"small/{file}": b"another"}


def test_a_file_in_its_place_is_refused(small):
    Path("runs").mkdir()
    Path("runs/small").touch()
    with pytest.raises(InputError, match="is another run"):
        shipped.own_copy("small")


# --- the commands ---------------------------------------------------------------------------------


def test_sampled_then_evaluated_then_shown(untouched, capsys):
    """The whole way, as a user walks it."""
    status, out, _ = command("sample", "small", "-n", 2, "--device", "cpu", capsys=capsys)
    assert status == 0
    assert "2 images in runs/small/samples" in out
    assert not Path("runs/small/model.safetensors").exists()

    status, out, err = command("evaluate", "small", "accuracy", "--device", "cpu", capsys=capsys)
    assert status == 0
    assert "small is evaluated in runs/small" in err.splitlines()
    assert "All of it: runs/small/results.json" in out
    measured = json.loads(Path("runs/small/results.json").read_text())["accuracy"]["values"]["top1"]
    assert measured != RESULTS["accuracy"]["values"]["top1"]
    assert len(list(Path("runs/small/samples").glob("*_seed*.png"))) == 2

    (run,) = read_runs(["small"])
    assert run.results["accuracy"].values["top1"] == measured
    status, out, _ = command("report", "small", capsys=capsys)
    assert (status, out) == (0, "runs/small/report.html\n")


def test_what_cannot_be_evaluated_is_not_copied(small, capsys):
    status, out, err = command("evaluate", "small", "beauty", capsys=capsys)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert not Path("runs").exists()


def test_the_report_reads_the_package_and_writes_to_runs(untouched, run):
    (read,) = read_runs(["small"])
    assert (read.path, read.name, read.state) == (untouched, "small", "finished")
    assert write_report(["small"]).page == Path("runs/small/report.html")
    assert "<title>small" in Path("runs/small/report.html").read_text()
    assert write_report(["small", run], Path("both.html")).page == Path("both.html")


def test_its_name_is_short_also_beside_another_of_that_name(small, run):
    shutil.copytree(run, Path("mine/small"))
    assert [read.name for read in read_runs(["small", "mine/small"])] == ["small", "mine/small"]


def test_another_model_s_results_are_not_taken_for_its_own(small):
    Path("runs/small").mkdir(parents=True)
    for name in ("model.safetensors", "config.toml"):
        Path("runs/small", name).write_text("")
    (read,) = read_runs(["small"])
    assert read.path == small


def test_photos_of_any_size_are_resized_unless_refused(small, run, capsys):
    Image.new("RGB", (50, 30)).save("photo.jpg")
    status, out, _ = command("predict", "small", "photo.jpg", "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["image"] == "photo.jpg"
    for refusing in (["predict", "small", "photo.jpg", "--no-resize"], ["predict", run, "photo.jpg"]):
        status, _, err = command(*refusing, capsys=capsys)
        assert status == 2
        assert "must be 8×8 pixels" in err


def test_a_training_may_begin_with_it(small, tmp_path):
    cfg = tiny_config(
        train={"start": "small", "batch_size": 128},
        buffer={"size": 200},
        discriminative={"epochs": 0},
        generative={"epochs": 1},
    )
    model = train(cfg, tmp_path / "next")
    assert model.trained["start"]["updates"] == gmmc.load("small").trained["updates"]
