"""Files of users are refused before the work, never replaced; results of several writers are all kept."""

import contextlib
import errno
import os
import shutil
import struct
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path

import onnx
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import gmmc
from conftest import dead_process, tiny_data
from gmmc import generate, pictures
from gmmc.base import atomic, open_image
from gmmc.base.outputs import PAGE_MARK, PNG_MARK, check_replaceable, check_writable, has_mark
from gmmc.bench import record
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.evaluations import recalibrate
from gmmc.evaluations import run as evaluations_run
from gmmc.evaluations.evaluate import keep
from gmmc.evaluations.result import Result
from gmmc.export import onnx as export
from gmmc.generate import examples
from gmmc.report.compare import comparison
from gmmc.report.page import write_report
from gmmc.runs import model_file, results
from gmmc.runs.folder import RECALIBRATED, RunFolder
from gmmc.sampling import engine
from processes import DEADLINE, python, started

LABELS = torch.tensor([0, 1])


def refused(capsys, *arguments) -> str:
    """The one line with which a command ends at status 2."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    error = capsys.readouterr().err
    assert stop.value.code == 2, error
    assert "Traceback" not in error
    assert error.count("\n") == 1, error
    return error


def no_work(*_, **__):
    pytest.fail("the work began")


def save_png(path: Path, size=(8, 8), colour="red", **text: str) -> bytes:
    info = PngInfo()
    for key, value in text.items():
        info.add_text(key, value)
    Image.new("RGB", size, colour).save(path, pnginfo=info)
    return path.read_bytes()


# --- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["grid.png", "class 1_seed000006.png"])
@pytest.mark.parametrize("kind", ["picture", "text", "folder", "dangling link", "pipe"])
def test_drawing_refuses_to_replace_what_is_not_ours(model, tmp_path, monkeypatch, name, kind):
    path = tmp_path / name
    if kind == "picture":
        save_png(path, Title="holiday")
    elif kind == "text":
        path.write_text("tEXtgmm")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    before = path.read_bytes() if kind in ("picture", "text") else None
    monkeypatch.setattr(engine, "new_gradient", no_work)
    with pytest.raises(InputError, match=rf"--out .*{name}"):
        generate.to_folder(model, LABELS, 5, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert before is None or path.read_bytes() == before
    assert path.is_symlink() == (kind == "dangling link")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("kind", ["text", "folder", "dangling link", "link to a pipe", "pipe"])
def test_a_file_of_samples_replaces_nothing(model, tmp_path, monkeypatch, suffix, kind):
    path = tmp_path / f"drawn{suffix}"
    if kind == "text":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
        if kind == "link to a pipe":
            os.mkfifo(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(engine, "new_gradient", no_work)
    with pytest.raises(InputError, match=rf"--out .*{path.name}"):
        generate.to_file(model, LABELS, 5, path)
    assert sorted(tmp_path.iterdir()) == before
    assert path.is_symlink() == ("link" in kind)


@pytest.mark.parametrize("holds", [generate.files._in_npz, generate.files._in_parquet])
def test_files_of_samples_are_read_only_where_they_are_regular(tmp_path, holds):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        holds(tmp_path / "pipe", generate.files.Series("", [], []))


def test_the_sample_command_refuses_in_one_line(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = save_png(tmp_path / "grid.png")
    assert "grid.png" in refused(capsys, "sample", run, "-n", 2, "--out", ".")
    assert (tmp_path / "grid.png").read_bytes() == before


def test_drawing_replaces_its_own(model, tmp_path):
    """Also grids of an older gmmc, which had no stamp, and empty images, which a power cut may leave."""
    generate.to_folder(model, LABELS, 5, tmp_path)
    grid = tmp_path / "grid.png"
    whole = grid.read_bytes()
    assert has_mark(grid, PNG_MARK)
    (tmp_path / "class 0_seed000005.png").write_bytes(b"")
    older = pictures.png(pictures.grid(torch.rand(2, 1, 8, 8), 2))
    for content in (whole, older):
        grid.write_bytes(content)
        generate.to_folder(model, LABELS, 5, tmp_path)
        assert grid.read_bytes() == whole


def test_a_picture_without_the_frame_of_a_grid_is_not_taken_for_one(model, tmp_path):
    edge = Image.new("RGB", (60, 60), pictures.BACKGROUND)
    edge.putpixel((59, 1), (1, 2, 3))
    edge.save(tmp_path / "grid.png")
    with pytest.raises(InputError, match=r"grid\.png"):
        generate.to_folder(model, LABELS, 5, tmp_path)


def test_only_a_png_is_taken_for_a_grid(model, tmp_path):
    older = pictures.grid(torch.rand(2, 1, 8, 8), 2)
    older.save(tmp_path / "grid.png", format="BMP")
    with pytest.raises(InputError, match=r"grid\.png"):
        generate.to_folder(model, LABELS, 5, tmp_path)


@pytest.mark.parametrize("error", [IndexError, struct.error, zlib.error, MemoryError])
def test_a_damaged_grid_is_refused_whatever_pillow_raises(model, tmp_path, monkeypatch, error):
    save_png(tmp_path / "grid.png", colour=pictures.BACKGROUND)

    def damaged(*_):
        raise error("damaged")

    monkeypatch.setattr(Image.Image, "crop", damaged)
    with pytest.raises(InputError, match=r"grid\.png"):
        generate.to_folder(model, LABELS, 5, tmp_path)


def test_pictures_of_others_are_opened_under_rules_entered_once(model, tmp_path, monkeypatch):
    """Else a large picture is a warning on the screen, or the filters of the process change with each."""
    generate.to_folder(model, LABELS, 5, tmp_path)
    (tmp_path / "grid.png").write_bytes(pictures.png(pictures.grid(torch.rand(2, 1, 8, 8), 2)))
    within, events = open_image.pillow_rules, []

    @contextlib.contextmanager
    def rules():
        events.append("begin")
        with within():
            yield
        events.append("end")

    read = open_image.open_regular
    monkeypatch.setattr(generate.folder, "pillow_rules", rules)
    monkeypatch.setattr(open_image, "open_regular", lambda *given: (events.append("open"), read(*given))[1])
    generate.to_folder(model, LABELS, 5, tmp_path)
    assert events[: 2 + 3] == ["begin", *["open"] * 3, "end"]
    assert events.count("begin") == 1


# --- pages, graphs, comparisons, model folders ----------------------------------------------------


@pytest.mark.parametrize("name", ["notes.txt", "page.html"])
def test_a_report_replaces_reports_only(run, tmp_path, monkeypatch, capsys, name):
    path = tmp_path / name
    path.write_text("<!doctype html><title>mine</title>")
    with monkeypatch.context() as patched:
        patched.setattr("gmmc.report.page.render", no_work)
        assert name in refused(capsys, "report", run, "--out", path)
    assert path.read_text() == "<!doctype html><title>mine</title>"
    path.unlink()
    for _ in range(2):
        write_report([run], path)
    assert has_mark(path, PAGE_MARK)


@pytest.mark.parametrize(
    "content", [b"", b"my notes", b"\x08\x0a\x12\x00"], ids=["empty", "text", "other graph"]
)
def test_a_graph_replaces_graphs_of_ours_only(model, tmp_path, monkeypatch, content):
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    monkeypatch.setattr(export, "_traced", no_work)
    with pytest.raises(InputError, match=r"graph\.onnx"):
        export.to_onnx(model, path)
    assert path.read_bytes() == content
    proto = onnx.ModelProto()
    onnx.helper.set_model_props(proto, export.metadata(model))
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(pytest.fail.Exception, match="the work began"):
        export.to_onnx(model, path)


@pytest.mark.parametrize(
    "content", ['{"my": "results"}', '{"a": {"score": 1}}', '{"a": {"values": 3}}', "[1]"]
)
@pytest.mark.parametrize("command", ["bench", "compare", "evaluate", "calibrate"])
def test_results_of_something_else_are_refused_before_the_work(
    run, tmp_path, monkeypatch, capsys, content, command
):
    folder = tmp_path / "folder"
    if command in ("evaluate", "calibrate"):
        shutil.copytree(run, folder)
        arguments = [folder]
    else:
        folder.mkdir()
        arguments = ["--out", folder] if command == "bench" else [run, "--out", folder]
    file = folder / "results.json"
    file.write_text(content)
    for place in (evaluations_run, recalibrate):
        monkeypatch.setattr(place, "load_model", no_work)
    monkeypatch.setattr("gmmc.bench.record.measure_all", no_work)
    monkeypatch.setattr(comparison, "rows_of", no_work)
    assert "results.json" in refused(capsys, command, *arguments)
    assert file.read_text() == content


def test_a_deeply_nested_results_file_is_one_line(run, tmp_path, capsys):
    (tmp_path / "results.json").write_text("[" * 100_000)
    assert "results.json is damaged" in refused(capsys, "compare", run, "--out", tmp_path)


def test_results_in_python_are_refused_before_the_work(model, tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text('{"my": "results"}')
    monkeypatch.setattr("gmmc.evaluations.run.one_by_one", no_work)
    with pytest.raises(InputError, match=r"results\.json"):
        gmmc.evaluate(model, tiny_data(), out=tmp_path)


@pytest.mark.parametrize("state", ["theirs", "marked", "listed"])
def test_a_comparison_replaces_its_own_picture_only(run, tmp_path, monkeypatch, state):
    picture = tmp_path / "comparison.png"
    before = save_png(picture, **({"gmmc": "0.1.0"} if state == "marked" else {}))
    if state == "listed":  # as an older gmmc left it
        results.write_results(tmp_path, {"comparison": {"values": {}, "files": ["comparison.png"]}})
    monkeypatch.setattr(comparison.picture, "draw", lambda rows: b"new")
    if state == "theirs":
        with pytest.raises(InputError, match=r"comparison\.png"):
            comparison.compare([run], tmp_path)
        assert picture.read_bytes() == before
        assert not (tmp_path / "results.json").exists()
    else:
        comparison.compare([run], tmp_path)
        assert picture.read_bytes() == b"new"


def test_an_exported_folder_keeps_a_card_of_the_user_s_own(model, tmp_path):
    gmmc.save_pretrained(model, tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("# My own words")
    with pytest.raises(InputError, match=r"README\.md"):
        gmmc.save_pretrained(model, tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "# My own words"


def test_names_are_printed_safely(tmp_path):
    path = tmp_path / "a\x1b[2Jb"
    path.write_text("")
    with pytest.raises(InputError) as refusal:
        check_replaceable(path, "--out", lambda _: False)
    assert "\x1b" not in str(refusal.value)
    with pytest.raises(InputError) as refusal:
        check_writable(path / "in it", "--out")
    assert "\x1b" not in str(refusal.value)


# --- exporting leaves nothing behind --------------------------------------------------------------


def test_an_export_makes_no_file_outside_its_folder(model, tmp_path, monkeypatch):
    import tempfile

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    made = []
    monkeypatch.setattr(
        model_file, "load", lambda path, load=model_file.load: made.append(Path(path)) or load(path)
    )
    gmmc.save_pretrained(model, tmp_path / "model")
    assert [path.parent for path in made] == [tmp_path / "model"]
    assert not list((tmp_path / "temporary").iterdir())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_what_a_killed_export_left_is_cleaned_up(model, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    process = dead_process()
    for name in (".model.safetensors.tmp", "README.md", "config.json"):
        (folder / f".{name}.{process}.tmp").write_bytes(b"half")
    (folder / ".model.safetensors.tmp").write_bytes(b"half")
    gmmc.save_pretrained(model, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


# --- results.json of several writers --------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from gmmc.runs.results import write_results
for i in range(60):
    write_results(Path(sys.argv[1]), {f"{sys.argv[2]}-{i}": {"values": {"i": i}}})
assert "torch" not in sys.modules
"""


def test_results_of_several_writers_are_all_kept(tmp_path, monkeypatch):
    with ExitStack() as stack:
        commands = [[sys.executable, "-c", WRITER, tmp_path, name] for name in "abcd"]
        writers = [stack.enter_context(started(command)) for command in commands]
        assert [writer.wait(DEADLINE) for writer in writers] == [0] * 4
    expected = {f"{name}-{i}": {"values": {"i": i}} for name in "abcd" for i in range(60)}
    assert results.read_results(tmp_path) == expected


def test_results_are_kept_where_there_are_no_locks(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(results.fcntl, "flock", no_locks)
    results.write_results(tmp_path, {"a": {"values": {}}})
    assert results.read_results(tmp_path).keys() == {"a"}


def test_what_others_write_during_a_bench_or_a_calibration_stays(run, tmp_path, monkeypatch):
    """Both look at results.json at the moment they write, not before their work."""

    def measured(*_):
        results.write_results(tmp_path, {"bench": {"values": {"complete": 1}}, "other": {"values": {}}})
        yield Result({"a": 1.0}, {}, flags=["incomplete: 1 of 2 parts were not reached"])

    monkeypatch.setattr("gmmc.bench.record.measure_all", measured)
    record.run_bench("cpu", tmp_path, "cpu")
    assert results.read_results(tmp_path)["bench"]["values"] == {"complete": 1}
    folder = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("results.json"))
    results.write_results(folder, {"ood": {"values": {}}, "other": {"values": {}}})
    RunFolder(folder).replace_model(model_file.load(folder))
    found = results.read_results(folder)
    assert found == {"ood": {"values": {}, "flags": [RECALIBRATED]}, "other": {"values": {}}}


# --- places that cannot be written to -------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch):
    """Permissions do not stop the superuser: the file system does."""

    def refuse(*_, dir, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    monkeypatch.setattr("gmmc.base.outputs.TemporaryFile", refuse)


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(
    run, tmp_path, monkeypatch, capsys, read_only
):
    for place in (evaluations_run, recalibrate, examples):
        monkeypatch.setattr(place, "load_data", no_work)
    monkeypatch.setattr(generate, "to_folder", no_work)
    monkeypatch.setattr(generate, "to_file", no_work)
    monkeypatch.setattr("gmmc.bench.record.measure_all", no_work)
    monkeypatch.setattr(comparison, "rows_of", no_work)
    monkeypatch.setattr(export, "_traced", no_work)
    monkeypatch.setattr("gmmc.runs.folder.save_model", no_work)
    monkeypatch.setattr("gmmc.report.page.render", no_work)
    out = tmp_path / "out"
    for arguments in (
        ["evaluate", run],
        ["calibrate", run],
        ["sample", run],
        ["sample", run, "--out", out],
        ["sample", run, "--out", out / "drawn.npz"],
        ["export", run, out],
        ["export", run, out / "graph.onnx"],
        ["compare", run, "--out", out],
        ["bench", "--preset", "cpu", "--out", out],
        ["report", run],
    ):
        assert "Read-only file system" in refused(capsys, *arguments)
    assert not out.exists()


def test_a_place_is_checked_without_a_trace(tmp_path):
    check_writable(tmp_path / "a" / "b", "--out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("link", ["elsewhere", "missing", "a/../../elsewhere"])
def test_pictures_stay_in_the_run_folder(tmp_path, link):
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for folder in (out / "a", elsewhere):
        folder.mkdir(parents=True)
    (out / "samples").symlink_to(out / link if "/" in link else tmp_path / link)
    picture = Image.new("RGB", (8, 8))
    result = Result({}, {}, pictures={"first.png": picture, "samples/grid.png": picture})
    kept = keep(result, "samples", RunFolder(out))
    assert list(kept.pictures) == ["first.png"]
    assert [flag for flag in kept.flags if "samples/grid.png" in flag]
    visible = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
    assert visible == ["a", "first.png", "results.json", "samples"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "run"]
    assert not list(elsewhere.iterdir())


def test_links_inside_and_to_a_run_folder_are_followed(tmp_path):
    (tmp_path / "disk" / "large").mkdir(parents=True)
    (tmp_path / "disk" / "samples").symlink_to("large")
    (tmp_path / "run").symlink_to("disk")
    result = Result({}, {}, pictures={"samples/grid.png": Image.new("RGB", (8, 8))})
    keep(result, "samples", RunFolder(tmp_path / "run"))
    assert (tmp_path / "disk" / "large" / "grid.png").is_file()


# --- errors of writing ----------------------------------------------------------------------------


@pytest.fixture
def full_disk(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)


def test_a_full_disk_names_the_file(tmp_path, full_disk):
    with pytest.raises(OSError, match="No space left") as failure:
        atomic.write_atomic(tmp_path / "file", b"content")
    assert failure.value.filename == str(tmp_path / "file")
    assert failure.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_command_names_the_file_that_did_not_fit(run, tmp_path, full_disk, capsys):
    path = tmp_path / "report.html"
    with pytest.raises(SystemExit) as stop:
        app.main(["report", str(run), "--out", str(path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"gmmc: {path}: No space left on device"
    assert not path.exists()


LIMITED = """
import resource, signal, sys
from pathlib import Path
from gmmc.runs.folder import RunFolder
from gmmc.generate import folder
import torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
place = Path(sys.argv[1])
for write in (
    lambda: RunFolder(place).append_metrics({"step": 1000000}),
    lambda: folder._write_png(place / "image.png", torch.rand(1, 8, 8), {"seed": 1}),
):
    try:
        write()
    except OSError as error:
        print(error.filename)
"""


def test_metrics_and_images_that_do_not_fit_are_named(tmp_path):
    done = python(LIMITED, tmp_path)
    assert done.stdout.splitlines() == [str(tmp_path / "metrics.jsonl"), str(tmp_path / "image.png")]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
