"""Algorithm 1: all the state of a training, and the update that moves it."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from gmmc import core
from gmmc.base import provenance
from gmmc.base.seeds import derived_seed, generator
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.data.augment import augment
from gmmc.data.splits import Dataset
from gmmc.errors import Diverged, InputError
from gmmc.networks.backbones import batch_norms, frozen_statistics, has_live_statistics
from gmmc.pixels import to_signed
from gmmc.runs import model_file
from gmmc.runs.resume import State
from gmmc.sampling import engine
from gmmc.sampling.engine import COMPILE_FROM_STEPS, COMPILE_FROM_UPDATES, FastMover
from gmmc.sampling.initial import GaussianStart
from gmmc.sampling.samplers import SAMPLERS, BatchNoise, PlainMover, descend
from gmmc.train import health, initialize
from gmmc.train.buffer import Drawn, ReplayBuffer
from gmmc.train.ema import Average
from gmmc.train.frozen_trunk import FrozenTrunk
from gmmc.train.memory import Room
from gmmc.train.schedule import FROZEN, Moment, Plan
from gmmc.train.updater import Updater

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Learner:
    """The state of a training in this process, and the update that moves it.

    Every process takes its rows of each batch of real images and has its own part of the buffer; gradients
    are averaged over all, so that the processes together make one update on the union.
    """

    def __init__(self, cfg: Config, data: Dataset, fabric: "Fabric", start: Classifier | None = None):
        self.cfg, self.data, self.fabric, self.device = cfg, data, fabric, fabric.device
        self.seed = cfg.train.seed
        self.batch_size = min(cfg.train.batch_size, len(data.train))  # of all processes
        self.share = self.batch_size // fabric.world_size
        self.chains = min(cfg.chains, self.batch_size) // fabric.world_size
        self.plan = Plan(cfg, len(data.train) // self.batch_size)
        self.step = 0
        self.rollbacks = 0
        self.pace = {"lr": 1.0, "beta": 1.0, "alpha": 1.0}  # factors, lowered by rollbacks
        self.capped = cfg.objective.shape == "cap"  # no push beyond the bound; a rollback may begin it
        self.lines = 0  # of metrics, so that a resumed run can tell when some are missing
        self.start = start and initialize.told(start)
        self.transferred = start is not None and initialize.is_transfer(start, data)
        self.seconds = 0.0
        if start and not self.transferred:
            self.seconds = start.trained.get("seconds", 0.0)  # also those that it took
        self._clock = time.monotonic()

        self.room = Room(self.device, cfg.train.memory)
        self.images = self.room.place(data.train.images)
        self.labels = data.train.labels.to(self.device)
        self.model = self._new_model(start)
        self.average = Average(self.model, cfg.train.ema) if cfg.train.ema else None
        updates = self.plan.total - self.plan.frozen
        self.updater = Updater(self.model, cfg, fabric, self._engine(updates, COMPILE_FROM_UPDATES))
        self.mover = self._new_mover() if cfg.samples else None
        self.meter = health.Meter(self.device)
        self.buffer = self._new_buffer() if cfg.samples else None
        self.on_features: Callable[[int, int], object] = lambda done, total: None
        self._trunk: FrozenTrunk | None = None  # while it is frozen

    def _new_model(self, start: Classifier | None) -> Classifier:
        cfg, data = self.cfg, self.data
        priors = data.class_counts / len(data.train) if cfg.model.priors == "empirical" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "weights"))
            model = Classifier(cfg, data.shape, data.class_names, priors).to(self.device)
        if start:
            initialize.take_over(model, start)
        if isinstance(model.start, GaussianStart):
            model.start.fit(data.train)
        if self.fabric.world_size > 1:  # drawn alike by all, but machines may differ in the last bits
            for tensor in model.state_dict().values():
                leader_s = tensor.contiguous()  # collectives know no other layout
                torch.distributed.broadcast(leader_s, src=0)
                tensor.copy_(leader_s)
        return model

    def _engine(self, calls: int, compile_from: int) -> engine.Engine:
        return engine.choose(self.cfg.train.engine, self.device, compile=calls >= compile_from)

    def _new_mover(self) -> PlainMover | FastMover:
        steps = (self.plan.total - self.plan.discriminative) * self.cfg.sampler.steps
        way = self._engine(steps, COMPILE_FROM_STEPS)
        return engine.new_mover(self.model.backbone, way, self.precision)

    @property
    def precision(self) -> str:
        return engine.resolve_precision(self.cfg.train.precision, self.device)

    def _new_buffer(self) -> ReplayBuffer:
        cfg = self.cfg.buffer
        source = self.source("buffer")
        size = cfg.size // self.fabric.world_size
        place = functools.partial(self.room.place, what="chains")
        start, priors = self.model.start, self.model.head.priors
        return ReplayBuffer(size, start, priors, reinit=cfg.reinit, generator=source, place=place)

    def source(self, *key: int | str) -> torch.Generator:
        """Randomness of this process alone."""
        rank = self.fabric.global_rank
        return generator(self.seed, *key, *([rank] if rank else []), device=self.device)

    # --- Algorithm 1 ---

    def update(self) -> None:
        """One turn of Algorithm 1."""
        now = self.plan.at(self.step)
        beta = now.beta * self.pace["beta"]
        self._prepare(now)
        real, contrast = self._real_batch(now)
        drawn, sampled = None, None
        if now.beta > 0:
            drawn = self._draw(real[1])
            sampled = self.move(drawn, self.pace["alpha"]), drawn.labels
        last = self.trunk.last if now.phase_name == FROZEN else None
        outcome, norm = self.updater(real, contrast, sampled, beta, last)
        if drawn is not None and sampled is not None and outcome.sampled is not None:
            assert self.buffer is not None
            self.buffer.put(drawn, sampled[0], outcome.sampled)
        self._share_statistics()
        if self.average:
            self.average.update(self.model, self.step)
        self.meter.add(*outcome, norm, limit=self.updater.loss.limit)
        self.step += 1

    def _share_statistics(self) -> None:
        """Every process saw other images: batch norm keeps the mean of what they found."""
        if self.fabric.world_size == 1 or not has_live_statistics(self.model):
            return
        found = [b for norm in batch_norms(self.model) for b in norm.buffers() if b.is_floating_point()]
        shared = self.over_processes(torch.cat(found)) / self.fabric.world_size
        for mine, mean in zip(found, shared.split([len(s) for s in found]), strict=True):
            mine.copy_(mean)

    def _prepare(self, now: Moment) -> None:
        """The optimiser and the batch norm of this moment."""
        limit = health.bound(self.cfg) if self.capped else math.inf
        self.updater.prepare(now, pace=self.pace["lr"], limit=limit)
        self.model.train()
        if self.cfg.model.norm == "batch_then_frozen" and now.phase_name == "generative":
            for norm in batch_norms(self.model):
                norm.eval()

    def _real_batch(self, now: Moment) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """This process's rows of (x, y) ~ D; where wanted the first of them augmented for the contrast.

        Batches go through the epoch's order; what does not fill a last one waits for another epoch. Every
        process augments all rows: then they do not depend on the number of processes (with fewer chains than
        images, which of them are contrasted does: each process takes its own first ones).
        """
        order = epoch_order(len(self.images), self.seed, now.epoch, self.images.index_device)
        first = (self.step % self.plan.steps_per_epoch) * self.batch_size
        index = order[first : first + self.batch_size]
        mine = slice(self.fabric.global_rank * self.share, (self.fabric.global_rank + 1) * self.share)
        labels = self.labels[index.to(self.device, non_blocking=True)]
        source = generator(self.seed, "augment", self.step, device=self.device)
        if now.phase_name == FROZEN:
            return (self.trunk.take(index, source)[mine], labels[mine]), None
        self._trunk = None  # its features were those of weights that now change
        clean = to_signed(self.images.take(index))
        x = augment(clean, now.phase, source)[mine]
        contrast = None
        if now.beta > 0 and self.cfg.objective.name != "gmmc":
            source = generator(self.seed, "contrast", self.step, device=self.device)
            contrast = augment(clean, self.cfg.contrast, source)[mine][: self.chains]
        return (x, labels[mine]), contrast

    @property
    def trunk(self) -> FrozenTrunk:
        """The network before its last layer, with the features that it has of the images."""
        if self._trunk is None:
            flip = self.plan.frozen_phase.flip
            self._trunk = FrozenTrunk(self.model, self.images, flip=flip, on_progress=self.on_features)
        return self._trunk

    def _draw(self, real_labels: Tensor) -> Drawn:
        assert self.buffer is not None
        labels = real_labels[: self.chains] if self.cfg.buffer.labels == "batch" else None
        return self.buffer.draw(self.chains, self.source("chains", self.step), labels)

    def move(self, drawn: Drawn, pace: float) -> Tensor:
        """x′_τ: the chains, τ steps further."""
        noise = BatchNoise(self.chains, self.source("targets", self.step))
        sampler = dataclasses.replace(self.cfg.sampler, alpha=self.cfg.sampler.alpha * pace)
        walk = SAMPLERS[sampler.name](self.model.chains(drawn.labels, noise), sampler)
        assert self.mover is not None
        if isinstance(self.mover, FastMover):
            self.mover.refresh()
            return descend(self.mover, walk, drawn.images, steps=sampler.steps)
        with self.fabric.autocast(), frozen_statistics(self.model.backbone):
            return descend(self.mover, walk, drawn.images, steps=sampler.steps)

    # --- health ---

    def report(self, *asks: bool) -> tuple[dict[str, Any], list[bool]]:
        """What happened since the last line, over all processes, and which asks any process has.

        Reads the device once.
        """
        census = self.meter.sums.new_zeros(4)
        if self.buffer:
            after, limit = health.settled_after(self.cfg), health.bound(self.cfg)
            census = self.buffer.census(settled_after=after, limit=limit)
        weights = get_total_norm(list(self.model.parameters())).double().reshape(1)
        parts = [self.meter.sums, census, weights, census.new_tensor(asks)]
        numbers = self.over_processes(torch.cat(parts)).split([len(part) for part in parts])
        sums, census, (weight_norm,), asked = (part.tolist() for part in numbers)
        now = self.plan.at(max(0, self.step - 1))
        beta = now.beta * self.pace["beta"]
        line = {
            "step": self.step,
            "epoch": now.epoch + 1,
            "phase": now.phase_name,
            "lr": now.lr * self.pace["lr"],
            "beta": beta,
            **health.summary(sums, census, self.cfg, beta),
            "weight_norm": weight_norm / self.fabric.world_size,
        }
        if self.rollbacks:
            line["rollbacks"] = self.rollbacks
        line["seconds"] = round(self._elapsed(), 3)
        return line, [number > 0 for number in asked]

    @property
    def best_model(self) -> Classifier:
        """The weights to evaluate and to sample from."""
        return self.average.model if self.average else self.model

    def estimate_running_gamma2(self, line: dict[str, Any]) -> None:
        """In all processes, for the accuracies: with unequal priors γ² has a say in them."""
        if self.model.head.means is not None:
            gamma2 = core.estimate_gamma2(torch.tensor(line["real_energy"]), self.model.dim)
            for head in (self.best_model.head, self.model.head):
                head.gamma2.fill_(gamma2)

    def validate(self) -> float:
        if self._trunk:
            predicted = self._trunk.predict(self.best_model, self.data.valid.images).cpu()
        else:
            predicted = self.best_model.predict(self.data.valid.images).cpu()
        return (predicted == self.data.valid.labels).float().mean().item()

    def over_processes(self, tensor: Tensor) -> Tensor:
        """The sum over all processes."""
        total = self.fabric.all_reduce(tensor, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    # --- the end ---

    def finish(self, on_progress: Callable[[int], object] = lambda done: None) -> Classifier:
        """Return the model, with γ² over the whole training set, and what it needs to abstain.

        `on_progress` is called with the number of images done, of all training images and twice the
        validation images.
        """
        model = self.best_model.eval()
        model.load_state_dict(model_file.stored_weights(model))  # all that follows is of these
        if model.head.means is not None:
            model.head.gamma2.fill_(self.estimate_gamma2(model, on_progress))
        # Its own chains are to move as those it was trained with.
        sampler = dataclasses.replace(self.cfg.sampler, alpha=self.cfg.sampler.alpha * self.pace["alpha"])
        model.cfg = dataclasses.replace(self.cfg, sampler=sampler)
        model.trained = {
            "updates": self.step,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "weights": "average" if self.average else "last",
            "rollbacks": self.rollbacks,
            "processes": self.fabric.world_size,
            "precision": self.precision,
            "engine": self.updater.how,
            "data_sha256": self.data.fingerprint,
            "held_out_sha256": self.data.held_out_fingerprint,
            "commit": provenance.commit(),
        }
        if self.start:
            model.trained["start"] = self.start

        def after_training(done: int) -> None:
            on_progress(len(self.data.train) + done)

        if len(self.data.valid):
            with contextlib.suppress(InputError):  # features that float16 cannot hold: no score by neighbours
                model.keep_neighbours(self.data.train.images, self.data.train.labels)
            with contextlib.suppress(InputError):  # of a training that diverged, energies may not be finite
                model.calibrate(self.data.valid.images, self.data.valid.labels, on_progress=after_training)
        return model

    @torch.no_grad()
    def estimate_gamma2(
        self, model: Classifier, on_progress: Callable[[int], object] = lambda done: None
    ) -> float:
        """γ² over the training images, as they are (section 3.1)."""
        energies, done = [], 0
        for x, y in zip(self.images.tensor.split(256), self.labels.split(256), strict=True):
            energies.append(model.head.unit_energy(model.backbone(to_signed(x.to(self.device))), y))
            done += len(y)
            on_progress(done)
        gamma2 = core.estimate_gamma2(torch.cat(energies), model.dim)
        if not 0 < gamma2 < math.inf:
            raise Diverged(f"gamma2 must be positive and finite, got {gamma2}")
        return gamma2

    # --- the state ---

    def _elapsed(self) -> float:
        now = time.monotonic()
        self.seconds += now - self._clock
        self._clock = now
        return self.seconds

    @contextlib.contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """What is done here is no training and takes no time of it."""
        self._elapsed()
        yield
        self._clock = time.monotonic()

    def state(self) -> State:
        """A copy of everything: `tensors` are the same in all processes, `shard` is this one's own."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average:
            average = self.average.model.state_dict()
            tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
        tensors |= {f"optimizer.{name}": slot for name, slot in self.updater.slots().items()}
        shard = {f"buffer.{k}": v for k, v in self.buffer.state_dict().items()} if self.buffer else {}
        # Only between two lines are the sums not zero, and only a single process is interrupted there.
        tensors["meter.sums"] = self.meter.sums
        info = {
            "pace": dict(self.pace),
            "capped": self.capped,
            "rollbacks": self.rollbacks,
            "seconds": self._elapsed(),
            "lines": self.lines,
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            "precision": self.precision,
            "processes": self.fabric.world_size,
            "data": self.data.fingerprint,
            "held_out": self.data.held_out_fingerprint,
            "start": self.start,
        }
        return State(self.step, _copied(tensors), _copied(shard), info)

    def restore(self, state: State) -> None:
        """Take over a state; with another number of processes the buffer is dealt out anew."""
        if state.info["processes"] == self.fabric.world_size and not self.cfg.train.threads:
            torch.set_num_threads(state.info["threads"])  # the bits of a CPU run depend on it
        self.step = state.step
        self.pace = {name: float(state.info["pace"][name]) for name in self.pace}
        self.rollbacks = int(state.info["rollbacks"])
        self.capped, self.start = state.info["capped"], state.info.get("start")
        self.model.load_state_dict(state.part("model"))
        self._trunk = None
        if self.average:
            self.average.model.load_state_dict(state.part("average"))
        self.updater.restore(state.part("optimizer"))
        if self.buffer:
            self.buffer.load_state_dict(state.part("buffer"))
        self.meter.restore(state.tensors["meter.sums"])


@functools.lru_cache(maxsize=1)
def epoch_order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    return torch.randperm(count, generator=generator(seed, "order", epoch)).to(device)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
