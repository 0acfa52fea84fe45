"""How often, and how confidently, the right class is named on test images."""

import torch.nn.functional as F
from torch import nn

from gmmc.config import EvaluateConfig
from gmmc.data import Dataset
from gmmc.evaluations.result import Result, conditions
from gmmc.models import batched_logits


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateConfig) -> Result:
    labels = data.test.labels
    logits = batched_logits(model, data.test.images).cpu()
    correct = logits.argmax(-1) == labels
    per_class = [correct[labels == y].float().mean().item() for y in range(len(data.class_names))]
    return Result(
        values={
            "top1": correct.double().mean().item(),
            "nll": F.cross_entropy(logits.double(), labels).item(),
            "errors": (~correct).sum().item(),
        },
        curves={"top1_per_class": per_class},
        conditions=conditions(model, split="test", images=len(labels)),
    )
