"""What an evaluation gives back, and the conditions under which it was measured."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import nn

from gmmc import __version__
from gmmc.base import provenance
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.classifier.predictor import FixedTemperature, NoiseLevel


@dataclass(frozen=True)
class Result:
    """`values` are single numbers (proportions: fractions of 1), `curves` lists, `flags` doubts in words.

    A value that belongs to a table is named by its place, row/column: "svhn/log_density/paper/auroc".
    """

    values: dict[str, float]
    conditions: dict[str, Any]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95% (bench: ranges), by value
    curves: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, Image] = field(default_factory=dict)  # path in the run folder → picture
    flags: list[str] = field(default_factory=list)
    unfinished: Path | None = None  # what an interrupted call would have gone on with; of no use once kept

    def __repr__(self) -> str:
        """Without the curves and settings, which fill pages."""
        return f"Result(values={self.values}, flags={self.flags})"

    def entry(self) -> dict[str, Any]:
        """As results.json keeps it."""
        return {
            "values": self.values,
            "intervals": self.intervals,
            "curves": self.curves,
            "files": sorted(self.pictures),
            "flags": self.flags,
            "conditions": self.conditions,
        }


def conditions(model: nn.Module, **protocol: Any) -> dict[str, Any]:
    """What a number needs beside it to be a result; of our own models also how they were trained."""
    parameter = next(model.parameters(), torch.empty(0))
    measured = {
        **protocol,
        "precision": provenance.precision(parameter),
        "hardware": provenance.hardware(parameter.device),
        "torch": torch.__version__,
        "gmmc": __version__,
        "commit": provenance.commit(),
    }
    ours = classifier_of(model)
    if ours is None:
        return measured
    measured["trained"] = dict(ours.trained)
    if ours.cfg is not None:
        measured["settings"] = dataclasses.asdict(recipe_of(ours))
    return measured


def classifier_of(module: nn.Module) -> Classifier | None:
    """A classifier of gmmc, also behind another temperature or noise level; None for other networks."""
    found = module.model if isinstance(module, FixedTemperature | NoiseLevel) else module
    return found if isinstance(found, Classifier) else None
