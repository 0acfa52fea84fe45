"""Open the model of a finished run on a device."""

import torch

from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.networks import threads
from gmmc.runs import model_file


def load_model(run: str, device: str, count: int | None = None) -> Classifier:
    """The model of a run on a device, in a process that then computes with `count` threads.

    None: as many as its recipe sets or its size suggests.
    """
    model = model_file.load(run, device)
    torch.set_num_threads(count or threads.choose(recipe_of(model), model.shape, model.device))
    return model
