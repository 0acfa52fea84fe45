"""How sure a network is, and how familiar an image looks to it.

Logits follow from the unit energies and γ²: a `Tempered` network keeps the two apart. γ² affects the
confidence only. Densities are at the γ² of training: σ/σ_d in a noise-conditional model, 1 in all others.
Scores are float64 and never tie by underflow or saturation: max p(y|x) is ranked by its log odds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc import core
from gmmc.base import names
from gmmc.errors import InputError
from gmmc.pixels import as_unit

if TYPE_CHECKING:
    from gmmc.classifier.abstention import Reference

# Images at once; with gradients a CPU's memory is the limit.
BATCH = {"cpu": 64, "cuda": 256}
FEATURES_AT_ONCE = 256  # rows of features whose differences to all means are in memory at once
GAMMA2_RANGE = (1e-4, 1e6)  # that a fit looks in
SCORES = tuple(names.SCORES)

OnProgress = Callable[[int], Any]


@dataclass(frozen=True)
class Tempered:
    """A network whose logits can be had at any γ²."""

    module: nn.Module
    features: Callable[[Tensor], Tensor]  # images in [0, 1] → φ(x); of another network its logits
    energies_of: Callable[[Tensor], Tensor]  # features → unit energies of all classes
    logits: Callable[[Tensor, float], Tensor]  # unit energies and γ² → logits
    paper: float | None = None  # γ² by the paper's formula; None without means, or after denoising
    reference: "Reference | None" = None  # scores of the images that the model was calibrated on
    # Features → unit energies inside the span of the means, and the class-free rest; None without means.
    split: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    distance: Callable[[Tensor], Tensor] | None = None  # features → distance to training features, if kept
    density_gamma2: float = 1.0  # γ² of log p(x)
    density_name: str = "unit"  # name of that γ² in results: "trained" of a noise-conditional model
    density_sigma: float | None = None  # σ of log p(x; σ), of a noise-conditional model
    class_dim: int | None = None  # number of features in which the classes differ; None: all of them
    # Images in [0, 1] → sizes of F and denoising errors at several σ; of noise-conditional models.
    noise_sizes: Callable[[Tensor], Tensor] | None = None
    noise_levels: tuple[float, ...] = ()  # these σ

    @property
    def fitted(self) -> float | None:
        """γ² that the model was calibrated with."""
        return self.reference.gamma2 if self.reference else None

    @property
    def gamma2(self) -> float:
        """Temperature of the logits that the module returns."""
        return self.fitted or self.paper or self.density_gamma2

    def energies(self, images: Tensor) -> Tensor:
        """Images in [0, 1] → unit energies of all classes."""
        return self.energies_of(self.features(images))

    def class_features(self, features: Tensor) -> Tensor:
        """The features in which the classes differ, without those whose mean is 0 in every class."""
        return features[..., : self.class_dim]


def tempered(module: nn.Module) -> Tempered:
    """One of ours says how its logits depend on γ²; those of another network are divided by it."""
    if hasattr(module, "tempered"):
        return module.tempered()  # pyright: ignore[reportCallIssue]
    return Tempered(module, module, torch.neg, lambda energies, gamma2: -energies / gamma2)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[Callable[[Tensor], Tensor]]:
    """Evaluation mode, as a foreign network may hold batch norm or dropout.

    Gives the function that makes images, uint8 or [0, 1], into what the module takes, on its device.
    """
    modes = {part: part.training for part in module.modules()}  # a part may be frozen in a module that trains
    parameter = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    module.eval()
    try:
        yield lambda images: as_unit(images.to(parameter.device)).to(parameter.dtype)
    finally:
        for part, mode in modes.items():
            part.training = mode


def blocks(
    module: nn.Module, images: Tensor, on_progress: OnProgress | None, sizes: Mapping[str, int] = BATCH
) -> Iterator[Tensor]:
    """The images in parts that fit the memory, of a size per kind of device; one empty part for no images."""
    size = sizes.get(next(module.parameters(), torch.empty(0)).device.type, 64)
    for first in range(0, max(1, len(images)), size):
        yield images[first : first + size]
        if on_progress:
            on_progress(min(first + size, len(images)))


@torch.inference_mode()
def batched(
    module: nn.Module,
    function: Callable[[Tensor], Tensor],
    images: Tensor,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """The function of any number of images, uint8 or [0, 1], a batch at a time on the module's device."""
    with evaluating(module) as prepared:
        return torch.cat([function(prepared(part)) for part in blocks(module, images, on_progress)])


def features(network: Tempered, images: Tensor, on_progress: OnProgress | None = None) -> Tensor:
    """φ of any number of images, (N, d) on the network's device."""
    found = batched(network.module, network.features, images, on_progress)
    check_finite(found)
    return found


def unit_energies(network: Tempered, images: Tensor, on_progress: OnProgress | None = None) -> Tensor:
    """(N, C) on the CPU in float64: all that the logits at any γ² follow from."""
    energies = batched(network.module, network.energies, images, on_progress).cpu().double()
    check_finite(energies)
    return energies


def check_finite(numbers: Tensor) -> None:
    """Refuse NaN and infinity in numbers of images, (N, …)."""
    wrong = int((~numbers.isfinite())[:, None].flatten(1).any(1).sum())
    if wrong:
        raise InputError(f"the model gives numbers that are not finite for {wrong} of {len(numbers)} images")


def logits_at(network: Tempered, energies: Tensor, gamma2: float) -> Tensor:
    """Float64: far from all means, the classes differ in the last digits only."""
    with torch.inference_mode():
        device = next(network.module.parameters(), torch.empty(0)).device
        return network.logits(energies.to(device), gamma2).cpu()


# --- scores: the higher, the more familiar ---


@torch.inference_mode()
def feature_energies(network: Tempered, found: Tensor) -> Tensor:
    """Unit energies of all classes from the features, (N, C) on the CPU in float64."""
    parts = [network.energies_of(part).cpu().double() for part in found.split(FEATURES_AT_ONCE)]
    energies = torch.cat(parts)
    check_finite(energies)
    return energies


@torch.inference_mode()
def feature_scores(
    network: Tempered, found: Tensor, gamma2: float, names: Sequence[str] = SCORES
) -> dict[str, Tensor]:
    """The scores that follow from the features, (N,) each on the CPU; γ² is that of the confidence.

    log_density and max_posterior are the paper's (section 4.3), the latter as log odds, which rank images in
    the same order. span_density is log p(x) of the features projected on the span of the means, residual the
    negated rest of the energy: their sum is log_density. neighbours is the negated distance to training
    features.
    """
    parts = [_feature_scores(network, part, gamma2, names) for part in found.split(FEATURES_AT_ONCE)]
    return {name: torch.cat([part[name] for part in parts]).cpu().double() for name in parts[0]}


def _feature_scores(
    network: Tempered, found: Tensor, gamma2: float, names: Sequence[str]
) -> dict[str, Tensor]:
    energies = network.energies_of(found).double()
    check_finite(energies)
    scores = {
        "log_density": core.log_density(network.logits(energies, network.density_gamma2)),
        "max_posterior": core.log_odds(network.logits(energies, gamma2)),
    }
    if network.split is not None and {"span_density", "residual"} & {*names}:
        inside, rest = network.split(found)
        density = core.log_density(network.logits(inside, network.density_gamma2))
        scores |= {"span_density": density, "residual": -rest / network.density_gamma2}
    if network.distance is not None and "neighbours" in names:
        scores["neighbours"] = -network.distance(found)
    return {name: values for name, values in scores.items() if name in names}


def gradient_norms(network: Tempered, images: Tensor, on_progress: OnProgress | None = None) -> Tensor:
    """−‖∂log p(x)/∂x‖ at the γ² of training, the paper's approximate mass; pixels in [0, 1]."""
    norms = []
    with evaluating(network.module) as prepared, torch.inference_mode(False), torch.enable_grad():
        for part in blocks(network.module, images, on_progress):
            x = prepared(part.clone()).requires_grad_(True)
            logits = network.logits(network.energies(x), network.density_gamma2)
            density = core.log_density(logits).sum()
            if density.requires_grad:
                (gradient,) = torch.autograd.grad(density, x, materialize_grads=True)
            else:
                gradient = torch.zeros_like(x)  # a network that does not look at its images
            norms.append(-gradient.detach().double().flatten(1).norm(dim=1).cpu())
    return torch.cat(norms)


# --- the temperature ---


def fit_gamma2(network: Tempered, energies: Tensor, labels: Tensor) -> float:
    """The γ² of the least NLL: temperature scaling.

    One more image counts with every label at once. Among thousands it has no weight; where a few images are
    all classified correctly, it keeps γ² from going to zero.
    """
    from scipy.optimize import minimize_scalar

    def nll(log_gamma2: float) -> float:
        logits = logits_at(network, energies, math.exp(log_gamma2))
        smoothing = 1 / (len(labels) + 1)
        return F.cross_entropy(logits, labels, label_smoothing=smoothing).item()

    bounds = tuple(math.log(end) for end in GAMMA2_RANGE)
    # The NLL is convex in 1/γ², so it has one valley.
    return math.exp(minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)
