"""The replay buffer B of Algorithm 1: unfinished chains (x′, y′) that training goes on with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gmmc.core import labels_at
from gmmc.errors import InputError
from gmmc.pixels import Shape
from gmmc.sampling.samplers import BatchNoise, Noise
from gmmc.train.memory import ROWS_AT_ONCE, OnDevice, Table


class Start(Protocol):
    """Where chains begin: x′_0 for each label."""

    shape: Shape

    def __call__(self, labels: Tensor, noise: Noise) -> Tensor: ...


@dataclass(frozen=True)
class Drawn:
    slots: Tensor
    images: Tensor  # x′_0
    labels: Tensor  # y′
    visits: Tensor  # how often each chain was moved before; 0: it starts anew


class ReplayBuffer:
    """Chains, with how often each was moved and the energy it had then.

    Pixels are stored as float16: its rounding (1e-4) is well under a late sampler step, that of uint8 is not.
    `place` says where they lie, by default on the training device; all else is there anyway. The results are
    the same wherever they lie.
    """

    def __init__(
        self,
        size: int,
        start: Start,
        priors: Tensor,
        *,
        reinit: float,
        generator: torch.Generator,
        place: Callable[[Tensor], Table] | None = None,
    ):
        self.start, self.priors, self.reinit = start, priors, reinit
        self.device = priors.device
        self.labels = slot_labels(size, priors)
        self.visits = torch.zeros(size, dtype=torch.int32, device=self.device)
        self.energies = torch.zeros(size, device=self.device)
        unfilled = torch.empty(size, *start.shape, dtype=torch.float16, device="meta")
        self._table = place(unfilled) if place else OnDevice(unfilled, self.device)
        for slots, fresh in self._fresh(generator):
            self._table.put(slots, fresh)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """All chains, where they lie."""
        return self._table.tensor

    def _fresh(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Slots, and a new chain for each, so many at a time as the device has room for."""
        for slots in torch.arange(len(self), device=self.device).split(ROWS_AT_ONCE):
            yield slots, self.start(self.labels[slots], BatchNoise(len(slots), generator)).half()

    def draw(self, count: int, generator: torch.Generator, labels: Tensor | None = None) -> Drawn:
        """Distinct slots, of the given labels if any; with probability ρ a chain starts anew."""
        slots = (
            self._slots_at_random(count, generator) if labels is None else self._slots_of(labels, generator)
        )
        noise = BatchNoise(count, generator)
        anew = noise.uniform() < self.reinit
        old_y = self.labels[slots]
        fresh_y = labels_at(noise.uniform(), self.priors) if labels is None else labels
        y = torch.where(anew, fresh_y, old_y)
        x = torch.where(anew[:, None, None, None], self.start(y, noise), self._table.take(slots).float())
        return Drawn(slots, x, y, self.visits[slots].masked_fill(anew, 0))

    def _slots_at_random(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.rand(len(self), generator=generator, device=self.device).topk(count).indices

    def _slots_of(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """For each label another slot that holds it."""
        order = (
            self.labels + torch.rand(len(self), generator=generator, device=self.device).double()
        ).argsort()
        # Not bincount: it would wait for the device.
        counts = torch.zeros_like(self.priors, dtype=torch.long).scatter_add_(
            0, self.labels, torch.ones_like(self.labels)
        )
        first = counts.cumsum(0) - counts  # where each class begins in the order
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        nth = same.tril(-1).sum(1)  # how many before it in the batch have the same label
        return order[first[labels] + nth]

    def put(self, drawn: Drawn, images: Tensor, energies: Tensor) -> None:
        """Chains moved once more come back to their slots."""
        self._table.put(drawn.slots, images.half())
        self.labels[drawn.slots] = drawn.labels
        self.visits[drawn.slots] = drawn.visits + 1
        self.energies[drawn.slots] = energies.float()

    def beyond(self, limit: float) -> Tensor:
        """Which chains had an energy at or above the limit, or none that is a number, when last moved."""
        return (self.visits > 0) & ~(self.energies < limit)

    def offenders(self, limit: float) -> Tensor:
        """Of the chains beyond the limit those above the mean of all: the few that a runaway comes from."""
        mean = self.energies.nan_to_num(posinf=0.0).double().mean()
        return self.beyond(limit) & ~(self.energies < mean)

    def start_anew(self, chosen: Tensor, generator: torch.Generator) -> None:
        for slots, fresh in self._fresh(generator):
            mine = chosen[slots]
            self._table.put(slots[mine], fresh[mine])
        self.visits.masked_fill_(chosen, 0)
        self.energies.masked_fill_(chosen, 0)

    def census(self, *, settled_after: int, limit: float) -> Tensor:
        """(visits in all, chains, settled chains, settled chains at or above the limit), on the device."""
        settled = self.visits >= settled_after
        far = settled & self.beyond(limit)
        return torch.stack(
            [self.visits.sum(), torch.tensor(len(self), device=self.device), settled.sum(), far.sum()]
        ).double()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            "images": self.images,
            "labels": self.labels,
            "visits": self.visits,
            "energies": self.energies,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def check_quotas(size: int, batch_size: int, priors: Tensor) -> None:
    """With the batch's labels a whole batch of one class must find its slots."""
    smallest = int(slot_labels(size, priors).bincount(minlength=len(priors)).min())
    if smallest < batch_size:
        raise InputError(
            f"buffer.labels=batch needs a whole batch of {batch_size} among the chains of every class, "
            f"got {smallest} of {size} for the rarest; enlarge buffer.size"
        )


def slot_labels(size: int, priors: Tensor) -> Tensor:
    """Evenly spaced quantiles: every class has its exact share from the start."""
    return labels_at((torch.arange(size, device=priors.device) + 0.5).double() / size, priors)
