"""Heads: features → energies and logits. One signature: (classes, dim, scale, priors)."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc import core
from gmmc.base.precision import full_precision


class Head(nn.Module, ABC):
    """Unit energies of every class; γ² and the class priors are estimates, stored beside them."""

    has_means: ClassVar[bool] = True
    fixed_means: ClassVar[bool] = False  # equiangular, which needs C − 1 features; nothing in the head learns
    means: Any  # μ as a tensor or parameter, None where there are no means
    priors: Tensor  # that labels of chains are drawn from
    gamma2: Tensor

    def __init__(self, classes: int, dim: int, scale: float, priors: Tensor | None = None):
        super().__init__()
        uniform = torch.full((classes,), 1 / classes)
        self.register_buffer("priors", uniform if priors is None else priors.float())
        self.register_buffer("gamma2", torch.ones(()))

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of features in which the classes differ; what is beyond them has mean 0 in every class."""

    @abstractmethod
    def unit_energies(self, features: Tensor) -> Tensor:
        """(B, d) → (B, C): what training descends; γ² has no part in it."""

    def unit_energy(self, features: Tensor, labels: Tensor) -> Tensor:
        """(B,): the energy of each image with its label."""
        return self.unit_energies(features).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def marginal_energy(self, features: Tensor, labels: Tensor) -> Tensor:
        """(B,): E(x) = −log Σ_y exp(−E(x, y)), at γ = 1; the labels are ignored."""
        return -core.log_density(self.logits_at(features, 1.0))

    def guided_energy(self, features: Tensor, goal: Tensor) -> Tensor:
        """(B, d), (B, 3) → (B,): see `core.guided_energy`; a goal is a label, γ² and the guidance w."""
        labels, gamma2, guidance = goal.unbind(-1)
        logits = self.logits_at(features, gamma2.unsqueeze(-1))
        return core.guided_energy(logits, labels.long(), gamma2, guidance)

    @abstractmethod
    def logits_of(self, unit_energies: Tensor, gamma2: Tensor | float) -> Tensor:
        """(B, C) → (B, C), the energies negated and divided by γ²."""

    def logits_at(self, features: Tensor, gamma2: Tensor | float) -> Tensor:
        """(B, d) → (B, C)."""
        return self.logits_of(self.unit_energies(features), gamma2)

    def forward(self, features: Tensor) -> Tensor:
        return self.logits_at(features, self.gamma2)


class MeansHead(Head):
    """E(x, y) = ½‖φ − μ_y‖²  (Eq. 4)."""

    means: Tensor

    @property
    def dim(self) -> int:
        return self.means.shape[-1]

    def unit_energies(self, features: Tensor) -> Tensor:
        return core.unit_energies(features, self.means)

    def unit_energy(self, features: Tensor, labels: Tensor) -> Tensor:
        return core.unit_energy(features, self.means[labels])

    def logits_of(self, unit_energies: Tensor, gamma2: Tensor | float) -> Tensor:
        """−‖φ − μ_y‖²/2γ² for every class, with the priors."""
        return core.mahalanobis_logits(unit_energies, gamma2, self.priors)


class MMCHead(MeansHead):
    """Fixed equiangular means (Alg. 2)."""

    fixed_means = True

    def __init__(self, classes: int, dim: int, scale: float, priors: Tensor | None = None):
        super().__init__(classes, dim, scale, priors)
        self.register_buffer("means", core.simplex_means(classes, dim, scale))


class LDAHead(MeansHead):
    """Learned means, the "regular LDA" of section 3. They start in random directions, about S long."""

    def __init__(self, classes: int, dim: int, scale: float, priors: Tensor | None = None):
        super().__init__(classes, dim, scale, priors)
        self.means = nn.Parameter(torch.randn(classes, dim) * scale / dim**0.5)


class LinearHead(Head):
    """The usual softmax layer; its outputs, negated, are the energies. Its bias learns the priors."""

    has_means = False
    means = None

    def __init__(self, classes: int, dim: int, scale: float, priors: Tensor | None = None):
        super().__init__(classes, dim, scale, priors)
        self.linear = nn.Linear(dim, classes)

    @property
    def dim(self) -> int:
        return self.linear.in_features

    def unit_energies(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):  # energies stay in full precision
            x = full_precision(features)[..., : self.dim]
            energies = -F.linear(x, self.linear.weight.to(x.dtype), self.linear.bias.to(x.dtype))
            if features.shape[-1] == self.dim:
                return energies
            return energies + core.rest_energy(features, x).unsqueeze(-1)

    def logits_of(self, unit_energies: Tensor, gamma2: Tensor | float) -> Tensor:
        return -unit_energies / gamma2


HEADS: dict[str, type[Head]] = {
    "mmc": MMCHead,
    "lda": LDAHead,
    "linear": LinearHead,
}
