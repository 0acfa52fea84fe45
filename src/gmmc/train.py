"""The training loop: update, log, save; resume, finish, stop when asked."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gmmc import data as data_sources
from gmmc import runs
from gmmc.config import Config
from gmmc.data import Dataset
from gmmc.errors import InputError, Interrupted
from gmmc.learner import Learner
from gmmc.models import Classifier, pick_device
from gmmc.progress import Progress
from gmmc.runs import RunFolder


def train(cfg: Config, out: str | Path, data: Dataset | None = None) -> Classifier:
    """Train in the folder `out`, going on where an earlier call with the same configuration stopped."""
    device = pick_device(cfg.train.device)
    if cfg.train.threads:
        torch.set_num_threads(cfg.train.threads)
    data = data or data_sources.load(cfg.data, cfg.train.seed)
    learner = Learner(cfg, data, device)
    folder = RunFolder(out)
    with folder.opened_for(cfg):
        finished = load_finished(folder, learner)
        if finished:
            print(f"{folder.path} is already trained ({learner.plan.total} updates)")
            return finished
        with Progress("training", learner.plan.work(learner.plan.total)) as bar, interruptible() as stop:
            run_updates(learner, folder, bar, stop)
        model = learner.finish()
        runs.save_model(folder.path / runs.MODEL, model)
    return model


def run_updates(learner: Learner, folder: RunFolder, bar: Progress, stop: threading.Event) -> None:
    """Update until the plan is done, log and save on the way."""
    cfg, plan = learner.cfg.train, learner.plan
    state, complaints = folder.load_state()
    for complaint in complaints:
        bar.say(complaint)
    if state:
        check_same_data(state.info["data"], learner, folder)
        learner.restore(state)
        lost = learner.lines - folder.rewind_metrics(learner.step)
        if lost > 0:
            bar.say(f"{folder.path / runs.METRICS} has lost {lost} of its lines; training is not affected")
        elsewhere = (
            "" if state.info["device"] == learner.device.type else f", begun on {state.info['device']}"
        )
        bar.say(f"resuming {folder.path} at update {learner.step} of {plan.total}{elsewhere}")
    else:
        folder.save_state(learner.state())
    saved_at, status = time.monotonic(), ""

    while learner.step < plan.total:
        learner.update()
        step = learner.step
        epoch_done = step % plan.steps_per_epoch == 0
        if step % cfg.log_every == 0 or epoch_done or step == plan.total:
            line = learner.log_line(with_validation=epoch_done)
            folder.append_metrics(line)
            status = describe(line)
            if step < plan.total and time.monotonic() - saved_at >= cfg.checkpoint_seconds:
                folder.save_state(learner.state())
                saved_at = time.monotonic()
        bar.update(plan.work(step), f"{step}/{plan.total}  {status}")
        if stop.is_set() and step < plan.total:
            learner.refuse_divergence(learner.meter.means())
            folder.save_state(learner.state())
            raise Interrupted(f"stopped at update {step} of {plan.total}; run the same command to go on")
    if not state or state.step < plan.total:
        folder.save_state(learner.state())


def load_finished(folder: RunFolder, learner: Learner) -> Classifier | None:
    """The model of a training that had reached its end; None when there is none or it is damaged."""
    path = folder.path / runs.MODEL
    if not path.exists():
        return None
    try:
        _, info, _ = runs.unpack(path)
    except runs.Damaged as error:
        print(f"{error}; it is made again from the last state", file=sys.stderr)
        return None
    check_same_data(info["trained"]["data_sha256"], learner, folder)
    return runs.load(path, str(learner.device))


def check_same_data(fingerprint: str, learner: Learner, folder: RunFolder) -> None:
    if fingerprint != learner.data.fingerprint:
        raise InputError(
            f"{folder.path} was trained on other images or labels; give the same, or another --out"
        )


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM lets the update finish and the state be saved; the second is immediate."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number, frame):
        stop.set()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, old[signum])

    old = {signum: signal.signal(signum, request) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)


def describe(line: dict) -> str:
    """A metrics line for people, short enough for a bar of 80 columns."""
    parts = [f"real {line['real_energy']:.2f}"]
    if "sampled_energy" in line:
        parts.append(f"sampled {line['sampled_energy']:.2f}")
    if "valid_accuracy" in line:
        parts.append(f"valid {line['valid_accuracy']:.1%}")
    else:
        parts.append(f"accuracy {line['accuracy']:.1%}")
    return "  ".join(parts)
