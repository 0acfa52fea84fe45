"""The replay buffer B of Algorithm 1: unfinished chains (x′, y′) that training goes on with."""

import torch
from torch import Tensor

from gmmc.core import labels_at
from gmmc.pixels import Shape


class ReplayBuffer:
    """Chains in [−1, 1] on the training device.

    Stored as float16: its rounding (1e-4) is well under a late sampler step, that of uint8 is not.
    """

    def __init__(
        self,
        size: int,
        shape: Shape,
        priors: Tensor,
        *,
        reinit: float,
        generator: torch.Generator,
    ):
        self.reinit = reinit
        self.priors = priors
        self.device = priors.device
        self.images = self._fresh_images(size, shape, generator).half()
        # Evenly spaced quantiles: every class has its exact share from the start.
        self.labels = labels_at((torch.arange(size, device=self.device) + 0.5) / size, priors)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """(slots, x′_0, y′): distinct slots; with probability ρ a chain starts anew from noise."""
        slots = torch.rand(len(self.images), generator=generator, device=self.device).topk(count).indices
        x, y = self.images[slots].float(), self.labels[slots]
        fresh_x = self._fresh_images(count, self.images.shape[1:], generator)
        fresh_y = labels_at(torch.rand(count, generator=generator, device=self.device), self.priors)
        anew = torch.rand(count, generator=generator, device=self.device) < self.reinit
        return slots, torch.where(anew[:, None, None, None], fresh_x, x), torch.where(anew, fresh_y, y)

    def put(self, slots: Tensor, x: Tensor, y: Tensor) -> None:
        self.images[slots] = x.half()
        self.labels[slots] = y

    def state_dict(self) -> dict[str, Tensor]:
        return {"images": self.images, "labels": self.labels}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.images.copy_(state["images"])
        self.labels.copy_(state["labels"])

    def _fresh_images(self, count: int, shape, generator: torch.Generator) -> Tensor:
        return torch.rand(count, *shape, generator=generator, device=self.device) * 2 - 1
