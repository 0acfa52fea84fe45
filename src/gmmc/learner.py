"""Algorithm 1: all the state of a training, and the update that moves it."""

import functools
import math
import time

import torch
from torch import Tensor

from gmmc import core, objectives, provenance
from gmmc.buffer import ReplayBuffer
from gmmc.config import Config
from gmmc.data import Dataset
from gmmc.data.augment import augment
from gmmc.errors import Diverged, InputError
from gmmc.models import Classifier
from gmmc.pixels import to_signed
from gmmc.randomness import derived_seed, generator
from gmmc.runs import State
from gmmc.sampling import SAMPLERS, descend
from gmmc.schedule import Moment, Plan


class Learner:
    """The state of a training and the update that moves it."""

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
        self.model.head.gamma2.fill_(core.estimate_gamma2(torch.tensor(means["real_energy"]), self.model.dim))
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


def check(cfg: Config, data: Dataset) -> None:
    """What only the data can tell of a recipe."""
    smallest_side = min(data.shape[1:])
    for name in ("discriminative", "generative"):
        shift = getattr(cfg, name).shift
        if shift >= smallest_side:
            raise InputError(f"{name}.shift must be less than the image size {smallest_side}, got {shift}")
