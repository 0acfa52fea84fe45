"""Options that several commands take: --threads and --quiet."""

import shutil

import pytest
import torch
import typer.main
from PIL import Image

from gmmc.cli import app
from gmmc.networks import threads
from gmmc.runs import folder


@pytest.fixture(autouse=True)
def callers_number():
    with threads.using(torch.get_num_threads()):
        yield


def gmmc(*arguments, capsys):
    """(exit status, standard output, standard error) of the command, in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    return stop.value.code, *capsys.readouterr()


def options_of(command):
    return {option for parameter in command.params for option in parameter.opts}


COMMANDS = typer.main.get_command(app.new_app()).commands  # pyright: ignore[reportAttributeAccessIssue]
COMPUTING = {"train", "export"} | {name for name, each in COMMANDS.items() if "--device" in options_of(each)}


def test_every_command_that_computes_takes_the_number():
    assert {"evaluate", "sample", "predict", "calibrate", "bench"} <= COMPUTING
    assert {name for name, each in COMMANDS.items() if "--threads" in options_of(each)} == COMPUTING


@pytest.fixture
def own_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "command",
    [
        "evaluate RUN accuracy",
        "sample RUN -n 1",
        "predict RUN RUN/../black.png",
        "calibrate RUN",
        "export RUN RUN/../model.onnx",
    ],
)
@pytest.mark.parametrize(("asked", "number"), [([], 1), (["--threads", 2], 2)], ids=["default", "two"])
def test_a_command_computes_with_it(own_run, command, asked, number, capsys):
    torch.set_num_threads(3)
    words = command.replace("RUN", str(own_run)).split()
    assert gmmc(*words, *asked, capsys=capsys)[0] == 0
    assert torch.get_num_threads() == number


def test_the_option_of_a_training_is_its_setting(tmp_path, capsys):
    few = ["discriminative.epochs=1", "generative.epochs=0"]
    assert gmmc("train", "digits", *few, "--threads", 2, "--out", tmp_path, capsys=capsys)[0] == 0
    assert folder.RunFolder(tmp_path).recipe().train.threads == 2
    both = ["train.threads=1", "--threads", 2]
    status, _, err = gmmc("train", "digits", *both, "--out", tmp_path / "new", capsys=capsys)
    assert status == 2
    assert "--threads" in err
    assert "train.threads=1" in err
    assert not (tmp_path / "new").exists()


def test_commands_that_show_progress_can_be_quiet():
    showing = {"train", "evaluate", "report", "sample", "calibrate", "bench"}
    assert showing <= {name for name, command in COMMANDS.items() if "--quiet" in options_of(command)}


def test_a_quiet_command_prints_its_result_and_its_errors(run, tmp_path, capsys):
    draw = ["sample", run, "-n", 1, "--out", tmp_path / "drawn"]
    status, quiet_out, err = gmmc(*draw, "--quiet", capsys=capsys)
    assert (status, err) == (0, "")
    assert "1 images" in quiet_out
    status, _, err = gmmc("sample", tmp_path / "nothing", "--quiet", capsys=capsys)
    assert status == 2
    assert "nothing" in err
    (tmp_path / "drawn" / "grid.png").unlink()
    _, _, err = gmmc(*draw, capsys=capsys)
    assert "sampling  100%" in err  # the next command shows progress again
