"""Sums over the updates since the last line of metrics, kept on the device: nothing waits for them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# Places of (sum, count) in the row of numbers that former versions stored, without and with contrast images:
# real, correct, count, sampled, pushing, sampled count, gradient norm, updates, contrast, contrast count.
FORMER = {
    "real_energy": (0, 2),
    "accuracy": (1, 2),
    "sampled_energy": (3, 5),
    "pushing_energy": (4, 5),
    "grad_norm": (6, 7),
    "contrast_energy": (8, 9),
}


class Meter:
    """Mean of each measure over the updates since `reset`: of all images, or of one number per update."""

    def __init__(self, measures: Sequence[str], device: torch.device):
        self.measures = tuple(measures)
        self._sums = torch.zeros(len(self.measures), dtype=torch.float64, device=device)
        self._counts = [0] * len(self.measures)

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor]) -> None:
        """Add an update: numbers for some of the measures."""
        assert values.keys() <= set(self.measures)
        zero = self._sums.new_zeros(())
        sums = [values[name].double().sum() if name in values else zero for name in self.measures]
        self._sums += torch.stack(sums)
        for place, name in enumerate(self.measures):
            self._counts[place] += values[name].numel() if name in values else 0

    def totals(self) -> Tensor:
        """(measures, 2): sums and counts."""
        return torch.stack([self._sums, self._sums.new_tensor(self._counts)], 1)

    def means(self, totals: Sequence[float]) -> dict[str, float]:
        """The means behind totals, flattened, which may be those of all processes."""
        pairs = zip(self.measures, totals[::2], totals[1::2], strict=True)
        return {name: total / count for name, total, count in pairs if count}

    def restore(self, totals: Tensor) -> None:
        """Go on from `totals()`, or from the row of numbers of a former version."""
        if totals.dim() == 1:
            totals = self._read_former(totals)
        self._sums.copy_(totals[:, 0])
        self._counts = [int(count) for count in totals[:, 1].tolist()]

    def _read_former(self, row: Tensor) -> Tensor:
        known = {name: [row[i] for i in places] for name, places in FORMER.items() if max(places) < len(row)}
        nothing = [row.new_zeros(())] * 2
        return torch.stack([torch.stack(known.get(name, nothing)) for name in self.measures])

    def reset(self) -> None:
        self._sums.zero_()
        self._counts = [0] * len(self.measures)
