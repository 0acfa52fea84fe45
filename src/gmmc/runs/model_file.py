"""Model files: weights, γ², priors and all that is needed to use them, in one safetensors file."""

from pathlib import Path

import torch
from torch import Tensor

from gmmc import __version__
from gmmc.base.atomic import write_atomic
from gmmc.base.leader import is_leader
from gmmc.base.limits import LONG_SHOWN, MODEL_BYTES
from gmmc.base.progress import Progress
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.base.text import shortened
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier, pick_device
from gmmc.config import recipes
from gmmc.errors import InputError
from gmmc.runs import layout, shipped
from gmmc.runs.layout import CONFIG, DESCRIPTION, LAST_GOOD, MODEL
from gmmc.runs.restore import (
    DENSITY_GAMMA2,
    NEIGHBOURS,
    REFERENCE,
    SIZES_COVARIANCE,
    SIZES_MEAN,
    restore,
)


def save_model(path: Path, model: Classifier) -> None:
    """Weights, γ², priors and all that is needed to use them, in one file."""
    info = {
        "gmmc": __version__,
        "trained": model.trained,
        "config": recipes.to_toml(recipe_of(model)),
        "shape": model.shape,
        "class_names": model.class_names,
        DENSITY_GAMMA2: 1.0,
    }
    write_atomic(path, pack(stored_weights(model) | _reference_tensors(model), info)[0])


def stored_weights(model: Classifier) -> dict[str, Tensor]:
    """The state of the model as its recipe wants it stored.

    The head and the Gaussian term are small and stay as they are.
    """
    state = model.state_dict()
    if recipe_of(model).train.weights == "fp32":
        return state
    small = ("head.", "gaussian.")
    large = [name for name in state if not name.startswith(small) and state[name].is_floating_point()]
    return state | {name: state[name].bfloat16() for name in large}


def _reference_tensors(model: Classifier) -> dict[str, Tensor]:
    """All that a model needs to abstain."""
    tensors = {} if model.neighbours is None else {NEIGHBOURS: model.neighbours.features}
    if model.reference is None:
        return tensors
    dtype = torch.float64 if recipe_of(model).train.weights == "fp32" else torch.float32
    scores = {f"{REFERENCE}{name}": values.to(dtype) for name, values in model.reference.scores.items()}
    gamma2 = torch.tensor(model.reference.gamma2, dtype=torch.float64)
    if (sizes := model.reference.sizes) is not None:
        tensors |= {SIZES_MEAN: sizes.mean, SIZES_COVARIANCE: sizes.covariance}
    return tensors | {f"{REFERENCE}gamma2": gamma2, **scores}


@torch.inference_mode(False)  # whatever mode the caller is in, scores may need gradients
def load(path: str | Path, device: str = "cpu") -> Classifier:
    """The model of a run folder, of a model.safetensors file or of a name that ships with gmmc.

    On 'cpu', 'cuda' or 'auto'.
    """
    place = pick_device(device)
    path = shipped.find(path)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file():
        raise InputError(_no_model(path))
    try:
        tensors, info, _ = unpack(file, MODEL_BYTES, "MODEL_BYTES")
    except Damaged as error:
        raise InputError(f"{error}{_restored_by(file)}") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    try:
        model, notes = restore(tensors, info)
    except InputError as error:
        raise InputError(f"{file} is not a model of this version of gmmc ({error})") from None
    if shipped.is_shipped(file) or (file.parent / DESCRIPTION).is_file():
        model.resizes = True  # who trained it is elsewhere, and so is what the images were like
    for note in notes:
        Progress("", 0, silent=not is_leader()).say(f"{file}: {note}")
    return model.to(place).eval()


def _restored_by(file: Path) -> str:
    if shipped.is_shipped(file):
        return "; install gmmc again"
    restorable = file.name == MODEL and (file.parent / CONFIG).is_file()
    return "; the same `gmmc train` command restores it" if restorable else ""


def _no_model(path: Path) -> str:
    if not path.exists():
        models = shipped.listed("; models that ship with gmmc")
        return f"no run folder or model file {shortened(str(path), LONG_SHOWN)}: it does not exist{models}"
    if (path / LAST_GOOD).is_file():
        return f"{path} diverged and has no finished model; its last good weights are {path / LAST_GOOD}"
    if layout.is_training(path):
        return f"{path} is still being trained and has no finished model yet"
    if (path / CONFIG).is_file():
        return f"{path} holds no finished model; run the same `gmmc train` command again to finish it"
    return f"{path} is not a run folder: it has no {MODEL}"
