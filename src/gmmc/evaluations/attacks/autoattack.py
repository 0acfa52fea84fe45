"""The four parts of AutoAttack (Croce & Hein 2020), each by itself, in L∞ and L2."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gmmc.evaluations.attacks.apgd import apgd, cross_entropy, targeted_dlr
from gmmc.evaluations.attacks.fab import fab
from gmmc.evaluations.attacks.gradient import differentiate
from gmmc.evaluations.attacks.square import square
from gmmc.evaluations.attacks.target import Target, margin
from gmmc.evaluations.attacks.threats import Threat

Part = Literal["apgd-ce", "apgd-t", "fab-t", "square"]
PARTS: tuple[Part, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")
BLACK_BOX = "square"
TARGETS = 9  # classes, those with the largest logits; AutoAttack's standard
QUERIES = 5000  # AutoAttack's standard
SAME = 1e-4  # relative difference of logits up to which two calls agree; AutoAttack's standard

# (images, labels, goals) → (images as attacked, whether each is misclassified within the threat)
TargetedAttack = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class AutoAttackPart:
    """One part with the standard settings, except for the number of queries and where classes are few."""

    part: Part
    classes: int
    queries: int = QUERIES
    notes: dict[str, None] = field(default_factory=dict, compare=False)  # warnings, each once
    tries: int = 1

    @property
    def targets(self) -> int:
        return min(TARGETS, self.classes - 1)

    @property
    def possible(self) -> bool:
        """APGD-T's loss compares four logits."""
        return self.part != "apgd-t" or self.classes >= 4

    @property
    def cost(self) -> int:
        gradients = {"apgd-ce": 100, "apgd-t": 100 * self.targets, "fab-t": 200 * self.targets}
        return gradients.get(self.part, self.queries // 3)

    def attempt(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, number: int, source: torch.Generator
    ) -> Tensor:
        self.notes.update(dict.fromkeys(signs_of_misjudgement(target, x, y)))
        return threat.project(self._attack(target, x, y, threat, source), x)

    def _attack(
        self, target: Target, x: Tensor, y: Tensor, threat: Threat, source: torch.Generator
    ) -> Tensor:
        def apgd_towards(x: Tensor, y: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
            return apgd(target, targeted_dlr(y, goal), x, y, threat, threat.random_edge(x, source))

        def fab_towards(x: Tensor, y: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
            moved, distances = fab(target, x, y, goal, threat)
            return moved, distances <= threat.eps

        if self.part == "square":
            return square(target, x, y, threat, self.queries, source)
        if self.part == "apgd-ce":
            return apgd(target, cross_entropy(y), x, y, threat, threat.random_edge(x, source))[0]
        attack = apgd_towards if self.part == "apgd-t" else fab_towards
        return towards_each(attack, x, y, self._goals(target, x, y))

    @torch.no_grad()
    def _goals(self, target: Target, x: Tensor, y: Tensor) -> Tensor:
        """(N, targets): the other classes, the one with the largest logit first."""
        others = target(x).float().scatter(1, y[:, None], float("-inf"))
        return others.topk(self.targets, dim=1).indices


def towards_each(attack: TargetedAttack, x: Tensor, y: Tensor, goals: Tensor) -> Tensor:
    """Attack one goal after the other, each on the images that are not broken yet."""
    moved, left = x.clone(), torch.arange(len(x), device=x.device)
    for goal in goals.unbind(1):
        if len(left) == 0:
            break
        moved[left], broken = attack(x[left], y[left], goal[left])
        left = left[~broken]
    return moved


def signs_of_misjudgement(target: Target, x: Tensor, y: Tensor) -> Iterator[str]:
    """Signs that AutoAttack misjudges a network; without counts, which differ from batch to batch."""
    with torch.no_grad():
        logits, again = (target(x).float() for _ in range(2))
    if (logits - again).norm(dim=1).gt(SAME * logits.norm(dim=1)).any():
        yield "the network's logits differ from call to call; standard AutoAttack expects them not to"
    if (logits >= -1e-5).all() and ((logits.sum(1) - 1).abs() < 1e-5).all():
        yield "the network's outputs look like probabilities; AutoAttack expects logits"
    _, _, gradient = differentiate(target, lambda logits: margin(logits, y), x)
    if (gradient == 0).flatten(1).all(1).any():
        yield "the margin has a gradient of exactly zero at some images; gradient-based attacks may miss them"
