"""What is done about a training that diverged: back to a good state, and on with smaller steps.

The first thing is a cap: a chain beyond the bound is far from every class, and pushing it still farther
teaches nothing but can tear a deep network apart within a few updates. Then the sampler's step α: if it is so
long that chains climb, a shorter one brings them further down, which is tried out. Where that is not it,
updates push chains up faster than the sampler brings them down, and β, the weight of that push, is lowered.
A smaller learning rate would calm this too, but classes would be learned more slowly; it is lowered where
nothing is sampled, and where the rest did not help. Under the Huber shape it is what is lowered first: that
shape bounds the push already, and a cap would only leave far chains where they are. docs/log.md has the
measurements.
"""

import math
from typing import Any

import torch
from torch import Tensor

from gmmc.networks.backbones import frozen_statistics
from gmmc.runs.resume import State
from gmmc.train import health
from gmmc.train.learner import Learner

SLOWER = 0.5  # factor on α, β or the learning rate, each time
ALPHA_TRIALS = 8  # ever smaller α that are tried
NAMES = {"alpha": "sampler.alpha", "beta": "train.beta", "lr": "learning rate"}


def roll_back(learner: Learner, good: State, *, failed: int) -> dict[str, Any]:
    """Make the learner go on from the good state; what was done, for metrics.jsonl.

    `failed`: so many rollbacks before this one did not lead past the trouble.
    """
    rollbacks, pace, capped = learner.rollbacks + 1, dict(learner.pace), learner.capped
    sampling = learner.plan.at(learner.step - 1).beta > 0
    offending = learner.buffer.offenders(health.bound(learner.cfg)) if learner.buffer else None
    learner.restore(good)
    learner.rollbacks, learner.pace = rollbacks, pace
    bounded = learner.cfg.objective.shape == "huber"
    learner.capped = capped or (sampling and not bounded and math.isfinite(health.bound(learner.cfg)))
    best = best_alpha_pace(learner) if sampling else pace["alpha"]
    too_long = best < pace["alpha"]
    lowered = {
        "alpha": sampling and (too_long or failed > 0),
        "beta": sampling and (failed > 0 or not (too_long or bounded or learner.capped != capped)),
        "lr": not sampling or bounded or failed > 1,
    }
    pace["alpha"] = best  # and one less: the network will go on getting steeper
    for name, yes in lowered.items():
        pace[name] *= SLOWER if yes else 1
    return {
        "to": learner.step,
        "rollbacks": rollbacks,
        "dropped": drop(learner, offending),
        "capped": learner.capped and not capped,
        "lowered": {name: pace[name] for name, yes in lowered.items() if yes},
    }


def describe(done: dict[str, Any], bound: float) -> str:
    """The same for people."""
    parts = [f"back to update {done['to']}", f"{done['dropped']} chains started anew"]
    parts += [f"sampled energies capped at {bound:g}"] if done["capped"] else []
    parts += [f"{NAMES[name]} now × {factor:g}" for name, factor in done["lowered"].items()]
    return ", ".join(parts)


def best_alpha_pace(learner: Learner) -> float:
    """Of ever smaller α the one that brings a batch of chains furthest down."""
    assert learner.buffer is not None
    model = learner.model
    drawn = learner.buffer.draw(learner.chains, learner.source("trial", learner.step, learner.rollbacks))
    best, lowest = learner.pace["alpha"], math.inf
    for trial in range(ALPHA_TRIALS):
        pace = learner.pace["alpha"] * SLOWER**trial
        x = learner.move(drawn, pace)
        with torch.no_grad(), frozen_statistics(model.backbone):
            energies = model.head.unit_energy(model.backbone(x), drawn.labels)
        if model.head.means is not None:  # the many chains are to count, not the few that are farthest
            energies = energies.clamp(1e-6, 1e30).log()
        total = learner.over_processes(energies.sum()).item()
        if total < lowest:
            best, lowest = pace, total
    return best


def drop(learner: Learner, offending: Tensor | None) -> int:
    """Start anew the chains that were at the bound in the good state, and those that led to the trouble."""
    if learner.buffer is None or offending is None:
        return 0
    far = offending | learner.buffer.beyond(health.bound(learner.cfg))
    learner.buffer.start_anew(far, learner.source("dropped", learner.step, learner.rollbacks))
    return int(learner.over_processes(far.sum()).item())
