"""Names are defined once: what is measured and what a recipe may ask for has a name that people read."""

import typing

from gmmc.base.names import ATTACKS, AUTOATTACK_PARTS, SCORE_QUANTITIES, SCORES, SHORT_SCORES
from gmmc.config.sections import AbstainConfig
from gmmc.evaluations.attacks.autoattack import PARTS
from gmmc.report.attacks import FAMILIES


def test_every_score_has_all_its_names():
    assert list(SCORES) == list(SCORE_QUANTITIES) == list(SHORT_SCORES)
    assert all(name.isascii() for name in SHORT_SCORES.values())


def test_a_recipe_may_ask_for_every_score():
    choices = typing.get_args(typing.get_type_hints(AbstainConfig)["score"])
    assert choices == ("auto", *SCORES)


def test_every_attack_has_a_name_and_a_place_in_the_report():
    assert sorted(attack for family in FAMILIES for attack in family.attacks) == sorted(ATTACKS)
    assert [part.replace("-", "_") for part in PARTS] == list(AUTOATTACK_PARTS)
