"""C&W's L2 attack (Carlini & Wagner 2017): the smallest perturbation it can find, not one within a bound."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc.evaluations.attacks.target import ROUNDING, Target, margin

PATIENCE = 0.1  # of the iterations: an attempt that did not get better for so long is given up
INSIDE = 1 - 1e-6  # tanh reaches 0 and 1 at infinity only


@dataclass(frozen=True)
class CarliniWagner:
    """min ‖x′ − x‖² + c·max(margin, −κ), x′ = (tanh w + 1)/2, by Adam; c by bisection for each image.

    The margin is that of the logits times γ², φᵀμ where the priors are equal: it does not saturate.
    """

    iterations: int
    targeted: bool
    search_steps: int = 9
    learning_rate: float = 0.01
    first_c: float = 0.01
    confidence: float = 0.0

    @property
    def cost(self) -> int:
        return self.iterations * self.search_steps

    def attack(
        self,
        target: Target,
        x: Tensor,
        y: Tensor,
        goals: Tensor,
        on_progress: Callable[[int], object] = lambda searched: None,
    ) -> Tensor:
        """The nearest image that each of x could be turned into, x itself where none was found.

        `goals` are the classes to reach, of a targeted attack.
        """
        count = len(x)
        low = torch.zeros(count, device=x.device)
        high = torch.full_like(low, float("inf"))
        c = torch.full_like(low, self.first_c)
        nearest = torch.full_like(low, float("inf"))
        found = x.clone()
        for searched in range(self.search_steps):
            on_progress(searched)
            reached = self._descend(target, x, y, goals, c, nearest, found)
            high = torch.where(reached, torch.minimum(high, c), high)
            low = torch.where(reached, low, torch.maximum(low, c))
            c = torch.where(high.isinf(), c * 10, (low + high) / 2)
        return found

    def _descend(
        self, target: Target, x: Tensor, y: Tensor, goals: Tensor, c: Tensor, nearest: Tensor, found: Tensor
    ) -> Tensor:
        """One descent with this c; better images go into `found`. Gives which images reached their goal."""
        at = torch.atanh((x * 2 - 1) * INSIDE)
        w = at.clone().requires_grad_(True)
        optimizer = torch.optim.Adam([w], lr=self.learning_rate)
        reached = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        start, best, waited = w.detach().tanh() / 2 + 0.5, float("inf"), 0
        for _ in range(self.iterations):
            moved = w.tanh() / 2 + 0.5
            view = target.view(moved)
            logits = view.logits() * view.gamma2
            over = -margin(logits, goals) if self.targeted else margin(logits, y)
            # From the image as tanh rounds it, like the authors; the distance that counts is exact.
            distances = (moved - start).square().flatten(1).sum(1)
            short = (self.confidence - over).clamp(min=0)
            loss = (distances + c * short).sum()
            with torch.no_grad():
                done = over > self.confidence + ROUNDING * logits.abs().amax(1)
                exact = (moved - x).double().flatten(1).norm(dim=1).float()
                better = done & (exact < nearest)
                nearest[better], found[better] = exact[better], moved[better]
                reached |= done
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            waited += 1
            if waited >= max(1, int(PATIENCE * self.iterations)):
                value = loss.item()
                if value > 0.9999 * best:
                    break
                best, waited = value, 0
        return reached
