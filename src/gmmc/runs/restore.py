"""A classifier from the content of a model's file, of which nothing is trusted.

The hash in a file shows that it is whole, not that its author meant well. Types, names, shapes and values are
checked here, and memory is taken only for what the file itself holds.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gmmc.base.class_names import check_class_names
from gmmc.base.inputs import parse_toml
from gmmc.base.limits import IMAGE_SIDE, ROW_NUMBERS
from gmmc.base.names import NOISE_SCORES
from gmmc.base.text import printable, shortened
from gmmc.classifier.abstention import Neighbours, Reference
from gmmc.classifier.build import build
from gmmc.classifier.evidence import COMBINED
from gmmc.classifier.model import Classifier
from gmmc.classifier.noise_sizes import QUANTILES, Gaussian
from gmmc.classifier.scores import SCORES
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.errors import InputError
from gmmc.networks.backbones import LAYOUT
from gmmc.networks.cosines import Cosines
from gmmc.pixels import Shape, is_vector

# In the names of a model's tensors.
REFERENCE = "reference."
NEIGHBOURS = "neighbours.features"
SIZES_MEAN, SIZES_COVARIANCE = "noise_sizes.mean", "noise_sizes.covariance"
# In the header of a model's file: γ² of its stored densities. Files without it have them at the fitted γ².
DENSITY_GAMMA2 = "density_gamma2"
AT_FITTED_GAMMA2 = ("log_density", "gradient_norm", "combined")  # scores that such a file cannot be used for
FLOATS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
TRAINED_COUNTS = ("updates", "parameters", "rollbacks", "processes")  # in `trained`
TEXTS = ("data_sha256", "held_out_sha256", "commit", "sha256", "weights", "precision", "engine")


@dataclass(frozen=True)
class Header:
    """Checked header of a model file."""

    cfg: Config
    shape: Shape
    class_names: tuple[str, ...]
    trained: dict[str, Any]
    density_gamma2: float | None
    notes: tuple[str, ...]


def restore(tensors: dict[str, Tensor], info: Any) -> tuple[Classifier, tuple[str, ...]]:
    """Build the model of a file: (model, notes); InputError where anything in the file does not fit."""
    header = read_header(info)
    tensors = dict(tensors)
    sizes = _take_sizes(tensors, header.cfg)
    reference = _take_reference(tensors, header.density_gamma2, sizes)
    neighbours = _take_neighbours(tensors)
    with torch.device("meta"):  # shapes without memory
        model = build(header.cfg, header.shape, header.class_names)
    expected = model.state_dict()
    _check_tensors(tensors, expected)
    # Copied: tensors that share the bytes of a file need not be aligned.
    weights = {name: tensor.to(expected[name].dtype, copy=True) for name, tensor in tensors.items()}
    model.load_state_dict(weights, assign=True)
    network: Any = model.backbone
    network.to(memory_format=LAYOUT)
    for part in model.modules():
        if isinstance(part, Cosines):
            part.fill_constants()
    if model.gaussian:
        model.gaussian.check_values()
    if not model.head.gamma2 > 0:
        raise InputError(f"head.gamma2 must be above 0, got {model.head.gamma2.item():g}")
    if not (model.head.priors >= 0).all() or not math.isclose(model.head.priors.sum(), 1, abs_tol=1e-3):
        raise InputError("head.priors must be probabilities that sum to 1")
    if reference:
        _check_combined(reference, neighbours, noise_conditional=header.cfg.noise_conditional)
    if neighbours and neighbours.features.shape[1] != model.dim:
        raise InputError(f"{NEIGHBOURS} must have {model.dim} columns, got {neighbours.features.shape[1]}")
    model.trained, model.reference, model.neighbours = header.trained, reference, neighbours
    return model, header.notes


# --- the header -----------------------------------------------------------------------------------


def read_header(info: Any) -> Header:
    """Check the types and ranges of what a file says of its model."""
    if not isinstance(info, dict):
        raise InputError(f"its header must be an object, got {shortened(info)}")
    for key in ("config", "shape", "class_names", "trained"):
        if key not in info:
            raise InputError(f"its header must have the key {key!r}")
    if not isinstance(info["config"], str):
        raise InputError(f"config must be a string, got {shortened(info['config'])}")
    density_gamma2 = info.get(DENSITY_GAMMA2)
    if density_gamma2 is not None and not _is_number(density_gamma2):
        raise InputError(f"{DENSITY_GAMMA2} must be a number, got {shortened(density_gamma2)}")
    cfg, notes = recipes.stored(parse_toml(info["config"], "config"))
    return Header(
        cfg,
        _checked_shape(info["shape"]),
        check_class_names(info["class_names"], "class_names"),
        _checked_facts(info["trained"], "trained"),
        density_gamma2,
        tuple(notes),
    )


def _checked_shape(shape: Any) -> Shape:
    """(channels, height, width) of images, or (n, 1, 1) of rows."""
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(n) is int and n > 0 for n in shape):
        raise InputError(f"shape must be three whole numbers above 0, got {shortened(shape)}")
    channels, height, width = shape
    if is_vector((channels, height, width)) and channels > ROW_NUMBERS:
        raise InputError(f"shape must have at most {ROW_NUMBERS:,} numbers (limits.ROW_NUMBERS), got {shape}")
    if not is_vector((channels, height, width)) and max(shape) > IMAGE_SIDE:
        raise InputError(f"shape must have sides of at most {IMAGE_SIDE} (limits.IMAGE_SIDE), got {shape}")
    return channels, height, width


def _checked_facts(facts: Any, where: str) -> dict[str, Any]:
    """Facts about the training: they are printed, and written to results.json."""
    if not isinstance(facts, dict):
        raise InputError(f"{where} must be an object, got {shortened(facts)}")
    for name, value in facts.items():
        place = f"{where}.{printable(name)}"
        if name == "start" and where == "trained":
            _checked_facts(value, place)
        elif name in TRAINED_COUNTS and not (type(value) is int and value >= 0):
            raise InputError(f"{place} must be a whole number from 0, got {shortened(value)}")
        elif name == "seconds" and not (_is_number(value) and value >= 0):
            raise InputError(f"{place} must be a finite number from 0, got {shortened(value)}")
        elif name in TEXTS and not isinstance(value, str):
            raise InputError(f"{place} must be a string, got {shortened(value)}")
        elif isinstance(value, str):
            if printable(value) != value:
                raise InputError(f"{place} must be printable, got {shortened(value)}")
        elif not _is_number(value) and not isinstance(value, bool):
            raise InputError(f"{place} must be a string or a finite number, got {shortened(value)}")
    return facts


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


# --- tensors --------------------------------------------------------------------------------------


def _check_tensors(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Refuse tensors that are not those of the network, or not finite."""
    missing, unknown = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or unknown:
        what, name = ("has no", min(missing)) if missing else ("has the unknown", min(unknown))
        raise InputError(f"it {what} tensor {shortened(name)}")
    for name, tensor in tensors.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape:
            raise InputError(f"{name} must have the shape {tuple(wanted.shape)}, got {tuple(tensor.shape)}")
        if (tensor.dtype in FLOATS) != (wanted.dtype in FLOATS):
            raise InputError(f"{name} must be of the kind of {wanted.dtype}, got {tensor.dtype}")
        _check_finite(name, tensor)


def _check_finite(name: str, tensor: Tensor) -> None:
    if tensor.dtype in FLOATS and not tensor.isfinite().all():
        raise InputError(f"{name} must be finite, got NaN or infinity")


def _take_sizes(tensors: dict[str, Tensor], cfg: Config) -> Gaussian | None:
    """Remove the density of sizes at noise levels from the tensors."""
    mean, covariance = tensors.pop(SIZES_MEAN, None), tensors.pop(SIZES_COVARIANCE, None)
    if mean is None and covariance is None:
        return None
    if not cfg.noise_conditional:
        raise InputError(f"{SIZES_MEAN} must not be in a model without noise levels")
    width = len(NOISE_SCORES) * len(QUANTILES)
    shapes = {SIZES_MEAN: (mean, (width,)), SIZES_COVARIANCE: (covariance, (width, width))}
    for name, (tensor, shape) in shapes.items():
        if tensor is None or tuple(tensor.shape) != shape or tensor.dtype not in FLOATS:
            raise InputError(f"{name} must be numbers of the shape {shape}")
        _check_finite(name, tensor)
    assert mean is not None
    assert covariance is not None
    mean, covariance = mean.double(), covariance.double()
    if not torch.equal(covariance, covariance.T) or torch.linalg.cholesky_ex(covariance).info:
        raise InputError(f"{SIZES_COVARIANCE} must be a covariance: symmetric and positive definite")
    return Gaussian(mean, covariance)


def _take_reference(
    tensors: dict[str, Tensor], density_gamma2: float | None, sizes: Gaussian | None
) -> Reference | None:
    """Remove the scores of validation images from the tensors; None of a model trained without any."""
    names = [name for name in tensors if name.startswith(REFERENCE)]
    scores = {name.removeprefix(REFERENCE): tensors.pop(name) for name in names}
    if not scores:
        return None
    gamma2 = scores.pop("gamma2", torch.empty(0))
    if gamma2.numel() != 1 or gamma2.dtype not in FLOATS or not 0 < gamma2.item() < math.inf:
        raise InputError(f"{REFERENCE}gamma2 must be one number above 0")
    for name, values in scores.items():
        if name not in SCORES:
            raise InputError(f"it has the unknown tensor {shortened(REFERENCE + name)}")
        if values.dim() != 1 or not len(values) or values.dtype not in FLOATS:
            raise InputError(f"{REFERENCE}{name} must be a row of numbers, got {tuple(values.shape)}")
        _check_finite(f"{REFERENCE}{name}", values)
        if (values.diff() < 0).any():
            raise InputError(f"{REFERENCE}{name} must be ascending")
    if density_gamma2 != 1.0:
        scores = {name: values for name, values in scores.items() if name not in AT_FITTED_GAMMA2}
    if sizes is None and scores.keys() & {*NOISE_SCORES}:
        raise InputError(f"{REFERENCE}{NOISE_SCORES[0]} needs {SIZES_MEAN} and {SIZES_COVARIANCE}")
    return Reference(gamma2.item(), scores, sizes) if scores else None


def _check_combined(reference: Reference, neighbours: Neighbours | None, *, noise_conditional: bool) -> None:
    """Refuse scores that lack what an image's own score would need."""
    if "neighbours" in reference.scores and neighbours is None:
        raise InputError(f"{REFERENCE}neighbours needs {NEIGHBOURS}")
    if COMBINED not in reference.scores:
        return
    if not reference.joined:
        raise InputError(f"{REFERENCE}{COMBINED} needs the scores that it joins")
    if noise_conditional and reference.sizes is None:
        raise InputError(f"{REFERENCE}{COMBINED} needs {SIZES_MEAN} and {SIZES_COVARIANCE}")


def _take_neighbours(tensors: dict[str, Tensor]) -> Neighbours | None:
    """Remove the features of training images from the tensors."""
    features = tensors.pop(NEIGHBOURS, None)
    if features is None:
        return None
    if features.dim() != 2 or not len(features) or features.dtype not in FLOATS:
        raise InputError(f"{NEIGHBOURS} must be a table of numbers, got {tuple(features.shape)}")
    _check_finite(NEIGHBOURS, features)
    return Neighbours(features)
