"""Are samples copies of training images? Their distances to the nearest one, beside those of test images.

Test images are as near to the training images as honest draws are; 1% of them are nearer than `closer` asks.
"""

from dataclasses import dataclass

import torch
from PIL.Image import Image
from torch import Tensor

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.evaluations.detection import histogram
from gmmc.fid.similarity import nearest
from gmmc.pictures import grid
from gmmc.pixels import as_unit

SHOWN, NEIGHBOURS = 10, 3  # samples in the picture, and training images beside each
CHANCE = 0.01


@dataclass(frozen=True)
class Memorisation:
    """Distances (n,) in feature space, and the nearest training images of each sample (n, 3)."""

    samples: Tensor
    test: Tensor
    places: Tensor

    @property
    def closer(self) -> int:
        """Samples that are nearer to a training image than all but 1% of the test images are."""
        return int((self.samples < self.test.quantile(CHANCE)).sum())

    @property
    def values(self) -> dict[str, float]:
        return {
            "closer_share": self.closer / len(self.samples),
            "sample_distance": self.samples.median().item(),
            "test_distance": self.test.median().item(),
        }

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share."""
        return intervals.of_proportion(self.closer, len(self.samples))

    @property
    def curve(self) -> dict[str, list[float]]:
        """The shares of both between common edges."""
        found = histogram(self.samples.numpy(), self.test.numpy())
        counts = {"samples": found["inside"], "test": found["outside"]}
        shares = {name: [count / sum(column) for count in column] for name, column in counts.items()}
        return {"edges": found["edges"], **shares}

    def picture(self, images: Tensor, train: Tensor, seed: int) -> Image:
        """The first samples and the closest of all, a row each: the sample, then its nearest."""
        first = torch.arange(min(SHOWN, len(images)))
        closest = self.samples.argsort(stable=True)[:SHOWN]
        names = [f"seed {seed + i}" for i in first] + [f"closest: seed {seed + i}" for i in closest]
        rows = [torch.cat([images[i : i + 1], train[self.places[i]]]) for i in torch.cat([first, closest])]
        return grid(as_unit(torch.cat(rows)), 1 + self.places.shape[1], names)


def compare(samples: Tensor, train: Tensor, test: Tensor) -> Memorisation:
    """Features of each."""
    with Progress("nearest training images", len(samples) + len(test)) as bar:
        found, places = nearest(samples, train, NEIGHBOURS, on_progress=bar.update)
        honest, _ = nearest(test, train, on_progress=lambda done: bar.update(len(samples) + done))
    return Memorisation(found[:, 0].cpu(), honest[:, 0].cpu(), places.cpu())
