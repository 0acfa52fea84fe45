"""Recovery of a training by Algorithm 1 that diverged: on from a good state, with smaller steps.

The first thing is a cap: a chain beyond the bound is far from every class, and pushing it still farther
teaches nothing but can tear a deep network apart within a few updates. Then the sampler's step α: if it is so
long that chains climb, a shorter one brings them further down, which is tried out. Where that is not it,
updates push chains up faster than the sampler brings them down, and β, the weight of that push, is lowered.
A smaller learning rate would calm this too, but classes would be learned more slowly; it is lowered where
nothing is sampled, and where the rest did not help. Under a shape that bounds the push it is what is lowered
first: a cap would only leave far chains where they are. docs/log.md has the measurements.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gmmc.networks.backbones import frozen_statistics
from gmmc.train import health
from gmmc.train.algorithm import SLOWER, Remedy
from gmmc.train.objectives import SHAPES
from gmmc.train.schedule import Moment
from gmmc.train.state import TrainingState

if TYPE_CHECKING:
    from gmmc.train.contrastive import Contrastive

ALPHA_TRIALS = 8  # ever smaller α that are tried


def recovery(algorithm: "Contrastive", now: Moment, failed: int) -> Callable[[TrainingState], Remedy]:
    """Look at the diverged training; return what to do once its last good state is restored.

    `Remedy.done["capped"]`: whether sampled energies are to be capped from here on.
    """
    cfg, capped, sampling = algorithm.cfg, algorithm.capped, now.beta > 0
    offending = algorithm.buffer.offenders(health.bound(cfg)) if algorithm.buffer else None
    bounded = SHAPES[cfg.objective.shape].bounds_push

    def recover(state: TrainingState) -> Remedy:
        pace = dict(state.pace)
        caps = sampling and not bounded and not capped and math.isfinite(health.bound(cfg))
        best = best_alpha_pace(algorithm, state) if sampling else pace["alpha"]
        too_long = best < pace["alpha"]
        lowered = {
            "alpha": sampling and (too_long or failed > 0),
            "beta": sampling and (failed > 0 or not (too_long or bounded or caps)),
            "lr": not sampling or bounded or failed > 1,
        }
        pace["alpha"] = best  # and one less: the network will go on getting steeper
        for name, yes in lowered.items():
            pace[name] *= SLOWER if yes else 1
        dropped = drop(algorithm, offending, state)
        return Remedy(pace, {"dropped": dropped, "capped": caps})

    return recover


def best_alpha_pace(algorithm: "Contrastive", state: TrainingState) -> float:
    """Return, of ever smaller factors on α, the one that brings a batch of chains furthest down."""
    assert algorithm.buffer is not None
    model, process = algorithm.model, algorithm.process
    source = process.source("trial", state.step, state.rollbacks)
    drawn = algorithm.buffer.draw(algorithm.chains, source)
    best, lowest = state.pace["alpha"], math.inf
    for trial in range(ALPHA_TRIALS):
        pace = state.pace["alpha"] * SLOWER**trial
        x = algorithm.move(drawn, state.step, pace=pace)
        with torch.no_grad(), frozen_statistics(model.backbone):
            energies = algorithm.loss.energy(model.backbone(x), drawn.labels)
        if model.head.has_means:  # the many chains are to count, not the few that are farthest
            energies = energies.clamp(1e-6, 1e30).log()
        total = process.total(energies.sum()).item()
        if total < lowest:
            best, lowest = pace, total
    return best


def drop(algorithm: "Contrastive", offending: Tensor | None, state: TrainingState) -> int:
    """Reinitialise the chains that were at the bound in the good state, and those that led to the trouble."""
    if algorithm.buffer is None or offending is None:
        return 0
    far = offending | algorithm.buffer.beyond(health.bound(algorithm.cfg))
    source = algorithm.process.source("dropped", state.step, state.rollbacks)
    algorithm.buffer.start_anew(far, source)
    return int(algorithm.process.total(far.sum()).item())
