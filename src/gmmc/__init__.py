"""gmmc: generative max-Mahalanobis classifiers. `import gmmc` is cheap; torch comes with the first use."""

import importlib
from typing import TYPE_CHECKING

from gmmc.ranks import end_with_parent

__version__ = "0.1.0"

end_with_parent()

if TYPE_CHECKING:
    from gmmc.errors import Diverged, InputError
    from gmmc.estimator import GMMCClassifier
    from gmmc.evaluations import evaluate
    from gmmc.hub import from_pretrained, save_pretrained
    from gmmc.models import Classifier
    from gmmc.runs import load

_HOME = {
    "Classifier": "gmmc.models",
    "Diverged": "gmmc.errors",
    "GMMCClassifier": "gmmc.estimator",
    "InputError": "gmmc.errors",
    "evaluate": "gmmc.evaluations",
    "from_pretrained": "gmmc.hub",
    "load": "gmmc.runs",
    "save_pretrained": "gmmc.hub",
}

__all__ = [
    "Classifier",
    "Diverged",
    "GMMCClassifier",
    "InputError",
    "__version__",
    "evaluate",
    "from_pretrained",
    "load",
    "save_pretrained",
]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    try:
        return importlib.import_module(f"gmmc.{name}")  # gmmc.core, gmmc.data, … without another import
    except ModuleNotFoundError:
        raise AttributeError(f"module 'gmmc' has no attribute {name!r}") from None
