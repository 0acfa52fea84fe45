"""Where images come from: `load(cfg.data, seed)` gives the three splits of a named set."""

from collections.abc import Callable

from gmmc.config import DataConfig
from gmmc.data.digits import digits
from gmmc.data.splits import Dataset, LabelledImages, hold_out
from gmmc.errors import InputError

SOURCES: dict[str, Callable[[], tuple[LabelledImages, LabelledImages, tuple[str, ...]]]] = {"digits": digits}


def load(cfg: DataConfig, seed: int) -> Dataset:
    """Train, validation and test images. The seed moves the validation split only, never the test images."""
    if cfg.name not in SOURCES:
        raise InputError(f"data.name must be one of {', '.join(SOURCES)}, got {cfg.name!r}")
    train, test, class_names = SOURCES[cfg.name]()
    train, valid = hold_out(train, cfg.valid, seed)
    return Dataset(train, valid, test, class_names)


__all__ = ["Dataset", "LabelledImages", "hold_out", "load"]
