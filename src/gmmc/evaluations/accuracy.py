"""How often, and how confidently, the right class is named on test images."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc import core
from gmmc.base import intervals
from gmmc.base.names import TEMPERATURES
from gmmc.base.progress import Progress
from gmmc.classifier.scores import batched, check_finite, tempered
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations.calibration import brier
from gmmc.evaluations.result import Result, conditions
from gmmc.evaluations.temperatures import used


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateOptions) -> Result:
    network, labels, classes = tempered(model), data.test.labels, len(data.class_names)
    logits = logits_of(model, data.test.images)
    predicted = logits.argmax(-1)
    hits = int((predicted == labels).sum())
    confusion = torch.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    counts = confusion.sum(1).tolist()
    nll = F.cross_entropy(logits, labels).item()
    return Result(
        values={
            "top1": hits / len(labels),
            "nll": nll,
            "brier": brier(core.log_posterior(logits).exp(), labels),
            "errors": len(labels) - hits,
        },
        intervals={"top1": intervals.of_proportion(hits, len(labels))},
        curves={
            "top1_per_class": [
                right / count if count else None
                for right, count in zip(confusion.diagonal().tolist(), counts, strict=True)
            ],
            "confusion": confusion.tolist(),
            "class_names": list(data.class_names),
        },
        flags=doubts(logits, nll),
        conditions=conditions(
            model,
            split="test",
            images=len(labels),
            temperature=TEMPERATURES[used(network)],
            gamma2=network.gamma2,
        ),
    )


def logits_of(model: nn.Module, images: Tensor) -> Tensor:
    with Progress("accuracy", len(images)) as bar:
        logits = batched(model, model, images, bar.update).cpu().double()
    check_finite(logits)
    return logits


def doubts(logits: Tensor, nll: float) -> list[str]:
    flags = []
    classes = logits.shape[-1]
    if nll > math.log(classes):
        guess = f"a uniform guess has {math.log(classes):.3g}"
        flags.append(f"overconfident: the NLL is worse than knowing nothing ({guess})")
    if (logits >= 0).all() and ((logits.sum(-1) - 1).abs() < 1e-4).all():
        flags.append("the model seems to give probabilities, not logits: give their logarithms")
    return flags
