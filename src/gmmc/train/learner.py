"""All the state of a training in one process, and the update that moves it."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils import get_total_norm

from gmmc import core
from gmmc.base import provenance
from gmmc.base.seeds import derived_seed
from gmmc.classifier.build import build
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.data.splits import Dataset
from gmmc.errors import Diverged, InputError
from gmmc.networks.backbones import batch_norms, has_live_statistics
from gmmc.pixels import to_signed
from gmmc.runs import model_file
from gmmc.runs.resume import State
from gmmc.sampling.engine import COMPILE_FROM_UPDATES
from gmmc.train import initialize
from gmmc.train.algorithm import Algorithm, Setup
from gmmc.train.batches import Batches
from gmmc.train.contrastive import Contrastive
from gmmc.train.denoising import Denoising
from gmmc.train.ema import Average, further_averages
from gmmc.train.memory import Room
from gmmc.train.meter import Meter
from gmmc.train.process import Process
from gmmc.train.schedule import Moment, Plan
from gmmc.train.state import Stopwatch, TrainingState
from gmmc.train.updater import Updater

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ALGORITHMS: dict[str, type[Algorithm]] = {"contrastive": Contrastive, "denoising": Denoising}


class Learner:
    """A training in this process: its parts, its state, and the update that moves them.

    Every process takes its rows of each batch of real images; gradients are averaged over all, so that the
    processes together make one update on the union.
    """

    def __init__(self, cfg: Config, data: Dataset, fabric: "Fabric", start: Classifier | None = None):
        self.cfg, self.data = cfg, data
        self.process = Process(cfg.train, fabric)
        self.batch_size = min(cfg.train.batch_size, len(data.train))  # of all processes
        self.plan = Plan(cfg, len(data.train) // self.batch_size)
        self.transferred = start is not None and initialize.is_transfer(start, data)
        before = 0.0 if start is None or self.transferred else start.trained.get("seconds", 0.0)
        self.state = TrainingState(seconds=before, start=start and initialize.facts(start))
        self.clock = Stopwatch(before)

        self.room = Room(self.process.device, cfg.train.memory)
        self.model = self._new_model(start)
        self.batches = Batches(data.train, self.model, self.process, self.plan, self.room, self.batch_size)
        self.average = Average(self.model, cfg.train.ema) if cfg.train.ema else None
        self.averages = further_averages(self.model, cfg.train.averages)
        updates = self.plan.total - self.plan.frozen
        engine = self.process.choose_engine(updates, COMPILE_FROM_UPDATES)
        self.updater = Updater(self.model, cfg, self.process, engine)
        setup = Setup(cfg, self.model, self.updater, self.process, self.plan, self.room, self.batch_size)
        self.algorithm = ALGORITHMS[cfg.train.algorithm](setup)
        self.meter = Meter(self.algorithm.measures, self.process.device)

    def _new_model(self, start: Classifier | None) -> Classifier:
        cfg, data = self.cfg, self.data
        priors = data.class_frequencies if cfg.model.priors == "empirical" else None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(cfg.train.seed, "weights"))
            model = build(cfg, data.shape, data.class_names, priors).to(self.process.device)
        if start:
            initialize.take_over(model, start)
        model.start.fit(data.train)
        if model.gaussian and not start:
            model.gaussian.fit(data.train.images)
        if self.process.count > 1:  # drawn alike by all, but machines may differ in the last bits
            for tensor in model.state_dict().values():
                leader_s = tensor.contiguous()  # collectives know no other layout
                torch.distributed.broadcast(leader_s, src=0)
                tensor.copy_(leader_s)
        return model

    # --- an update ---

    @property
    def step(self) -> int:
        """Number of updates done."""
        return self.state.step

    def moment(self, step: int) -> Moment:
        """The moment of update number `step`, counted from 0, at the present pace."""
        return self.plan.at(step).at(self.state.pace)

    def update(self) -> None:
        """Make one update, of whatever algorithm."""
        now = self.moment(self.step)
        self.updater.prepare(now)
        self.model.train()
        if self.cfg.model.norm == "batch_then_frozen" and now.phase_name == "generative":
            for norm in batch_norms(self.model):
                norm.eval()
        outcome = self.algorithm.step(self.batches.at(now), now)
        self._share_statistics()
        for average in filter(None, [self.average, *self.averages.values()]):
            average.update(self.model, self.step, outcome.accepted)
        self.meter.add(outcome.values)
        self.state = self.state.advanced()

    def _share_statistics(self) -> None:
        """Every process saw other images: batch norm keeps the mean of what they found."""
        if self.process.count == 1 or not has_live_statistics(self.model):
            return
        found = [b for norm in batch_norms(self.model) for b in norm.buffers() if b.is_floating_point()]
        shared = self.process.total(torch.cat(found)) / self.process.count
        for mine, mean in zip(found, shared.split([len(s) for s in found]), strict=True):
            mine.copy_(mean)

    # --- metrics ---

    def show_features(self, on_features: Callable[[int, int], object]) -> None:
        """Report images done, and all images, while the features of a frozen trunk are computed."""
        self.batches.report_features(on_features)

    def work(self, step: int) -> float:
        """Cost of the first `step` updates, for the time left."""
        return self.plan.work(step, self.algorithm.cost)

    def report(self, *asks: bool) -> tuple[dict[str, Any], list[bool]]:
        """Metrics since the last line, over all processes, and which asks any process has.

        Reads the device once.
        """
        totals, census = self.meter.totals().flatten(), self.algorithm.census()
        weights = get_total_norm(list(self.model.parameters())).double().reshape(1)
        parts = [totals, census, weights, totals.new_tensor(asks)]
        numbers = self.process.total(torch.cat(parts)).split([len(part) for part in parts])
        totals, census, (weight_norm,), asked = (part.tolist() for part in numbers)
        now = self.moment(max(0, self.step - 1))
        line = {
            "step": self.step,
            "epoch": now.epoch + 1,
            "phase": now.phase_name,
            "lr": now.lr,
            "beta": now.beta,
            **self.algorithm.summary(self.meter.means(totals), census, now),
            "weight_norm": weight_norm / self.process.count,
        }
        if self.state.rollbacks:
            line["rollbacks"] = self.state.rollbacks
        line["seconds"] = round(self.clock.read(), 3)
        return line, [number > 0 for number in asked]

    def trouble(self, line: dict[str, Any]) -> str | None:
        """Return why this line of metrics means divergence; None while all is well."""
        watched = (*self.algorithm.measures, "weight_norm")
        broken = [name for name in watched if not math.isfinite(line.get(name, 0.0))]
        if broken:
            return f"{broken[0].replace('_', ' ')} is not finite"
        return self.algorithm.trouble(line) if self.cfg.guard.on else None

    def log_line(self) -> None:
        """Count a line of metrics."""
        self.state = self.state.logged()

    @property
    def best_model(self) -> Classifier:
        """The weights to evaluate and to sample from."""
        return self.average.model if self.average else self.model

    def estimate_running_gamma2(self, line: dict[str, Any]) -> None:
        """Set γ² in all processes, for the accuracies: with unequal priors γ² affects them."""
        if self.model.head.has_means and "real_energy" in line:
            gamma2 = core.estimate_gamma2(torch.tensor(line["real_energy"]), self.model.dim)
            for head in (self.best_model.head, self.model.head):
                head.gamma2.fill_(gamma2)

    def validate(self) -> float:
        """Accuracy on the validation images."""
        predicted = self.batches.predict(self.best_model, self.data.valid.images).cpu()
        return (predicted == self.data.valid.labels).float().mean().item()

    # --- the end ---

    def finish(self, on_progress: Callable[[int], object] = lambda done: None) -> Classifier:
        """Return the model, with γ² over the whole training set, and what it needs to abstain.

        `on_progress` is called with the number of images done, of all training images and
        `model.looks` times the validation images.
        """
        return self._finished(self.best_model, on_progress)

    def finish_average(self, decay: float, on_progress: Callable[[int], object]) -> Classifier:
        """Return the model of a further average, as `finish` does."""
        return self._finished(self.averages[decay].model, on_progress)

    def _finished(self, model: Classifier, on_progress: Callable[[int], object]) -> Classifier:
        model.eval()
        model.load_state_dict(model_file.stored_weights(model))  # all that follows is of these
        if model.head.has_means and model.denoising is None:  # whose γ² is known
            model.head.gamma2.fill_(self.estimate_gamma2(model, on_progress))
        self.algorithm.finish(model, self.state.pace)
        model.trained = {
            "updates": self.step,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "weights": "last" if model is self.model else "average",
            "rollbacks": self.state.rollbacks,
            "processes": self.process.count,
            "precision": self.process.precision,
            "engine": self.updater.how,
            "data_sha256": self.data.fingerprint,
            "held_out_sha256": self.data.held_out_fingerprint,
            "commit": provenance.commit(),
        }
        if self.state.start:
            model.trained["start"] = self.state.start

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
        images, labels = self.batches.images.tensor, self.batches.labels
        for x, y in zip(images.split(256), labels.split(256), strict=True):
            energies.append(model.head.unit_energy(model.backbone(to_signed(x.to(model.device))), y))
            done += len(y)
            on_progress(done)
        gamma2 = core.estimate_gamma2(torch.cat(energies), model.dim)
        if not 0 < gamma2 < math.inf:
            raise Diverged(f"gamma2 must be positive and finite, got {gamma2}")
        return gamma2

    # --- states to resume from and to roll back to ---

    def snapshot(self) -> State:
        """A copy of everything: `tensors` are the same in all processes, `shard` is this one's own."""
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        if self.average:
            average = self.average.model.state_dict()
            tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
        for decay, further in self.averages.items():
            state = further.model.state_dict()
            tensors |= {f"averages.{decay}.{name}": tensor for name, tensor in state.items()}
        tensors |= {f"optimizer.{name}": slot for name, slot in self.updater.slots().items()}
        # Only between two lines are the sums not zero, and only a single process is interrupted there.
        tensors["meter.sums"] = self.meter.totals()
        info = {
            **dataclasses.replace(self.state, seconds=self.clock.read()).to_info(),
            **self.algorithm.info(),
            "algorithm": self.cfg.train.algorithm,
            "threads": torch.get_num_threads(),
            "device": self.process.device.type,
            "precision": self.process.precision,
            "processes": self.process.count,
            "data": self.data.fingerprint,
            "held_out": self.data.held_out_fingerprint,
        }
        shard = self.algorithm.state_dict()
        assert not shard.keys() & tensors.keys()
        return State(self.step, _copied(tensors), _copied(shard), info)

    def resume(self, snapshot: State) -> None:
        """Go on from a state of an earlier call, its clock included."""
        self.restore(snapshot)
        self.clock = Stopwatch(self.state.seconds)

    def restore(self, snapshot: State) -> None:
        """Take over a state of this training; time goes on."""
        info = snapshot.info
        if info["processes"] == self.process.count and not self.cfg.train.threads:
            torch.set_num_threads(info["threads"])  # the bits of a CPU run depend on it
        self.state = TrainingState.from_info(snapshot.step, info)
        self.model.load_state_dict(snapshot.part("model"))
        self.batches.forget_trunk()
        if self.average:
            self.average.model.load_state_dict(snapshot.part("average"))
        for decay, further in self.averages.items():
            further.model.load_state_dict(snapshot.part(f"averages.{decay}"))
        self.updater.restore(snapshot.part("optimizer"))
        self.algorithm.load_state(snapshot.shard, info)
        self.meter.restore(snapshot.tensors["meter.sums"])

    def roll_back(self, good: State) -> dict[str, Any]:
        """Go on from the last good state, more slowly; return what was done, for metrics.jsonl."""
        before = self.state
        # Without a good state since the last trouble, the rollback before did not lead past it.
        failed = before.failed + 1 if good.step <= before.trouble_at else 0
        recover = self.algorithm.recovery(self.moment(before.step - 1), failed)
        self.restore(good)
        self.state = dataclasses.replace(
            before,
            step=good.step,
            rollbacks=before.rollbacks + 1,
            trouble_at=max(before.step, before.trouble_at),
            failed=failed,
        )
        remedy = recover(self.state)
        self.state = dataclasses.replace(self.state, pace=remedy.pace)
        lowered = {name: new for name, new in sorted(remedy.pace.items()) if new != before.pace[name]}
        return {"to": good.step, "rollbacks": self.state.rollbacks, **remedy.done, "lowered": lowered}


def _copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
