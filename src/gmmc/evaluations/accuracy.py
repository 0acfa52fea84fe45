"""How often, and how confidently, the right class is named on test images."""

import math

import torch.nn.functional as F
from torch import nn

from gmmc.config import EvaluateConfig
from gmmc.data import Dataset
from gmmc.evaluations.result import Result, conditions
from gmmc.models import batched_logits


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateConfig) -> Result:
    labels, classes = data.test.labels, len(data.class_names)
    logits = batched_logits(model, data.test.images).cpu().double()
    correct = logits.argmax(-1) == labels
    nll = F.cross_entropy(logits, labels).item()
    per_class = [correct[labels == y].double() for y in range(classes)]
    return Result(
        values={"top1": correct.double().mean().item(), "nll": nll, "errors": (~correct).sum().item()},
        curves={"top1_per_class": [hits.mean().item() if len(hits) else None for hits in per_class]},
        flags=doubts(nll, classes),
        conditions=conditions(model, split="test", images=len(labels)),
    )


def doubts(nll: float, classes: int) -> list[str]:
    if nll > math.log(classes):
        guess = f"a uniform guess has {math.log(classes):.3g}"
        return [f"overconfident: the nll is worse than knowing nothing ({guess})"]
    return []
