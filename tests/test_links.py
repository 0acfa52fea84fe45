"""Links and files of users in the folders that gmmc works in: nothing behind a link or of a user is lost."""

import shutil

import pytest

import gmmc
from conftest import make_model, tiny_data
from gmmc import cli, config, drawing
from gmmc.config import EvaluateConfig
from gmmc.errors import InputError
from gmmc.records import CONFIG
from gmmc.runs import RunFolder

MINE = "mine"
FEW = EvaluateConfig(samples=6, generated=12, generated_by_steps=0)


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
        cli.main([str(argument) for argument in arguments])
    return int(stopped.value.code or 0)


@pytest.mark.parametrize(
    ("link", "arguments"),
    [
        ("work", ["evaluate", "RUN", "validation", "--generated", "20", "--features", "small"]),
        ("samples", ["evaluate", "RUN", "samples", "--samples", "10"]),
        ("samples", ["sample", "RUN", "-n", "2", "--steps", "1"]),
    ],
)
def test_commands_do_not_follow_links_out_of_a_run(foreign, elsewhere, hurried, capsys, link, arguments):
    shutil.rmtree(foreign / link, ignore_errors=True)
    (foreign / link).symlink_to(elsewhere)
    assert command(*[foreign if word == "RUN" else word for word in arguments]) == 2
    assert link in capsys.readouterr().err
    assert is_untouched(elsewhere)


def test_a_training_does_not_follow_a_link_to_its_states(foreign, elsewhere):
    cfg = config.from_dict(config.read_toml(foreign / CONFIG))
    shutil.rmtree(foreign / "resume")
    (foreign / "resume").symlink_to(elsewhere)
    with pytest.raises(InputError, match="resume"), RunFolder(foreign).opened_for(cfg):
        pass
    assert is_untouched(elsewhere)


def test_hidden_files_of_a_user_stay(tmp_path, foreign):
    cfg = config.from_dict(config.read_toml(foreign / CONFIG))
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
    with pytest.raises(InputError, match=r"by_class\.png"):
        gmmc.evaluate(model, data, "samples", FEW, out=tmp_path)
    assert notes.read_text() == picture.read_text() == MINE
    assert [path.name for path in notes.parent.iterdir()] == ["notes.txt"]
    picture.unlink()
    for _ in range(2):  # its own pictures are replaced
        gmmc.evaluate(model, data, "samples", FEW, out=tmp_path)
    assert picture.stat().st_size > 100


def test_a_folder_of_a_user_beside_a_file_of_samples_stays(tmp_path, elsewhere, model):
    (tmp_path / ".a.npz.parts").mkdir()
    (tmp_path / ".a.npz.parts" / "notes").write_text(MINE)
    labels = model.sample_labels(2)
    drawing.to_file(model, labels, 0, tmp_path / "a.npz")
    assert (tmp_path / ".a.npz.parts" / "notes").read_text() == MINE
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".b.npz.parts").symlink_to(elsewhere)
    with pytest.raises(InputError, match=r"b\.npz"):
        drawing.to_file(model, labels, 0, tmp_path / "out" / "b.npz")
    assert is_untouched(elsewhere)


def test_a_folder_of_a_user_that_is_exported_to_keeps_its_hidden_files(tmp_path, model):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".my-model.safetensors.bak.tmp").write_text(MINE)
    gmmc.save_pretrained(model, tmp_path / "new")
    assert (tmp_path / "new" / ".my-model.safetensors.bak.tmp").read_text() == MINE


def test_long_class_names_fit_into_file_names(tmp_path):
    model = make_model()
    model.class_names = tuple(f"{'漢' * 199}{i}" for i in range(3))
    assert drawing.to_folder(model, model.sample_labels(2), 0, tmp_path) == 0
    assert len(list(tmp_path.glob("*_seed*.png"))) == 2


def test_standard_output_may_be_closed(monkeypatch, run):
    monkeypatch.setattr("sys.stdout", None)
    assert command("report", run, "--out", run / "closed.html") == 0
