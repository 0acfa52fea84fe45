"""A Gaussian term of E(x, y; σ) that knows in which directions the data vary most.

With σ_d for all directions, the Gaussian term of noise.py takes images for white noise, and the network has
to learn at every σ that coarse patterns vary more. Here c_k(x) are coordinates of an image in orthonormal
directions: principal ones of its coarse cosines, and each of the finer cosines.

    E(x, y; σ) = Σ_k c_k(x)²/2(σ² + v_k) + ½‖φ(u) − μ_y‖²/γ²,   v_k = max(σ_d², mean of c_k² over the data)

D(x; σ) is that of noise.py, with F + G·u in place of F:

    G·u = Σ_k g_k·c_k(u)·direction_k,   g_k = (σ/σ_d)·(v_k − σ_d²)/(σ² + v_k)

G is linear and the same for all classes: p(y|x; σ) does not change. v_k ≥ σ_d² leaves fine patterns, which
vary little, as they were: they are the network's task. Training fits v and the directions once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.errors import InputError
from gmmc.networks.cosines import Cosines
from gmmc.pixels import Shape, to_signed

COARSE = 8  # cosines per side that are correlated with each other
AT_ONCE = 1000  # images
ORTHONORMAL = 1e-3  # error of products of directions


class GaussianTerm(nn.Module):
    """Directions and variances v_k, and what follows from them. u = c_in·x; σ per image, (B, 1, 1, 1)."""

    excess: Tensor  # v_k − σ_d², of the shape of an image
    directions: Tensor  # of the coarse cosines, a row each

    def __init__(self, shape: Shape, sigma_data: float):
        super().__init__()
        self.sigma_data = sigma_data
        self.cosines = Cosines(shape)
        channels, *sides = shape
        self.coarse = tuple(min(COARSE, side) for side in sides)
        self.register_buffer("excess", torch.zeros(shape))
        count = channels * self.coarse[0] * self.coarse[1]
        self.register_buffer("directions", torch.zeros(count, count).fill_diagonal_(1))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Set v_k and the directions by these images, uint8 or in [0, 1]."""
        squares = torch.zeros_like(self.excess, dtype=torch.float64)
        products = torch.zeros_like(self.directions, dtype=torch.float64)
        for part in images.split(AT_ONCE):
            c = self.cosines(to_signed(part.to(squares.device))).double()
            squares += c.square().sum(0)
            coarse = self._coarse(c).flatten(1)
            products += coarse.T @ coarse
        values, vectors = torch.linalg.eigh(products)
        self._coarse(squares).copy_(values.view_as(self._coarse(squares)))
        self.directions.copy_(vectors.T)
        self.excess.copy_((squares / len(images) - self.sigma_data**2).clamp(min=0))

    def check_values(self) -> None:
        """Refuse values that no fit gives, and that densities would be wrong with."""
        if not (self.excess >= 0).all():
            raise InputError(f"gaussian.excess must be at least 0, got {self.excess.min():g}")
        products = self.directions @ self.directions.T
        error = (products - torch.eye(len(products)).to(products)).abs().max()
        if error > ORTHONORMAL:
            raise InputError(f"gaussian.directions must be orthonormal, got products off by {error:g}")

    def force(self, u: Tensor, level: Tensor) -> Tensor:
        """G·u, the part of F that is not the network's."""
        variance = self.excess + self.sigma_data**2
        share = (level / self.sigma_data) * self.excess / (level.square() + variance)
        c = share.to(u) * self.coordinates(u)
        return self.cosines.inverse(self._turned(c, self.directions.T))

    def radius(self, u: Tensor, level: Tensor) -> Tensor:
        """ρ = √γ²·√(Σ_k c_k(x)²/(σ² + v_k)), (B, 1): the feature of this term, as `noise.radius`."""
        total = level.square() + self.sigma_data**2
        weighted = self.coordinates(u) * (total / (total + self.excess)).sqrt().to(u)
        return (level.flatten(1) / self.sigma_data).sqrt() * weighted.flatten(1).norm(dim=1, keepdim=True)

    def coordinates(self, x: Tensor) -> Tensor:
        """c_k(x), of the shape of the images."""
        return self._turned(self.cosines(x), self.directions)

    def _turned(self, c: Tensor, basis: Tensor) -> Tensor:
        """Coarse cosines in another basis, the finer ones as they are."""
        coarse = self._coarse(c)
        change = (coarse.flatten(1) @ basis.T.to(c)).view_as(coarse) - coarse
        height, width = self.cosines.shape[1:]
        return c + F.pad(change, (0, width - self.coarse[1], 0, height - self.coarse[0]))

    def _coarse(self, c: Tensor) -> Tensor:
        return c[..., : self.coarse[0], : self.coarse[1]]
