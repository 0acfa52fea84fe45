"""The attacks that a report knows: which there are, what they are called, and which belong together."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gmmc.base.names import ATTACKS, AUTOATTACK, AUTOATTACK_PARTS, AUTOATTACK_SUBSET, PAPER_PGD, WORST_CASE
from gmmc.report.canvas import ACCENT, GOOD, INK, RUNS, WARM
from gmmc.report.reading import Entry

NORMS = {"linf": "L∞", "l2": "L2"}
UNITS = {"linf": "/255", "l2": ""}
PLACE = re.compile(r"(linf|l2)_(\d+(?:\.\d+)?)/([^/]+)/accuracy")  # {threat}/{attack}/accuracy


@dataclass(frozen=True)
class Family:
    """Attacks of a kind: a group of the table, a colour of the figure."""

    title: str
    colour: str
    attacks: tuple[str, ...]
    # Where others printed the like, and under which name for each of our columns.
    tables: tuple[str, ...] = ()
    numbers: tuple[tuple[str, str], ...] = ()


FURTHER = Family(
    "Further attacks",
    RUNS[3],
    ("transfer", "restarts"),
)
FAMILIES = (
    Family(
        "The paper’s protocol",
        WARM,
        (PAPER_PGD,),
        ("pgd",),
        tuple((f"linf_{epsilon}", f"linf_{epsilon}_255") for epsilon in (4, 8, 16, 32)),
    ),
    Family(
        "Adaptive attacks",
        ACCENT,
        ("margin", "pull", "temperatures", "features"),
    ),
    Family(
        "AutoAttack and its parts",
        GOOD,
        (*AUTOATTACK_PARTS, AUTOATTACK, AUTOATTACK_SUBSET),
        ("peers_linf", "peers"),
        (("linf_8", "autoattack"),),
    ),
    FURTHER,
    Family(
        "Image by image",
        INK,
        (WORST_CASE,),
        ("peers_linf", "peers_robust", "peers"),
        (("linf_8", "robust"), ("l2_0.5", "robust_l2_half")),
    ),
)


def places(entry: Entry, norm: str) -> list[tuple[str, str]]:
    """(ε, attack) of what was measured under a norm."""
    found = [PLACE.fullmatch(key) for key in entry.values]
    return [(place[2], place[3]) for place in found if place and place[1] == norm]


def attacks_of(entry: Entry, norm: str) -> list[str]:
    return list(dict.fromkeys(attack for _, attack in places(entry, norm)))


def epsilons_of(entry: Entry, norm: str) -> list[str]:
    """As they are written in the names of the values, the least first."""
    return sorted({epsilon for epsilon, _ in places(entry, norm)}, key=float)


def worst_case(entries: Sequence[Entry]) -> str:
    """Name of the worst case by the preset of its attacks, and by what of AutoAttack this preset lacks."""
    presets = " and ".join(dict.fromkeys(filter(None, map(preset_of, entries))))
    return f"worst case of the attacks of preset {presets}" if presets else ATTACKS[WORST_CASE]


def preset_of(entry: Entry) -> str:
    """ "quick (no FAB-T)"; empty where results record no preset."""
    preset = entry.conditions.get("preset")
    ran = {attack for norm in NORMS for attack in attacks_of(entry, norm)}
    missing = [name for part, name in AUTOATTACK_PARTS.items() if part not in ran]
    if len(missing) == len(AUTOATTACK_PARTS):
        missing = ["AutoAttack"]
    return f"{preset} (no {', '.join(missing)})" if preset and missing else str(preset or "")


def by_family(attacks: Sequence[str]) -> list[tuple[Family, dict[str, str]]]:
    """The attacks of each family with their names, known ones first."""
    order = [attack for family in FAMILIES for attack in family.attacks]
    known = [attack for attack in order if attack in attacks]
    found = known + [attack for attack in attacks if attack not in order]
    members = [{a: named(a)[1] for a in found if named(a)[0] is family} for family in FAMILIES]
    return [(family, its) for family, its in zip(FAMILIES, members, strict=True) if its]


def named(attack: str) -> tuple[Family, str]:
    """The family of an attack and what it is called; one of the future is a further one."""
    for family in FAMILIES:
        if attack in family.attacks:
            return family, ATTACKS[attack]
    if is_shorter_or_longer(attack):
        return FAMILIES[0], f"PGD-{attack.removeprefix('pgd_')}, likewise"
    return FURTHER, attack.replace("_", " ")


def is_shorter_or_longer(attack: str) -> bool:
    """Whether it is the paper's attack with another number of steps, which has a figure of its own."""
    return re.fullmatch(r"pgd_\d+", attack) is not None
