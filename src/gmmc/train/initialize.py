"""Training that begins with the weights of another run instead of random ones: `train.start`.

A start of the same classes is trained further: its network must be the recipe's. From a start of other
classes only the trunk is taken, all layers but the last: the network is then the start's, with a new last
layer and a new head.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from gmmc.base.tensorfile import pack
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.config import former, recipes, schema
from gmmc.config.schema import Config
from gmmc.config.sections import ModelConfig, TransferConfig
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.networks.backbones import split_last
from gmmc.networks.heads import HEADS
from gmmc.networks.smooth import Coordinates
from gmmc.pixels import Shape
from gmmc.runs import model_file, shipped
from gmmc.runs.metrics import read_metrics

BATCH_NORMS = {"batch", "batch_then_frozen"}  # which differ in when they learn, not in what


class Beginning(NamedTuple):
    cfg: Config  # as it is trained
    start: Classifier | None
    note: str  # for people


def begin(cfg: Config, data: Dataset) -> Beginning:
    """Load the start, if any, and adapt the recipe to it."""
    note = ""
    if cfg.train.start == schema.AUTO_START:
        name, note = choose_start(cfg, data)
        cfg = with_start(cfg, name)
    start = load_start(cfg, data)
    if start is not None and is_transfer(start, data):
        return Beginning(transferred(cfg, recipe_of(start).model), start, note)
    return Beginning(without_transfer(cfg), start, note)


def choose_start(cfg: Config, data: Dataset) -> tuple[str, str]:
    """Return the name of a shipped model to begin with, or "" and the reason."""
    if cfg.transfer.frozen_epochs and HEADS[cfg.model.head].fixed_means and not cfg.model.dim:
        return "", "beginning with random weights: model.dim=0 has no last layer that learns"
    for name in shipped.names():
        model = model_file.load(shipped.SHIPPED / name)
        if model.shape == data.shape and is_transfer(model, data) and fits_noise(model, cfg):
            return name, ""
    trained = " trained by denoising" if cfg.noise_conditional else ""
    rule = f"no shipped model{trained} has other classes and images of"
    return "", f"beginning with random weights: {rule} {shown(data.shape)}"


def with_start(cfg: Config, start: str) -> Config:
    return dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, start=start))


def resumed(cfg: Config, stored: Config) -> Config:
    """Adapt the recipe as when the run began, without the start, which may be gone."""
    if cfg.train.start == schema.AUTO_START:
        cfg = with_start(cfg, stored.train.start)
    ways = []
    for adapted in (without_transfer, functools.partial(transferred, network=stored.model)):
        with contextlib.suppress(InputError):  # a recipe that leaves one of them nothing to train
            ways.append(adapted(cfg))
    return min(ways, key=lambda way: len(recipes.differences(stored, way)))


def is_transfer(start: Classifier, data: Dataset) -> bool:
    return start.class_names != data.class_names


def transferred(cfg: Config, network: ModelConfig) -> Config:
    """Recipe of a training from a start of other classes: its network, and [transfer] if that has epochs.

    [discriminative] becomes the phase of all layers, with the augmentation that it has.
    """
    norm = network.norm
    if norm in BATCH_NORMS:
        norm = cfg.model.norm if cfg.model.norm in BATCH_NORMS else "batch"
    model = dataclasses.replace(cfg.model, backbone=network.backbone, norm=norm)
    phase = cfg.discriminative
    if cfg.has_transfer:
        transfer: dict[str, Any] = {"epochs": cfg.transfer.epochs, "lr": cfg.transfer.lr}
        transfer |= {"schedule": "cosine", "decay_epochs": (), "warmup": 0, "weight_decay": 0.0}
        phase = dataclasses.replace(phase, **transfer)
    return dataclasses.replace(cfg, model=model, discriminative=phase)


def without_transfer(cfg: Config) -> Config:
    """Recipe without the phases that only a start of other classes needs."""
    return dataclasses.replace(cfg, transfer=TransferConfig())


def check_used(asked: Config, trained: Config, keys: Iterable[str]) -> None:
    """Refuse settings, given by their keys, that the adapted recipe drops."""
    keys = [key for key in former.present(keys) if key != "train.start"]
    unused = [key for key in keys if _setting(asked, key) != _setting(trained, key)]
    if not unused:
        return
    if all(key.startswith("transfer.") for key in unused):
        rule = "without a start of other classes (train.start)"
    else:
        rule = f"with train.start={trained.train.start}, whose network and [transfer] are trained"
    raise InputError(f"{', '.join(unused)} would not be used {rule}; leave it out")


def _setting(cfg: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(cfg, section), name)


def load_start(cfg: Config, data: Dataset) -> Classifier | None:
    """Load the model to begin with, if any; refuse one that does not fit or knows the answers."""
    if not cfg.train.start:
        return None
    try:
        start = model_file.load(cfg.train.start)
        metrics = read_metrics(shipped.find(cfg.train.start))
    except InputError as error:
        raise InputError(f"train.start must be a finished run or a model file: {error}") from None
    # Two starts of the same path need not be the same.
    start.trained["sha256"] = pack(start.state_dict(), {})[1]
    if metrics:
        start.trained["seconds"] = metrics[-1].get("seconds", 0.0)
    check_shape(start, cfg, data)
    if is_transfer(start, data):
        check_trunk(start, cfg)
        return start
    check_fit(start, cfg, data)
    if start.trained.get("data_sha256") != data.fingerprint:
        raise InputError(
            f"train.start must have the same training images, got {cfg.train.start}, which may have seen "
            "validation images of this run; give the same data, train.seed and data.valid"
        )
    return start


def check_shape(start: Classifier, cfg: Config, data: Dataset) -> None:
    """Refuse a model of images of another shape."""
    if start.shape != data.shape:
        needed = f"{shown(start.shape)} (data.size={start.shape[1]})"
        raise InputError(f"train.start={cfg.train.start} needs images of {needed}, got {shown(data.shape)}")


def takes_same_input(start: Classifier, cfg: Config) -> bool:
    """Whether both networks, or neither, take the noise level as one more channel."""
    return (start.denoising is not None) == cfg.noise_conditional


def has_same_term(start: Classifier, cfg: Config) -> bool:
    """Whether both energies have the same kind of Gaussian term, for which their networks are trained."""
    theirs, ours = start.denoising, cfg.denoising
    if theirs is None or theirs.gaussian != ours.gaussian:
        return theirs is None
    return ours.gaussian == "isotropic" or theirs.sigma_data == ours.sigma_data


def fits_noise(start: Classifier, cfg: Config) -> bool:
    return takes_same_input(start, cfg) and has_same_term(start, cfg)


def check_input(start: Classifier, cfg: Config) -> None:
    """Refuse a network that takes noise levels where the recipe's does not, or the other way round."""
    if not takes_same_input(start, cfg):
        trained = recipe_of(start).train.algorithm
        raise InputError(
            f"train.start must be trained by train.algorithm={cfg.train.algorithm}, as this recipe is, "
            f"got {trained}: only one of the two networks takes noise levels"
        )
    if not has_same_term(start, cfg):
        raise InputError(
            "denoising.gaussian and denoising.sigma_data must be those of train.start, whose network was "
            f"trained beside their Gaussian term, got {cfg.denoising.gaussian}, {cfg.denoising.sigma_data:g}"
        )


def check_trunk(start: Classifier, cfg: Config) -> None:
    """Refuse a start of other classes whose trunk would not fit."""
    check_input(start, cfg)
    old, new = recipe_of(start).model.dim, cfg.model.dim
    if old != new and any(isinstance(part, Coordinates) for part in start.backbone.modules()):
        raise InputError(
            f"model.dim must be {old} with train.start={cfg.train.start}, whose pooled and spatial features "
            f"are taken over together, got {new}"
        )


def shown(shape: Shape) -> str:
    return "×".join(map(str, shape))


def check_fit(start: Classifier, cfg: Config, data: Dataset) -> None:
    """Refuse a model to train further whose weights would not fit."""
    if (start.shape, start.class_names) != (data.shape, data.class_names):
        raise InputError(
            f"train.start must be a model of the same classes and image size, got {len(start.class_names)} "
            f"classes, {shown(start.shape)}"
        )
    check_input(start, cfg)
    for key in dataclasses.fields(cfg.model):
        old, new = getattr(recipe_of(start).model, key.name), getattr(cfg.model, key.name)
        if old != new and not (key.name == "priors" or {old, new} == BATCH_NORMS):
            raise InputError(
                f"train.start must have the [model] of this recipe, model.{key.name}={new}, got {old}"
            )


def take_over(model: Classifier, start: Classifier) -> None:
    """Copy the start's network and what its head has learned; of other classes the trunk alone.

    Priors and starts of chains are those of the new data. Of classes that the new data lack, chains start
    where they did before. The Gaussian term of a denoiser is the start's: its network was trained beside it.
    """
    if model.gaussian and start.gaussian:
        model.gaussian.load_state_dict(start.gaussian.state_dict())
    if start.class_names != model.class_names:
        split_last(model.backbone)[0].load_state_dict(split_last(start.backbone)[0].state_dict())
        return
    model.backbone.load_state_dict(start.backbone.state_dict())
    if isinstance(start.start, type(model.start)):
        model.start.load_state_dict(start.start.state_dict())
    for mine, learned in zip(model.head.parameters(), start.head.parameters(), strict=True):
        mine.data.copy_(learned)


def facts(start: Classifier) -> dict[str, object]:
    """Facts that a model keeps about the one that it came from."""
    names = ("sha256", "updates", "seconds", "weights", "commit")
    return {name: start.trained[name] for name in names if name in start.trained}
