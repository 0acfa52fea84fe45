"""Several processes: one training. The processes are real, started as a user would."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import make_learner, tiny_config, tiny_data
from gmmc import config, ranks, runs
from gmmc.objectives import Loss
from gmmc.processes import build_fabric, world_size
from gmmc.ranks import PARENT, RANKS, is_leader

ALONE = {name: value for name, value in os.environ.items() if name not in RANKS} | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    sections = {"train": {"batch_size": 128, "log_every": 4}, "buffer": {"size": 200, "reinit": 0.0}}
    path.write_text(config.to_toml(tiny_config(**sections)))
    return path


def gmmc(*arguments):
    return [sys.executable, "-m", "gmmc", *map(str, arguments)]


def finish(command, status=0):
    done = subprocess.run(command, capture_output=True, text=True, env=ALONE, timeout=240)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def two(tmp_path_factory, recipe):
    """A training by two processes that one command starts."""
    out = tmp_path_factory.mktemp("two") / "run"
    return out, finish(gmmc("train", recipe, "train.devices=2", "--out", out))


def test_they_speak_with_one_voice(two):
    out, done = two
    assert done.stdout.count("Next: gmmc evaluate") == 1
    others = [line for line in done.stderr.splitlines() if not line.startswith("training")]
    assert others[0] == "waiting for 2 processes to connect"
    assert len(others) == len(set(others))  # nothing is said twice
    assert all("training images in batches of" in line or "chance" in line for line in others[1:])
    steps = [line["step"] for line in lines(out)]
    assert steps == sorted(set(steps))
    assert runs.load(out).trained["processes"] == 2


@pytest.mark.slow
def test_torchrun_does_the_same(two, tmp_path, recipe):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "gmmc", "train"]
    finish([*run, recipe, "--out", tmp_path / "run"])
    ours, theirs = (load_file(out / "model.safetensors") for out in (two[0], tmp_path / "run"))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.slow
def test_without_samples_it_is_the_training_of_one_process(tmp_path, recipe):
    """The union of the shares is the batch of a single process, augmentation included: the same weights."""
    for devices in (1, 2):
        options = ["train.beta=0", "discriminative.noise=0.1", f"train.devices={devices}"]
        finish(gmmc("train", recipe, *options, "--out", tmp_path / f"{devices}"))
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "2"))
    for name, tensor in one.items():
        assert torch.allclose(tensor, two[name], rtol=1e-3, atol=1e-4), name
    for a, b in zip(lines(tmp_path / "1"), lines(tmp_path / "2"), strict=True):
        assert a["real_energy"] == pytest.approx(b["real_energy"], rel=1e-4)


UPDATE = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
sys.path.insert(0, {tests!r})
from conftest import make_learner, tiny_config, tiny_data
cfg = tiny_config(discriminative={{"epochs": 0}}, objective={{"name": "split"}}, train={{"devices": 2}})
torch.set_num_threads(1)
from gmmc.processes import build_fabric
from gmmc.learner import Learner
fabric = build_fabric(cfg.train)
fabric.launch()
learner = Learner(cfg, tiny_data(), fabric)
for _ in range(3):
    learner.update()
weights = {{f"before.{{k}}": v.contiguous().clone() for k, v in learner.model.state_dict().items()}}
seen = {{}}
loss = learner.updater.loss
def record(real, contrast, sampled, *others):
    seen.update(x=real[0], y=real[1], contrast=contrast, sampled_x=sampled[0], sampled_y=sampled[1])
    return loss(real, contrast, sampled, *others)
record.limit = loss.limit
learner.updater.loss = record
learner.updater.optimizer.step = lambda: None
learner.update()
gradients = {{f"gradient.{{k}}": p.grad.contiguous() for k, p in learner.model.named_parameters()}}
seen = {{f"seen.{{k}}": v.contiguous() for k, v in seen.items()}}
save_file({{**weights, **gradients, **seen}}, Path({out!r}) / f"{{fabric.global_rank}}.safetensors")
"""


@pytest.mark.slow
def test_the_union_of_the_shares_gives_the_gradient_of_one_batch(tmp_path):
    """Both ranks hold the same weights and gradients, those of a single process on both their images."""
    script = tmp_path / "script.py"
    script.write_text(UPDATE.format(tests=str(Path(__file__).parent), out=str(tmp_path)))
    finish([sys.executable, script])
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, tensor in first.items():
        if not name.startswith("seen"):
            assert torch.equal(tensor, second[name]), name
    assert not torch.equal(first["seen.sampled_x"], second["seen.sampled_x"])

    cfg = tiny_config(discriminative={"epochs": 0}, objective={"name": "split"})
    alone = make_learner(cfg, tiny_data())
    alone.step = 3
    (x, _), contrast = alone._real_batch(alone.plan.at(3))
    union = {k: torch.cat([first[f"seen.{k}"], second[f"seen.{k}"]]) for k in ("x", "y", "contrast")}
    assert torch.equal(union["x"], x)  # the same rows, augmented alike
    assert torch.equal(union["contrast"], contrast)
    sampled = [torch.cat([first[f"seen.sampled_{k}"], second[f"seen.sampled_{k}"]]) for k in "xy"]
    prefix = "before."
    state = {k.removeprefix(prefix): v for k, v in first.items() if k.startswith(prefix)}
    alone.model.load_state_dict(state)
    Loss(alone.model, cfg)((union["x"], union["y"]), union["contrast"], tuple(sampled), 0.5)[0].backward()
    for name, parameter in alone.model.named_parameters():
        expected = first[f"gradient.{name}"]
        assert torch.allclose(parameter.grad, expected, atol=1e-5 * expected.abs().max().item() + 1e-7), name


def interrupted(command, out, after=3):
    """Start, wait for some lines of metrics, send Ctrl-C to all processes as a terminal would."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ALONE, start_new_session=True)
    metrics = out / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= after):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert told.count("run the same command to go on") == 1
    assert "Traceback" not in told
    return told


LONGER = [
    "generative.epochs=3",
    "train.log_every=2",
    "buffer.chains=64",
    "train.weights=bf16",
    "objective.name=balanced",
]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "norm"), [(2, 2, "batch"), (2, 1, "none"), (1, 2, "none")])
def test_resuming_with_as_many_and_with_other_numbers_of_processes(tmp_path, recipe, before, after, norm):
    def command(devices, out):
        options = [*LONGER, f"train.devices={devices}", f"model.norm={norm}"]
        return gmmc("train", recipe, *options, "--out", out)

    interrupted(command(before, tmp_path / "run"), tmp_path / "run")
    done = finish(command(after, tmp_path / "run"))
    assert "resuming" in done.stderr
    assert (f" instead of {before}" in done.stderr) == (before != after)
    steps = [line["step"] for line in lines(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 40
    state, _ = runs.RunFolder(tmp_path / "run").load_state(0, 1)
    assert len(state.shard["buffer.images"]) == 200
    if before == after:
        whole = finish(command(before, tmp_path / "whole"))
        assert whole.returncode == 0
        ours, uninterrupted = (load_file(tmp_path / n / "model.safetensors") for n in ("run", "whole"))
        for name, tensor in ours.items():
            assert torch.equal(tensor, uninterrupted[name]), name


@pytest.mark.slow
def test_they_roll_back_and_give_up_together(tmp_path, recipe):
    wild = ["generative.lr=0.05", "sampler.alpha=3", "guard.every=2", "guard.rollbacks=2", "guard.energy=0.4"]
    done = finish(
        gmmc("train", recipe, *LONGER, *wild, "train.devices=2", "--out", tmp_path / "run"), status=1
    )
    told = done.stderr.splitlines()
    assert sum("back to update" in line for line in told) == 2
    assert told[-1].startswith("gmmc: training diverged at update")
    assert sum("diverged" in line for line in told) == 1
    events = [line["event"] for line in lines(tmp_path / "run") if "event" in line]
    assert events == ["rollback", "rollback", "diverged"]
    model = runs.load(tmp_path / "run" / "last-good.safetensors")
    for rank in (0, 1):
        state, complaints = runs.RunFolder(tmp_path / "run").load_state(rank, 2)
        assert not complaints
        assert state.step == model.trained["updates"]
        assert state.info["rollbacks"] == 2


def test_a_bad_recipe_ends_in_one_line(tmp_path, recipe):
    done = finish(gmmc("train", recipe, "train.devices=3", "--out", tmp_path / "run"), status=2)
    assert done.stderr == "gmmc: train.batch_size must be a multiple of the 3 processes, got 128\n"
    assert not (tmp_path / "run").exists()


def test_machines_that_do_not_know_each_other_do_not_wait(tmp_path, recipe):
    done = finish(gmmc("train", recipe, "train.nodes=2", "--out", tmp_path / "run"), status=2)
    assert "got no NODE_RANK, MASTER_ADDR, MASTER_PORT" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "kill -9"])
def test_nobody_outlives_the_process_that_was_started(tmp_path, recipe, number):
    """Ended while the others connect, or later: no orphan is left."""
    command = gmmc("train", recipe, "generative.epochs=500", "train.devices=2", "--out", tmp_path / "run")
    for moment in ("waiting", "training"):
        with (tmp_path / "told").open("w+") as told:
            process = subprocess.Popen(command, stderr=told, stdout=told, env=ALONE)
            while moment not in (tmp_path / "told").read_text():
                time.sleep(0.05)
            process.send_signal(number)
            process.wait(600)
        deadline = time.monotonic() + 600
        while str(tmp_path / "run") in processes():
            assert time.monotonic() < deadline, processes()
            time.sleep(0.2)


def processes() -> str:
    """Command lines, whole (-ww): cut at COLUMNS, they would name no folder."""
    return subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True).stdout


@contextmanager
def leader_and_child(recipe, out):
    """A training at the moment its second process appears: (Popen of the first, id of the second)."""
    command = gmmc("train", recipe, "generative.epochs=500", "train.devices=2", "--out", out)
    with out.with_name("stderr").open("w") as errors:  # a pipe would stay open as long as an orphan lives
        leader = subprocess.Popen(command, stderr=errors, env=ALONE)
    children = []
    try:
        deadline = time.monotonic() + 600
        while not (children := children_of(leader.pid)):
            assert leader.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield leader, children[0]
    finally:
        for process in (leader.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        leader.wait(600)


def children_of(parent: int) -> list[int]:
    """Further processes of a training; not copies of it that are about to become `git` or the like."""
    shown = ["ps", "-ww", "--ppid", str(parent), "-o", "pid=,args="]
    listed = subprocess.run(shown, capture_output=True, text=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "-m gmmc.__main__" in line]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.1, 1, 4])
def test_a_further_process_ends_with_a_leader_that_is_killed_soon(tmp_path, recipe, seconds):
    """Killed while the second process starts its interpreter, imports, or connects."""
    with leader_and_child(recipe, tmp_path / "run") as (leader, child):
        time.sleep(seconds)
        leader.kill()
        leader.wait(600)
        deadline = time.monotonic() + 600
        while str(tmp_path / "run") in processes():
            assert time.monotonic() < deadline, child
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 1])
def test_a_further_process_that_is_lost_before_it_connects_is_reported(tmp_path, recipe, seconds):
    with leader_and_child(recipe, tmp_path / "run") as (leader, child):
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        assert leader.wait(600) == 1
    errors = (tmp_path / "stderr").read_text()
    last = errors.splitlines()[-1]
    assert last.startswith("gmmc: process 1 of this training was killed by signal 9")
    assert "run the same command" in last
    assert errors.count("gmmc: ") == 1


@pytest.mark.slow
def test_a_further_process_that_is_lost_in_training_is_reported_once(tmp_path, recipe):
    with leader_and_child(recipe, tmp_path / "run") as (leader, child):
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert leader.poll() is None
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        assert leader.wait(600) == 1
    errors = (tmp_path / "stderr").read_text()
    assert errors.count("gmmc: ") == 1
    assert "run the same command" in errors
    assert "Traceback" not in errors


def test_the_child_of_a_training_that_is_gone_imports_nothing():
    code = "import gmmc, os; print(os.environ.get('GMMC_PARENT'))"
    for parent, status, output in [("-1", 1, ""), (str(os.getpid()), 0, "None\n")]:
        done = subprocess.run(
            [sys.executable, "-c", code], env=ALONE | {PARENT: parent}, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (status, output), done.stderr


def test_who_leads(monkeypatch):
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    assert is_leader()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert is_leader()  # an array of single processes
    monkeypatch.setattr(ranks, "_several", True)
    assert not is_leader()


def test_torchrun_decides_how_many(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert world_size(tiny_config().train) == 4
    assert world_size(tiny_config(train={"devices": 2, "nodes": 2}).train) == 4
    with pytest.raises(ValueError, match="torchrun started 4 processes"):
        build_fabric(tiny_config(train={"devices": 3}).train)
