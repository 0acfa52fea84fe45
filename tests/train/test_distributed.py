"""Several processes: one training. The processes are real, started as a user would."""

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import make_learner, real_batch, tiny_config, tiny_data
from gmmc.base import leader as ranks
from gmmc.base.leader import PARENT, RANKS, is_leader
from gmmc.cli import app
from gmmc.config import recipes
from gmmc.runs import folder, model_file
from gmmc.train.distributed import build_fabric, world_size
from gmmc.train.objectives import Loss
from processes import DEADLINE, alive_in, children_of, finished, gmmc_command, python, started, wait_until

PROGRESS = ("reading", "training", "calibrating")  # how many such lines there are depends on the machine
SIGNALLED = Path(__file__).parents[1] / "signalled.py"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    sections = {"train": {"batch_size": 128, "log_every": 4}, "buffer": {"size": 200, "reinit": 0.0}}
    path.write_text(recipes.to_toml(tiny_config(**sections)))
    return path


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def two(tmp_path_factory, recipe):
    """A training by two processes that one command starts."""
    out = tmp_path_factory.mktemp("two") / "run"
    return out, finished(gmmc_command("train", recipe, "train.devices=2", "--out", out))


@pytest.mark.slow
def test_they_speak_with_one_voice(two):
    out, done = two
    assert done.stdout.count("Next: gmmc evaluate") == 1
    others = [line for line in done.stderr.splitlines() if not line.startswith(PROGRESS)]
    assert others[0] == "waiting for 2 processes to connect"
    assert len(others) == len(set(others))  # nothing is said twice
    assert all("training images in batches of" in line or "chance" in line for line in others[1:])
    steps = [line["step"] for line in lines(out)]
    assert steps == sorted(set(steps))
    assert model_file.load(out).trained["processes"] == 2


@pytest.mark.slow
def test_torchrun_does_the_same(two, tmp_path, recipe):
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "gmmc", "train"]
    finished([*run, recipe, "--out", tmp_path / "run"])
    ours, theirs = (load_file(out / "model.safetensors") for out in (two[0], tmp_path / "run"))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.slow
def test_without_samples_it_is_the_training_of_one_process(tmp_path, recipe):
    """The union of the shares is the batch of a single process, augmentation included: the same weights.

    With a small learning rate: Adam turns the rounding of a gradient of almost zero into a whole step.
    """
    for devices in (1, 2):
        options = ["train.beta=0", "discriminative.noise=0.1", "discriminative.lr=1e-5"]
        options.append(f"train.devices={devices}")
        finished(gmmc_command("train", recipe, *options, "--out", tmp_path / f"{devices}"))
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
cfg = tiny_config(discriminative={{"epochs": 0}}, objective={{"name": "balanced"}}, train={{"devices": 2}})
torch.set_num_threads(1)
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner
from gmmc.train.loop import launch
fabric = build_fabric(cfg.train)
launch(fabric)
learner = Learner(cfg, tiny_data(), fabric)
for _ in range(3):
    learner.update()
weights = {{f"before.{{k}}": v.contiguous().clone() for k, v in learner.model.state_dict().items()}}
seen = {{}}
loss = learner.algorithm.loss
def record(network, x, y, contrast, sampled_x, sampled_y, beta):
    seen.update(x=x, y=y, contrast=contrast, sampled_x=sampled_x, sampled_y=sampled_y)
    return loss(network, x, y, contrast, sampled_x, sampled_y, beta)
record.limit, record.energy = loss.limit, loss.energy
learner.algorithm.loss = record
learner.updater.optimizer.step = lambda: None
learner.update()
gradients = {{f"gradient.{{k}}": p.grad.contiguous() for k, p in learner.model.named_parameters()}}
seen = {{f"seen.{{k}}": v.contiguous() for k, v in seen.items()}}
save_file({{**weights, **gradients, **seen}}, Path({out!r}) / f"{{fabric.global_rank}}.safetensors")
"""


LEAVE = """
import atexit
from pathlib import Path
import torch.distributed
from gmmc.config.sections import TrainConfig
from gmmc.train.distributed import build_fabric
from gmmc.train.loop import launch
def record(moment):
    path = Path({out!r}) / f"{{fabric.global_rank}} {{moment}}"
    path.write_text(str(torch.distributed.is_initialized()))
atexit.register(record, "at exit")
fabric = build_fabric(TrainConfig(devices=2, device="cpu", precision="fp32"))
launch(fabric)
record("launched")
"""


@pytest.mark.slow
def test_processes_leave_their_group_before_python_ends(tmp_path):
    """A thread of gloo that releases a tensor after the interpreter's end aborts the process."""
    script, records = tmp_path / "script.py", tmp_path / "records"
    records.mkdir()
    # A file for each record: lines that two processes print to one pipe may mix.
    script.write_text(LEAVE.format(out=str(records)))
    finished([sys.executable, script])
    assert {path.name: path.read_text() for path in records.iterdir()} == {
        "0 launched": "True",
        "1 launched": "True",
        "0 at exit": "False",
        "1 at exit": "False",
    }


@pytest.mark.slow
def test_the_union_of_the_shares_gives_the_gradient_of_one_batch(tmp_path):
    """Both ranks hold the same weights and gradients, those of a single process on both their images."""
    script = tmp_path / "script.py"
    script.write_text(UPDATE.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path)))
    finished([sys.executable, script])
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, tensor in first.items():
        if not name.startswith("seen"):
            assert torch.equal(tensor, second[name]), name
    assert not torch.equal(first["seen.sampled_x"], second["seen.sampled_x"])

    cfg = tiny_config(discriminative={"epochs": 0}, objective={"name": "balanced"})
    alone = make_learner(cfg, tiny_data())
    x, _, contrast = real_batch(alone, 3)
    union = {k: torch.cat([first[f"seen.{k}"], second[f"seen.{k}"]]) for k in ("x", "y", "contrast")}
    assert torch.equal(union["x"], x)  # the same rows, augmented alike
    assert torch.equal(union["contrast"], contrast)
    sampled = [torch.cat([first[f"seen.sampled_{k}"], second[f"seen.sampled_{k}"]]) for k in "xy"]
    prefix = "before."
    state = {k.removeprefix(prefix): v for k, v in first.items() if k.startswith(prefix)}
    alone.model.load_state_dict(state)
    loss = Loss(alone.model, cfg.objective)
    loss(alone.model.backbone, union["x"], union["y"], union["contrast"], *sampled, 0.5)[0].backward()
    for name, parameter in alone.model.named_parameters():
        expected = first[f"gradient.{name}"]
        assert torch.allclose(parameter.grad, expected, atol=1e-5 * expected.abs().max().item() + 1e-7), name


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
    def arguments(devices, out):
        options = [*LONGER, f"train.devices={devices}", f"model.norm={norm}"]
        return ["train", recipe, *options, "--out", out]

    ctrl_c = {"UPDATE": "6", "SIGNAL": str(int(signal.SIGINT))}
    first = [sys.executable, SIGNALLED, *arguments(before, tmp_path / "run")]
    assert finished(first, status=130, env=ctrl_c).stderr.count("run the same command to go on") == 1
    done = finished(gmmc_command(*arguments(after, tmp_path / "run")))
    assert "resuming" in done.stderr
    assert (f" instead of {before}" in done.stderr) == (before != after)
    steps = [line["step"] for line in lines(tmp_path / "run")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 40
    state, _ = folder.RunFolder(tmp_path / "run").load_state(0, 1)
    assert len(state.shard["buffer.images"]) == 200
    if before == after:
        finished(gmmc_command(*arguments(before, tmp_path / "whole")))
        ours, uninterrupted = (load_file(tmp_path / n / "model.safetensors") for n in ("run", "whole"))
        for name, tensor in ours.items():
            assert torch.equal(tensor, uninterrupted[name]), name


@pytest.mark.slow
def test_they_roll_back_and_give_up_together(tmp_path, recipe):
    wild = ["generative.lr=0.05", "sampler.alpha=3", "guard.every=2", "guard.rollbacks=2", "guard.energy=0.4"]
    done = finished(
        gmmc_command("train", recipe, *LONGER, *wild, "train.devices=2", "--out", tmp_path / "run"), status=1
    )
    told = done.stderr.splitlines()
    assert sum("back to update" in line for line in told) == 2
    assert told[-1].startswith("gmmc: training diverged at update")
    assert sum("diverged" in line for line in told) == 1
    events = [line["event"] for line in lines(tmp_path / "run") if "event" in line]
    assert events == ["rollback", "rollback", "diverged"]
    model = model_file.load(tmp_path / "run" / "last-good.safetensors")
    for rank in (0, 1):
        state, complaints = folder.RunFolder(tmp_path / "run").load_state(rank, 2)
        assert not complaints
        assert state.step == model.trained["updates"]
        assert state.info["rollbacks"] == 2


def refused(*arguments, capsys):
    """The line with which gmmc, in this process, refuses a training."""
    with pytest.raises(SystemExit) as stop:
        app.main(["train", *map(str, arguments)])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_bad_recipe_ends_in_one_line(tmp_path, recipe, capsys):
    line = refused(recipe, "train.devices=3", "--out", tmp_path / "run", capsys=capsys)
    assert line == "gmmc: train.batch_size must be a multiple of the 3 processes, got 128\n"
    assert not (tmp_path / "run").exists()


def test_machines_that_do_not_know_each_other_do_not_wait(tmp_path, recipe, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "_several", False)  # and back to what it was
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")
    for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    line = refused(recipe, "train.nodes=2", "--out", tmp_path / "run", capsys=capsys)
    assert "got no NODE_RANK, MASTER_ADDR, MASTER_PORT" in line
    assert not (tmp_path / "run").exists()


ENDLESS = ["generative.epochs=100000", "train.devices=2"]


@contextmanager
def training(recipe, out):
    """A training of two processes that lasts for hours."""
    # A pipe would stay open as long as an orphan lives.
    with out.with_name("stderr").open("w") as errors:
        command = gmmc_command("train", recipe, *ENDLESS, "--out", out)
        with started(command, stderr=errors, stdout=errors) as leader:
            yield leader


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "kill -9"])
@pytest.mark.parametrize("moment", ["waiting", "training"])
def test_nobody_outlives_the_process_that_was_started(tmp_path, recipe, number, moment):
    """Ended while the others connect, or later: no orphan is left."""
    with training(recipe, tmp_path / "run") as leader:
        wait_until(lambda: moment in (tmp_path / "stderr").read_text(), leader)
        leader.send_signal(number)
        leader.wait(DEADLINE)
        wait_until(lambda: not alive_in(leader.pid))


@contextmanager
def leader_and_child(recipe, out):
    """A training at the moment its second process appears: (Popen of the first, id of the second)."""
    with training(recipe, out) as leader:
        wait_until(lambda: children_of(leader.pid), leader)
        yield leader, children_of(leader.pid)[0]


def has_loaded_torch(process: int) -> bool:
    return "libtorch" in Path(f"/proc/{process}/maps").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 0.1, 1, 4])
def test_a_further_process_ends_with_a_leader_that_is_killed_soon(tmp_path, recipe, seconds):
    """Killed while the second process starts its interpreter, imports, or connects."""
    with leader_and_child(recipe, tmp_path / "run") as (leader, _):
        time.sleep(seconds)
        leader.kill()
        leader.wait(DEADLINE)
        wait_until(lambda: not alive_in(leader.pid))


@pytest.mark.slow
@pytest.mark.parametrize("imports", [False, True], ids=["before it imports", "while it imports"])
def test_a_further_process_that_is_lost_before_it_connects_is_reported(tmp_path, recipe, imports):
    with leader_and_child(recipe, tmp_path / "run") as (leader, child):
        wait_until(lambda: not imports or has_loaded_torch(child), leader)
        os.kill(child, signal.SIGKILL)
        assert leader.wait(DEADLINE) == 1
    errors = (tmp_path / "stderr").read_text()
    last = errors.splitlines()[-1]
    # On a slow machine it may have connected before it is killed.
    lost = ("process 1 of this training was killed by signal 9", "another process of this training has ended")
    assert last.startswith(tuple(f"gmmc: {words}" for words in lost[: 1 + imports]))
    assert "run the same command" in last
    assert errors.count("gmmc: ") == 1


@pytest.mark.slow
def test_a_further_process_that_is_lost_in_training_is_reported_once(tmp_path, recipe):
    with leader_and_child(recipe, tmp_path / "run") as (leader, child):
        wait_until((tmp_path / "run" / "metrics.jsonl").exists, leader)
        os.kill(child, signal.SIGKILL)
        assert leader.wait(DEADLINE) == 1
    errors = (tmp_path / "stderr").read_text()
    assert errors.count("gmmc: ") == 1
    assert "run the same command" in errors
    assert "Traceback" not in errors


def test_the_child_of_a_training_that_is_gone_imports_nothing():
    code = "import gmmc, os; print(os.environ.get('GMMC_PARENT'))"
    for parent, status, output in [("-1", 1, ""), (str(os.getpid()), 0, "None\n")]:
        assert python(code, status=status, env={PARENT: parent}).stdout == output


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
