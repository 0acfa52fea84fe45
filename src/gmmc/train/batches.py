"""Batches of real images: this process's rows, augmented on its device."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from gmmc.base.seeds import generator
from gmmc.classifier.model import Classifier
from gmmc.config.sections import AugmentConfig
from gmmc.data.augment import augment
from gmmc.data.splits import LabelledImages
from gmmc.pixels import to_signed
from gmmc.train.algorithm import Batch
from gmmc.train.frozen_trunk import FrozenTrunk
from gmmc.train.memory import Room
from gmmc.train.process import Process
from gmmc.train.schedule import FROZEN, Moment, Plan


class Batches:
    """(x, y) ~ D: batches go through the epoch's order; what does not fill a last one waits for the next.

    Every process augments all rows, so they do not depend on the number of processes. With fewer chains than
    images, which of them are contrasted does: each process takes its own first ones.
    """

    def __init__(
        self, data: LabelledImages, model: Classifier, process: Process, plan: Plan, room: Room, size: int
    ):
        self.images = room.place(data.images)
        self.labels = data.labels.to(process.device)
        self._on_features: Callable[[int, int], object] = lambda done, total: None
        self._model, self._process, self._plan, self._size = model, process, plan, size
        self._trunk: FrozenTrunk | None = None  # while it is frozen

    def at(self, now: Moment) -> Batch:
        """The batch of an update."""
        process, share = self._process, self._size // self._process.count
        order = epoch_order(len(self.images), process.cfg.seed, now.epoch, self.images.index_device)
        first = (now.step % self._plan.steps_per_epoch) * self._size
        index = order[first : first + self._size]
        mine = slice(process.rank * share, (process.rank + 1) * share)
        labels = self.labels[index.to(process.device, non_blocking=True)][mine]

        def source(key: str) -> torch.Generator:
            return process.shared_source(key, now.step)

        def augmented(how: AugmentConfig, key: str) -> Tensor:
            return augment(clean, how, source(key))[mine]

        if now.phase_name == FROZEN:
            trunk = self._frozen_trunk(now)
            clean = trunk.take(index, source("augment"))
            return Batch(clean[mine], labels, augmented, network=trunk.last)
        self.forget_trunk()  # its features were those of weights that now change
        clean = to_signed(self.images.take(index))
        return Batch(augmented(now.phase, "augment"), labels, augmented)

    # --- the frozen phase ---

    def report_features(self, on_features: Callable[[int, int], object]) -> None:
        """Call `on_features` with the number of images done and of all, while features are computed."""
        self._on_features = on_features

    def _frozen_trunk(self, now: Moment) -> FrozenTrunk:
        if self._trunk is None:
            flip, report = now.phase.flip, self._on_features
            self._trunk = FrozenTrunk(self._model, self.images, flip=flip, on_progress=report)
        return self._trunk

    def forget_trunk(self) -> None:
        """Compute the features of a frozen trunk again when they are next needed."""
        self._trunk = None

    def predict(self, model: Classifier, images: Tensor) -> Tensor:
        """Classes of validation images; with a frozen trunk its features are computed once."""
        return self._trunk.predict(model, images) if self._trunk else model.predict(images)


@functools.lru_cache(maxsize=1)
def epoch_order(count: int, seed: int, epoch: int, device: torch.device) -> Tensor:
    return torch.randperm(count, generator=generator(seed, "order", epoch)).to(device)
