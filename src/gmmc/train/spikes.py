"""Detect updates far above their running means, and losses that rise, on the device: the host never waits."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SETTLED = 50  # accepted updates after which values are compared with their running means
MEMORY = 200  # updates that the means are taken over
SKIPPED_MEMORY = 50  # updates that the share of skipped ones is taken over


class Spikes:
    """Accept an update unless one of the `watched` values is far above its running mean.

    Updates with values that are not finite are skipped too. Skipped updates do not enter the means. With
    `on=False` every update is accepted.
    """

    def __init__(
        self, names: Sequence[str], watched: Sequence[str], *, limit: float, on: bool, device: torch.device
    ):
        self._names, self._limit, self._on = tuple(names), limit, on
        self._unwatched = torch.tensor([name not in watched for name in names], device=device)
        self._means = torch.zeros(len(names), dtype=torch.float64, device=device)
        self._lowest = torch.full_like(self._means, torch.inf)  # of each mean, once settled
        self._count = self._means.new_zeros(())  # of accepted updates
        self._skipped = self._means.new_zeros(())  # running share
        self.accepted = torch.ones((), dtype=torch.bool, device=device)
        self._values = self._means  # of the last update; the means where it was skipped

    def judge(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return whether to make the update that has these values."""
        row = torch.stack([values[name].double() for name in self._names])
        accepted = torch.ones_like(self.accepted)
        if self._on:
            within = (row <= self._limit * self._means) | self._unwatched
            accepted = row.isfinite().all() & (within.all() | (self._count < SETTLED))
        moved = self._means + (row - self._means) / (self._count + 1).clamp(max=MEMORY)
        self._means = torch.where(accepted, moved, self._means)
        self._count = self._count + accepted
        self._skipped = self._skipped + ((~accepted).double() - self._skipped) / SKIPPED_MEMORY
        settled = self._count >= SETTLED
        self._lowest = torch.where(settled, torch.minimum(self._lowest, self._means), self._lowest)
        self.accepted, self._values = accepted, torch.where(accepted, row, self._means)
        return accepted

    @property
    def values(self) -> dict[str, Tensor]:
        """Values of the last update, or the running means where it was skipped."""
        return dict(zip(self._names, self._values, strict=True))

    @property
    def skipped_share(self) -> Tensor:
        """Share of skipped updates, a running mean over the last ones."""
        return self._skipped

    def rise(self, name: str, baseline: str) -> Tensor:
        """Running mean of a value, divided by its lowest or by that of `baseline`, if lower; 0 until settled.

        A value that was too large from the first update on has no lower mean of its own.
        """
        place = self._names.index(name)
        best = torch.minimum(self._lowest[place], self._means[self._names.index(baseline)])
        return torch.where(self._count < SETTLED, 0.0, self._means[place] / best)

    def info(self) -> dict[str, Any]:
        """The state, as JSON."""
        lowest = [value if value < torch.inf else None for value in self._lowest.tolist()]
        return {
            "means": self._means.tolist(),
            "lowest": lowest,
            "accepted": self._count.item(),
            "skipped": self._skipped.item(),
        }

    def load(self, info: Mapping[str, Any]) -> None:
        """Take over `info()`."""
        lowest = [torch.inf if value is None else value for value in info["lowest"]]
        self._means, self._lowest = (self._means.new_tensor(row) for row in (info["means"], lowest))
        self._count, self._skipped = (self._means.new_tensor(info[name]) for name in ("accepted", "skipped"))
