"""How many test images survive AutoAttack (Croce & Hein 2020)? Its four standard parts and nothing else.

The attack that others quote. `robustness` has more attacks, and in its preset `quick` no FAB-T.
"""

from torch import nn

from gmmc.base.progress import Progress
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations.attack_run import (
    accuracies,
    check_answers,
    choose_images,
    few,
    open_store,
    shared_conditions,
    show_progress,
)
from gmmc.evaluations.attacks.autoattack import PARTS, QUERIES
from gmmc.evaluations.attacks.campaign import Campaign
from gmmc.evaluations.attacks.protocol import AutoAttack
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat
from gmmc.evaluations.result import Result, conditions
from gmmc.runs.folder import RunFolder

IMAGES = 256
THREATS = Threat.linf(4), Threat.linf(8)


def evaluate(
    model: nn.Module, data: Dataset, cfg: EvaluateOptions, folder: RunFolder | None = None
) -> Result:
    attacked = choose_images(data.test, cfg.attacked or IMAGES, cfg.seed)
    target = Target(model)
    store = open_store("autoattack", folder, target, attacked, THREATS, QUERIES, cfg.seed)
    with target.exposed() as prepared, Progress("AutoAttack", 1) as bar:
        images, labels = prepared(attacked.images), attacked.labels.to(target.device)
        check_answers(target, images)
        campaign = Campaign(target, images, labels, cfg.seed, store)
        attack = AutoAttack(campaign, len(data.class_names), PARTS, QUERIES)
        show_progress(campaign, len(THREATS) * attack.work(), bar)
        broken = {threat.name: attack.run(threat) for threat in THREATS}
        measured_in = conditions(model)  # the precision in which all of it was measured
    values, ranges = accuracies(broken, campaign.right)
    return Result(
        values=values,
        intervals=ranges,
        flags=[
            *few(len(labels), "AutoAttack", ranges[f"linf_8/{attack.name}/accuracy"]),
            *missing(attack, len(data.class_names)),
            *store.notes,
        ],
        conditions={
            **shared_conditions(campaign, data),
            "attacks": attack.settings(),
            "surrogate": "none",
            **measured_in,
        },
        unfinished=store.path,
    )


def missing(attack: AutoAttack, classes: int) -> list[str]:
    """A warning where a part cannot run: the others together are not AutoAttack."""
    lost = [part for part in PARTS if part.replace("-", "_") not in attack.parts]
    return [f"not all of AutoAttack: {', '.join(lost)} needs more than {classes} classes"] if lost else []
