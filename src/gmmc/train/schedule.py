"""What happens at which update: phase, learning rate and β(t), a function of the configuration alone."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gmmc.config.schema import Config
from gmmc.config.sections import PhaseConfig
from gmmc.train.state import PACE

FROZEN = "frozen"
FROZEN_WORK = 0.005  # of an update of all layers
FROZEN_WARMUP = 50  # updates, at most
DECAY = 0.3  # factor on the learning rate at each of `decay_epochs`


@dataclass(frozen=True)
class Moment:
    """Place of an update in the training."""

    step: int
    epoch: int
    phase: PhaseConfig
    phase_name: str
    lr: float
    beta: float
    pace: Mapping[str, float] = field(default_factory=PACE.copy)  # factors, lowered by rollbacks

    def at(self, pace: Mapping[str, float]) -> "Moment":
        """The same moment of a training that was slowed down."""
        return replace(self, lr=self.lr * pace["lr"], beta=self.beta * pace["beta"], pace=pace)


@dataclass(frozen=True)
class Plan:
    cfg: Config
    steps_per_epoch: int

    @property
    def frozen(self) -> int:
        """Updates of the last layer alone."""
        return self.cfg.transfer.frozen_epochs * self.steps_per_epoch

    @functools.cached_property
    def frozen_phase(self) -> PhaseConfig:
        """The phase of the last layer alone, which [transfer] describes."""
        return PhaseConfig(
            epochs=self.cfg.transfer.frozen_epochs,
            lr=self.cfg.transfer.frozen_lr,
            schedule="cosine",
            warmup=min(FROZEN_WARMUP, self.frozen),
            flip=self.cfg.discriminative.flip,
        )

    @property
    def discriminative(self) -> int:
        """Updates before the generative phase."""
        return self.frozen + self.cfg.discriminative.epochs * self.steps_per_epoch

    @property
    def total(self) -> int:
        return self.discriminative + self.cfg.generative.epochs * self.steps_per_epoch

    def at(self, step: int) -> Moment:
        """The moment of update number `step`, counted from 0."""
        epoch = step // self.steps_per_epoch
        if step < self.frozen:
            phase = self.frozen_phase
            return Moment(step, epoch, phase, FROZEN, self._lr(phase, step), 0.0)
        if step < self.discriminative:
            phase = self.cfg.discriminative
            return Moment(step, epoch, phase, "discriminative", self._lr(phase, step - self.frozen), 0.0)
        phase, later = self.cfg.generative, step - self.discriminative
        ramp = self.cfg.train.ramp
        beta = self.cfg.train.beta * (min(1.0, (later + 1) / ramp) if ramp else 1.0)
        return Moment(step, epoch, phase, "generative", self._lr(phase, later), beta)

    def validates_after(self, step: int) -> bool:
        """Whether the epoch that ends there is one to validate after; the last always is."""
        return step == self.total or (step // self.steps_per_epoch) % self.cfg.train.valid_every == 0

    def _lr(self, phase: PhaseConfig, step: int) -> float:
        return self._scheduled(phase, step) * (min(1.0, (step + 1) / phase.warmup) if phase.warmup else 1.0)

    def _scheduled(self, phase: PhaseConfig, step: int) -> float:
        if phase.schedule == "cosine":
            return phase.lr * 0.5 * (1 + math.cos(math.pi * step / (phase.epochs * self.steps_per_epoch)))
        decays = sum(step >= epoch * self.steps_per_epoch for epoch in phase.decay_epochs)
        return phase.lr * DECAY**decays

    def work(self, step: int, generative_cost: float) -> float:
        """Cost of the first `step` updates, in updates of all layers on real images alone."""
        generative = max(0, step - self.discriminative)
        frozen = min(step, self.frozen)
        return FROZEN_WORK * frozen + (step - frozen - generative) + generative_cost * generative
