"""Training: Algorithm 1 around one dial β(t). β = 0 is discriminative and never touches the sampler."""

import functools
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from gmmc import core, objectives, provenance, runs
from gmmc import data as data_sources
from gmmc.buffer import ReplayBuffer
from gmmc.config import Config
from gmmc.data import Dataset
from gmmc.data.augment import augment
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.models import Classifier, pick_device
from gmmc.pixels import to_signed
from gmmc.progress import Progress
from gmmc.randomness import derived_seed, generator
from gmmc.runs import RunFolder, State
from gmmc.sampling import SAMPLERS, descend
from gmmc.schedule import Moment, Plan


def train(cfg: Config, out: str | Path, data: Dataset | None = None) -> Classifier:
    """Train in the folder `out`, going on where an earlier call with the same configuration stopped."""
    device = pick_device(cfg.train.device)
    if cfg.train.threads:
        torch.set_num_threads(cfg.train.threads)
    data = data or data_sources.load(cfg.data, cfg.train.seed)
    training = Training(cfg, data, device)
    folder = RunFolder(out)
    with folder.opened_for(cfg):
        finished = load_finished(folder, training)
        if finished:
            print(f"{folder.path} is already trained ({training.plan.total} updates)")
            return finished
        with Progress("training", training.plan.work(training.plan.total)) as bar, interruptible() as stop:
            run_updates(training, folder, bar, stop)
        model = training.finish()
        runs.save_model(folder.path / runs.MODEL, model)
    return model


def run_updates(training: "Training", folder: RunFolder, bar: Progress, stop: threading.Event) -> None:
    """Update until the plan is done, log and save on the way."""
    cfg, plan = training.cfg.train, training.plan
    state, complaints = folder.load_state()
    for complaint in complaints:
        bar.say(complaint)
    if state:
        check_same_data(state.info["data"], training, folder)
        training.restore(state)
        lost = training.lines - folder.rewind_metrics(training.step)
        if lost > 0:
            bar.say(f"{folder.path / runs.METRICS} has lost {lost} of its lines; training is not affected")
        elsewhere = (
            "" if state.info["device"] == training.device.type else f", begun on {state.info['device']}"
        )
        bar.say(f"resuming {folder.path} at update {training.step} of {plan.total}{elsewhere}")
    else:
        folder.save_state(training.state())
    saved_at, status = time.monotonic(), ""

    while training.step < plan.total:
        training.update()
        step = training.step
        epoch_done = step % plan.steps_per_epoch == 0
        if step % cfg.log_every == 0 or epoch_done or step == plan.total:
            line = training.log_line(with_validation=epoch_done)
            folder.append_metrics(line)
            status = describe(line)
            if step < plan.total and time.monotonic() - saved_at >= cfg.checkpoint_seconds:
                folder.save_state(training.state())
                saved_at = time.monotonic()
        bar.update(plan.work(step), f"{step}/{plan.total}  {status}")
        if stop.is_set() and step < plan.total:
            training.refuse_divergence(training.meter.means())
            folder.save_state(training.state())
            raise Interrupted(f"stopped at update {step} of {plan.total}; run the same command to go on")
    if not state or state.step < plan.total:
        folder.save_state(training.state())


# --- the state, and the update that moves it ------------------------------------------------------


class Training:
    def __init__(self, cfg: Config, data: Dataset, device: torch.device):
        check(cfg, data)
        self.cfg, self.data, self.device = cfg, data, device
        self.seed = cfg.train.seed
        self.batch_size = min(cfg.train.batch_size, len(data.train))
        self.plan = Plan(cfg, len(data.train) // self.batch_size)
        self.step = 0
        self.lines = 0  # of metrics, so that a resumed run can tell when some are missing
        self.seconds = 0.0
        self._clock = time.monotonic()

        self.images = data.train.images.to(device)
        self.labels = data.train.labels.to(device)
        priors = data.class_counts / len(data.train) if cfg.model.priors == "empirical" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "weights"))
            self.model = Classifier(cfg, data.shape, data.class_names, priors).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.discriminative.lr)
        self.meter = Meter(device)
        self.buffer = None
        if self.plan.samples:
            self.buffer = ReplayBuffer(
                cfg.buffer.size,
                data.shape,
                self.model.head.priors,
                reinit=cfg.buffer.reinit,
                generator=generator(self.seed, "buffer", device=device),
            )

    def update(self) -> None:
        """One turn of Algorithm 1."""
        now = self.plan.at(self.step)
        real = self._real_batch(now)
        sampled = self._sampled_batch() if now.beta > 0 else None
        outcome = objectives.gmmc(self.model, real, sampled, beta=now.beta)

        for group in self.optimizer.param_groups:
            group["lr"] = now.lr
        self.optimizer.zero_grad()
        outcome.loss.backward()
        self.optimizer.step()

        self.meter.add(outcome)
        self.step += 1

    def _real_batch(self, now: Moment) -> tuple[Tensor, Tensor]:
        """(x, y) ~ D in this epoch's order; what does not fill a last batch waits for another epoch."""
        order = epoch_order(len(self.images), self.seed, now.epoch)
        first = (self.step % self.plan.steps_per_epoch) * self.batch_size
        index = order[first : first + self.batch_size].to(self.device)
        noise = generator(self.seed, "augment", self.step, device=self.device)
        phase = now.phase
        x = augment(
            to_signed(self.images[index]),
            shift=phase.shift,
            flip=phase.flip,
            noise=phase.noise,
            generator=noise,
        )
        return x, self.labels[index]

    def _sampled_batch(self) -> tuple[Tensor, Tensor]:
        """(x′_τ, y′): chains from the buffer, τ steps further; they go back to it."""
        assert self.buffer is not None
        source = generator(self.seed, "chains", self.step, device=self.device)
        slots, x, y = self.buffer.draw(self.batch_size, source)
        means = self.model.head.means[y]
        sampler = self.cfg.sampler

        def noise(_: int) -> Tensor:
            return torch.randn(means.shape, generator=source, device=self.device)

        energy_at = SAMPLERS[sampler.name](self.model.backbone, means, noise, sampler.target_std)
        x = descend(energy_at, x, steps=sampler.steps, alpha=sampler.alpha)
        self.buffer.put(slots, x, y)
        return x, y

    def finish(self) -> Classifier:
        """The model, with γ² over the whole training set."""
        self.model.head.gamma2.fill_(self.estimate_gamma2())
        self.model.trained = {
            "updates": self.step,
            "data_sha256": self.data.fingerprint,
            "commit": provenance.commit(),
        }
        return self.model.eval()

    @torch.no_grad()
    def estimate_gamma2(self) -> float:
        """γ² over the training images, as they are (section 3.1)."""
        energies = [
            self.model.head.unit_energy(self.model.backbone(to_signed(x)), y)
            for x, y in zip(self.images.split(256), self.labels.split(256), strict=True)
        ]
        gamma2 = core.estimate_gamma2(torch.cat(energies), self.model.dim)
        if not 0 < gamma2 < math.inf:
            raise Diverged(f"gamma2 must be positive and finite, got {gamma2}")
        return gamma2

    def log_line(self, *, with_validation: bool) -> dict:
        """What happened since the last line. Reads the device once."""
        now = self.plan.at(self.step - 1)
        line = {
            "step": self.step,
            "epoch": now.epoch + 1,
            "phase": now.phase_name,
            "lr": now.lr,
            "beta": now.beta,
        }
        means = self.meter.means()
        self.refuse_divergence(means)
        self.meter.sums.zero_()
        line |= means
        # A running estimate, for the accuracies: with unequal priors γ² has a say in them.
        self.model.head.gamma2.fill_(2 * means["real_energy"] / self.model.dim)
        if with_validation and len(self.data.valid):
            predicted = self.model.predict(self.data.valid.images).cpu()
            line["valid_accuracy"] = (predicted == self.data.valid.labels).float().mean().item()
        line["seconds"] = round(self._elapsed(), 3)
        self.lines += 1
        return line

    def refuse_divergence(self, means: dict[str, float]) -> None:
        """Real energies begin near S²/2 and are pushed down: far above that, or non-finite, is divergence."""
        limit = 1000 * self.cfg.model.scale**2
        real, sampled = means.get("real_energy", 0.0), means.get("sampled_energy", 0.0)
        if real < limit and math.isfinite(sampled):
            return
        raise Diverged(
            f"training diverged by update {self.step}: "
            f"energies of real images {real:.3g}, of sampled ones {sampled:.3g}; "
            "use a smaller sampler.alpha, train.beta or learning rate, or more sampler.steps, in a new --out"
        )

    def _elapsed(self) -> float:
        now = time.monotonic()
        self.seconds += now - self._clock
        self._clock = now
        return self.seconds

    def state(self) -> State:
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in slots.items()}
        if self.buffer:
            tensors |= {f"buffer.{name}": tensor for name, tensor in self.buffer.state_dict().items()}
        tensors["meter.sums"] = self.meter.sums
        info = {
            "seconds": self._elapsed(),
            "lines": self.lines,
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            "data": self.data.fingerprint,
        }
        return State(self.step, tensors, info)

    def restore(self, state: State) -> None:
        torch.set_num_threads(state.info["threads"])  # the bits of a CPU run depend on it
        self.step = state.step
        self.lines, self.seconds = state.info["lines"], state.info["seconds"]
        self.model.load_state_dict(_part(state.tensors, "model"))
        optimizer = self.optimizer.state_dict()
        for key, tensor in _part(state.tensors, "optimizer").items():
            index, name = key.split(".")
            optimizer["state"].setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict(optimizer)
        if self.buffer:
            self.buffer.load_state_dict(_part(state.tensors, "buffer"))
        self.meter.sums.copy_(state.tensors["meter.sums"])


class Meter:
    """Sums over the updates since the last line, kept on the device: nothing waits for them."""

    def __init__(self, device: torch.device):
        self.sums = torch.zeros(5, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, outcome: objectives.Outcome) -> None:
        zero = self.sums.new_zeros(())
        sampled = outcome.sampled
        self.sums += torch.stack(
            [
                outcome.real.double().sum(),
                outcome.correct.double().sum(),
                zero + len(outcome.real),
                zero if sampled is None else sampled.double().sum(),
                zero if sampled is None else zero + len(sampled),
            ]
        )

    def means(self) -> dict[str, float]:
        """Reads the device; empty when nothing was added."""
        real, correct, count, sampled, sampled_count = self.sums.tolist()
        means = {"real_energy": real / count, "accuracy": correct / count} if count else {}
        if sampled_count:
            means["sampled_energy"] = sampled / sampled_count
        return means


@functools.lru_cache(maxsize=1)
def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=generator(seed, "order", epoch))


def _part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(f"{name}."): tensor for key, tensor in tensors.items() if key.startswith(f"{name}.")
    }


# --- around it ------------------------------------------------------------------------------------


def check(cfg: Config, data: Dataset) -> None:
    """What only the data can tell of a recipe."""
    smallest_side = min(data.shape[1:])
    for name in ("discriminative", "generative"):
        shift = getattr(cfg, name).shift
        if shift >= smallest_side:
            raise InputError(f"{name}.shift must be less than the image size {smallest_side}, got {shift}")


def load_finished(folder: RunFolder, training: Training) -> Classifier | None:
    """The model of a training that had reached its end; None when there is none or it is damaged."""
    path = folder.path / runs.MODEL
    if not path.exists():
        return None
    try:
        _, info, _ = runs.unpack(path)
    except runs.Damaged as error:
        print(f"{error}; it is made again from the last state", file=sys.stderr)
        return None
    check_same_data(info["trained"]["data_sha256"], training, folder)
    return runs.load(path, str(training.device))


def check_same_data(fingerprint: str, training: Training, folder: RunFolder) -> None:
    if fingerprint != training.data.fingerprint:
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
