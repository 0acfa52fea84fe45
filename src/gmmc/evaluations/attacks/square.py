"""Square (Andriushchenko et al. 2020): random search with shrinking squares; it sees no gradient."""

from functools import cache

import torch
from torch import Tensor

from gmmc.evaluations.attacks.target import Target, margin
from gmmc.evaluations.attacks.threats import Threat, per_image

FIRST_AREA = 0.8  # of the image
HALVINGS = 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000  # queries after which the area is halved
TILES = 5  # per axis, of the L2 start

Window = tuple[slice, slice, slice, slice]


def square(
    target: Target, x: Tensor, y: Tensor, threat: Threat, queries: int, source: torch.Generator
) -> Tensor:
    """Raise the margin of the other classes with at most this many evaluations per image.

    An image rests once it is misclassified. All images of a batch share the place of a square, not its signs.
    """
    begin, change = (stripes, paint) if threat.norm == "linf" else (tiles, shift)
    moved = begin(x, threat.eps, source)
    margins = observe(target, moved, y)
    for query in range(queries - 1):
        left = (margins <= 0).nonzero().flatten()
        if len(left) == 0:
            break
        side = side_at(query, threat, x)
        best, highest = moved[left], margins[left]
        candidates = change(x[left], best, threat.eps, side, source)
        reached = observe(target, candidates, y[left])
        better = reached > highest
        moved[left] = torch.where(per_image(better), candidates, best)
        margins[left] = torch.where(better, reached, highest)
    return moved


@torch.no_grad()
def observe(target: Target, x: Tensor, y: Tensor) -> Tensor:
    return margin(target(x).float(), y)


def side_at(query: int, threat: Threat, x: Tensor) -> int:
    """Pixels; an odd number of at least three for L2, whose squares have a centre."""
    height, width = x.shape[2:]
    area = FIRST_AREA / 2 ** sum(query > halving for halving in HALVINGS)
    side = max(round((area * height * width) ** 0.5), 1)
    if threat.norm == "l2":
        side = max(side, 3) // 2 * 2 + 1
    return min(side, height, width)


def window_at_random(x: Tensor, side: int, source: torch.Generator) -> Window:
    top, left = (int(torch.randint(size - side + 1, (), generator=source)) for size in x.shape[2:])
    return (slice(None), slice(None), slice(top, top + side), slice(left, left + side))


def random_signs(x: Tensor, source: torch.Generator, width: int = 1) -> Tensor:
    """(N, channels, 1, width), on the device of x."""
    return (torch.randint(2, (*x.shape[:2], 1, width), generator=source) * 2 - 1).to(x)


# --- L∞: every pixel at ±ε ------------------------------------------------------------------------


def stripes(x: Tensor, eps: float, source: torch.Generator) -> Tensor:
    return (x + eps * random_signs(x, source, x.shape[3])).clamp(0, 1)


def paint(x: Tensor, moved: Tensor, eps: float, side: int, source: torch.Generator) -> Tensor:
    """One square in one sign per channel."""
    window = window_at_random(x, side, source)
    candidates = moved.clone()
    candidates[window] = (x[window] + eps * random_signs(x, source)).clamp(0, 1)
    return candidates


# --- L2: all of ε in use, shifted from square to square -------------------------------------------


def tiles(x: Tensor, eps: float, source: torch.Generator) -> Tensor:
    """A bump of random sign and orientation in every tile."""
    height, width = x.shape[2:]
    side = max(min(height, width) // TILES, 1)
    noise = torch.zeros_like(x)
    for top in range(height % side // 2, height - side + 1, side):
        for left in range(width % side // 2, width - side + 1, side):
            noise[:, :, top : top + side, left : left + side] = random_bump(x, side, source)
    return (x + eps * noise / norms(noise)).clamp(0, 1)


def shift(x: Tensor, moved: Tensor, eps: float, side: int, source: torch.Generator) -> Tensor:
    """Empty one square and give its energy, and all that is unused, to another."""
    noise = moved - x
    receiver, giver = (window_at_random(x, side, source) for _ in range(2))
    candidates = noise.clone()
    candidates[giver] = 0
    candidates[receiver] = 0
    taken = (noise - candidates).square().sum((2, 3), keepdim=True)  # per channel
    unused = (eps**2 - noise.square().sum((1, 2, 3), keepdim=True)).clamp(min=0)
    shape = random_bump(x, side, source) + unit(noise[receiver])
    candidates[receiver] = unit(shape) * (unused / x.shape[1] + taken).sqrt()
    return (x + eps * candidates / norms(candidates)).clamp(0, 1)


def random_bump(x: Tensor, side: int, source: torch.Generator) -> Tensor:
    """(N, channels, side, side) of norm 1 per channel: one orientation, a sign per image and channel."""
    upright = bool(torch.randint(2, (), generator=source))
    shape = bump(side) if upright else bump(side).T
    return shape.to(x) * random_signs(x, source)


@cache
def bump(side: int) -> Tensor:
    """A hill above a hollow, of norm 1."""
    both = torch.cat([hill(side // 2, side), -hill(side - side // 2, side)])
    return both / both.norm()


def hill(height: int, width: int) -> Tensor:
    """Σ 1/k² over the square rings from a pixel's own, counted from the centre, to the outermost."""
    rows, columns = ((torch.arange(size) - size // 2).abs() for size in (height, width))
    rings = torch.maximum(rows[:, None], columns)
    steps = 1 / torch.arange(1, max(height, width) // 2 + 2).square()
    levels = steps.flip(0).cumsum(0).flip(0)[rings]
    return levels / levels.norm()


def unit(noise: Tensor) -> Tensor:
    """Norm 1 per channel, where it is not zero."""
    return noise / noise.square().sum((2, 3), keepdim=True).sqrt().clamp(min=1e-12)


def norms(noise: Tensor) -> Tensor:
    return noise.square().sum((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-12)
