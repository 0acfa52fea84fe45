"""Averaged weights: smoother than the last ones, and better to evaluate and to sample from."""

import copy
import dataclasses

import torch
from torch import Tensor

from gmmc.classifier.model import Classifier
from gmmc.networks.backbones import batch_norms


class Average:
    """θ̄ ← decay·θ̄ + (1 − decay)·θ after every update; the statistics of batch norm are copied.

    Early on the decay is smaller, (1 + t)/(10 + t): random first weights are soon forgotten.
    """

    def __init__(self, model: Classifier, decay: float):
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model: Classifier, updates: int, accepted: Tensor | None = None) -> None:
        """Average the weights in, where the update was accepted."""
        decay = min(self.decay, (1 + updates) / (10 + updates))
        averages: list[Tensor] = list(self.model.parameters())
        weights: list[Tensor] = list(model.parameters())
        # One launch for many tensors on a GPU.
        share = 1 - decay if accepted is None else (1 - decay) * accepted
        if isinstance(share, Tensor):  # on the device, which nothing here waits for
            steps = torch._foreach_sub(weights, averages)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_mul_(steps, share.to(steps[0]))  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_add_(averages, steps)  # pyright: ignore[reportPrivateImportUsage]
        else:
            torch._foreach_lerp_(averages, weights, share)  # pyright: ignore[reportPrivateImportUsage]
        for mine, current in zip(batch_norms(self.model), batch_norms(model), strict=True):
            for statistic, now in zip(mine.buffers(), current.buffers(), strict=True):
                statistic.copy_(now)


def further_averages(model: Classifier, decays: tuple[float, ...]) -> dict[float, Average]:
    """Averages of other decays in the same training.

    The recipe of each has that decay as its `train.ema`: a training by it ends with the same weights.
    """
    averages = {decay: Average(model, decay) for decay in decays}
    for decay, average in averages.items():
        cfg = model.cfg
        assert cfg is not None
        average.model.cfg = dataclasses.replace(
            cfg, train=dataclasses.replace(cfg.train, ema=decay, averages=())
        )
    return averages
