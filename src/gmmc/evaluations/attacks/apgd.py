"""APGD (Croce & Hein 2020): projected gradient ascent that adapts the size of its steps to each image."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.evaluations.attacks.gradient import differentiate
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat, per_image

STEPS = 100
FIRST_SIZE = 2.0  # in units of ε
MOMENTUM = 0.75  # weight of the gradient step; the rest continues the previous move
RISES = 0.75  # fraction of the steps of a window that must raise the loss to keep the step size
WINDOWS = 0.22, 0.06, 0.03  # fractions of all steps: first window, shortest window, decrease per window


def apgd(
    target: Target,
    loss: Callable[[Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    threat: Threat,
    start: Tensor,
    steps: int = STEPS,
) -> tuple[Tensor, Tensor]:
    """Maximise a loss of the logits (N, K) → (N,) within the threat around x.

    Returns the images, each the last misclassified one or else the one with the largest loss, and (N,)
    whether each was misclassified.
    """
    point = before = adversarial = best = start
    logits, losses, gradient = differentiate(target, loss, point)
    broken = logits.argmax(1) != y
    best_losses, best_gradient = losses, gradient
    size = torch.full_like(losses, FIRST_SIZE * threat.eps)
    halved, checked_losses = torch.ones_like(broken), losses
    # The reference compares the loss of the first step with zero, not with the loss of the start.
    rises, last_losses = torch.zeros_like(losses), torch.zeros_like(losses)
    ends = window_ends(steps)
    for step in range(1, steps + 1):
        ahead = threat.project(threat.ascend(point, gradient, per_image(size)), x)
        weight = 1.0 if step == 1 else MOMENTUM
        further = point + weight * (ahead - point) + (1 - weight) * (point - before)
        before, point = point, threat.project(further, x)

        logits, losses, gradient = differentiate(target, loss, point)
        wrong = logits.argmax(1) != y
        broken = broken | wrong
        adversarial = torch.where(per_image(wrong), point, adversarial)

        higher = losses > best_losses
        best = torch.where(per_image(higher), point, best)
        best_gradient = torch.where(per_image(higher), gradient, best_gradient)
        best_losses = torch.where(higher, losses, best_losses)
        rises = rises + (losses > last_losses)
        last_losses = losses

        if step in ends:
            if broken.all():
                break
            stalled = ~halved & (best_losses <= checked_losses)
            halved = (rises <= RISES * ends[step]) | stalled
            checked_losses, rises = best_losses, torch.zeros_like(rises)
            size = torch.where(halved, size / 2, size)
            point = torch.where(per_image(halved), best, point)
            gradient = torch.where(per_image(halved), best_gradient, gradient)
    return torch.where(per_image(broken), adversarial, best), broken


def window_ends(steps: int) -> dict[int, int]:
    """Step after which step sizes are reviewed → length of the window that ends there."""
    length, shortest, less = (max(int(fraction * steps), 1) for fraction in WINDOWS)
    ends, end = {}, length
    while end <= steps:
        ends[end] = length
        length = max(length - less, shortest)
        end += length
    return ends


# --- losses ---------------------------------------------------------------------------------------


def cross_entropy(y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda logits: F.cross_entropy(logits, y, reduction="none")


def targeted_dlr(y: Tensor, goal: Tensor) -> Callable[[Tensor], Tensor]:
    """Difference of the logits of goal and label, relative to the spread of the four largest logits."""

    def loss(logits: Tensor) -> Tensor:
        own, other = (logits.gather(1, classes[:, None]).squeeze(1) for classes in (y, goal))
        first, _, third, fourth = logits.topk(4, dim=1).values.unbind(1)
        return (other - own) / (first - (third + fourth) / 2 + 1e-12)

    return loss
