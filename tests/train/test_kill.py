"""The harness of `make kill`: it passes after a few kills, and reports a resume that is broken."""

import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gmmc.base.tensorfile import pack, unpack
from gmmc.runs.folder import RunFolder
from kill import KILLS, Harness, Trial, content, differences, leftovers, planned, table
from kill_settings import SETTINGS
from processes import finished

SIGNALLED = Path(__file__).parents[1] / "signalled.py"
BY_NAME = {setting.name: setting for setting in SETTINGS}


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    return Harness(tmp_path_factory.mktemp("kill") / "harness")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("gmmc", 3), ("two processes", 2), ("npz", 1)])
def test_after_some_kills_the_result_is_that_of_an_uninterrupted_run(harness, name, kills):
    trial = Trial(BY_NAME[name], 0)
    first, *others = planned(trial.setting, 0, seed=0, count=kills)
    first = replace(first, progress=max(1, first.progress))  # so that it cannot be over before
    harness.run(trial, [first, *others])
    assert trial.problems == []
    assert trial.kills or name == "npz"  # a short drawing may end before its kill


def other_weights(tensors, info):
    tensors["model.backbone.0.weight"].mul_(1.001)


def later_step(tensors, info):
    info["step"] += 1


def fewer_lines(tensors, info):
    info["lines"] -= 1


@pytest.fixture(scope="module")
def killed(harness, tmp_path_factory):
    """A run folder after kill -9 in update 5."""
    out = tmp_path_factory.mktemp("killed") / "run"
    _, _, _, *arguments = BY_NAME["gmmc"].command(harness.models, out)
    moment = {"UPDATE": "5", "SIGNAL": str(int(signal.SIGKILL))}
    finished([sys.executable, SIGNALLED, *arguments], status=-signal.SIGKILL, env=moment)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (other_weights, "model.safetensors differs"),
        (later_step, "model.safetensors differs"),
        (fewer_lines, "metrics.jsonl has the steps"),
    ],
)
def test_a_broken_resume_is_reported(harness, killed, change, problem):
    """The newest state is altered, and packed as if it were intact."""
    trial = Trial(BY_NAME["gmmc"], -1)
    out = harness.folder(trial)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(killed, out)
    newest = max((out / "resume").iterdir())
    tensors, info, _ = unpack(newest)
    change(tensors, info)
    altered, digest = pack(tensors, info)
    newest.unlink()
    newest.with_name(RunFolder._state_name(info["step"], 0, digest)).write_bytes(altered)
    harness.run(trial, [])
    assert any(text.startswith(problem) for text in trial.problems), trial.problems


def write(out, lines, **files):
    (out / "resume").mkdir(parents=True)
    (out / "metrics.jsonl").write_text(
        "".join(f'{{"step": {n}, "seconds": {t}}}\n' for t, n in enumerate(lines))
    )
    for name, text in files.items():
        (out / name).write_text(text)
    return content(out)


def test_time_does_not_count(tmp_path):
    whole = write(tmp_path / "a", [1, 2], model="x")
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1, "seconds": 8}\n{"step": 2, "seconds": 9}\n')
    assert differences(content(tmp_path / "a"), whole) == []


@pytest.mark.parametrize("lines", [[1, 3], [1, 2, 2, 3], [1, 2]])
def test_gaps_and_repeats_are_reported(tmp_path, lines):
    files, whole = write(tmp_path / "a", lines), write(tmp_path / "b", [1, 2, 3])
    assert differences(files, whole) == [
        f"metrics.jsonl has the steps {lines}, not [1, 2, 3]",
        "metrics.jsonl differs",
    ]


def test_other_and_missing_files_are_reported(tmp_path):
    files, whole = (
        write(tmp_path / "a", [1], model="x", old="z"),
        write(tmp_path / "b", [1], model="y", new="z"),
    )
    assert differences(files, whole) == [
        "model differs",
        "new is missing or too many",
        "old is missing or too many",
    ]


@pytest.mark.parametrize(
    "name", [".model.safetensors.12.tmp", "resume/.step.tmp", "resume/step-1.damaged", ".a.parts"]
)
def test_leftovers_are_reported(tmp_path, name):
    write(tmp_path / "a", [1])
    for kept in (".lock", "resume/step-000000007-rank-1-0123456789abcdef.safetensors"):
        (tmp_path / "a" / kept).touch()
    assert leftovers(tmp_path / "a") == []
    (tmp_path / "a" / name).touch()
    assert leftovers(tmp_path / "a") == [f"{name} is left over"]


def test_a_trial_can_be_planned_again():
    setting = BY_NAME["two processes"]
    plans = [planned(setting, number, seed) for number, seed in [(0, 0), (0, 0), (1, 0), (0, 1)]]
    assert plans[0] == plans[1]
    assert len({tuple(plan) for plan in plans}) == 3
    assert len(plans[0]) == KILLS


def test_the_table_counts_failures():
    good, bad = Trial(BY_NAME["gmmc"], 0), Trial(BY_NAME["npz"], 0, problems=["broken"])
    good.kills += planned(good.setting, 0, 0)
    rows = {line.split()[0]: line.split() for line in table([good, bad]).splitlines()}
    assert rows["gmmc"][1:3] == ["1", "5"]
    assert [rows[name][6] for name in ("gmmc", "npz", "all")] == ["0", "1", "1"]
