"""Training that begins with the weights of another run instead of random ones: `train.start`."""

import dataclasses

from gmmc import pretrained, records, runs
from gmmc.config import Config
from gmmc.data import Dataset
from gmmc.errors import InputError
from gmmc.models import Classifier
from gmmc.packing import pack

BATCH_NORMS = {"batch", "batch_then_frozen"}  # which differ in when they learn, not in what


def load_start(cfg: Config, data: Dataset) -> Classifier | None:
    """The model to begin with, if any; refused where its weights would not fit, or know the answers."""
    if not cfg.train.start:
        return None
    try:
        start = runs.load(cfg.train.start)
        metrics = records.read_metrics(pretrained.find(cfg.train.start))
    except InputError as error:
        raise InputError(f"train.start must be a finished run or a model file: {error}") from None
    # Two starts of the same path need not be the same.
    start.trained["sha256"] = pack(start.state_dict(), {})[1]
    if metrics:
        start.trained["seconds"] = metrics[-1].get("seconds", 0.0)
    check_fit(start, cfg, data)
    if start.trained.get("data_sha256") != data.fingerprint:
        raise InputError(
            f"train.start must have the same training images, got {cfg.train.start}, which may have seen "
            "validation images of this run; give the same data, train.seed and data.valid"
        )
    return start


def check_fit(start: Classifier, cfg: Config, data: Dataset) -> None:
    """Refuse a model whose weights would not fit."""
    if (start.shape, start.class_names) != (data.shape, data.class_names):
        raise InputError(
            f"train.start must be a model of the same classes and image size, got {len(start.class_names)} "
            f"classes, {'×'.join(map(str, start.shape))}"
        )
    for key in dataclasses.fields(cfg.model):
        old, new = getattr(start.cfg.model, key.name), getattr(cfg.model, key.name)
        if old != new and not (key.name == "priors" or {old, new} == BATCH_NORMS):
            raise InputError(
                f"train.start must have the [model] of this recipe, model.{key.name}={new}, got {old}"
            )


def take_over(model: Classifier, start: Classifier) -> None:
    """Its network, and what its head has learned; priors and starts of chains are those of the new data.

    Of classes that the new data lack, chains start where they did before.
    """
    model.backbone.load_state_dict(start.backbone.state_dict())
    if isinstance(start.start, type(model.start)):
        model.start.load_state_dict(start.start.state_dict())
    for mine, learned in zip(model.head.parameters(), start.head.parameters(), strict=True):
        mine.data.copy_(learned)


def told(start: Classifier) -> dict[str, object]:
    """What a model remembers of the one that it came from."""
    facts = ("sha256", "updates", "seconds", "weights", "commit")
    return {name: start.trained[name] for name in facts if name in start.trained}
