"""Signs that an attack failed because gradients are masked, not because the model is robust.

After Athalye et al. 2018 and Carlini et al. 2019; each is checked every time, raised or not.
"""

import itertools

from gmmc.base.names import PAPER_PGD, WORST_CASE
from gmmc.evaluations.result import Result

FAR = 0.05  # of all images: an accuracy that should be about zero, or two that should be about equal
FAR_UNDER = 0.10  # that the worst case may be under PGD


def checks(result: Result) -> dict[str, bool]:
    """What was looked for and found, in words → whether it casts doubt on the accuracies."""
    values, found = result.values, {}
    still = values["zero_gradient_share"]
    found[f"gradients of PGD’s cross-entropy are exactly zero for {still:.1%} of the images"] = still > 0
    curve = result.curves["linf"]
    largest = curve["eps"][-1]
    for attack, words in ((PAPER_PGD, "PGD by the paper’s protocol"), (WORST_CASE, "the worst case")):
        left = curve["accuracy"][attack][-1]
        found[f"{words} leaves {left:.1%} at ε = {largest:g}/255, where nothing should hold"] = left > FAR
    found |= black_boxes(values)
    found |= more_steps(result.curves["steps"])
    found |= far_under(curve)
    return found


def black_boxes(values: dict[str, float]) -> dict[str, bool]:
    """An attacker who sees no gradient should not do better than one who does."""
    found = {}
    for attack, words in (("square", "Square, a black box,"), ("transfer", "a transfer from another model")):
        for threat, at in (("linf_8", "8/255"), ("l2_0.5", "L2 0.5")):
            mine, white = (values.get(f"{threat}/{name}/accuracy") for name in (attack, "apgd_ce"))
            if mine is not None and white is not None:
                text = f"{words} leaves {mine:.1%} at {at}, APGD on the cross-entropy {white:.1%}"
                found[text] = mine < white - FAR / 2
    return found


def more_steps(curve: dict[str, list[float]]) -> dict[str, bool]:
    """More steps should never leave more images."""
    steps, accuracy = curve["steps"], curve["accuracy"]
    if len(steps) < 2:
        return {}
    told = ", ".join(f"{left:.1%} after {count}" for count, left in zip(steps, accuracy, strict=True))
    rises = any(later > earlier + FAR / 2 for earlier, later in itertools.pairwise(accuracy))
    return {f"PGD with more steps leaves {told}": rises}


def far_under(curve: dict) -> dict[str, bool]:
    """Where PGD and the worst case are furthest apart."""
    pairs = zip(curve["eps"], curve["accuracy"][PAPER_PGD], curve["accuracy"][WORST_CASE], strict=True)
    known = [(pgd - worst, eps, pgd, worst) for eps, pgd, worst in pairs if pgd is not None]
    gap, eps, pgd, worst = max(known)
    return {f"the worst case is {worst:.1%} at {eps:g}/255, where PGD says {pgd:.1%}": gap > FAR_UNDER}
