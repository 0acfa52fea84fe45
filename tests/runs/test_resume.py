"""Interrupt at any moment, run the same command again: the same weights, bit for bit."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

import gmmc.train.loop
from conftest import make_learner, tiny_config, tiny_data
from gmmc.config import recipes
from gmmc.runs import folder
from gmmc.train.learner import Learner
from gmmc.train.loop import train
from processes import finished


def weights(out):
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny_config(), out, tiny_data())
    return weights(out)


class Killed(BaseException):
    pass


def crash_at(monkeypatch, target, name, call):
    """Raise at the given call of a function, as if the process died there."""
    original, calls = getattr(target, name), 0

    def wrapper(*arguments, **keywords):
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return original(*arguments, **keywords)

    monkeypatch.setattr(target, name, wrapper)


@pytest.mark.parametrize("every_line", [True, False], ids=["saving often", "saving seldom"])
@pytest.mark.parametrize("update", [1, 2, 5, 9, 12])
def test_a_crash_in_any_update(tmp_path, monkeypatch, uninterrupted, update, every_line):
    cfg = tiny_config()
    if every_line:
        monkeypatch.setattr(gmmc.train.loop, "time", FastClock())
    with monkeypatch.context() as crash:
        crash_at(crash, Learner, "update", update)
        with pytest.raises(Killed):
            train(cfg, tmp_path / "run", tiny_data())
    train(cfg, tmp_path / "run", tiny_data())
    assert weights(tmp_path / "run") == uninterrupted
    steps = [line["step"] for line in folder.RunFolder(tmp_path / "run").metrics()]
    assert steps == [3, 4, 6, 8, 9, 12]


class FastClock:
    """Every look at the clock is an hour after the last, so every chance to save is taken."""

    now = 0.0
    perf_counter = staticmethod(time.perf_counter)

    def monotonic(self):
        self.now += 3600
        return self.now


# Nine files are written: the configuration, seven states and the model; four old states are deleted.
# Each write is synchronised twice, its content and its name.
@pytest.mark.parametrize(
    ("target", "name", "calls"), [(Path, "replace", 9), (os, "fsync", 18), (Path, "unlink", 4)]
)
def test_a_crash_in_any_part_of_any_write(tmp_path, monkeypatch, uninterrupted, target, name, calls):
    cfg = tiny_config()
    monkeypatch.setattr(gmmc.train.loop, "time", FastClock())
    for call in range(1, calls + 2):
        out = tmp_path / f"run{call}"
        with monkeypatch.context() as crash:
            crash_at(crash, target, name, call)
            try:
                train(cfg, out, tiny_data())
                died = False
            except Killed:
                died = True
        assert died == (call <= calls)  # one call more: the test knows every one of them
        train(cfg, out, tiny_data())
        assert weights(out) == uninterrupted


# Update 8 begins the generative phase; at update 10 the guard goes back there, four times.
DIVERGING = {
    "train": {"log_every": 1, "beta": 1.0, "ramp": 30, "checkpoint_seconds": 0.0},
    "discriminative": {"epochs": 2, "lr": 5e-3},
    "generative": {"epochs": 4, "lr": 0.02},
    "sampler": {"alpha": 3.0},
    "guard": {"every": 6, "rollbacks": 20, "energy": 0.6},
}


def metrics(out):
    lines = folder.RunFolder(out).metrics()
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_a_crash_between_a_good_state_and_a_rollback(tmp_path, monkeypatch):
    """The rollback leads to the good state, not to the one that training was resumed from."""
    cfg = tiny_config(**DIVERGING)
    train(cfg, tmp_path / "whole", tiny_data())
    targets = [line["to"] for line in metrics(tmp_path / "whole") if line.get("event") == "rollback"]
    assert len(targets) > 1
    assert set(targets) == {8}
    for update in (10, 12, 24):
        out = tmp_path / f"{update}"
        with monkeypatch.context() as crash:
            crash_at(crash, Learner, "update", update)
            with pytest.raises(Killed):
                train(cfg, out, tiny_data())
        train(cfg, out, tiny_data())
        assert metrics(out) == metrics(tmp_path / "whole")
        assert weights(out) == weights(tmp_path / "whole")


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch, capsys, data):
    train(tiny_config(), tmp_path / "run", data)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run").rglob("*.*") if p.name != ".lock"}
    crash_at(monkeypatch, Learner, "update", 1)
    model = train(tiny_config(), tmp_path / "run", data)
    assert "already trained (12 updates)" in capsys.readouterr().out
    assert model.head.gamma2 > 0
    assert before == {p: p.stat().st_mtime_ns for p in before}


def test_a_damaged_model_is_named_and_restored_from_the_last_state(tmp_path, capsys, uninterrupted):
    train(tiny_config(), tmp_path / "run", tiny_data())
    (tmp_path / "run" / "model.safetensors").write_bytes(b"gone")
    states = sorted((tmp_path / "run" / "resume").iterdir())
    train(tiny_config(), tmp_path / "run", tiny_data())
    assert "model.safetensors is not a whole gmmc file" in capsys.readouterr().err
    assert weights(tmp_path / "run") == uninterrupted
    assert sorted((tmp_path / "run" / "resume").iterdir()) == states


def test_lost_metrics_are_told(tmp_path, capsys):
    train(tiny_config(), tmp_path / "run", tiny_data())
    (tmp_path / "run" / "model.safetensors").unlink()
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[2:]))
    train(tiny_config(), tmp_path / "run", tiny_data())
    assert "metrics.jsonl has lost 2 of its lines" in capsys.readouterr().err


def test_a_damaged_state_is_named_and_costs_only_its_steps(tmp_path, monkeypatch, capsys, uninterrupted):
    monkeypatch.setattr(gmmc.train.loop, "time", FastClock())
    with monkeypatch.context() as crash:
        crash_at(crash, Learner, "update", 11)
        with pytest.raises(Killed):
            train(tiny_config(), tmp_path / "run", tiny_data())
    newest = max((tmp_path / "run" / "resume").glob("step-*"))
    newest.write_bytes(newest.read_bytes()[:-100])
    train(tiny_config(), tmp_path / "run", tiny_data())
    told = capsys.readouterr().err
    assert newest.name in told
    assert "at update 8 of 12" in told
    assert weights(tmp_path / "run") == uninterrupted


def test_the_thread_count_is_recorded_and_restored(data):
    learner = make_learner(tiny_config(), data)
    threads = torch.get_num_threads()
    state = learner.snapshot()
    assert state.info["threads"] == threads
    try:
        torch.set_num_threads(threads + 1)
        learner.restore(state)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(threads)


# --- real processes -------------------------------------------------------------------------------

SIGNALLED = Path(__file__).parents[1] / "signalled.py"
LONGER = [
    "train.log_every=1",
    "train.checkpoint_seconds=0.0",
    "discriminative.epochs=2",
    "generative.epochs=3",
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(recipes.to_toml(tiny_config(train={"batch_size": 128}, buffer={"size": 200})))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory, recipe):
    out = tmp_path_factory.mktemp("whole") / "run"
    train(recipes.load(str(recipe), LONGER), out, silent=True)
    return weights(out)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupting_saves_says_so_and_resumes(tmp_path, recipe, whole, number, capsys):
    command = [sys.executable, SIGNALLED, "train", recipe, *LONGER, "--out", tmp_path / "run"]
    done = finished(command, status=130, env={"UPDATE": "15", "SIGNAL": str(int(number))})
    assert "stopped at update 15 of 50; run the same command to go on" in done.stderr.splitlines()[-1]
    train(recipes.load(str(recipe), LONGER), tmp_path / "run")
    assert "at update 15 of 50" in capsys.readouterr().err
    assert weights(tmp_path / "run") == whole
