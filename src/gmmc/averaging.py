"""Averaged weights: smoother than the last ones, and better to evaluate and to sample from."""

import copy

import torch

from gmmc.backbones import batch_norms
from gmmc.models import Classifier


class Average:
    """θ̄ ← decay·θ̄ + (1 − decay)·θ after every update; the statistics of batch norm are copied.

    Early on the decay is smaller, (1 + t)/(10 + t): random first weights are soon forgotten.
    """

    def __init__(self, model: Classifier, decay: float):
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model: Classifier, updates: int) -> None:
        decay = min(self.decay, (1 + updates) / (10 + updates))
        for mine, current in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(current, 1 - decay)
        for mine, current in zip(batch_norms(self.model), batch_norms(model), strict=True):
            for statistic, now in zip(mine.buffers(), current.buffers(), strict=True):
                statistic.copy_(now)
