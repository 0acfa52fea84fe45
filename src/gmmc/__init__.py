"""gmmc: generative max-Mahalanobis classifiers. `import gmmc` is cheap; torch comes with the first use."""

import importlib
from typing import TYPE_CHECKING

from gmmc.base.leader import end_with_parent

__version__ = "0.1.0"

end_with_parent()

if TYPE_CHECKING:
    from gmmc.classifier.image_files import read_images
    from gmmc.classifier.model import Classifier
    from gmmc.errors import Diverged, InputError
    from gmmc.estimator.classifier import GMMCClassifier
    from gmmc.evaluations.evaluate import evaluate
    from gmmc.export.hub import from_pretrained, save_pretrained
    from gmmc.runs.model_file import load

_HOME = {
    "Classifier": "gmmc.classifier.model",
    "Diverged": "gmmc.errors",
    "GMMCClassifier": "gmmc.estimator.classifier",
    "InputError": "gmmc.errors",
    "evaluate": "gmmc.evaluations.evaluate",
    "from_pretrained": "gmmc.export.hub",
    "load": "gmmc.runs.model_file",
    "read_images": "gmmc.classifier.image_files",
    "save_pretrained": "gmmc.export.hub",
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
    "read_images",
    "save_pretrained",
]


_MODULES = ("config", "data")  # those that users call: gmmc.config.load, gmmc.data.from_arrays


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return sorted([*__all__, *_MODULES])


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    try:
        return importlib.import_module(f"gmmc.{name}")  # gmmc.core, gmmc.data, … without another import
    except ModuleNotFoundError:
        raise AttributeError(f"module 'gmmc' has no attribute {name!r}") from None
