"""Links and files of users in the folders that gmmc works in: nothing behind a link or of a user is lost."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import gmmc
from conftest import dead_process, make_model, tiny_data
from gmmc import generate
from gmmc.base.atomic import temporary_folder, write_atomic
from gmmc.cli import app
from gmmc.config import recipes
from gmmc.config.sections import EvaluateOptions
from gmmc.errors import InputError
from gmmc.runs import results
from gmmc.runs.folder import RunFolder
from gmmc.runs.layout import CONFIG

MINE = "mine"
FEW = EvaluateOptions(samples=6, generated=12, generated_by_steps=0)


@pytest.fixture
def foreign(run, tmp_path):
    return shutil.copytree(run, tmp_path / "foreign")


@pytest.fixture
def elsewhere(tmp_path):
    """Someone's folder, with files named as ours."""
    names = ("validation/notes.txt", "by_class.png", ".a.tmp", "part-000000000.safetensors", "grid.png")
    for name in names:
        (tmp_path / "elsewhere" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "elsewhere" / name).write_text(MINE)
    return tmp_path / "elsewhere"


def is_untouched(folder) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files) == 5 and all(path.read_text() == MINE for path in files)


def command(*arguments) -> int:
    with pytest.raises(SystemExit) as stopped:
        app.main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("link", "arguments"),
    [
        ("work", ["evaluate", "RUN", "validation", "--generated", "20", "--features", "small"]),
        ("samples", ["sample", "RUN", "-n", "2", "--steps", "1"]),
    ],
)
def test_commands_do_not_follow_links_out_of_a_run(foreign, elsewhere, hurried, capsys, link, arguments):
    shutil.rmtree(foreign / link, ignore_errors=True)
    (foreign / link).symlink_to(elsewhere)
    assert command(*[foreign if word == "RUN" else word for word in arguments]) == 2
    assert link in capsys.readouterr().err
    assert is_untouched(elsewhere)


@pytest.mark.parametrize("name", ["resume", "metrics.jsonl"])
@pytest.mark.parametrize("target", ["", "grid.png", "new"])
def test_a_training_does_not_follow_links(foreign, elsewhere, name, target):
    cfg = recipes.from_dict(recipes.read_toml(foreign / CONFIG))
    shutil.rmtree(foreign / "resume")
    (foreign / "metrics.jsonl").unlink()
    (foreign / name).symlink_to(elsewhere / target)
    with pytest.raises(InputError, match=name), RunFolder(foreign).opened_for(cfg):
        pass
    assert is_untouched(elsewhere)


def test_pictures_of_an_evaluation_do_not_go_behind_a_link(foreign, elsewhere, hurried, capsys):
    shutil.rmtree(foreign / "samples", ignore_errors=True)
    (foreign / "samples").symlink_to(elsewhere)
    assert command("evaluate", foreign, "samples", "--samples", "20") == 0
    assert "samples/by_class.png was not written" in capsys.readouterr().out
    assert is_untouched(elsewhere)
    assert RunFolder(foreign).results()["samples"]["files"] == []


def test_a_picture_of_a_user_in_a_run_stays(foreign, hurried):
    place = foreign / "samples" / "by_class.png"
    shutil.rmtree(place.parent, ignore_errors=True)
    (foreign / "results.json").unlink(missing_ok=True)
    place.parent.mkdir()
    place.write_text(MINE)
    for _ in range(2):
        assert command("evaluate", foreign, "samples", "--samples", "20") == 0
        assert place.read_text() == MINE
    # Pictures of an older gmmc have no mark, but are listed.
    entry = RunFolder(foreign).results()["samples"] | {"files": ["samples/by_class.png"]}
    results.write_results(foreign, {"samples": entry})
    assert command("evaluate", foreign, "samples", "--samples", "20") == 0
    assert place.stat().st_size > 100


def test_hidden_files_of_a_user_stay(tmp_path, foreign):
    cfg = recipes.from_dict(recipes.read_toml(foreign / CONFIG))
    ours = [foreign / ".config.toml.123.tmp", foreign / "resume" / ".step-000000001-x.safetensors.9.tmp"]
    theirs = [foreign / ".notes.tmp", foreign / "resume" / ".notes.tmp", foreign / ".config.toml.mine.tmp"]
    for path in [*ours, *theirs]:
        path.write_text(MINE)
    with RunFolder(foreign).opened_for(cfg):
        pass
    assert not any(path.exists() for path in ours)
    assert all(path.read_text() == MINE for path in theirs)


def test_files_of_a_user_in_a_folder_of_results_stay(tmp_path, hurried):
    notes, picture = tmp_path / "work" / "validation" / "notes.txt", tmp_path / "samples" / "by_class.png"
    for path in (notes, picture):
        path.parent.mkdir(parents=True)
        path.write_text(MINE)
    model, data = make_model(), tiny_data()
    gmmc.evaluate(model, data, "validation", FEW, out=tmp_path)
    kept = gmmc.evaluate(model, data, "samples", FEW, out=tmp_path)["samples"]
    assert "samples/by_class.png" not in kept.pictures
    assert any("samples/by_class.png" in flag for flag in kept.flags)
    assert kept.flags == RunFolder(tmp_path).results()["samples"]["flags"]
    assert notes.read_text() == picture.read_text() == MINE
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]
    picture.unlink()
    for _ in range(2):  # its own pictures are replaced
        gmmc.evaluate(model, data, "samples", FEW, out=tmp_path)
    assert picture.stat().st_size > 100


def test_a_folder_of_a_user_beside_a_file_of_samples_stays(tmp_path, elsewhere, model):
    (tmp_path / ".a.npz.parts").mkdir()
    (tmp_path / ".a.npz.parts" / "notes").write_text(MINE)
    labels = model.drawer().labels(2)
    generate.to_file(model, labels, 0, tmp_path / "a.npz")
    assert (tmp_path / ".a.npz.parts" / "notes").read_text() == MINE
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".b.npz.parts").symlink_to(elsewhere)
    with pytest.raises(InputError, match=r"b\.npz"):
        generate.to_file(model, labels, 0, tmp_path / "out" / "b.npz")
    assert is_untouched(elsewhere)


def test_a_folder_of_a_user_that_is_exported_to_keeps_its_hidden_files(tmp_path, model):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".my-model.safetensors.bak.tmp").write_text(MINE)
    gmmc.save_pretrained(model, tmp_path / "new")
    assert (tmp_path / "new" / ".my-model.safetensors.bak.tmp").read_text() == MINE


def test_what_killed_processes_left_of_a_file_is_removed_when_it_is_written(tmp_path):
    path = tmp_path / "a[1].txt"
    dead = tmp_path / f".{path.name}.{dead_process()}.tmp"
    others = [tmp_path / name for name in (f".{path.name}.{os.getppid()}.tmp", f".{path.name}.x.tmp")]
    others.append(tmp_path / f".a1.txt.{dead_process()}.tmp")  # the name is no pattern
    for leftover in (dead, *others):
        leftover.write_text(MINE)
    write_atomic(path, b"new")
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_what_a_killed_process_left_of_a_folder_is_removed_when_it_is_made(tmp_path):
    old = tmp_path / f".run.{dead_process()}.tmp"
    old.mkdir()
    (old / "half").write_text("half")
    with temporary_folder(tmp_path / "run") as folder:
        (folder / "file").touch()
        assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert not list(tmp_path.iterdir())


def test_a_file_of_samples_that_expands_or_is_longer_is_not_read(tmp_path, model, monkeypatch):
    def no_reading(*given, **options):
        raise AssertionError

    labels = model.drawer().labels(2)
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, arr_0=np.zeros(10**6), labels=np.zeros(2), seeds=np.zeros(2), made_by="")
    rows = tmp_path / "rows.parquet"
    table = pa.table({"label": pa.array([0] * 10**6), "seed": pa.array([0] * 10**6)})
    parquet.write_table(table.replace_schema_metadata({"made_by": ""}), rows)
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", no_reading)
    monkeypatch.setattr(parquet.ParquetFile, "read", no_reading)
    for path in (bomb, rows):
        with pytest.raises(InputError, match="holds something else"):
            generate.to_file(model, labels, 0, path)


def test_long_class_names_fit_into_file_names(tmp_path):
    model = make_model()
    model.class_names = tuple(f"{'漢' * 199}{i}" for i in range(3))
    assert generate.to_folder(model, model.drawer().labels(2), 0, tmp_path) == 0
    assert len(list(tmp_path.glob("*_seed*.png"))) == 2


def test_standard_output_may_be_closed(monkeypatch, run):
    monkeypatch.setattr("sys.stdout", None)
    assert command("report", run, "--out", run / "closed.html") == 0
