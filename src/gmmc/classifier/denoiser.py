"""The denoiser of a noise-conditional model: F(u; σ), with D(x; σ) = c_skip·x + c_out·F (noise.py)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gmmc import noise
from gmmc.classifier.drawing import BLOCK
from gmmc.errors import InputError
from gmmc.networks.gaussian_term import GaussianTerm
from gmmc.networks.heads import Head
from gmmc.sampling import engine
from gmmc.sampling.samplers import WITHOUT_CLASS, Gradient, SeededNoise, force, goals

if TYPE_CHECKING:
    from gmmc.classifier.model import Classifier


class Regression(NamedTuple):
    """How F fits its target t, per image and averaged over the n numbers of an image, (B,) in float64."""

    loss: Tensor  # ‖F − t‖²/n
    zero_loss: Tensor  # ‖t‖²/n, the loss of F = 0
    product: Tensor  # ⟨F, t⟩/n
    power: Tensor  # ‖F‖²/n


class Denoiser:
    """F of noisy images in [−1, 1], without a class: of the marginal energy E(x; σ).

    Parameters
    ----------
    head : Head
        Head of the model.
    sigma_data : float
        σ_d of the model.
    gradient : Gradient
        Gradient of energies of the backbone, see `sampling.engine.new_gradient`.
    gaussian : GaussianTerm, default=None
        Gaussian term of the energy where its variances were fitted; None: σ_d² in all directions.
    """

    def __init__(
        self, head: Head, sigma_data: float, gradient: Gradient, gaussian: GaussianTerm | None = None
    ):
        self.head, self.sigma_data, self.gradient, self.gaussian = head, sigma_data, gradient, gaussian

    def force(self, u: Tensor, level: Tensor) -> Tensor:
        """F(u; σ) of scaled images u = c_in·x, with the σ of each image, (B, 1, 1, 1)."""
        labels = torch.zeros_like(level.flatten())  # of no effect
        goal = goals(labels, level, self.sigma_data, WITHOUT_CLASS)
        return force(self.gradient, self.head.guided_energy, u, level, goal, self.gaussian)

    def regression(self, clean: Tensor, x: Tensor, level: Tensor) -> Regression:
        """Compare F with its target t = (x₀ − c_skip·x)/c_out, for noisy versions x of clean images x₀."""
        scales = noise.scales(level, self.sigma_data)
        target = noise.target(clean, x, scales).double()
        found = self.force(scales.into * x, level).double()

        def mean(numbers: Tensor) -> Tensor:
            return numbers.flatten(1).mean(1)

        return Regression(
            mean((found - target).square()),
            mean(target.square()),
            mean(found * target),
            mean(found.square()),
        )


@torch.inference_mode(False)  # its copy of the weights takes part in gradients
def fast_denoiser(model: "Classifier") -> Denoiser:
    """Return the denoiser of a noise-conditional model on the engine that draws its samples, in fp32.

    It has a copy of the weights, unless the engine is "plain".
    """
    if model.denoising is None:
        rule = "a denoiser needs a model trained by denoising (train.algorithm=denoising)"
        raise InputError(f"{rule}, got one trained otherwise")
    asked = model.drawing.engine if model.drawing else "auto"
    gradient = engine.new_gradient(
        model.backbone, engine.choose_for_samples(asked, model.device), precision="fp32"
    )
    return Denoiser(model.head, model.denoising.sigma_data, gradient, model.gaussian)


@dataclass(frozen=True)
class Block:
    """Images that are computed at once, filled up to a fixed size with copies of the last one."""

    first: int  # place of the first image
    count: int  # number of images without the copies
    images: Tensor
    noise: SeededNoise  # one seed per image


def seeded_blocks(images: Tensor, seeds: Sequence[int], device: torch.device) -> Iterator[Block]:
    """Yield images in blocks of one size, so that an image's numbers do not depend on the other images."""
    size = BLOCK.get(device.type, 32)
    for first in range(0, len(images), size):
        places = [min(place, len(images) - 1) for place in range(first, first + size)]
        count = min(size, len(images) - first)
        source = SeededNoise([seeds[place] for place in places], device)
        yield Block(first, count, images[places].to(device), source)
