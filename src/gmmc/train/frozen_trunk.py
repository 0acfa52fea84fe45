"""The frozen phase: the trunk, all layers but the last, keeps its weights and computes its features once."""

from collections.abc import Callable

import torch
from torch import Tensor

from gmmc.classifier.model import Classifier
from gmmc.networks.backbones import LAYOUT, frozen_statistics, split_last
from gmmc.pixels import to_signed
from gmmc.train.memory import Table

PART = 64  # images per pass


class FrozenTrunk:
    """Features of the training images before the last layer, (images, views, features).

    A view is the image or, with `flip`, its mirror image. Features depend on the weights and the number of
    threads alone: a resumed training computes the same bits. `on_progress` is called with the number of
    images done and of all.
    """

    def __init__(
        self, model: Classifier, images: Table, *, flip: bool, on_progress: Callable[[int, int], object]
    ):
        self._trunk, self._last = split_last(model.backbone)
        self._valid: Tensor | None = None
        rows = []
        for first in range(0, len(images), PART):
            index = torch.arange(first, min(first + PART, len(images)))
            clean = to_signed(images.take(index))
            views = [clean, clean.flip(-1)] if flip else [clean]
            rows.append(torch.stack([self._look(x) for x in views], 1))
            on_progress(first + len(index), len(images))
        self._views = torch.cat(rows)

    @torch.no_grad()
    def _look(self, x: Tensor) -> Tensor:
        with frozen_statistics(self._trunk):
            return self._trunk(x.contiguous(memory_format=LAYOUT))

    def take(self, index: Tensor, source: torch.Generator) -> Tensor:
        """Features of a random view of each image, in the shape of an image of one pixel."""
        index = index.to(self._views.device)
        view = torch.randint(self._views.shape[1], index.shape, generator=source, device=index.device)
        return self._views[index, view][:, :, None, None]

    def last(self, features: Tensor) -> Tensor:
        """Apply the rest of the network: `take` → φ."""
        return self._last(features.flatten(1))

    @torch.no_grad()
    def predict(self, model: Classifier, images: Tensor) -> Tensor:
        """Classes of validation images by a model with this trunk; the images are the same in every call."""
        if self._valid is None:
            parts = [to_signed(part.to(model.device)) for part in images.split(PART)]
            self._valid = torch.cat([self._look(part) for part in parts])
        return model.head(split_last(model.backbone)[1](self._valid)).argmax(-1)
