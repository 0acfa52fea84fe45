"""Losses of Algorithm 1. One signature: (parts of the batch as features, head, settings, β) → loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.classifier.model import Classifier
from gmmc.config.sections import ObjectiveConfig
from gmmc.networks.backbones import LAYOUT, has_live_statistics, unrecorded_statistics
from gmmc.networks.heads import Head
from gmmc.sampling.samplers import Energy
from gmmc.train.updater import Network

# --- the shape of a sampled energy before the mean ---


def raw(energies: Tensor, bound: float) -> Tensor:
    """E′ as it is, the paper's: the farther a chain, the harder it is pushed."""
    return energies


def cap(energies: Tensor, bound: float) -> Tensor:
    """min(E′, κ): no push above κ."""
    return energies.clamp(max=bound)


def huber(energies: Tensor, bound: float) -> Tensor:
    """E′ up to κ, then 2√(κE′) − κ: the push ‖φ − μ‖·h′ grows up to √(2κ) and stays there."""
    return torch.where(energies < bound, energies, 2 * (bound * energies.clamp(min=bound)).sqrt() - bound)


@dataclass(frozen=True)
class EnergyShape:
    """A shape of sampled energies, and what the guard must know about it."""

    function: Callable[[Tensor, float], Tensor]
    caps: bool = False  # no push above the bound
    bounds_push: bool = False  # the push grows no further above the bound


SHAPES: dict[str, EnergyShape] = {
    "raw": EnergyShape(raw),
    "cap": EnergyShape(cap, caps=True),
    "huber": EnergyShape(huber, bounds_push=True),
}


# --- the objectives ---


@dataclass(frozen=True)
class Terms:
    """What an objective is made of; energies are at γ = 1, one per image."""

    features: Tensor  # φ of the real images as the phase augments them
    labels: Tensor
    head: Head
    real: Tensor  # E(x, y) of the same
    contrast: Tensor | None  # energies of the first of these images as [contrast] augments them
    sampled: Tensor | None  # h of the energies of chains; None where β = 0


def gmmc(terms: Terms, cfg: ObjectiveConfig, beta: float | Tensor) -> Tensor:
    """mean E(x, y) − β·mean h(E(x′, y′)): with raw h the gradient of Eq. 5 at β = 0, of Eq. 7 above.

    The paper divides both by γ², a constant that Adam cancels; α, defined on the unit energy, is where the
    energy's scale is chosen.
    """
    loss = terms.real.mean()
    return loss if terms.sampled is None else loss - beta * terms.sampled.mean()


def balanced(terms: Terms, cfg: ObjectiveConfig, beta: float | Tensor) -> Tensor:
    """CE(x, y) + anchor·E(x, y) + β·[E(x_contrast, y) − h(E(x′, y′))]; a linear head has no anchor.

    `anchor_on` chooses the images of the anchor. An anchor on class images makes them likely as they are
    augmented, since no sample pushes against it: where these are cut out, the density learns grey squares.
    The class part moves p(y|x) only, and real and sampled energies weigh the same: the density is at rest
    where samples are as frequent as data, not twice as frequent as with β = 0.5 in `gmmc`.
    """
    has_means = terms.head.means is not None
    temperature, anchor = (cfg.temperature, cfg.anchor) if has_means else (1.0, 0.0)
    cross_entropy = F.cross_entropy(terms.head.logits_at(terms.features, temperature), terms.labels)
    contrast = terms.contrast if cfg.anchor_on == "contrast" else None
    anchored = terms.real if contrast is None else contrast
    return cross_entropy + anchor * anchored.mean() + beta * _difference(terms)


def _difference(terms: Terms) -> Tensor | float:
    if terms.contrast is None or terms.sampled is None:  # β = 0
        return 0.0
    return terms.contrast.mean() - terms.sampled.mean()


# --- what the rest of a training must know about them ---


def joint(head: Head) -> Energy:
    """E(x, y)."""
    return head.unit_energy


def marginal(head: Head) -> Energy:
    """E(x) = −log Σ_y exp(−E(x, y))."""
    return head.marginal_energy


@dataclass(frozen=True)
class Objective:
    """A loss, and what the rest of a training must know about it."""

    loss: Callable[[Terms, ObjectiveConfig, float | Tensor], Tensor]
    # Weight of the energies of real images that samples, whose weight is β, push against; at β = 0, of the
    # energies that are pulled to zero.
    pull: Callable[[ObjectiveConfig, float], float]
    energy: Callable[[Head], Energy] = joint  # of contrast images and samples: what Langevin chains descend
    contrasts: bool = False  # sets images as [contrast] augments them against samples
    needs_fixed_means: bool = False  # energies alone have class boundaries only with fixed means


OBJECTIVES: dict[str, Objective] = {
    "gmmc": Objective(gmmc, pull=lambda cfg, beta: 1.0, needs_fixed_means=True),
    "balanced": Objective(balanced, pull=lambda cfg, beta: beta + cfg.anchor, contrasts=True),
}


# --- from images to the loss ---


class Energies(NamedTuple):
    """One number per image, without gradients."""

    real: Tensor  # unit energies
    contrast: Tensor | None  # None where the objective has no contrast images, or β = 0
    sampled: Tensor | None
    correct: Tensor  # whether a real image is assigned its class


class Loss:
    """One update's forward pass."""

    def __init__(self, model: Classifier, cfg: ObjectiveConfig):
        self.backbone, self.head, self.cfg = model.backbone, model.head, cfg
        self.objective, self.shape = OBJECTIVES[cfg.name], SHAPES[cfg.shape]
        self.energy = self.objective.energy(model.head)
        self.limit = math.inf  # above it a sampled energy is not pushed at all; the algorithm sets it

    def __call__(
        self,
        network: Network,
        x: Tensor,
        y: Tensor,
        contrast: Tensor | None,
        sampled_x: Tensor | None,
        sampled_y: Tensor | None,
        beta: float | Tensor,
    ) -> tuple[Tensor, Energies]:
        """`network`: the backbone, in some form."""
        parts = [part for part in (x, contrast, sampled_x) if part is not None]
        features = self.features(network, parts, last_is_sampled=sampled_x is not None)
        sampled = None if sampled_y is None else self.energy(features[-1], sampled_y)
        terms = Terms(
            features=features[0],
            labels=y,
            head=self.head,
            real=self.head.unit_energy(features[0], y),
            contrast=None if contrast is None else self.energy(features[1], y[: len(contrast)]),
            sampled=None if sampled is None else self.shaped(sampled),
        )
        loss = self.objective.loss(terms, self.cfg, beta)
        correct = self.head(features[0].detach()).argmax(-1) == y
        contrast_record = None if terms.contrast is None else terms.contrast.detach()
        sampled_record = None if sampled is None else sampled.detach()
        return loss, Energies(terms.real.detach(), contrast_record, sampled_record, correct)

    def shaped(self, energies: Tensor) -> Tensor:
        return self.shape.function(cap(energies, self.limit), self.cfg.bound)

    def features(self, network: Network, parts: list[Tensor], *, last_is_sampled: bool) -> list[Tensor]:
        """One pass for all parts; with live batch statistics one each, and those of samples go unrecorded."""
        parts = [part.contiguous(memory_format=LAYOUT) for part in parts]
        if not has_live_statistics(self.backbone):
            return list(network(torch.cat(parts)).split([len(part) for part in parts]))
        real = parts[:-1] if last_is_sampled else parts
        features = [network(part) for part in real]
        if last_is_sampled:
            with unrecorded_statistics(self.backbone):
                features.append(network(parts[-1]))
        return features
