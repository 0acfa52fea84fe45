"""Where chains begin: uniform noise (the paper) or the Gaussian of a class's pixels."""

import torch
from torch import Tensor, nn

from gmmc.data import LabelledImages
from gmmc.pixels import Shape, to_signed
from gmmc.randomness import derived_seed
from gmmc.sampling import BOX, Noise


class UniformStart(nn.Module):
    """x′_0 ~ U(−1, 1)."""

    name = "uniform noise"

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def forward(self, labels: Tensor, noise: Noise) -> Tensor:
        return noise.uniform(*self.shape) * 2 - 1


class GaussianStart(nn.Module):
    """x′_0 ~ N(mean, covariance) of the pixels of class y′, kept in the box.

    The covariance is held by its `rank` largest principal directions; what they leave of each pixel's
    variance is added as independent noise. With rank ≥ number of pixels it is exact.
    """

    name = "Gaussian of the class's pixels"
    mean: Tensor
    directions: Tensor
    rest: Tensor

    def __init__(self, shape: Shape, classes: int, rank: int):
        super().__init__()
        self.shape = shape
        pixels = shape[0] * shape[1] * shape[2]
        self.register_buffer("mean", torch.zeros(classes, pixels))
        self.register_buffer("directions", torch.zeros(classes, min(rank, pixels), pixels))
        self.register_buffer("rest", torch.zeros(classes, pixels))

    @torch.no_grad()
    def fit(self, data: LabelledImages) -> None:
        classes, rank, _ = self.directions.shape
        for y in range(classes):
            x = to_signed(data.images[data.labels == y].to(self.mean.device)).flatten(1)
            self.mean[y] = x.mean(0)
            deviations = (x - self.mean[y]) / max(1, len(x) - 1) ** 0.5
            kept = min(rank, *deviations.shape)
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                torch.manual_seed(derived_seed("directions", y))  # svd_lowrank draws its test vectors
                _, size, directions = torch.svd_lowrank(deviations, q=kept, niter=4)
            self.directions[y, :kept] = (directions * size).mT
            explained = self.directions[y].square().sum(0)
            self.rest[y] = (deviations.square().sum(0) - explained).clamp(min=0).sqrt()

    def forward(self, labels: Tensor, noise: Noise) -> Tensor:
        along = noise.normal(self.directions.shape[1])
        beside = noise.normal(self.mean.shape[1])
        x = self.mean[labels] + self.rest[labels] * beside
        for y in range(len(self.mean)):  # one product per class: a gathered batch of matrices would be huge
            x = x + (labels == y).unsqueeze(1) * (along @ self.directions[y])
        return x.clamp(*BOX).unflatten(1, self.shape)
