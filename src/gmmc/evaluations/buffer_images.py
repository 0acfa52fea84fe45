"""The replay buffer that a training ended with, and the paper's choice of its images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gmmc import core
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import logits_at, unit_energies
from gmmc.errors import InputError
from gmmc.fid.chain_images import as_files
from gmmc.runs.folder import RunFolder

KEPT = 0.9  # of each predicted class


@dataclass(frozen=True)
class Buffer:
    images: Tensor  # uint8, as image files would hold them
    labels: Tensor
    visits: Tensor  # how often training moved each chain
    step: int  # of training

    def __len__(self) -> int:
        return len(self.images)

    @property
    def untouched(self) -> int:
        """Chains that were never moved: their start."""
        return int((self.visits == 0).sum())


def read_buffer(folder: RunFolder | None, model: Classifier) -> Buffer:
    """Of the newest intact state, the parts of all processes together; InputError where there is none."""
    if folder is None:
        raise InputError("the model comes without its run folder, which keeps the buffer")
    try:
        state, _ = folder.load_state()
    except (InputError, OSError):  # whose advice is for one who wants to go on with the training
        state = None
    if state is None:
        raise InputError(f"{folder.path.name} keeps no intact state of the training")
    if "buffer.images" not in state.shard:
        raise InputError("the training had no replay buffer")
    images = state.shard["buffer.images"]
    if tuple(images.shape[1:]) != model.shape:
        raise InputError(f"the buffer must hold images of {model.shape}, got {tuple(images.shape[1:])}")
    if not images.is_floating_point() or not images.float().isfinite().all():
        raise InputError("the buffer must hold finite numbers, got others")
    labels, visits = (state.shard.get(f"buffer.{name}") for name in ("labels", "visits"))
    if labels is None or visits is None or not len(labels) == len(visits) == len(images):
        raise InputError("the buffer must hold a label and a number of visits for each image")
    return Buffer(as_files(images), model.label_tensor(labels, len(images)), visits, state.step)


def most_confident(model: Classifier, images: Tensor) -> Tensor:
    """Places of the 90% of each predicted class that the model is most sure of, at the paper's γ²."""
    network = model.tempered()
    logits = logits_at(network, unit_energies(network, images), model.head.gamma2.item())
    predicted = logits.argmax(1)
    confidence = core.log_odds(logits)
    kept = []
    for y in predicted.unique():
        places = (predicted == y).nonzero().flatten()
        order = confidence[places].argsort(descending=True, stable=True)
        kept.append(places[order[: round(KEPT * len(places))]])
    return torch.cat(kept).sort().values
