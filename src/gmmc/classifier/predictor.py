"""From logits to posteriors and classes, and the same weights at another γ²."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from gmmc import core
from gmmc.base.text import shortened
from gmmc.classifier.scores import Tempered, batched, check_finite
from gmmc.errors import InputError
from gmmc.pixels import Shape, as_batch

if TYPE_CHECKING:
    from gmmc.classifier.model import Classifier


class Predictor(nn.Module):
    """Logits as `forward` returns them, and the posterior and class that follow from them."""

    shape: Shape
    class_names: tuple[str, ...]
    bounded: ClassVar[bool] = True  # whether images outside of [0, 1] are refused

    def logits(self, images) -> Tensor:
        """Logits of any number of images at `gamma2`: arrays or tensors, uint8 or [0, 1]."""
        found = batched(self, self, as_batch(images, self.shape, bounded=self.bounded))
        check_finite(found.logsumexp(-1))  # a class may have −∞: its prior may be zero
        return found

    def predict_log_proba(self, images) -> Tensor:
        """log p(y|x)  (Eq. 11), calibrated as `predict_proba` is."""
        return core.log_posterior(self.logits(images))

    def predict_proba(self, images) -> Tensor:
        """p(y|x)  (Eq. 11) at `gamma2`, calibrated on validation images if the model has seen any.

        With the paper's γ², most probabilities are exactly 1: `model.at("paper").predict_proba(images)`.
        From files: `model.predict_proba(gmmc.read_images(["photo.jpg"], model))`.
        """
        return self.predict_log_proba(images).exp()

    def predict(self, images) -> Tensor:
        """The most probable class, as an index into `class_names`."""
        return self.logits(images).argmax(-1)


class NoiseLevel(Predictor):
    """Images, noisy or not → −E(x, y; σ) of a noise-conditional model. Without noise they lie in [0, 1]."""

    bounded = False
    sigma: Tensor

    def __init__(self, model: "Classifier", sigma: float):
        super().__init__()
        if model.denoising is None:
            raise InputError(
                "this model has no noise levels: it was not trained by denoising (train.algorithm=denoising)"
            )
        self.model, self.level = model, checked_sigma(sigma)
        self.gamma2 = self.level / model.denoising.sigma_data
        self.shape, self.class_names = model.shape, model.class_names
        # A buffer: the same weights at another σ are another network, also to who hashes its state.
        self.register_buffer("sigma", torch.tensor(self.level, device=model.device))
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        return self.model.head.logits_at(self.features(images), self.gamma2)

    def features(self, images: Tensor) -> Tensor:
        """φ at σ with the Gaussian term of the energy, differentiable."""
        return self.model.features(images, self.level)

    def tempered(self) -> Tempered:
        """The model at σ with γ² left open. Scores and features that the model keeps are at another σ."""
        network = self.model.tempered()
        at_sigma = {"density_gamma2": self.gamma2, "density_sigma": self.level}
        kept = {"reference": None, "distance": None, "noise_sizes": None, "noise_levels": ()}
        return replace(network, module=self, features=self.features, **kept, **at_sigma)

    def energy(self, images, labels) -> Tensor:
        """E(x, y; σ) − log(C·π_y)."""
        logits = self.logits(images)
        return core.energy(logits, self.model.label_tensor(labels, len(logits)).to(logits.device))

    def log_density(self, images) -> Tensor:
        """log p(x; σ) = log Σ_y exp(−E(x, y; σ)) up to a constant, which depends on σ."""
        return core.log_density(self.logits(images))


def checked_sigma(sigma: Any) -> float:
    """Return a noise level as Python's number; refuse anything else."""
    return _checked_number(sigma, "sigma must be a finite number above 0")


def checked_gamma2(gamma2: Any) -> float:
    """Return a number, also of numpy or torch, as Python's; refuse anything else."""
    return _checked_number(gamma2, "gamma2 must be a finite number above 0 or a name")


def _checked_number(value: Any, rule: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"{rule}, got {shortened(value)}")
    return number


@dataclass(frozen=True)
class FixedTempered(Tempered):
    """A network with logits at a γ² of choice."""

    given: float = 1.0

    @property
    def gamma2(self) -> float:
        return self.given


class FixedTemperature(Predictor):
    """Images in [0, 1] → logits of a model at a γ² of choice."""

    gamma2: Tensor

    def __init__(self, model: "Classifier", gamma2: float):
        super().__init__()
        self.model, self.given = model, gamma2
        self.shape, self.class_names = model.shape, model.class_names
        # A buffer: the same weights at another γ² are another network, also to who hashes its state.
        self.register_buffer("gamma2", torch.tensor(gamma2, device=model.device))
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        return self.model.head.logits_at(self.model.features(images), self.gamma2)

    def at(self, gamma2: float | str) -> "FixedTemperature":
        """Return the same weights with logits at another γ²."""
        return self.model.at(gamma2)

    def tempered(self) -> Tempered:
        """The model with γ² left open, and the γ² of choice as the one in use."""
        return FixedTempered(**{**vars(self.model.tempered()), "module": self, "given": self.given})
