"""Detect updates whose values are far above their running means, on the device: the host never waits."""

from typing import Any

import torch
from torch import Tensor

SETTLED = 50  # updates after which values are compared with their running means
MEMORY = 200  # updates that the means are taken over


class Spikes:
    """Accept an update unless one of its first `watched` values is far above its running mean.

    Values that are not finite are never accepted. Skipped updates do not enter the means.
    """

    def __init__(self, values: int, watched: int, *, limit: float, on: bool, device: torch.device):
        self._watched, self._limit, self._on = watched, limit, on
        self._means = torch.zeros(values, dtype=torch.float64, device=device)
        self._count = torch.zeros((), dtype=torch.float64, device=device)  # of accepted updates
        self.accepted = torch.ones((), dtype=torch.bool, device=device)
        self.values = self._means  # of the last update; the means where it was skipped

    def judge(self, values: Tensor) -> Tensor:
        """Whether to make this update."""
        values, ordinary = values.double(), torch.ones_like(self.accepted)
        if self._on:
            within = values[: self._watched] <= self._limit * self._means[: self._watched]
            ordinary = values.isfinite().all() & (within.all() | (self._count < SETTLED))
        moved = self._means + (values - self._means) / (self._count + 1).clamp(max=MEMORY)
        self._means = torch.where(ordinary, moved, self._means)
        self._count = self._count + ordinary
        self.accepted, self.values = ordinary, torch.where(ordinary, values, self._means)
        return ordinary

    @property
    def means(self) -> Tensor:
        """Running means of the values of accepted updates."""
        return self._means

    def info(self) -> dict[str, Any]:
        """The state, as JSON."""
        return {"means": self._means.tolist(), "accepted": self._count.item()}

    def load(self, info: dict[str, Any]) -> None:
        self._means = self._means.new_tensor(info["means"])
        self._count = self._count.new_tensor(info["accepted"])
