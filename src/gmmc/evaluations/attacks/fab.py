"""Targeted FAB (Croce & Hein 2020): the nearest image across the linearised boundary to one other class."""

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.evaluations.attacks.gradient import differentiate
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat, per_image

STEPS = 100
BIAS = 0.1  # largest weight of the projection from the original image
OVERSHOOT = 1.05  # beyond the linearised boundary
BACKWARD = 0.9  # fraction of the way from the original image at which the search resumes after a success


def fab(
    target: Target, x: Tensor, y: Tensor, goal: Tensor, threat: Threat, steps: int = STEPS
) -> tuple[Tensor, Tensor]:
    """Minimise the distance of misclassified images to x, in the norm of the threat.

    Returns the nearest misclassified images and their distances (N,); where there is none, x and infinity.
    """

    def gap(logits: Tensor) -> Tensor:
        return (logits.gather(1, goal[:, None]) - logits.gather(1, y[:, None])).squeeze(1)

    point = nearest = x
    distances = torch.full((len(x),), float("inf"), dtype=torch.float64, device=x.device)
    for _ in range(steps):
        _, gaps, normal = differentiate(target, gap, point)
        from_point = step_to_boundary(point, normal, -gaps, threat)
        # The same hyperplane, seen from the original image.
        beyond = (normal.double() * (point - x)).flatten(1).sum(1) - gaps
        from_x = step_to_boundary(x, normal, beyond, threat)
        lengths = [threat.length(step).clamp(min=1e-8) for step in (from_point, from_x)]
        bias = per_image((lengths[0] / (lengths[0] + lengths[1])).clamp(max=BIAS).to(x))
        point = (1 - bias) * (point + OVERSHOOT * from_point) + bias * (x + OVERSHOOT * from_x)
        point = point.clamp(0, 1)

        with torch.no_grad():
            wrong = target(point).argmax(1) != y
        reached = threat.distance(point, x)
        nearer = wrong & (reached < distances)
        nearest = torch.where(per_image(nearer), point, nearest)
        distances = torch.where(nearer, reached, distances)
        point = torch.where(per_image(wrong), x + BACKWARD * (point - x), point)
    return nearest, distances


def step_to_boundary(x: Tensor, normal: Tensor, missing: Tensor, threat: Threat) -> Tensor:
    """Shortest d with ⟨normal, d⟩ = missing and x + d in [0, 1]; as near as the box allows if there is none.

    Each pixel moves at a speed of its own, 1 for L∞ and |normal| for L2, until it meets its edge of the box.
    ⟨normal, d⟩ then grows with time, in pieces that are linear between two such meetings.
    """
    pixels, normals = x.double().flatten(1), normal.double().flatten(1)
    direction = normals.sign() * missing.double().sign()[:, None]
    slope, way = normals.abs(), missing.double().abs()[:, None]
    room = torch.where(direction > 0, 1 - pixels, pixels) * (slope > 0)
    speed = slope if threat.norm == "l2" else (slope > 0).double()
    arrival = torch.where(slope > 0, room / speed, 0.0)

    times, order = arrival.sort(dim=1)
    # After k arrivals: what the pixels at rest have gained, and what the others gain per unit of time.
    gained = F.pad((slope * room).gather(1, order).cumsum(1), (1, 0))
    rates = F.pad((slope * speed).gather(1, order).flip(1).cumsum(1).flip(1), (0, 1))
    arrived = (gained[:, 1:] + rates[:, 1:] * times < way).sum(1, keepdim=True)
    rest, rate = gained.gather(1, arrived), rates.gather(1, arrived)
    time = torch.where(rate > 0, (way - rest) / rate, times[:, -1:])
    return (direction * torch.minimum(time * speed, room)).to(x).view_as(x)
