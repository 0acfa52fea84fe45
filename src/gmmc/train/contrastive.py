"""Algorithm 1: chains from a replay buffer, moved by the sampler, set against real images."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.config.sections import AugmentConfig, SamplerConfig
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.networks.heads import HEADS
from gmmc.sampling import engine
from gmmc.sampling.engine import COMPILE_FROM_STEPS
from gmmc.sampling.samplers import NOISE_SETTINGS, SAMPLERS, BatchNoise, Chains
from gmmc.train import health, rollback
from gmmc.train.algorithm import Algorithm, Batch, Outcome, Remedy, Setup, check_unused
from gmmc.train.buffer import Drawn, ReplayBuffer, check_quotas
from gmmc.train.objectives import OBJECTIVES, SHAPES, Energies, Loss
from gmmc.train.schedule import Moment
from gmmc.train.state import TrainingState

# Settings of training by denoising.
UNUSED = (
    "denoising",
    *(f"sampler.{key}" for key in NOISE_SETTINGS),
    *(f"guard.{key}" for key in ("spike", "skipped", "rise")),
)


class Contrastive(Algorithm):
    """The paper's three trainings: L = E(x, y) − β(t)·E(x′, y′), and other losses of the same parts.

    At β = 0 neither sampler nor buffer is touched.
    """

    measures = (
        "real_energy",
        "accuracy",
        "sampled_energy",
        "pushing_energy",
        "grad_norm",
        "contrast_energy",
    )

    def __init__(self, setup: Setup):
        super().__init__(setup)
        cfg = self.cfg
        self.objective, self.sampler = OBJECTIVES[cfg.objective.name], SAMPLERS[cfg.sampler.name]
        self.loss = Loss(self.model, cfg.objective)
        self.capped = SHAPES[cfg.objective.shape].caps  # a rollback may set it
        self.chains = min(cfg.chains, setup.batch_size) // self.process.count  # of this process, per update
        self.gradient = self._new_gradient() if cfg.samples else None
        self.buffer = self._new_buffer() if cfg.samples else None
        self._beta = torch.zeros((), device=self.process.device)  # where a CUDA graph reads it

    def _new_gradient(self) -> engine.PlainGradient | engine.FastGradient:
        plan, process = self.setup.plan, self.process
        steps = (plan.total - plan.discriminative) * self.cfg.sampler.steps
        way = process.choose_engine(steps, COMPILE_FROM_STEPS)
        return engine.new_gradient(self.model.backbone, way, process.precision, process.fabric.autocast)

    def _new_buffer(self) -> ReplayBuffer:
        cfg = self.cfg.buffer
        return ReplayBuffer(
            cfg.size // self.process.count,
            self.model.start,
            self.model.head.priors,
            reinit=cfg.reinit,
            generator=self.process.source("buffer"),
            place=functools.partial(self.setup.room.place, what="chains"),
        )

    # --- an update ---

    def step(self, batch: Batch, now: Moment) -> Outcome:
        """One turn of Algorithm 1."""
        self.loss.limit = health.bound(self.cfg) if self.capped else math.inf
        contrast, drawn, moved, labels = None, None, None, None
        if now.beta > 0:
            contrast, drawn = self.contrast_images(batch), self.draw(batch.labels, now.step)
            moved, labels = self.move(drawn, now.step, pace=now.pace["alpha"]), drawn.labels
        energies, norm = self.updater(
            self.loss,
            batch.images,
            batch.labels,
            contrast,
            moved,
            labels,
            self._beta.fill_(now.beta),
            network=batch.network,
            kind=self.loss.limit,
        )
        if drawn is not None and moved is not None:
            assert self.buffer is not None
            self.buffer.put(drawn, moved, energies.sampled)
        return self._outcome(energies, norm)

    def contrast_images(self, batch: Batch) -> Tensor | None:
        """The first real images as [contrast] augments them, one per chain, if the objective has any."""
        if not self.objective.contrasts:
            return None
        return batch.augmented(self.cfg.contrast, "contrast")[: self.chains]

    def draw(self, real_labels: Tensor, step: int) -> Drawn:
        """Chains from the buffer, of the first real labels if the recipe wants that."""
        assert self.buffer is not None
        labels = real_labels[: self.chains] if self.cfg.buffer.labels == "batch" else None
        return self.buffer.draw(self.chains, self.process.source("chains", step), labels)

    def move(self, drawn: Drawn, step: int, *, pace: float, steps: int | None = None) -> Tensor:
        """x′_τ: the chains, τ steps further."""
        assert self.gradient is not None
        noise = BatchNoise(self.chains, self.process.source("targets", step))
        chains = Chains.of(self.model.head, self.loss.energy, drawn.labels, noise)
        cfg = self._paced(pace)
        self.gradient.refresh()
        return self.sampler.move(self.gradient, drawn.images, chains, cfg, steps=steps or cfg.steps)

    def _paced(self, pace: float) -> SamplerConfig:
        return dataclasses.replace(self.cfg.sampler, alpha=self.cfg.sampler.alpha * pace)

    def _outcome(self, energies: Energies, norm: Tensor) -> Outcome:
        values = {"real_energy": energies.real, "accuracy": energies.correct, "grad_norm": norm}
        if energies.contrast is not None:
            values["contrast_energy"] = energies.contrast
        if energies.sampled is not None:
            values["sampled_energy"] = energies.sampled
            values["pushing_energy"] = energies.sampled.clamp(max=self.loss.limit)
        return Outcome(values)

    # --- checks ---

    @classmethod
    def check_recipe(cls, cfg: Config) -> None:
        objective, sampler = OBJECTIVES[cfg.objective.name], SAMPLERS[cfg.sampler.name]
        if not cfg.samples and not sampler.to_means:
            raise InputError(
                f"sampler.name={cfg.sampler.name} is never used: it needs generative.epochs and train.beta "
                f"above 0, got {cfg.generative.epochs} and {cfg.train.beta:g}"
            )
        if objective.needs_fixed_means and not HEADS[cfg.model.head].fixed_means:
            others = [name for name, other in OBJECTIVES.items() if not other.needs_fixed_means]
            raise InputError(
                f"objective.name={cfg.objective.name} needs fixed class means: with model.head="
                f"{cfg.model.head} the energies alone have no class boundary; use objective.name="
                f"{' or '.join(others)}"
            )
        check_unused(cfg, UNUSED)
        if not objective.contrasts and cfg.contrast != AugmentConfig():
            raise InputError(
                f"[contrast] augments a second real term, which objective.name={cfg.objective.name} lacks"
            )

    @classmethod
    def check_data(cls, cfg: Config, data: Dataset, processes: int) -> None:
        if not cfg.samples:
            return
        chains = min(cfg.chains, cfg.train.batch_size, len(data.train))
        for name, size in {"buffer.size": cfg.buffer.size, "buffer.chains": chains}.items():
            if size % processes:
                raise InputError(f"{name} must be a multiple of the {processes} processes, got {size}")
        if cfg.buffer.labels == "batch":
            uniform = torch.full((len(data.class_names),), 1 / len(data.class_names))
            priors = data.class_frequencies if cfg.model.priors == "empirical" else uniform
            check_quotas(cfg.buffer.size // processes, chains // processes, priors)

    # --- state ---

    def state_dict(self) -> dict[str, Tensor]:
        return {f"buffer.{k}": v for k, v in self.buffer.state_dict().items()} if self.buffer else {}

    def info(self) -> dict[str, Any]:
        return {"capped": self.capped}

    def load_state(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        self.capped = info["capped"]
        if self.buffer:
            self.buffer.load_state_dict({k.removeprefix("buffer."): v for k, v in tensors.items()})

    # --- metrics ---

    def census(self) -> Tensor:
        if not self.buffer:
            return torch.zeros(4, dtype=torch.float64, device=self.process.device)
        after, limit = health.settled_after(self.cfg), health.bound(self.cfg)
        return self.buffer.census(settled_after=after, limit=limit)

    def summary(self, means: dict[str, float], census: list[float], now: Moment) -> dict[str, float]:
        return health.summary(means, census, self.cfg, now.beta)

    def images(self) -> Tensor | None:
        return self.buffer.images if self.buffer else None

    @property
    def cost(self) -> float:
        # Each chain has an update on it, mostly one on a contrast image, and per sampler step a pass forward
        # and back to the pixels: two thirds of an update, which also goes back to the weights.
        cfg, updates = self.cfg, 2 if self.objective.contrasts else 1
        chains = min(1.0, cfg.chains / cfg.train.batch_size) if cfg.samples else 0.0
        return 1 + chains * (updates + 2 / 3 * cfg.sampler.steps)

    @property
    def how(self) -> str:
        return super().how + (f"; sampler {self.gradient.how}" if self.gradient else "")

    # --- guard ---

    def trouble(self, line: Mapping[str, Any]) -> str | None:
        return health.trouble(line, self.cfg)

    def recovery(self, now: Moment, failed: int) -> Callable[[TrainingState], Remedy]:
        capped, recover = self.capped, rollback.recovery(self, now, failed)

        def recover_and_cap(state: TrainingState) -> Remedy:
            remedy = recover(state)
            self.capped = capped or remedy.done["capped"]
            return remedy

        return recover_and_cap

    def describe(self, done: Mapping[str, Any]) -> list[str]:
        parts = [f"{done['dropped']} chains reinitialised"]
        return parts + ([f"sampled energies capped at {health.bound(self.cfg):g}"] if done["capped"] else [])

    def advice(self, now: Moment) -> str:
        if now.beta > 0:
            return "objective.shape=cap, a smaller sampler.alpha, train.beta or learning rate, or more steps"
        return super().advice(now)

    # --- beginning and end ---

    def remarks(self) -> Iterator[str]:
        cfg = self.cfg
        if self.learns_cut_outs:
            yield (
                f"generative.cutout={cfg.generative.cutout} is above contrast.cutout={cfg.contrast.cutout}: "
                "log p(x) will rate cut-out images too high, since no sample pushes against them; "
                "objective.anchor_on=contrast prevents most of it"
            )

    @property
    def learns_cut_outs(self) -> bool:
        """Whether energies of images behind larger squares than in the contrast are pulled down."""
        cfg = self.cfg
        unopposed = self.objective.contrasts and health.anchored(cfg) and cfg.objective.anchor_on == "class"
        return cfg.samples and unopposed and cfg.generative.cutout > cfg.contrast.cutout

    def finish(self, model: Classifier, pace: Mapping[str, float]) -> None:
        if model.drawing:  # its chains are to move as those it was trained with
            model.drawing = dataclasses.replace(model.drawing, sampler=self._paced(pace["alpha"]))
