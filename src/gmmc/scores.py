"""How sure a network is and how familiar an image looks to it, at any temperature γ².

Everything follows from the logits, and these from the unit energies and γ²: a `Tempered` network keeps the
two apart. Scores are float64 and never tie by underflow or saturation: max p(y|x) is ranked by its log odds.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc import core
from gmmc.pixels import as_unit

BATCH = 256
GAMMA2_RANGE = (1e-4, 1e6)  # that a fit looks in
SCORES = ("log_density", "max_posterior", "gradient_norm")

OnProgress = Callable[[int], Any]


@dataclass(frozen=True)
class Tempered:
    """A network whose logits can be had at any γ²."""

    module: nn.Module
    raw: Callable[[Tensor], Tensor]  # images in [0, 1] → what does not depend on γ²
    logits: Callable[[Tensor, float], Tensor]  # that and γ² → logits
    paper: float | None  # the γ² that the paper's formula gives; None where there are no means


def tempered(module: nn.Module) -> Tempered:
    """One of ours says how its logits depend on γ²; those of another network are divided by it."""
    if hasattr(module, "tempered"):
        return module.tempered()  # pyright: ignore[reportCallIssue]
    return Tempered(module, module, lambda logits, gamma2: logits / gamma2, None)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[torch.device]:
    """Evaluation mode, as a foreign network may hold batch norm or dropout; gives the module's device."""
    modes = {part: part.training for part in module.modules()}  # a part may be frozen in a module that trains
    module.eval()
    try:
        yield next(module.parameters(), torch.empty(0)).device
    finally:
        for part, mode in modes.items():
            part.training = mode


@torch.inference_mode()
def batched(
    module: nn.Module,
    function: Callable[[Tensor], Tensor],
    images: Tensor,
    on_progress: OnProgress | None = None,
) -> Tensor:
    """The function of any number of images, uint8 or [0, 1], a batch at a time on the module's device."""
    parts = []
    with evaluating(module) as device:
        for first in range(0, max(1, len(images)), BATCH):
            parts.append(function(as_unit(images[first : first + BATCH].to(device))))
            if on_progress:
                on_progress(min(first + BATCH, len(images)))
    return torch.cat(parts)


def raw_of(network: Tempered, images: Tensor, on_progress: OnProgress | None = None) -> Tensor:
    """What the logits of these images at any γ² follow from, on the CPU in float64."""
    return batched(network.module, network.raw, images, on_progress).cpu().double()


def logits_at(network: Tempered, raw: Tensor, gamma2: float) -> Tensor:
    """Float64 from the features on: far from all means, the classes differ in the last digits only."""
    device = next(network.module.parameters(), torch.empty(0)).device
    with torch.inference_mode():
        parts = [network.logits(part.to(device), gamma2).cpu().double() for part in raw.split(BATCH)]
    return torch.cat(parts)


# --- the paper's three scores (section 4.3): the higher, the more familiar ---


def density_and_confidence(logits: Tensor) -> dict[str, Tensor]:
    """log p(x) up to its constant; max p(y|x) as its log odds, which order images alike."""
    return {"log_density": core.log_density(logits), "max_posterior": core.log_odds(logits)}


def gradient_norms(
    network: Tempered, images: Tensor, gamma2s: Mapping[str, float], on_progress: OnProgress | None = None
) -> dict[str, Tensor]:
    """−‖∂log p(x)/∂x‖, the approximate mass, for each γ²; pixels in [0, 1]."""
    norms: dict[str, list[Tensor]] = {name: [] for name in gamma2s}
    with evaluating(network.module) as device, torch.inference_mode(False), torch.enable_grad():
        for first in range(0, max(1, len(images)), BATCH):
            x = as_unit(images[first : first + BATCH].to(device, copy=True)).requires_grad_(True)
            raw = network.raw(x)
            for name, gamma2 in gamma2s.items():
                density = core.log_density(network.logits(raw, gamma2)).sum()
                if density.requires_grad:
                    (gradient,) = torch.autograd.grad(density, x, retain_graph=True, materialize_grads=True)
                else:
                    gradient = torch.zeros_like(x)  # a network that does not look at its images
                norms[name].append(-gradient.detach().double().flatten(1).norm(dim=1).cpu())
            if on_progress:
                on_progress(min(first + BATCH, len(images)))
    return {name: torch.cat(parts) for name, parts in norms.items()}


def scores_at(network: Tempered, images: Tensor, gamma2: float) -> dict[str, Tensor]:
    """All three scores at one γ²."""
    logits = logits_at(network, raw_of(network, images), gamma2)
    gradient = gradient_norms(network, images, {"": gamma2})[""]
    return {**density_and_confidence(logits), "gradient_norm": gradient}


# --- the temperature ---


def fit_gamma2(network: Tempered, raw: Tensor, labels: Tensor) -> float:
    """The γ² of the least NLL: temperature scaling.

    One more image counts with every label at once. Among thousands it has no weight; where a few images are
    all classified correctly, it keeps γ² from going to zero.
    """
    from scipy.optimize import minimize_scalar

    def nll(log_gamma2: float) -> float:
        logits = logits_at(network, raw, math.exp(log_gamma2))
        smoothing = 1 / (len(labels) + 1)
        return F.cross_entropy(logits, labels, label_smoothing=smoothing).item()

    bounds = tuple(math.log(end) for end in GAMMA2_RANGE)
    # The NLL is convex in 1/γ², so it has one valley.
    return math.exp(minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)
