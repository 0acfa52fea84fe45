"""What an update minimises. One signature: (model, real pair, sampled pair or None, …) → Outcome."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.models import Classifier


@dataclass(frozen=True)
class Outcome:
    loss: Tensor
    real: Tensor  # unit energies of real images, (B,)
    sampled: Tensor | None  # unit energies of sampled images; None where β = 0
    correct: Tensor  # whether each real image is assigned its class


def gmmc(
    model: Classifier,
    real: tuple[Tensor, Tensor],
    sampled: tuple[Tensor, Tensor] | None,
    *,
    beta: float,
) -> Outcome:
    """mean E(x, y) − β·mean E(x′, y′): the gradient of Eq. 5 at β = 0, of Eq. 7 above.

    Energies are unit energies. The paper divides both by γ², a constant that Adam cancels; α, defined on
    the unit energy, is where the energy's scale is chosen.
    """
    x, y = real
    if sampled is None:
        features = model.backbone(x)
        energies = model.head.unit_energy(features, y)
        return Outcome(energies.mean(), energies, None, _correct(model, features, y))

    x_sampled, y_sampled = sampled
    both = model.backbone(torch.cat([x, x_sampled]))
    features, features_sampled = both[: len(x)], both[len(x) :]
    energies = model.head.unit_energy(features, y)
    sampled_energies = model.head.unit_energy(features_sampled, y_sampled)
    loss = energies.mean() - beta * sampled_energies.mean()
    return Outcome(loss, energies, sampled_energies, _correct(model, features, y))


def _correct(model: Classifier, features: Tensor, y: Tensor) -> Tensor:
    return model.head(features.detach()).argmax(-1) == y
