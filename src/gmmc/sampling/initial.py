"""Where chains begin: uniform noise (the paper), normal noise, or the Gaussian of a class's pixels."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gmmc.base.seeds import derived_seed
from gmmc.networks.cosines import Cosines
from gmmc.pixels import Shape, to_signed
from gmmc.sampling.samplers import BOX, Noise

if TYPE_CHECKING:
    from gmmc.data.splits import LabelledImages


class UniformStart(nn.Module):
    """x′_0 ~ U(−1, 1)."""

    name = "uniform noise"

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def fit(self, data: "LabelledImages") -> None:
        """Do nothing: it is the same for all data."""

    def forward(self, labels: Tensor, noise: Noise) -> Tensor:
        return noise.uniform(*self.shape) * 2 - 1


class NoiseStart(nn.Module):
    """x′_0 = 0, to which `heun` adds its noise."""

    name = "normal noise"

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape

    def fit(self, data: "LabelledImages") -> None:
        """Do nothing: it is the same for all data."""

    def forward(self, labels: Tensor, noise: Noise) -> Tensor:
        return torch.zeros(len(labels), *self.shape, device=labels.device)


class GaussianStart(nn.Module):
    """x′_0 ~ a Gaussian fitted to the pixels of class y′, kept in the box.

    Images are written in cosines. Among the `detail`·`detail` coarsest of each channel the covariance is held
    by its `rank` largest principal directions; what they leave of each cosine's variance, and all of the
    finer ones' variance, is added independently; of the finer ones the mean is taken for zero. It takes
    kilobytes, not megabytes; with detail = 0 (all cosines) and rank ≥ number of pixels it is exact.
    """

    name = "Gaussian of the class's pixels"
    mean: Tensor
    directions: Tensor
    rest: Tensor

    def __init__(self, shape: Shape, classes: int, rank: int, detail: int = 0):
        super().__init__()
        self.shape = shape
        self.cosines = Cosines(shape)
        self.coarse = tuple(min(detail or size, size) for size in shape[1:])
        numbers = shape[0] * self.coarse[0] * self.coarse[1]
        self.register_buffer("mean", torch.zeros(classes, numbers))
        self.register_buffer("directions", torch.zeros(classes, min(rank, numbers), numbers))
        self.register_buffer("rest", torch.zeros(classes, *shape))

    @torch.no_grad()
    def fit(self, data: "LabelledImages") -> None:
        classes, rank, _ = self.directions.shape
        for y in range(classes):
            x = to_signed(data.images[data.labels == y].to(self.mean.device))
            if not len(x):  # of a part of the data; what was known of the class stays
                continue
            c = self.cosines(x)
            coarse = self._coarse(c).flatten(1)
            self.mean[y] = coarse.mean(0)
            scale = max(1, len(x) - 1) ** 0.5
            deviations = (coarse - self.mean[y]) / scale
            kept = min(rank, *deviations.shape)
            with torch.random.fork_rng([x.device] if x.is_cuda else []):
                torch.manual_seed(derived_seed("directions", y))  # svd_lowrank draws its test vectors
                _, size, directions = torch.svd_lowrank(deviations, q=kept, niter=4)
            self.directions[y, :kept] = (directions * size).mT
            variance = ((c - c.mean(0)) / scale).square().sum(0)
            self._coarse(variance).sub_(self.directions[y].square().sum(0).view(-1, *self.coarse))
            self.rest[y] = variance.clamp(min=0).sqrt()

    def forward(self, labels: Tensor, noise: Noise) -> Tensor:
        along = noise.normal(self.directions.shape[1])
        c = self.rest[labels] * noise.normal(*self.shape)
        coarse = self.mean[labels]
        for y in range(len(self.mean)):  # one product per class: a gathered batch of matrices would be huge
            coarse = coarse + (labels == y).unsqueeze(1) * (along @ self.directions[y])
        self._coarse(c).add_(coarse.unflatten(1, (-1, *self.coarse)))
        return self.cosines.inverse(c).clamp(*BOX)

    def _coarse(self, c: Tensor) -> Tensor:
        return c[..., : self.coarse[0], : self.coarse[1]]


InitialImages = UniformStart | NoiseStart | GaussianStart
