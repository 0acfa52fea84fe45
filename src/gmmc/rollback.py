"""What is done about a training that diverged: back to a good state, and on with smaller steps.

Chains run away for one of two reasons. Either the sampler's step α is so long that it climbs: then a shorter
one brings chains further down, which is tried out. Or updates push chains up faster than the sampler brings
them down: then β, the weight of that push, is lowered. A smaller learning rate would calm this too, but
classes would be learned more slowly (docs/log.md); it is lowered where nothing is sampled, and where the rest
did not help.
"""

import math
from typing import Any

import torch

from gmmc import health
from gmmc.backbones import frozen_statistics
from gmmc.learner import Learner
from gmmc.runs import State

ALPHA_TRIALS = 8  # ever smaller α that are tried
NAMES = {"alpha": "sampler.alpha", "beta": "train.beta", "lr": "learning rate"}


def roll_back(learner: Learner, good: State, *, failed: int) -> dict[str, Any]:
    """Make the learner go on from the good state; what was done, for metrics.jsonl.

    `failed`: so many rollbacks before this one did not lead past the trouble. After the first both α and β
    are lowered, after the second the learning rate too.
    """
    rollbacks, pace = learner.rollbacks + 1, dict(learner.pace)
    sampling = learner.plan.at(learner.step - 1).beta > 0
    learner.restore(good)
    learner.rollbacks, learner.pace = rollbacks, pace
    best = best_alpha_pace(learner) if sampling else pace["alpha"]
    too_long = best < pace["alpha"]
    lowered = {
        "alpha": sampling and (too_long or failed > 0),
        "beta": sampling and (not too_long or failed > 0),
        "lr": not sampling or failed > 1,
    }
    pace["alpha"] = best  # and one less: the network will go on getting steeper
    for name, yes in lowered.items():
        pace[name] *= learner.cfg.guard.slower if yes else 1
    return {
        "to": learner.step,
        "rollbacks": rollbacks,
        "dropped": drop_far_chains(learner),
        "lowered": {name: pace[name] for name, yes in lowered.items() if yes},
    }


def describe(done: dict[str, Any]) -> str:
    """The same for people."""
    lowered = ", ".join(f"{NAMES[name]} × {factor:g}" for name, factor in done["lowered"].items())
    return f"back to update {done['to']}, {done['dropped']} chains started anew, {lowered}"


def best_alpha_pace(learner: Learner) -> float:
    """Of ever smaller α the one that brings a batch of chains furthest down."""
    assert learner.buffer is not None
    model = learner.model
    drawn = learner.buffer.draw(learner.share, learner.source("trial", learner.step, learner.rollbacks))
    best, lowest = learner.pace["alpha"], math.inf
    for trial in range(ALPHA_TRIALS):
        pace = learner.pace["alpha"] * learner.cfg.guard.slower**trial
        x = learner.move(drawn, pace)
        with torch.no_grad(), frozen_statistics(model.backbone):
            energies = model.head.unit_energy(model.backbone(x), drawn.labels)
        # A mean of logarithms: of the many chains, not of the few that are farthest.
        total = learner.over_processes(energies.abs().clamp(1e-6, 1e30).log().sum()).item()
        if total < lowest:
            best, lowest = pace, total
    return best


def drop_far_chains(learner: Learner) -> int:
    """Chains that were at the bound in the good state start anew; how many in all processes."""
    if not learner.buffer:
        return 0
    source = learner.source("dropped", learner.step, learner.rollbacks)
    far = learner.buffer.drop(health.bound(learner.cfg), source)
    return int(learner.over_processes(far).item())
