"""A classifier as its attacker sees it: all of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.base.precision import full_float32
from gmmc.classifier.scores import BATCH, Tempered, evaluating, tempered

# Of the largest logit: what float32 may round away. A decision that hangs on less is not called one.
ROUNDING = 1e-5


@dataclass(frozen=True)
class View:
    """What the network makes of some images; the energies in float64, so that no posterior saturates."""

    network: Tempered
    features: Tensor
    energies: Tensor
    gamma2: float

    def logits(self, gamma2: float | None = None) -> Tensor:
        """Logits at any temperature; by default at the one that users get."""
        return self.network.logits(self.energies, self.gamma2 if gamma2 is None else gamma2)

    def broken(self, labels: Tensor) -> Tensor:
        """(N,): whether another class wins by more than rounding."""
        logits = self.logits()
        return margin(logits, labels) > ROUNDING * logits.abs().amax(1)


class Target:
    """Images in [0, 1]; normalisation is inside the model, and nothing about it is random or rounded."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.network = tempered(module)
        self.gamma2 = self.network.gamma2
        self.paper: Any = module if self.network.paper is None else module.at("paper")  # pyright: ignore[reportCallIssue]
        self.device = next(module.parameters(), torch.empty(0)).device
        self.dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
        self.batch = BATCH.get(self.device.type, 64)

    def __call__(self, images: Tensor) -> Tensor:
        """Logits as users get them."""
        return self.module(images.to(self.dtype))

    def paper_logits(self, images: Tensor) -> Tensor:
        """Logits in float32 at the paper's γ²; of a network without class means, as users get them."""
        return self.paper(images.to(self.dtype))

    def view(self, images: Tensor) -> View:
        features = self.network.features(images.to(self.dtype))
        return View(self.network, features, self.network.energies_of(features), self.gamma2)

    @torch.no_grad()
    def names(self, images: Tensor, labels: Tensor) -> Tensor:
        """(N,): whether the model, as users get it, names the right class."""
        logits = self(images)
        # A class may have −∞: its prior may be zero.
        return (logits.argmax(1) == labels) & logits.logsumexp(1).isfinite()

    @contextmanager
    def exposed(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """In evaluation mode, without TF32, the same to the last bit each time, its weights left alone.

        Gives the function that makes images, uint8 or [0, 1], into what the module takes, on its device.
        """
        wanted = {parameter: parameter.requires_grad for parameter in self.module.parameters()}
        with (
            evaluating(self.module) as prepared,
            full_float32(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            try:
                for parameter in wanted:
                    parameter.requires_grad_(False)
                yield lambda images: prepared(images).float()
            finally:
                for parameter, before in wanted.items():
                    parameter.requires_grad_(before)


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """(N,): the largest other logit over that of the label; positive where another class wins."""
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], float("-inf"))
    return others.amax(1) - own.squeeze(1)
