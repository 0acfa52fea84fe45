"""Where images come from. `load(cfg.data, seed)` gives the three splits of a named set or of a folder.

The names below are imported at their first use: predicting needs no parquet reader.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmmc.data.arrays import from_arrays
    from gmmc.data.ood_sets import GENERATED, Outside, find_outside, outside
    from gmmc.data.sources import SOURCES, load, located
    from gmmc.data.splits import Dataset, LabelledImages, hold_out

_HOME = {
    "GENERATED": "ood_sets",
    "SOURCES": "sources",
    "Dataset": "splits",
    "LabelledImages": "splits",
    "Outside": "ood_sets",
    "find_outside": "ood_sets",
    "from_arrays": "arrays",
    "hold_out": "splits",
    "load": "sources",
    "located": "sources",
    "outside": "ood_sets",
}

__all__ = [
    "GENERATED",
    "SOURCES",
    "Dataset",
    "LabelledImages",
    "Outside",
    "find_outside",
    "from_arrays",
    "hold_out",
    "load",
    "located",
    "outside",
]


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"gmmc.data.{_HOME[name]}"), name)
    try:
        return importlib.import_module(f"gmmc.data.{name}")  # gmmc.data.named, … without another import
    except ModuleNotFoundError:
        raise AttributeError(f"module 'gmmc.data' has no attribute {name!r}") from None
