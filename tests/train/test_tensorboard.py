"""Metrics for other tools: TensorBoard's reader finds the lines of metrics.jsonl, a function gets them."""

import json
import math
import sys
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import tiny_config
from doc_blocks import DOCS, blocks_of, linked_files
from gmmc.cli import app
from gmmc.config.recipes import differences
from gmmc.errors import InputError
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.loop import train
from gmmc.train.tensorboard import EventFiles

LOGGED = {"log": "tensorboard", "checkpoint_seconds": 0.0}


class Stop(Exception):
    pass


def stop_at(step):
    def on_metrics(line):
        if line["step"] == step:
            raise Stop

    return on_metrics


def wait_for_next_second():
    """TensorBoard reads files in the order of their names, which begin with whole seconds."""
    began = int(time.time())
    while int(time.time()) == began:
        time.sleep(0.02)


def scalars(run):
    """Steps and values by name, as TensorBoard reads them."""
    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return read(reader)


def read(reader):
    names = reader.Tags()["scalars"]
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in names}


def numbers(run):
    """The same of metrics.jsonl; TensorBoard keeps single precision."""
    found = {}
    for line in RunFolder(run).metrics():
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step":
                found.setdefault(name, []).append((line["step"], float(np.float32(value))))
    return found


def test_the_reader_finds_every_number(tmp_path, data):
    train(tiny_config(train=LOGGED), tmp_path, data)
    found = scalars(tmp_path)
    assert {"real_energy", "sampled_energy", "accuracy", "valid_accuracy", "lr", "seconds"} <= found.keys()
    assert [step for step, _ in found["accuracy"]] == [3, 4, 6, 8, 9, 12]
    assert found == numbers(tmp_path)


@pytest.mark.parametrize("step", [3, 6, 12])
def test_a_resumed_training_has_no_step_twice(tmp_path, data, step):
    with pytest.raises(Stop):
        train(tiny_config(train=LOGGED), tmp_path, data, on_metrics=stop_at(step))
    wait_for_next_second()
    train(tiny_config(train=LOGGED), tmp_path, data)
    assert [step for step, _ in scalars(tmp_path)["accuracy"]] == [3, 4, 6, 8, 9, 12]
    assert scalars(tmp_path) == numbers(tmp_path)


def test_it_may_be_asked_for_later_and_then_has_all_lines(tmp_path, data):
    with pytest.raises(Stop):
        train(tiny_config(train=LOGGED | {"log": "none"}), tmp_path, data, on_metrics=stop_at(6))
    assert not (tmp_path / "tensorboard").exists()
    train(tiny_config(train=LOGGED), tmp_path, data)
    assert scalars(tmp_path) == numbers(tmp_path)
    assert differences(tiny_config(), tiny_config(train={"log": "tensorboard"})) == []


@pytest.fixture
def written(tmp_path):
    """Lines of an interrupted training in metrics.jsonl and event files."""
    lines = [{"step": step, "real_energy": step / 3, "seconds": float(step)} for step in (1, 2, 3, 4)]
    write(tmp_path, lines)
    return tmp_path


def write(run, lines):
    """As `train.Loop` writes lines."""
    files, folder = EventFiles(run), RunFolder(run)
    for line in lines:
        files(folder.append_metrics(line))
    files.close()


def test_a_tensorboard_that_is_open_forgets_what_was_rewound(written):
    reader = EventAccumulator(str(written / "tensorboard"))
    reader.Reload()
    RunFolder(written).rewind_metrics(2)
    wait_for_next_second()
    write(written, [{"step": 3, "real_energy": 7.0, "seconds": 3.0}])
    reader.Reload()
    assert read(reader) == numbers(written)


def test_a_rolled_back_training_shows_both_courses(tmp_path):
    lines = [{"step": step, "real_energy": 1.0, "seconds": 1.0} for step in (1, 2, 3, 2, 3)]
    write(tmp_path, [line | {"event": "rollback", "reason": "energy"} for line in lines])
    assert [step for step, _ in scalars(tmp_path)["real_energy"]] == [1, 2, 3, 2, 3]
    assert scalars(tmp_path) == numbers(tmp_path)


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    write(tmp_path, [{"step": 1, "real_energy": math.nan, "accuracy": 0.5, "seconds": 1.0}])
    assert scalars(tmp_path).keys() == {"accuracy", "seconds"}


def test_times_are_those_of_the_training(written):
    reader = EventAccumulator(str(written / "tensorboard"))
    reader.Reload()
    times = [event.wall_time for event in reader.Scalars("real_energy")]
    assert [time - times[0] for time in times] == pytest.approx([0, 1, 2, 3], abs=1e-3)


def test_a_link_out_of_the_run_is_refused(tmp_path, data):
    (tmp_path / "elsewhere").mkdir()
    train(tiny_config(), tmp_path / "run", data)
    (tmp_path / "run" / "model.safetensors").unlink()
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="--out"):
        train(tiny_config(train=LOGGED), tmp_path / "run", data)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_without_the_package_nothing_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SystemExit) as stop:
        app.main(["train", "digits", "train.log=tensorboard", "--out", str(tmp_path / "run")])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert err.count("\n") == 1
    assert "train.log=tensorboard" in err
    assert "pip install tensorboard" in err
    assert not (tmp_path / "run").exists()


# --- a function of the caller's -------------------------------------------------------------------


def test_a_function_gets_every_line_as_it_is_written(tmp_path, data):
    got, there = [], []

    def on_metrics(line):
        got.append(dict(line))
        there.append(len((tmp_path / "metrics.jsonl").read_text().splitlines()))
        line.clear()  # its own copy

    train(tiny_config(train=LOGGED), tmp_path, data, on_metrics=on_metrics)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert got == [json.loads(line) for line in lines]
    assert there == list(range(1, len(lines) + 1))
    assert scalars(tmp_path) == numbers(tmp_path)


def test_its_exception_stops_the_training_which_can_be_resumed(tmp_path, data):
    train(tiny_config(), tmp_path / "whole", data)
    with pytest.raises(Stop):
        train(tiny_config(), tmp_path / "run", data, on_metrics=stop_at(8))
    train(tiny_config(), tmp_path / "run", data)
    whole, resumed = (model_file.load(tmp_path / name).state_dict() for name in ("whole", "run"))
    assert all(tensor.equal(resumed[name]) for name, tensor in whole.items())


# --- docs/logging.md ------------------------------------------------------------------------------

PAGE = DOCS / "logging.md"
QUICK = ["discriminative.epochs=1", "generative.epochs=0"]


def test_the_commands_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [words for block in blocks_of(PAGE) if block.language == "sh" for words in block.commands]
    ours = [words[1:] for words in commands if words[0] == "gmmc"]
    assert ours
    for words in ours:
        with pytest.raises(SystemExit) as stop:
            app.main([*words, *QUICK])
        assert stop.value.code == 0
    assert scalars(tmp_path / "runs" / "logged") == numbers(tmp_path / "runs" / "logged")


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            code = compile(block.text.replace('load("digits")', f'load("digits", {QUICK})'), PAGE, "exec")
            if not block.mark:  # others need a package
                exec(code, names)
    lines = RunFolder(tmp_path / "runs" / "followed").metrics()
    valid = {line["step"]: line["valid_accuracy"] for line in lines if "valid_accuracy" in line}
    assert names["accuracies"] == valid != {}
    assert {block.mark for block in blocks_of(PAGE)} == {"", "package"}


def test_every_link_leads_somewhere():
    assert all(target.exists() for target in linked_files(PAGE))


def test_a_file_in_the_place_of_the_folder_is_refused_before_the_training(tmp_path, data):
    (tmp_path / "tensorboard").write_text("mine")
    with pytest.raises(InputError, match=r"train\.log=tensorboard .*tensorboard, which is a file"):
        train(tiny_config(train=LOGGED), tmp_path, data)
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]


def test_on_metrics_must_be_a_function(tmp_path, data):
    with pytest.raises(InputError, match=r"on_metrics must be .*, got 3"):
        train(tiny_config(), tmp_path / "run", data, on_metrics=3)
    assert not (tmp_path / "run").exists()
