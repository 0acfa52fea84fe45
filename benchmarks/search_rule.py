"""How the runs of search_denoising.py are compared. Written before any run.

1. A candidate is an average of the weights of a run. The reference is `base` at its own decay, .9995. A
   candidate is admissible if its validation accuracy is at most .3 points below that of the reference, and
   its AUROC of log p(x) against cut-out images at most .05 below.
2. The admissible candidate with the lowest FID leads. Candidates tie with it whose FID is higher by at most
   the larger of 1, the half-width of its own 95% interval, and |FID(base) − FID(base-seed-1)| where that run
   was made. The interval is 1.96 standard deviations over ten bootstrap draws of the generated images.
3. Of these the highest accuracy wins; within .3 points of it the fewest parameters; then the first in the
   tables RUNS and `averages`, where what there is now comes first.

4. Chains of the winner: 18 steps without guidance from σ = 5, unless another entry of SAMPLING has a FID
   lower by more than 1; of those the lowest, within 1 of it the fewest steps, then the least guidance.

The rule is applied to the candidates of each of QUESTIONS, as far as their runs were made. The winner has the
changes of all chosen runs. It becomes the recipe if the rule, applied to base and winner, chooses it. One
seed of a few minutes decides between large effects only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RULE = " ".join(str(__doc__).split())
REFERENCE, OTHER_SEED = "base", "base-seed-1"
ACCURACY, CUTOUT, FID = 0.003, 0.05, 1.0  # a share of the images, an AUROC, a FID
SLACK = 1e-9  # a difference of exactly a bound is within it
QUESTIONS = {
    "Which decay of the averaged weights?": ("base",),
    "Gaussian term: fitted, or isotropic?": ("base", "isotropic"),
    "Which step of the finite difference?": ("base", "step"),
    "Which network at equal time?": ("base", "width-6", "attention", "scales-3"),
    "Is the class term regularised more, and how?": ("base", "colour", "decay-smoothing"),
    "Which weight of the class term?": ("base", "class-.1", "class-.01"),
    "Which share of a batch has a class term?": ("base", "class-half"),
    "Which learning rate?": ("base", "lr-high", "lr-low"),
}


@dataclass(frozen=True)
class Candidate:
    """An average of the weights of a run."""

    run: str
    decay: str
    fid: float
    half_width: float  # of the 95% interval of its FID
    accuracy: float
    cutout: float  # AUROC of log p(x)
    parameters: int


def candidates_of(entries: dict[str, Any], runs: Iterable[str]) -> list[Candidate]:
    return [
        Candidate(
            name,
            decay,
            found["values"]["fresh/fid"],
            (found["intervals"]["fresh/fid"][1] - found["intervals"]["fresh/fid"][0]) / 2,
            found["values"]["top1"],
            found["cutout"]["log_density"],
            entries[name]["parameters"],
        )
        for name in runs
        for decay, found in entries[name]["averages"].items()
    ]


def is_admissible(candidate: Candidate, reference: Candidate) -> bool:
    accurate = candidate.accuracy >= reference.accuracy - ACCURACY - SLACK
    return accurate and candidate.cutout >= reference.cutout - CUTOUT - SLACK


def choose(candidates: Sequence[Candidate], reference: Candidate, between_seeds: float = 0.0) -> Candidate:
    """The candidate that the rule chooses; `between_seeds`: distance in FID of two seeds."""
    allowed = [c for c in candidates if is_admissible(c, reference) and math.isfinite(c.fid)]
    if not allowed:
        return reference
    leader = min(allowed, key=lambda c: c.fid)
    tie = max(FID, leader.half_width, between_seeds)
    tied = [c for c in allowed if c.fid <= leader.fid + tie + SLACK]
    best = max(c.accuracy for c in tied)
    accurate = [c for c in tied if c.accuracy >= best - ACCURACY - SLACK]
    return min(accurate, key=lambda c: c.parameters)  # the first of equals


def decisions(entries: dict[str, Any]) -> dict[str, Any]:
    """The answer to each question with at least one run beside the reference, by the runs that are there."""
    measured = candidates_of(entries, [REFERENCE] if REFERENCE in entries else [])
    if not measured:  # or it diverged
        return {}
    reference = measured[0]
    seeds = candidates_of(entries, [OTHER_SEED])[:1] if OTHER_SEED in entries else []
    between = max((abs(other.fid - reference.fid) for other in seeds), default=0.0)
    found = {}
    for question, runs in QUESTIONS.items():
        made = [name for name in runs if name in entries]
        if len(made) < min(2, len(runs)):
            continue
        candidates = candidates_of(entries, made)
        found[question] = {
            "chosen": asdict(choose(candidates, reference, between)),
            "refused": [f"{c.run} {c.decay}" for c in candidates if not is_admissible(c, reference)],
            "missing": [name for name in runs if name not in made],
            "between_seeds": between,
        }
    return found


def adopted(entries: dict[str, Any], winner: str) -> bool:
    """Whether a winner becomes the recipe: the rule chooses it, given base and it."""
    base, theirs = (candidates_of(entries, [name] if name in entries else []) for name in (REFERENCE, winner))
    return bool(base and theirs) and choose([*base, *theirs], base[0]).run == winner


def choose_sampling(found: dict[str, dict[str, float]]) -> str:
    """The entry of SAMPLING that chains are drawn with (4.)."""
    plain, *others = found
    lower = [name for name in others if found[name]["fid"] < found[plain]["fid"] - FID]
    if not lower:
        return plain
    least = min(found[name]["fid"] for name in lower)
    near = [name for name in lower if found[name]["fid"] <= least + FID + SLACK]
    return min(near, key=lambda name: (found[name]["steps"], found[name]["guidance"]))
