"""Denoising score matching: the energy's gradient on noisy images is fitted to their noise, without chains.

With e = ½‖φ(u) − μ_y‖², F = −∂e/∂u and the residual r = F − t of EDM's regression (noise.py), the gradient
of L = ‖r‖²/n with respect to the weights is a finite difference of the energy (Pang et al. 2020), with n
numbers per image:

    ∂L/∂θ = −2/n ∂/∂θ ⟨∂e/∂u, r⟩ ≈ 1/(n·h) ∂/∂θ [e(u − h·r) − e(u + h·r)],    r taken as a constant.

So an update needs one gradient with respect to images. Then it contrasts two images, as Algorithm 1 does:
the energy of one is pulled down, that of the other pushed up. L fixes each p(x|y; σ) up to a factor,
cross-entropy fixes p(y|x; σ).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc import noise
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.config.sections import DenoisingConfig
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.networks.backbones import LAYOUT
from gmmc.sampling import engine
from gmmc.sampling.samplers import WITHOUT_CLASS, force
from gmmc.train.algorithm import Algorithm, Batch, Outcome, Setup, check_unused
from gmmc.train.schedule import Moment
from gmmc.train.spikes import Spikes
from gmmc.train.updater import Network

COMPILE_FROM_UPDATES = 2_000  # of the input gradient; normalisation gains more by it than convolutions
SHARPEST = 0.1  # smallest γ² of the cross-entropy on noisy images
# Kinds of updates, and the values by which the guard judges them. Where nothing is denoised, it skips only
# updates that are not finite: a cross-entropy near 0 often rises to many times its mean.
DENOISING, DISCRIMINATIVE = "denoising", "discriminative"
JUDGED = {
    DENOISING: ("loss", "grad_norm", "class_loss", "zero_loss"),
    DISCRIMINATIVE: ("grad_norm", "class_loss"),
}
WATCHED = {DENOISING: ("loss", "grad_norm"), DISCRIMINATIVE: ()}

# Settings of Algorithm 1.
UNUSED = (
    *("model.norm", "objective", "contrast", "transfer.frozen_epochs", "transfer.epochs", "train.fid_every"),
    *(f"sampler.{key}" for key in ("steps", "alpha", "max_step", "target_std", "power", "noise")),
    *(f"buffer.{key}" for key in ("size", "chains", "reinit", "labels")),
    *(f"guard.{key}" for key in ("energy", "force", "bounded")),
)


@dataclass(frozen=True)
class Noisy:
    """Noisy images as φ takes them, and what F is fitted to."""

    u: Tensor  # c_in·(x + σn)
    level: Tensor  # σ, (B, 1, 1, 1)
    target: Tensor  # t = (x − c_skip·(x + σn))/c_out, less G·u of a fitted Gaussian term
    goal: Tensor  # (B, 3): label, γ², guidance; see Head.guided_energy


class Record(NamedTuple):
    """Results of a loss, without gradients."""

    class_loss: Tensor
    correct: Tensor  # whether a class image is assigned its class


class Loss:
    """β·[e(u − h·r) − e(u + h·r)]/(n·h) + weighted cross-entropies of class images and noisy images."""

    def __init__(self, model: Classifier, cfg: DenoisingConfig):
        self.head, self.cfg, self.gamma2 = model.head, cfg, model.density_gamma2

    def __call__(
        self,
        network: Network,
        x: Tensor,
        y: Tensor,
        lower: Tensor | None,
        higher: Tensor | None,
        goal: Tensor | None,
        beta: Tensor,
    ) -> tuple[Tensor, Record]:
        """`x`, `lower` and `higher` are images as φ takes them; the last two are None where β = 0."""
        parts = [part for part in (x, lower, higher) if part is not None]
        features = network(torch.cat(parts).contiguous(memory_format=LAYOUT))
        class_features, *noisy = features.split([len(part) for part in parts])
        logits = self.head.logits_at(class_features, self.gamma2)
        class_loss = F.cross_entropy(logits, y, label_smoothing=self.cfg.label_smoothing)
        loss = self.cfg.class_weight * class_loss
        if goal is not None:
            lower_features, higher_features = noisy
            loss = loss + beta * self.contrast(lower_features, higher_features, goal, x[0, :-1].numel())
            loss = loss + self.cfg.noisy_class_weight * self.noisy_class_loss(features[len(x) :], goal)
        return loss, Record(class_loss.detach(), logits.detach().argmax(-1) == y)

    def contrast(self, lower: Tensor, higher: Tensor, goal: Tensor, numbers: int) -> Tensor:
        """Mean of [e(u − h·r) − e(u + h·r)]/(n·h), of the features of both; n: numbers of an image."""
        difference = self.head.guided_energy(lower, goal) - self.head.guided_energy(higher, goal)
        return difference.mean() / (numbers * self.cfg.h)

    def noisy_class_loss(self, features: Tensor, goal: Tensor) -> Tensor:
        """Cross-entropy of p(y|x; σ) at every σ."""
        both = goal.repeat(2, 1)
        gamma2 = both[:, 1:2].clamp(min=SHARPEST)
        return F.cross_entropy(self.head.logits_at(features, gamma2), both[:, 0].long())


class Denoising(Algorithm):
    """L = β(t)·‖F − t‖²/n + class_weight·CE + noisy_class_weight·CE_noisy; at β = 0 no noise is denoised.

    An update whose loss or gradient norm is far above its running mean is skipped.
    """

    measures = ("loss", "class_loss", "accuracy", "grad_norm", "skipped")

    def __init__(self, setup: Setup):
        super().__init__(setup)
        self.settings = self.cfg.denoising
        self.loss = Loss(self.model, self.settings)
        count = min(self.settings.class_images or setup.batch_size, setup.batch_size)
        self.every = setup.batch_size // count  # row of a batch that is a class image
        share = setup.batch_size // self.process.count
        self.mine = slice(self.process.rank * share, (self.process.rank + 1) * share)
        self.gradient = self._new_gradient() if self.cfg.samples else None
        device = self.process.device
        guard = self.cfg.guard
        self.spikes = {
            kind: Spikes(names, WATCHED[kind], limit=guard.spike, on=guard.on, device=device)
            for kind, names in JUDGED.items()
        }

    def _new_gradient(self) -> engine.PlainGradient | engine.FastGradient:
        plan, process = self.setup.plan, self.process
        way = process.choose_engine(plan.total - plan.discriminative, COMPILE_FROM_UPDATES)
        return engine.new_gradient(self.model.backbone, way, process.precision, process.fabric.autocast)

    # --- an update ---

    def step(self, batch: Batch, now: Moment) -> Outcome:
        lower, higher, goal, losses = None, None, None, {}
        if now.beta > 0:
            noisy = self.noisy(batch, now.step)
            residual = self.residual(noisy)
            losses = {"loss": residual.square().mean(), "zero_loss": noisy.target.square().mean()}
            lower, higher = self.sides(noisy, residual)
            goal = noisy.goal
        x, y = self.class_images(batch, now.step)

        spikes = self.spikes[DENOISING if losses else DISCRIMINATIVE]

        def accept(record: Record, norm: Tensor) -> Tensor:
            own = {"class_loss": record.class_loss, **losses}
            shared = self.process.mean(torch.stack([value.double() for value in own.values()]))
            return spikes.judge({"grad_norm": norm, **dict(zip(own, shared, strict=True))})

        beta = torch.full((), now.beta, device=self.process.device)
        record, _ = self.updater(self.loss, x, y, lower, higher, goal, beta, accept=accept)
        values = {name: value for name, value in spikes.values.items() if name in self.measures}
        more = {"accuracy": record.correct, "skipped": ~spikes.accepted}
        return Outcome(values | more, spikes.accepted)

    @torch.no_grad()
    def noisy(self, batch: Batch, step: int) -> Noisy:
        """Noise for the images of a batch, drawn alike by all processes."""
        cfg, images = self.settings, batch.augmented(self.settings, "denoised")
        source, whole = self.process.shared_source("noise", step), self.setup.batch_size

        def drawn(draw: Any, *size: int) -> Tensor:
            return draw(whole, *size, generator=source, device=images.device)[self.mine]

        level = (cfg.sigma_mean + cfg.sigma_std * drawn(torch.randn, 1, 1, 1)).exp()
        x = images + level * drawn(torch.randn, *images.shape[1:])
        scales = noise.scales(level, cfg.sigma_data)
        without = drawn(torch.rand) < cfg.unlabelled
        goal = [batch.labels.float(), level.flatten() / cfg.sigma_data, without * WITHOUT_CLASS]
        u, target = scales.into * x, noise.target(images, x, scales)
        if self.model.gaussian:  # the network is fitted to what the term leaves
            target = target - self.model.gaussian.force(u, level)
        return Noisy(u, level, target, torch.stack(goal, 1))

    @torch.no_grad()
    def residual(self, noisy: Noisy) -> Tensor:
        """F − t."""
        assert self.gradient is not None
        self.gradient.refresh()
        with torch.enable_grad():
            energy = self.model.head.guided_energy
            return force(self.gradient, energy, noisy.u, noisy.level, noisy.goal, None) - noisy.target

    @torch.no_grad()
    def sides(self, noisy: Noisy, residual: Tensor) -> tuple[Tensor, Tensor]:
        """u − h·r and u + h·r, as φ takes them."""
        cfg = self.settings
        if cfg.residual_limit:  # a few images must not move all weights
            size = residual.square().mean((1, 2, 3), keepdim=True).sqrt()
            residual = residual * (cfg.residual_limit / size).clamp(max=1)
        low, high = noisy.u - cfg.h * residual, noisy.u + cfg.h * residual
        return noise.network_input(low, noisy.level), noise.network_input(high, noisy.level)

    @torch.no_grad()
    def class_images(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Evenly spaced rows of the batch with noise of up to class_sigma, as φ takes them, and labels."""
        cfg, images = self.settings, batch.images
        source, whole = self.process.shared_source("class noise", step), self.setup.batch_size
        size = torch.rand(whole, 1, 1, 1, generator=source, device=images.device)
        drawn = torch.randn(whole, *images.shape[1:], generator=source, device=images.device)
        x = (images + cfg.class_sigma * (size * drawn)[self.mine])[:: self.every]
        level = noise.per_image(cfg.class_sigma, x)
        u = noise.scales(level, cfg.sigma_data).into * x
        return noise.network_input(u, level), batch.labels[:: self.every]

    # --- guard ---

    def census(self) -> Tensor:
        share = torch.maximum(*(spikes.skipped_share for spikes in self.spikes.values()))
        return torch.stack([share, self.spikes[DENOISING].rise("loss", "zero_loss")]) / self.process.count

    def summary(self, means: dict[str, float], census: list[float], now: Moment) -> dict[str, float]:
        return {**means, "skipped_share": census[0], "loss_rise": census[1]}

    def trouble(self, line: Mapping[str, Any]) -> str | None:
        share, rise, guard = line["skipped_share"], line["loss_rise"], self.cfg.guard
        if share > guard.skipped:
            return f"{share:.0%} of the last updates were skipped, more than {guard.skipped:.0%}"
        if rise > guard.rise:
            return f"the mean denoising loss is {rise:.3g} times its best, more than {guard.rise:g}"
        return None

    # --- checks ---

    @classmethod
    def check_recipe(cls, cfg: Config) -> None:
        count, batch = cfg.denoising.class_images, cfg.train.batch_size
        if count and batch % count:
            raise InputError(f"denoising.class_images must divide train.batch_size={batch}, got {count}")
        check_unused(cfg, UNUSED)

    @classmethod
    def check_data(cls, cfg: Config, data: Dataset, processes: int) -> None:
        batch = min(cfg.train.batch_size, len(data.train))
        count = min(cfg.denoising.class_images or batch, batch)
        if processes > 1 and (batch // processes) % (batch // count):
            rule = f"must be a multiple of the {processes} processes and divide the batch of {batch}"
            raise InputError(f"denoising.class_images {rule}, got {cfg.denoising.class_images}")

    # --- state ---

    def info(self) -> dict[str, Any]:
        return {"spikes": {kind: spikes.info() for kind, spikes in self.spikes.items()}}

    def load_state(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        for kind, spikes in self.spikes.items():
            spikes.load(info["spikes"][kind])

    # --- for people ---

    @property
    def cost(self) -> float:
        # A noisy image has a gradient to its pixels, two thirds of an update, and two updates.
        return 1 + self.every * (2 + 2 / 3) if self.cfg.samples else 1.0

    @property
    def how(self) -> str:
        return super().how + (f"; gradient {self.gradient.how}" if self.gradient else "")
