"""The training loop: update, log, guard, save; resume, finish, stop when asked."""

import atexit
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gmmc.base.leader import is_leader
from gmmc.base.progress import Progress, is_quiet
from gmmc.base.tensorfile import Damaged, unpack
from gmmc.base.text import print_line, shortened
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.data import sources as data_sources
from gmmc.data.splits import Dataset
from gmmc.errors import Diverged, InputError, Interrupted, is_lost_process, is_out_of_memory
from gmmc.networks import threads
from gmmc.runs import layout, model_file
from gmmc.runs.folder import RunFolder
from gmmc.runs.resume import State
from gmmc.train import initialize, messages
from gmmc.train.buffer_fid import Watch
from gmmc.train.distributed import build_fabric, disconnect, start_others, world_size
from gmmc.train.initialize import check_fit, load_start
from gmmc.train.learner import Learner
from gmmc.train.preflight import check, check_recipe
from gmmc.train.tensorboard import EventFiles, check_installed, check_place

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SAVING_SHARE = 0.02  # of the time of a training, at most; with a large buffer a state takes seconds
LONGEST_INTERVAL = 10  # times train.checkpoint_seconds, however long saving takes

OnMetrics = Callable[[dict[str, Any]], object]


def train(
    cfg: Config,
    out: str | Path,
    data: Dataset | None = None,
    *,
    start: Classifier | None = None,
    features: str | None = None,
    on_metrics: OnMetrics | None = None,
    silent: bool = False,
    changed: Iterable[str] = (),
) -> Classifier:
    """Train in the folder `out`, going on where an earlier call with the same configuration stopped.

    `start`: a model in memory to begin with, in place of `train.start` or random weights.
    `features`: network for the FID of `train.fid_every`, auto if None; may be a file.
    `on_metrics`: called with each line of metrics.jsonl as it is written, a dictionary. An exception that it
    raises stops the training; the last checkpoint is intact, and the same call resumes from it.
    `changed`: keys of settings to refuse, such as "discriminative.epochs", if the start leaves them unused.
    """
    check_recipe(cfg)
    if data is None:
        cfg = dataclasses.replace(cfg, data=data_sources.located(cfg.data))
        data = data_sources.load(cfg.data, cfg.train.seed)
    elif data.name not in data_sources.SOURCES:  # not to be taken for the recipe's own data
        cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, name=data.name))
    if cfg.train.log == "tensorboard":
        check_installed()
        check_place(Path(out))
    if on_metrics is not None and not callable(on_metrics):
        raise InputError(f"on_metrics must be a function of a dictionary, got {shortened(on_metrics)}")
    folder, note, asked = RunFolder(out), "", cfg
    if start is not None:
        check_fit(start, cfg, data)
        cfg = initialize.without_transfer(cfg)
    elif folder.begun and folder.has_recipe:
        cfg = initialize.resumed(cfg, folder.recipe())
    else:
        cfg, start, note = initialize.begin(cfg, data)
    initialize.check_used(asked, cfg, changed)
    check(cfg, data, world_size(cfg.train))
    fabric = build_fabric(cfg.train)
    watched = cfg.train.fid_every and cfg.samples and is_leader()
    watch = Watch(cfg, data, fabric.device, features) if watched else None
    count = threads.choose(cfg, data.shape, fabric.device)
    with folder.opened_for(cfg) if is_leader() else nullcontext(), threads.using(count):
        finished = load_finished(folder, data, fabric.device)
        if finished:
            if finished.abstain != cfg.abstain and is_leader():
                print(
                    f"its [abstain] stays {messages.abstaining(finished)}; gmmc calibrate changes it",
                    file=sys.stderr,
                )
            return finished
        # Validate before launching workers.
        loaded = load_state(folder, data, fabric) if is_leader() else None
        launch(fabric)
        state = loaded or load_state(folder, data, fabric)  # the leader's look came first: all find the same
        if state[0] is None and start is None:  # what there was to go on with was of no use
            start = load_start(cfg, data)
        learner = Learner(cfg, data, fabric, start)
        del start  # it would take up memory for the whole training
        total = learner.work(learner.plan.total)
        with (
            listening(cfg, folder, on_metrics) as listeners,
            Progress("training", total, silent=silent or not is_leader()) as bar,
            interruptible() as stop,
        ):
            if note:
                bar.say(note)
            Loop(learner, folder, bar, stop, watch, listeners).run(state)
        work = len(data.train) + learner.model.looks * len(data.valid) + 1  # the last one: storing the model
        with Progress("calibrating", work, silent=silent or not is_leader()) as bar:
            model = learner.finish(bar.update)
            if is_leader():
                model_file.save_model(folder.path / layout.MODEL, model)
        fabric.barrier()
    return model


def launch(fabric: "Fabric") -> None:
    """Launch worker processes, if requested."""
    if fabric.world_size == 1:
        fabric.launch()
        return
    if is_leader() and not is_quiet():
        print(f"waiting for {fabric.world_size} processes to connect", file=sys.stderr)
    # The wait is not Python's: only the system can interrupt it.
    with signals({signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_DFL}):
        start_others(fabric)
        fabric.launch()
    atexit.register(disconnect)


def load_state(folder: RunFolder, data: Dataset, fabric: "Fabric") -> tuple[State | None, list[str]]:
    """The newest state and complaints about damaged ones; checked against the data and the metrics."""
    rank = 0 if is_leader() else fabric.global_rank
    state, complaints = folder.load_state(rank, fabric.world_size)
    if state:
        check_same_data(state.info.get("data", ""), state.info.get("held_out"), data, folder)
        folder.metrics()
    return state, complaints


@contextmanager
def listening(cfg: Config, folder: RunFolder, on_metrics: OnMetrics | None) -> Iterator[list[OnMetrics]]:
    """Functions to call with each line of metrics.jsonl."""
    listeners = [on_metrics] if on_metrics else []
    if cfg.train.log != "tensorboard" or not is_leader():
        yield listeners
        return
    with closing(EventFiles(folder.path)) as files:
        yield [files, *listeners]


class Loop:
    """Updates, one after the other, with all that must happen between them: log, guard, save, stop."""

    def __init__(
        self,
        learner: Learner,
        folder: RunFolder,
        bar: Progress,
        stop: threading.Event,
        watch: Watch | None = None,
        listeners: Sequence[OnMetrics] = (),
    ):
        self.listeners = listeners
        self.learner, self.folder, self.bar, self.stop, self.watch = learner, folder, bar, stop, watch
        self.cfg, self.plan, self.fabric = learner.cfg, learner.plan, learner.process.fabric
        learner.show_features(self.show_features)

    def run(self, loaded: tuple[State | None, list[str]]) -> None:
        learner, plan = self.learner, self.plan
        self.begin(*loaded)
        status = ""
        while learner.step < plan.total:
            learner.update()
            epoch_done = learner.step % plan.steps_per_epoch == 0
            if learner.step % self.cfg.train.log_every == 0 or epoch_done:
                status = self.look(epoch_done)
            self.bar.update(learner.work(learner.step), f"{learner.step}/{plan.total}  {status}")
            if self.stop.is_set() and self.fabric.world_size == 1:  # several processes must agree: see `look`
                self.interrupt()
        if self.saved_step < plan.total:
            self.save()
        if self.accuracy < 1.5 / len(learner.data.class_names):
            self.bar.say(
                f"this model is hardly better than chance ({self.accuracy:.1%} of {self.measured_on})"
            )

    def show_features(self, done: int, total: int) -> None:
        self.bar.update(self.learner.work(self.learner.step), f"features of {done}/{total} images")

    def begin(self, state: State | None, complaints: list[str]) -> None:
        """From the newest state, or from the first."""
        learner, folder = self.learner, self.folder
        for line in [*complaints, *learner.room.notes]:
            self.bar.say(line)
        if state:
            resume(learner, state, folder)
            if is_leader():
                lost = learner.state.lines - folder.rewind_metrics(learner.state.lines)
                if lost > 0:
                    place = folder.path / layout.METRICS
                    self.bar.say(f"{place} has lost {lost} of its lines; training is not affected")
            where = f"update {learner.step} of {self.plan.total}"
            self.bar.say(f"resuming {folder.path} at {where}{messages.moved(state, learner)}")
        else:
            for line in messages.beginning(learner):
                self.bar.say(line)
        self.good = self._good_states(state)  # at most two, the older first
        self.good_on_disk = {good.step for good in self.good} if state else set()
        self.accuracy, self.measured_on = 1.0, ""  # of the last line
        self.saved_step, self.saving_seconds = learner.step, 0.0
        if not state:
            self.save()
        self.saved_at = time.monotonic()

    def _good_states(self, state: State | None) -> list[State]:
        """States to roll back to: those of the interrupted call, or the one that training goes on from."""
        here = self.learner.snapshot()
        if state is None:
            return [here]
        fabric = self.fabric
        if not is_leader():
            fabric.barrier()  # the leader sets damaged files aside first: all find the same
        older, complaints = self.folder.load_good(state, fabric.global_rank, fabric.world_size)
        if is_leader():
            fabric.barrier()
        for line in complaints:
            self.bar.say(line)
        is_good = state.step in state.info.get("good", [])
        return [*older, here] if is_good or not older else older

    def look(self, epoch_done: bool) -> str:
        """Log what happened, act on it; a few words for the bar."""
        learner = self.learner
        due = is_leader() and self._save_is_due()
        line, (stop, due) = learner.report(self.stop.is_set(), due)
        reason = learner.trouble(line)
        if reason:
            return self.recover(line, reason)
        learner.meter.reset()
        if epoch_done and self.plan.validates_after(learner.step) and len(learner.data.valid):
            learner.estimate_running_gamma2(line)
            if is_leader():
                line["valid_accuracy"] = learner.validate()
        if epoch_done and self.watch and (drawn := learner.algorithm.images()) is not None:
            done = (learner.step - self.plan.discriminative) // self.plan.steps_per_epoch
            if self.watch.due(done, last=learner.step == self.plan.total):
                with learner.clock.paused():
                    line["buffer_fid"] = self.watch.fid(drawn)
        self.log(line)
        if "valid_accuracy" in line:
            self.accuracy, self.measured_on = line["valid_accuracy"], "the validation images"
        elif not len(learner.data.valid) and "accuracy" in line:
            self.accuracy, self.measured_on = line["accuracy"], "the training images"
        self.remember()
        if learner.step < self.plan.total:
            if due:
                self.save()
            if stop:
                self.interrupt()
        return messages.describe(line)

    def remember(self) -> None:
        """Keep the last two good states of this phase."""
        learner = self.learner
        if learner.step == self.plan.discriminative:
            self.good = [learner.snapshot()]
        elif learner.step - self.good[-1].step >= self.cfg.guard.every:
            self.good = [self.good[-1], learner.snapshot()]

    def recover(self, line: dict, reason: str) -> str:
        """Back to the last good state, more slowly; or give up."""
        learner, guard = self.learner, self.cfg.guard
        diverged_at = learner.step
        if not guard.on or learner.state.rollbacks == guard.rollbacks:
            self.give_up(line, reason)
        if self.good[-1].step <= learner.state.trouble_at and len(self.good) > 1:
            self.good.pop()  # it was not that good
        done = learner.roll_back(self.good[-1])
        self.log({**line, "event": "rollback", "reason": reason, **done})
        self.good[-1] = learner.snapshot()
        self.save()  # or a killed training would forget that it was rolled back
        count = f"rollback {learner.state.rollbacks} of {guard.rollbacks}"
        remedy = messages.rolled_back(learner, done)
        self.bar.say(f"update {diverged_at}: {reason}; {remedy} ({count})")
        return count

    def give_up(self, line: dict, reason: str) -> NoReturn:
        """Leave the last good weights on disk and say why."""
        learner, guard = self.learner, self.cfg.guard
        diverged_at = learner.step
        self.log({**line, "event": "diverged", "reason": reason})
        advice = learner.algorithm.advice(learner.moment(diverged_at - 1))
        learner.restore(self.good[-1])  # its number of lines too: the same command writes the rest again
        if self.saved_step != learner.step:
            self.save()
        if is_leader():
            model_file.save_model(self.folder.path / layout.LAST_GOOD, learner.finish())
        self.fabric.barrier()
        after = f" after {guard.rollbacks} rollbacks" if guard.on else " (guard.on=false)"
        raise Diverged(
            f"training diverged at update {diverged_at}{after}: {reason}; the weights of update "
            f"{learner.step} are in {self.folder.path / layout.LAST_GOOD}; in a new --out try {advice}"
        )

    def log(self, line: dict) -> None:
        self.learner.log_line()
        if is_leader():
            written = self.folder.append_metrics(line)
            for listener in self.listeners:
                listener(dict(written))

    def _save_is_due(self) -> bool:
        """Every `train.checkpoint_seconds`; less often where saving would take more than its share."""
        interval = self.cfg.train.checkpoint_seconds
        if interval:  # 0: every good state. A write that stalled once must not put saving off for hours.
            interval = min(max(interval, self.saving_seconds / SAVING_SHARE), LONGEST_INTERVAL * interval)
        return time.monotonic() - self.saved_at >= interval

    def save(self) -> None:
        """Write this state, and before it the good ones: a resumed training rolls back to the same ones."""
        began = time.perf_counter()
        state = self.learner.snapshot()
        # One that was rolled back to is not among them: it is the state itself when that is saved.
        new = [good for good in self.good if good.step < state.step and good.step not in self.good_on_disk]
        for each in [*new, state]:
            steps = [good.step for good in self.good if good.step <= each.step]
            stored = dataclasses.replace(each, info={**each.info, "good": steps})
            self.folder.save_state(stored, self.fabric.global_rank, self.fabric.barrier)
        self.good_on_disk = {good.step for good in self.good}
        self.saved_at, self.saved_step = time.monotonic(), self.learner.step
        self.saving_seconds = time.perf_counter() - began

    def interrupt(self) -> NoReturn:
        learner = self.learner
        stopped_at = learner.step
        if learner.trouble(learner.report()[0]):
            learner.restore(self.good[-1])
        if self.saved_step != learner.step:
            self.save()
        raise Interrupted(
            f"stopped at update {stopped_at} of {self.plan.total}; run the same command to go on"
        )


def load_finished(folder: RunFolder, data: Dataset, device: torch.device) -> Classifier | None:
    """The model of a training that had reached its end; None when there is none or it is damaged."""
    path = folder.path / layout.MODEL
    if not path.exists():
        return None
    try:
        unpack(path)
    except Damaged as error:
        if is_leader():
            print_line(f"{error}; it is made again from the last state", file=sys.stderr)
        return None
    model = model_file.load(path, str(device))
    trained = model.trained
    check_same_data(trained.get("data_sha256", ""), trained.get("held_out_sha256"), data, folder)
    if is_leader():
        print_line(f"{folder.path} is already trained ({trained.get('updates', 0)} updates)")
    return model


def check_same_data(fingerprint: str, held_out: str | None, data: Dataset, folder: RunFolder) -> None:
    """Refuse data that differ from those of an earlier call; `held_out`: None in files of older versions."""
    if fingerprint != data.fingerprint:
        raise InputError(
            f"{folder.path} was trained on other images or labels; give the same, or another --out"
        )
    if held_out not in (None, data.held_out_fingerprint):
        raise InputError(
            f"{folder.path} was trained with other validation or test images or labels; "
            "give the same, or another --out"
        )


def resume(learner: Learner, state: State, folder: RunFolder) -> None:
    """Take over a state of the folder; InputError where it is not one of this training."""
    try:
        learner.resume(state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error) or is_lost_process(error):
            raise
        reason = shortened(f"{type(error).__name__}: {error}")
        raise InputError(
            f"the state of update {state.step} in {folder.path / layout.RESUME} is not one of this training "
            f"({reason}); remove its files to go on from the state before"
        ) from None


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """The first Ctrl-C or SIGTERM lets the update finish and the state be saved; the second is immediate."""
    stop = threading.Event()

    def request(number, frame):
        stop.set()
        if is_leader():
            print("stopping after this update; again to stop at once", file=sys.stderr)
        for signum, handler in old.items():
            signal.signal(signum, handler)

    with signals({signal.SIGINT: request, signal.SIGTERM: request}) as old:
        yield stop


@contextmanager
def signals(handlers: dict[signal.Signals, Any]) -> Iterator[dict[signal.Signals, Any]]:
    """Other handlers for a while; gives the old ones. Only the main thread may change them."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    old = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield old
    finally:
        for signum, handler in old.items():
            signal.signal(signum, handler)
