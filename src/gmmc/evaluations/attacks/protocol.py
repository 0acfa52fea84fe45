"""Which attacks run under which threats, in which order, and which of them share what they broke."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gmmc.base.names import AUTOATTACK, AUTOATTACK_SUBSET, PAPER_PGD, WORST_CASE
from gmmc.base.seeds import generator
from gmmc.evaluations.attacks.autoattack import BLACK_BOX, PARTS, QUERIES, AutoAttackPart, Part
from gmmc.evaluations.attacks.campaign import Campaign
from gmmc.evaluations.attacks.carlini_wagner import CarliniWagner
from gmmc.evaluations.attacks.gradient import (
    Attack,
    FeatureMatch,
    Margin,
    PaperPGD,
    Pull,
    Temperatures,
    Transfer,
)
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat

PAPER_PIXELS = (4, 8, 16, 32)  # ε of Table 5 in 255ths
HEADLINE = Threat.linf(8), Threat("l2", 0.5)
STEPS_CHECKED = (10, 200)  # of PGD at 8/255, beside 40
WAGNER_BATCH = 50  # images between two saves

Broken = dict[str, dict[str, Tensor]]  # threat → attack → (N,) whether each image is broken


@dataclass(frozen=True)
class Preset:
    images: int
    pixels: tuple[int, ...]  # ε of the L∞ curve in 255ths; the largest must break everything
    distances: tuple[float, ...]  # L2
    steps: int
    tries: int  # of the margin, and images whose features are imitated
    targets: int  # classes to pull to, the nearest first
    auto: tuple[Part, ...]
    queries: int  # of Square
    auto_threats: tuple[Threat, ...]
    restarts: int  # of the margin and the pull, on what survived all else
    carlini_wagner: tuple[CarliniWagner, ...]
    carlini_wagner_images: int


PRESETS = {
    "quick": Preset(
        images=100,
        pixels=(2, 4, 8, 16, 32, 64),
        distances=(0.5,),
        steps=30,
        tries=2,
        targets=3,
        auto=("apgd-ce", "apgd-t", "square"),
        queries=1000,
        auto_threats=HEADLINE,
        restarts=5,
        carlini_wagner=(CarliniWagner(100, targeted=False, search_steps=5),),
        carlini_wagner_images=20,
    ),
    "full": Preset(
        images=1000,
        pixels=(1, 2, 4, 8, 16, 32, 64),
        distances=(0.25, 0.5, 1.0),
        steps=100,
        tries=5,
        targets=9,
        auto=PARTS,
        queries=5000,
        auto_threats=(Threat.linf(4), *HEADLINE),
        restarts=20,
        carlini_wagner=(
            CarliniWagner(100, targeted=False),
            CarliniWagner(1000, targeted=True, search_steps=5),
        ),
        carlini_wagner_images=100,
    ),
}


class AutoAttack:
    """Its parts on one campaign, in its order: each on what the ones before left.

    Except Square, the black box, which attacks all images: what it breaks alone is a check of the others.
    """

    def __init__(self, campaign: Campaign, classes: int, parts: Sequence[Part], queries: int):
        self.campaign = campaign
        made = [AutoAttackPart(part, classes, queries, campaign.store.notes) for part in parts]
        self.parts = {part.part.replace("-", "_"): part for part in made if part.possible}
        is_standard = tuple(part.part for part in self.parts.values()) == PARTS and queries == QUERIES
        self.name = AUTOATTACK if is_standard else AUTOATTACK_SUBSET  # AutoAttack is a name for all of it

    def work(self) -> float:
        """Gradients under one threat, if every image withstands."""
        return sum(map(self.campaign.work, self.parts.values()))

    def run(self, threat: Threat) -> dict[str, Tensor]:
        """Per part and for all of them together: (N,) whether each image is broken."""
        found: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            left = None if part.part == BLACK_BOX or not found else union(found)
            found[name] = self.campaign.run(name, part, threat, left)
        return found | {self.name: union(found)}

    def settings(self) -> dict[str, str]:
        described = {}
        for name, part in self.parts.items():
            settings = {"square": f"{part.queries} queries, all images", "apgd_ce": "100 steps"}
            described[name] = settings.get(name, f"100 steps, {part.targets} targets, on what was left")
        return described


class Protocol:
    """The attacks of a preset on one campaign."""

    def __init__(
        self,
        campaign: Campaign,
        preset: Preset,
        guides: tuple[Tensor, Tensor],
        classes: int,
        surrogate: Target | None,
    ):
        self.campaign, self.preset, self.classes = campaign, preset, classes
        curve = [Threat.linf(pixels) for pixels in preset.pixels]
        self.balls = [*curve, *(Threat("l2", distance) for distance in preset.distances)]
        self.paper = [
            threat for threat in curve if round(threat.eps * 255) in (*PAPER_PIXELS, preset.pixels[-1])
        ]
        steps, tries = preset.steps, preset.tries
        targets = min(preset.targets, classes - 1)
        self.adaptive: dict[str, Attack] = {
            "margin": Margin(steps, tries),
            "pull": Pull(steps, targets),
            "temperatures": Temperatures(steps, len(Temperatures.gamma2s)),
        }
        if len(guides[1].unique()) > 1:
            self.adaptive["features"] = FeatureMatch(steps, tries, *guides)
        self.auto = AutoAttack(campaign, classes, preset.auto, preset.queries)
        self.transfer = Transfer(surrogate, Margin(steps, tries, stop=False)) if surrogate else None
        self.last: dict[str, Attack] = {
            "restarts": Margin(2 * steps, preset.restarts),
            "restarts_pull": Pull(2 * steps, min(preset.restarts, 2 * targets)),
        }

    def work(self) -> float:
        """Gradients of all attacks, if every image withstands."""
        paper = PaperPGD().cost * len(self.paper) + sum(STEPS_CHECKED)
        count = len(self.campaign.labels)
        each = sum(map(self.campaign.work, self.adaptive.values())) * len(self.balls)
        auto = self.auto.work() * len(self.preset.auto_threats)
        transfer = self.campaign.work(self.transfer) * len(HEADLINE) if self.transfer else 0
        last = sum(map(self.campaign.work, self.last.values())) * len(HEADLINE)
        wagner = sum(attack.cost for attack in self.preset.carlini_wagner) * self._wagner_count()
        return paper * count + each + auto + transfer + last + wagner

    def run(self) -> Broken:
        run, found = self.campaign.run, {threat.name: {} for threat in self.balls}
        for threat in self.paper:
            found[threat.name][PAPER_PGD] = run(PAPER_PGD, PaperPGD(), threat)
        for steps in STEPS_CHECKED:
            found[HEADLINE[0].name][f"pgd_{steps}"] = run(f"pgd_{steps}", PaperPGD(steps), HEADLINE[0])
        for name, attack in self.adaptive.items():
            smaller: dict[str, Tensor] = {}  # what breaks an image breaks it within a larger ε too
            for threat in self.balls:
                broken = run(name, attack, threat, smaller.get(threat.norm))
                found[threat.name][name] = smaller[threat.norm] = broken
        for threat in self.preset.auto_threats:
            found[threat.name] |= self.auto.run(threat)
        for threat in HEADLINE:
            here = found[threat.name]
            if self.transfer:
                with self.transfer.surrogate.exposed():
                    here["transfer"] = run("transfer", self.transfer, threat)
            for name, attack in self.last.items():
                here[name] = run(name, attack, threat, union(here))
            here["restarts"] |= here.pop("restarts_pull")
        return found

    def _wagner_count(self) -> int:
        return min(self.preset.carlini_wagner_images, len(self.campaign.labels))

    def carlini_wagner(self, broken: Broken) -> dict[str, tuple[Tensor, Tensor]]:
        """(the images as C&W moved them, whether it succeeded), untargeted and targeted.

        Those that lie within a threat also count among its broken images.
        """
        campaign, found = self.campaign, {}
        rows = slice(0, self._wagner_count())
        x, y = campaign.images[rows], campaign.labels[rows]
        goals = self._goals(y)
        for attack in self.preset.carlini_wagner:
            name = "targeted" if attack.targeted else "untargeted"
            moved = self._moved(f"cw/{name}", attack, x, y, goals)
            with torch.no_grad():
                named = torch.cat(
                    [campaign.target(part).argmax(1) for part in moved.split(campaign.target.batch)]
                )
            reached = named == goals if attack.targeted else named != y
            reached &= campaign.right[rows].to(x.device)
            found[name] = moved.cpu(), reached.cpu()
            for threat in self.balls:
                within = (reached & threat.allows(moved, x)).cpu()
                masks = broken[threat.name]
                masks["cw"] = masks.get("cw", ~campaign.right).clone()
                masks["cw"][rows] |= within
        return found

    def _moved(self, place: str, attack: CarliniWagner, x: Tensor, y: Tensor, goals: Tensor) -> Tensor:
        store, size = self.campaign.store, min(self.campaign.target.batch, WAGNER_BATCH)
        parts = []
        for first in range(0, len(x), size):
            rows, name = slice(first, first + size), f"{place}/{first}"
            if name not in store.tensors:
                tell = partial(self._tell, place, attack, len(x[rows]))
                moved = attack.attack(self.campaign.target, x[rows], y[rows], goals[rows], tell)
                store.put(name, moved.detach().cpu())
            parts.append(store.tensors[name].to(x.device))
            self.campaign.done += attack.cost * len(parts[-1])
            self.campaign.on_progress(self.campaign.done, place)
        return torch.cat(parts)

    def _tell(self, place: str, attack: CarliniWagner, count: int, searched: int) -> None:
        """After each step of the search for c."""
        done = self.campaign.done + attack.iterations * searched * count
        self.campaign.on_progress(done, place)

    def _goals(self, y: Tensor) -> Tensor:
        """A random other class for each image."""
        ahead = torch.randint(1, self.classes, (len(y),), generator=generator(self.campaign.seed, "goals"))
        return (y + ahead.to(y.device)) % self.classes

    def _paper_gamma2(self) -> str:
        gamma2 = self.campaign.target.network.paper
        return "the model's own γ²" if gamma2 is None else f"the paper's γ² = {gamma2:.4g}"

    def settings(self) -> dict[str, Any]:
        """All that the attacks were told, for the conditions."""
        where = ", ".join(threat.name for threat in HEADLINE)
        auto = ", ".join(threat.name for threat in self.preset.auto_threats)
        described: dict[str, Any] = {
            WORST_CASE: f"of all that ran: AutoAttack at {auto}, restarts and transfer at {where} only",
            PAPER_PGD: "steps 40, size ε/30, random start, last image, each ε by itself; "
            f"on the cross-entropy at {self._paper_gamma2()}, as pgd_10 and pgd_200",
        }
        for name, attack in {**self.adaptive, **self.last}.items():
            described[name] = f"{attack.tries} attempts of {attack.cost} steps, size ε/4 falling to 0"
        if self.transfer:
            described["transfer"] = f"{self.transfer.tries} attempts of {self.transfer.cost} steps, margin"
        described |= self.auto.settings()
        for attack in self.preset.carlini_wagner:
            name = "cw_targeted" if attack.targeted else "cw_untargeted"
            goal = {"goal": "random other class"} if attack.targeted else {}
            described[name] = {**asdict(attack), "images": self._wagner_count(), **goal}
        return described


def union(broken: dict[str, Tensor]) -> Tensor:
    """Per image: broken by any."""
    return torch.stack(list(broken.values())).any(0)
