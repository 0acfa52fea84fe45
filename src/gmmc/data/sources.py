"""Where images come from: `load(cfg.data, seed)` gives the three splits of a named set or of a folder."""

import functools
from collections.abc import Callable
from dataclasses import replace

from gmmc.base.inputs import expanded
from gmmc.base.text import nearest, shortened
from gmmc.config.sections import DataConfig
from gmmc.data import local, named
from gmmc.data.digits import digits
from gmmc.data.messages import say
from gmmc.data.splits import Dataset, Parts, hold_out
from gmmc.errors import InputError

SOURCES: dict[str, Callable[[DataConfig], Parts]] = {
    "digits": digits,
    **{name: functools.partial(named.load, name) for name in named.NAMED},
}


def load(cfg: DataConfig, seed: int) -> Dataset:
    """Train, validation and test images. The seed moves the validation split only, never the test images."""
    parts = _parts(cfg)
    train, valid = parts.train, parts.valid
    if valid is None:
        train, valid = hold_out(train, cfg.valid, seed)
    for note in parts.notes:
        say(note)
    return Dataset(train, valid, parts.test, parts.class_names, parts.name, cfg.root, parts.notes)


def _parts(cfg: DataConfig) -> Parts:
    if cfg.name in SOURCES:
        return SOURCES[cfg.name](cfg)
    path = expanded(cfg.name)
    if cfg.name and path.exists():
        return local.load(path, cfg)
    known = ", ".join(SOURCES)
    rule = f"data.name must be one of {known}, or a folder of images or parquet files"
    if cfg.name == Dataset.name:
        raise InputError(f"{rule}, got {cfg.name!r}, which only Python gives, as gmmc.GMMCClassifier does")
    near = nearest(cfg.name, SOURCES)
    hint = f"did you mean {near[0]!r}?" if near else "data.name=FOLDER names yours"
    raise InputError(f"{rule}, got {shortened(cfg.name)}, which does not exist; {hint}")


def located(cfg: DataConfig) -> DataConfig:
    """With the whole path of a folder: a run is evaluated later, perhaps from elsewhere."""
    path = expanded(cfg.name)
    if cfg.name in SOURCES or not path.exists():
        return cfg
    try:
        return replace(cfg, name=str(path.resolve()))
    except InputError as error:  # a folder above it has a name that is no text
        raise InputError(f"data.{error}") from None
