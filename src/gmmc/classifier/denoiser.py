"""The denoiser of a noise-conditional model: F(u; σ) and D(x; σ) = c_skip·x + c_out·F (noise.py)."""

import torch
from torch import Tensor

from gmmc import noise
from gmmc.networks.heads import Head
from gmmc.sampling.samplers import WITHOUT_CLASS, Gradient, force


class Denoiser:
    """F and D of noisy images in [−1, 1], without a class: of the marginal energy E(x; σ).

    Parameters
    ----------
    head : Head
        Head of the model.
    sigma_data : float
        σ_d of the model.
    gradient : Gradient
        Gradient of energies of the backbone, see `sampling.engine.new_gradient`.
    """

    def __init__(self, head: Head, sigma_data: float, gradient: Gradient):
        self.head, self.sigma_data, self.gradient = head, sigma_data, gradient

    def force(self, u: Tensor, level: Tensor) -> Tensor:
        """F(u; σ) of scaled images u = c_in·x, with the σ of each image, (B, 1, 1, 1)."""
        gamma2 = level.flatten() / self.sigma_data
        goal = torch.stack([torch.zeros_like(gamma2), gamma2, torch.full_like(gamma2, WITHOUT_CLASS)], 1)
        return force(self.gradient, self.head.guided_energy, u, level, goal)

    def denoised(self, x: Tensor, level: Tensor) -> Tensor:
        """D(x; σ), the estimate of the images without noise."""
        scales = noise.scales(level, self.sigma_data)
        return scales.skip * x + scales.out * self.force(scales.into * x, level)
