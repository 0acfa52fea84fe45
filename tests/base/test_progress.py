import contextlib
import itertools
import os
from types import SimpleNamespace

import pytest

from gmmc.base import progress
from gmmc.base.progress import Progress
from processes import shown_on_terminal

DEMO = """
from gmmc.base.progress import Progress
with Progress("training", 3) as bar:
    bar.say("resuming at update 1")
    for step in (1, 2, 3):
        bar.update(step, f"real {step}.5")
"""


def test_plain_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    with Progress("training", 4) as bar:
        bar.update(1, "real 3.10")
        bar.update(4, "real 2.00")
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[:3] for line in err.splitlines()] == [
        ["training", "25%", "real"],
        ["training", "100%", "real"],
    ]
    assert "\r" not in err
    assert "\x1b" not in err


def test_lines_are_rare_but_the_last_is_always_there(capsys, monkeypatch):
    now = itertools.count(step=0.5)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(progress, "PLAIN_EVERY", 200.0)
    with Progress("sampling", 1000) as bar:
        for done in range(1, 1001):
            bar.update(done)
    shown = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["40%", "80%", "100%"]


def test_time_left_follows_the_speed(monkeypatch):
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    bar = Progress("training", 100)
    bar.__enter__()
    bar.update(10)
    bar.update(20)  # ten units in ten seconds
    assert bar._left() == "1:20 left"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (125, "2:05"), (3599, "59:59"), (3600, "1:00:00"), (3723, "1:02:03"), (90_000, "25:00:00")],
)
def test_times_are_hours_minutes_seconds(seconds, shown):
    assert progress.clock(seconds) == shown


def test_quiet_hides_progress_and_keeps_notes(capsys, monkeypatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.0)
    progress.set_quiet(True)
    try:
        with Progress("training", 2) as bar:
            bar.update(1)
            bar.say("a warning")
            bar.update(2)
    finally:
        progress.set_quiet(False)
    assert capsys.readouterr().err == "a warning\n"


def test_a_closed_pipe_does_not_stop_the_work(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(progress.sys, "stderr", closed)
        with Progress("training", 1) as bar:
            bar.say("hello")
            bar.update(1)
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            closed.close()


def test_nothing_to_do_is_no_error(capsys):
    with Progress("sampling", 0) as bar:
        bar.update(0)
    assert "100%" in capsys.readouterr().err


def test_a_live_bar_on_a_terminal():
    shown = shown_on_terminal(DEMO)
    assert b"\x1b[" in shown
    assert "━".encode() in shown
    assert b"resuming at update 1" in shown
    assert b"real 3.5" in shown
