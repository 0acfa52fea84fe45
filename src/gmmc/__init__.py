"""gmmc: generative max-Mahalanobis classifiers. `import gmmc` is cheap; torch comes with the first use."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gmmc.errors import Diverged, InputError
    from gmmc.evaluations import evaluate
    from gmmc.models import Classifier
    from gmmc.runs import load

_HOME = {
    "Classifier": "gmmc.models",
    "Diverged": "gmmc.errors",
    "InputError": "gmmc.errors",
    "evaluate": "gmmc.evaluations",
    "load": "gmmc.runs",
}

__all__ = ["Classifier", "Diverged", "InputError", "__version__", "evaluate", "load"]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    try:
        return importlib.import_module(f"gmmc.{name}")  # gmmc.core, gmmc.data, … without another import
    except ModuleNotFoundError:
        raise AttributeError(f"module 'gmmc' has no attribute {name!r}") from None
