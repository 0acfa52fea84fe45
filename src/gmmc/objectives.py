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
    count = len(x)
    if sampled is not None:  # one pass for both
        x, y = torch.cat([x, sampled[0]]), torch.cat([y, sampled[1]])
    features = model.backbone(x)
    energies = model.head.unit_energy(features, y)
    correct = model.head(features[:count].detach()).argmax(-1) == y[:count]
    if sampled is None:
        return Outcome(energies.mean(), energies, None, correct)
    loss = energies[:count].mean() - beta * energies[count:].mean()
    return Outcome(loss, energies[:count], energies[count:], correct)
