"""Attacks that follow a gradient on the image: PGD as the paper has it, and with losses that never saturate.

A class whose mean is far nearer than all others has a posterior of 1 in float32: its cross-entropy has a
gradient of exactly zero and PGD stays where it is, though the network is not robust at all. The margin of two
logits, the distance to another mean and that to another image's features have a gradient everywhere.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.base.precision import full_precision
from gmmc.evaluations.attacks.target import Target, View, margin
from gmmc.evaluations.attacks.threats import Threat

LOOK_EVERY = 10  # steps after which images that are broken are left alone; looking waits for the device

# (view of some images, which of the batch they are) → what to raise, per image
Loss = Callable[[View, Tensor], Tensor]


class Attack(Protocol):
    """`tries` attempts at each image; the next is made on the images that the ones before did not break."""

    @property
    def tries(self) -> int: ...

    @property
    def cost(self) -> int:
        """Gradients (or as many forward passes as take their time) of one attempt at an image."""
        ...

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor: ...


# --- PGD as printed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaperPGD:
    """PGD on the cross-entropy at the paper's γ² (Table 5); the last image counts.

    The size of a step, ε/30, and the random start are those of foolbox, which JEM and the paper used.
    """

    steps: int = 40
    relative_size: float = 1 / 30
    random_start: bool = True
    tries: int = 1

    @property
    def cost(self) -> int:
        return self.steps

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        moved = threat.random(x, source) if self.random_start else x
        for _ in range(self.steps):
            gradient = cross_entropy_gradient(target, moved, y)
            moved = threat.ascend(moved, gradient, self.relative_size * threat.eps)
            moved = threat.project(moved, x)
        return moved


def cross_entropy_gradient(target: Target, x: Tensor, y: Tensor) -> Tensor:
    """Gradient per image in float32 at the paper's γ², where most posteriors are exactly 1."""
    return gradient_of(lambda point: F.cross_entropy(target.paper_logits(point), y, reduction="sum"), x)


def gradient_of(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    point = x.detach().clone().requires_grad_(True)
    return _gradient(loss(point), point)


def differentiate(
    target: Target, loss: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (N, K), their losses (N,), both in float32, and the gradient of each loss at its image."""
    point = x.detach().clone().requires_grad_(True)
    logits = target(point).float()
    losses = loss(logits)
    return logits.detach(), losses.detach(), _gradient(losses.sum(), point)


def _gradient(value: Tensor, point: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(point)  # a network that does not look at its images
    (gradient,) = torch.autograd.grad(value, point, materialize_grads=True)
    return gradient.nan_to_num(0.0, 0.0, 0.0)  # an overflow points nowhere


# --- adaptive ones --------------------------------------------------------------------------------


def climb(
    target: Target,
    loss: Loss,
    threat: Threat,
    x: Tensor,
    y: Tensor,
    start: Tensor,
    steps: int,
    *,
    stop: bool = True,
) -> Tensor:
    """Steepest ascent with steps that shrink from ε/4 to nothing; with `stop`, an image rests once broken."""
    found = start.clone()
    rows = torch.arange(len(x), device=x.device)
    moved = start
    for step in range(steps + 1):
        broken = torch.zeros(len(rows), dtype=torch.bool, device=x.device)

        def total(point: Tensor, rows: Tensor = rows, broken: Tensor = broken) -> Tensor:
            view = target.view(point)
            broken.copy_(view.broken(y[rows]))
            return loss(view, rows).sum()

        gradient = gradient_of(total, moved)
        found[rows] = moved
        if step == steps:
            break
        size = threat.eps / 4 * (1 - step / steps)
        further = threat.project(threat.ascend(moved, gradient, size), x[rows])
        moved = torch.where(broken[:, None, None, None], moved, further) if stop else further
        if stop and step % LOOK_EVERY == LOOK_EVERY - 1:
            rows, moved = rows[~broken], moved[~broken]
            if len(rows) == 0:
                break
    return found


@dataclass(frozen=True)
class Adaptive(ABC):
    """The frame of the adaptive attacks; a subclass gives the loss of each attempt."""

    steps: int
    tries: int
    stop: bool = field(default=True, kw_only=True)  # at the first success; not where another model is meant

    @property
    def cost(self) -> int:
        return self.steps

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        start = x if number == 0 else threat.random(x, source)
        loss = self.loss(target, x, y, number)
        return climb(target, loss, threat, x, y, start, self.steps, stop=self.stop)

    @abstractmethod
    def loss(self, target: Target, x: Tensor, y: Tensor, number: int) -> Loss: ...


class Margin(Adaptive):
    """The margin between the largest other logit and the true one, φᵀμ_j − φᵀμ_y for means of one length."""

    def loss(self, target: Target, x: Tensor, y: Tensor, number: int) -> Loss:
        return lambda view, rows: margin(view.logits(), y[rows])


class Pull(Adaptive):
    """−½‖φ(x) − μ_j‖²: towards the mean of another class, the nearest first."""

    def loss(self, target: Target, x: Tensor, y: Tensor, number: int) -> Loss:
        with torch.no_grad():
            energies = target.view(x).energies.scatter(1, y[:, None], float("inf"))
        nearest = energies.argsort(1)
        goal = nearest[:, number % (nearest.shape[1] - 1)]
        return lambda view, rows: -view.energies.gather(1, goal[rows, None]).squeeze(1)


@dataclass(frozen=True)
class Temperatures(Adaptive):
    """Cross-entropy at temperatures that are not the model's own, in float64."""

    gamma2s: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)

    def loss(self, target: Target, x: Tensor, y: Tensor, number: int) -> Loss:
        gamma2 = self.gamma2s[number % len(self.gamma2s)]
        return lambda view, rows: F.cross_entropy(view.logits(gamma2), y[rows], reduction="none")


@dataclass(frozen=True)
class FeatureMatch(Adaptive):
    """−‖φ(x) − φ(x̂)‖² to a real image x̂ of another class, the nearest first."""

    guides: Tensor  # their features
    guide_labels: Tensor

    def loss(self, target: Target, x: Tensor, y: Tensor, number: int) -> Loss:
        with torch.no_grad():
            distances = torch.cdist(full_precision(target.view(x).features), full_precision(self.guides))
        distances = distances.masked_fill(self.guide_labels == y[:, None], float("inf"))
        goal = self.guides[distances.argsort(1)[:, number % len(self.guides)]]
        return lambda view, rows: -(view.features - goal[rows]).square().sum(1)


@dataclass(frozen=True)
class Transfer:
    """Adversarial images of another model, which knows nothing of this one: a black box."""

    surrogate: Target
    by: Attack

    @property
    def tries(self) -> int:
        return self.by.tries

    @property
    def cost(self) -> int:
        return self.by.cost

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        return self.by.attempt(self.surrogate, x, y, threat, number, source)
