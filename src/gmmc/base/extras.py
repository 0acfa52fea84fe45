"""Packages that only some features need, and how to install them."""

import importlib
from types import ModuleType

from gmmc.errors import InputError

PACKAGES = {  # of each extra in pyproject.toml
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "tensorboard": ("tensorboard",),
}


def import_extra(name: str, extra: str, purpose: str) -> ModuleType:
    """Import a package of an extra; where it is missing, InputError with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        # gmmc itself is on no package index, so pip cannot resolve gmmc[onnx].
        command = f"pip install {' '.join(PACKAGES[extra])}"
        raise InputError(
            f"{purpose} needs the package {name}: {command}, or in a clone make .venv/dev"
        ) from None
