"""Cosines of images over channels, rows and columns (the DCT): of natural images nearly independent."""

import torch
from torch import Tensor, nn

from gmmc.base.limits import IMAGE_SIDE
from gmmc.errors import InputError
from gmmc.pixels import Shape

AXES = ("channel", "row", "column")


class Cosines(nn.Module):
    """Orthonormal cosines of images of one shape, from coarse to fine along each axis."""

    def __init__(self, shape: Shape):
        super().__init__()
        if max(shape) > IMAGE_SIDE:
            needs = "buffer.start=gaussian and denoising.gaussian=fitted need"
            rule = f"{needs} at most {IMAGE_SIDE} numbers per side (limits.IMAGE_SIDE)"
            raise InputError(f"{rule}, got {max(shape)}")
        self.shape = shape
        if not torch.empty(0).is_meta:  # computing there would import torch's compiler
            self.fill_constants()

    def fill_constants(self) -> None:
        """Compute the cosines, which no file stores."""
        for axis, size in zip(AXES, self.shape, strict=True):
            self.register_buffer(axis, cosines(size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (B, channels, rows, columns) → cosines of the same shape."""
        return self._transformed(x, inverse=False)

    def inverse(self, c: Tensor) -> Tensor:
        """Cosines → pixels."""
        return self._transformed(c, inverse=True)

    def _transformed(self, x: Tensor, *, inverse: bool) -> Tensor:
        for place, axis in enumerate(AXES, start=-len(AXES)):
            basis = self.get_buffer(axis).to(x.dtype)
            x = (x.movedim(place, -1) @ (basis if inverse else basis.mT)).movedim(-1, place)
        return x


def cosines(size: int) -> Tensor:
    """The orthonormal cosines on `size` places, a row each, from coarse to fine (DCT-II).

    On three channels: brightness, red against blue, green against both.
    """
    place, frequency = torch.arange(size).double() + 0.5, torch.arange(size).double()
    waves = torch.cos(torch.pi / size * frequency[:, None] * place)
    return (waves / waves.norm(dim=1, keepdim=True)).float()
