"""One process of a training: its device, its randomness, its share, and sums over all processes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmmc.base.seeds import generator
from gmmc.config.sections import TrainConfig
from gmmc.sampling import engine

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Process:
    """This process of a training."""

    cfg: TrainConfig
    fabric: "Fabric"

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def count(self) -> int:
        """Number of processes."""
        return self.fabric.world_size

    @property
    def rank(self) -> int:
        return self.fabric.global_rank

    @property
    def precision(self) -> str:
        return engine.resolve_precision(self.cfg.precision, self.device)

    def choose_engine(self, calls: int, compile_from: int) -> engine.Engine:
        """Choose how so many calls are computed: compiled where that pays."""
        return engine.choose(self.cfg.engine, self.device, compile=calls >= compile_from)

    def shared_source(self, *key: int | str) -> torch.Generator:
        """Randomness that is the same in all processes."""
        return generator(self.cfg.seed, *key, device=self.device)

    def source(self, *key: int | str) -> torch.Generator:
        """Randomness of this process alone."""
        rank = self.rank
        return self.shared_source(*key, *([rank] if rank else []))

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over all processes."""
        total = self.fabric.all_reduce(tensor, reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def mean(self, tensor: Tensor) -> Tensor:
        """Mean over all processes."""
        mean = self.fabric.all_reduce(tensor, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean
