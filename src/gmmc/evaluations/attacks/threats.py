"""What an attacker may do: move an image by at most ε, in pixels of [0, 1]."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# A perturbation is stored as the attacked image in float32: near 1 that rounds by 6e-8.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Threat:
    norm: Literal["linf", "l2"]
    eps: float

    @classmethod
    def linf(cls, pixels: float) -> "Threat":
        """In 255ths, as the literature counts."""
        return cls("linf", pixels / 255)

    @property
    def name(self) -> str:
        """linf_8 is 8/255, l2_0.5 is 0.5."""
        return f"linf_{self.eps * 255:g}" if self.norm == "linf" else f"l2_{self.eps:g}"

    def distance(self, moved: Tensor, images: Tensor) -> Tensor:
        """(N,) in the norm of this threat."""
        return self.length(moved - images)

    def length(self, difference: Tensor) -> Tensor:
        """(N,) in the norm of this threat, float64."""
        flat = difference.double().flatten(1)
        return flat.abs().amax(1) if self.norm == "linf" else flat.norm(dim=1)

    def allows(self, moved: Tensor, images: Tensor) -> Tensor:
        """(N,): whether each is an image, and no further away than ε."""
        valid = moved.isfinite() & (moved >= 0) & (moved <= 1)
        return valid.flatten(1).all(1) & (self.distance(moved, images) <= self.eps + ROUNDING)

    def project(self, moved: Tensor, images: Tensor) -> Tensor:
        """The allowed image near each: into the ball, then into [0, 1], which leads not out of it."""
        difference = moved - images
        if self.norm == "linf":
            inside = difference.clamp(-self.eps, self.eps)
        else:
            norms = _norms(difference)
            inside = difference * (self.eps / norms.clamp(min=self.eps))
        return (images + inside).clamp(0, 1)

    def ascend(self, x: Tensor, gradient: Tensor, size: float | Tensor) -> Tensor:
        """The steepest step of this size, one for all or (N, 1, 1, 1).

        A gradient of zero gives none: nothing is made up.
        """
        if self.norm == "linf":
            return x + size * gradient.sign()
        largest = per_image(gradient.flatten(1).abs().amax(1))
        scaled = gradient / largest.where(largest > 0, 1)  # squares of tiny gradients would underflow
        return x + size * scaled / _norms(scaled).clamp(min=1e-12)

    def random(self, images: Tensor, source: torch.Generator) -> Tensor:
        """Somewhere in the ball, uniformly."""
        if self.norm == "linf":
            noise = torch.rand(images.shape, generator=source).to(images) * 2 - 1
            return (images + self.eps * noise).clamp(0, 1)
        direction = torch.randn(images.shape, generator=source).to(images)
        radius = torch.rand(len(images), 1, 1, 1, generator=source).to(images)
        radius = radius ** (1 / images[0].numel())
        return (images + self.eps * radius * direction / _norms(direction)).clamp(0, 1)

    def random_edge(self, images: Tensor, source: torch.Generator) -> Tensor:
        """A random direction at length ε, clipped to [0, 1]."""
        if self.norm == "linf":
            noise = torch.rand(images.shape, generator=source) * 2 - 1
        else:
            noise = torch.randn(images.shape, generator=source)
        noise = noise.to(images)
        return (images + self.eps * noise / per_image(self.length(noise)).to(images)).clamp(0, 1)


def per_image(values: Tensor) -> Tensor:
    """(N,) as (N, 1, 1, 1), to be combined with images."""
    return values[:, None, None, None]


def _norms(x: Tensor) -> Tensor:
    return per_image(x.flatten(1).norm(dim=1))
