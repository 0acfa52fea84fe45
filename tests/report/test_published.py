"""Numbers of others: complete, sourced, with the digits that were printed."""

from collections import Counter
from decimal import Decimal

import pytest

from gmmc.report import published
from gmmc.report.numbers import printed

ROWS = published.rows()
SIZES = {
    ("hybrid", "cifar10"): 10,
    ("accuracy", "svhn"): 4,
    ("accuracy", "cifar100"): 4,
    ("joint", "cifar10"): 3,
    ("calibration", "cifar10"): 2,
    ("calibration", "svhn"): 3,
    ("calibration", "cifar100"): 3,
    ("ood/log_density", "cifar10"): 5,
    ("ood/max_posterior", "cifar10"): 5,
    ("ood/gradient_norm", "cifar10"): 5,
    ("pgd", "cifar10"): 4,
    ("carlini_wagner", "cifar10"): 4,
    ("settings", "cifar10"): 1,
    ("switch_to_jem", "cifar10"): 8,
    ("peers", "cifar10"): 14,
    ("peers_robust", "cifar10"): 1,
    ("peers_cost", "cifar10"): 6,
    ("peers_ood/log_density", "cifar10"): 5,
    ("peers_linf", "cifar10"): 2,
}
# Tables whose every row has every column of the paper.
FULL = {
    "accuracy": 1,
    "ood/log_density": 4,
    "ood/max_posterior": 4,
    "ood/gradient_norm": 4,
    "pgd": 5,
    "carlini_wagner": 2,
    "settings": 5,
}


def number(table: str, model: str, key: str, data: str = "cifar10") -> Decimal:
    (row,) = [row for row in published.find(data, table) if row.model == model and key in row.numbers]
    return row.numbers[key]


def test_no_table_and_no_row_is_missing():
    assert Counter((row.table, row.data) for row in ROWS) == SIZES


def test_no_column_is_missing():
    for row in ROWS:
        if row.table in FULL:
            assert len(row.numbers) == FULL[row.table], row
    switch = [len(row.numbers) for row in published.find("cifar10", "switch_to_jem")]
    assert switch == [3, 6, 6, 6, 6, 6, 6, 6]


def test_every_row_has_a_source_and_those_of_the_paper_name_the_place():
    for row in ROWS:
        assert row.source
        if not row.table.startswith("peers"):
            assert row.source.startswith("Yang et al. 2021, ")
            assert not set("(:_") & set(row.source)  # labels of the LaTeX source tell a reader nothing
            assert not row.second_hand


def test_notes_and_memories_are_marked_as_second_hand():
    for row in ROWS:
        if any(word in row.source for word in ("notes", "memory", "leaderboard")):
            assert row.second_hand, row
            assert "second-hand" in row.citation
        else:
            assert "second-hand" not in row.citation


def test_no_number_is_printed_twice_for_a_model_of_a_table():
    seen = Counter((row.table, row.data, row.model, key) for row in ROWS for key in row.numbers)
    assert max(seen.values()) == 1


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("hybrid", "GMMC (Gen)", "top1"), "94.08%"),
        (("hybrid", "GMMC (Gen)", "fid"), "37.0"),
        (("hybrid", "Residual Flow", "inception_score"), "3.60"),
        (("hybrid", "WRN w/ BN", "top1"), "95.8%"),
        (("accuracy", "GMMC (Gen)", "top1", "svhn"), "97.2%"),
        (("accuracy", "GMMC (Dis)", "top1", "cifar100"), "75.4%"),
        (("calibration", "GMMC (Gen)", "ece"), "1.33%"),
        (("calibration", "GMMC (Gen)", "ece", "cifar100"), "7.80%"),
        (("calibration", "Softmax", "ece", "cifar100"), "22.32%"),
        (("pgd", "GMMC (Gen)", "clean"), "94.13%"),
        (("carlini_wagner", "GMMC (Gen)", "l2_untargeted_100"), "1.686"),
        (("switch_to_jem", "iteration 5", "real_20"), "−15.4"),
        (("peers", "SADA-JEM", "fid"), "9.41"),
        (("peers", "EGC", "fid"), "3.30"),
    ],
)
def test_numbers_are_shown_as_they_were_printed(place, text):
    assert printed(place[2], number(*place)) == text


def test_values_by_hand():
    assert number("ood/max_posterior", "GMMC (Gen)", "celeba") == Decimal("0.31")
    assert number("ood/gradient_norm", "Class-Conditional Glow", "interp") == Decimal("0.01")
    assert number("pgd", "JEM", "linf_32_255") == Decimal("0.0050")
    assert number("switch_to_jem", "iteration 7", "sampled_100") == Decimal("5.15e9")
    assert number("settings", "GMMC (Gen)", "buffer") == 100_000


def test_the_paper_s_two_accuracies_of_one_model_are_noted_on_both_sides():
    (table1,) = [row for row in published.find("cifar10", "hybrid") if row.model == "GMMC (Gen)"]
    (table5,) = [row for row in published.find("cifar10", "pgd") if row.model == "GMMC (Gen)"]
    assert "94.13%" in table1.citation
    assert "GMMC (Ours)" in table1.citation
    assert "94.08%" in table5.citation


def test_find_keeps_the_order_of_the_tables_asked_for():
    tables = [row.table for row in published.find("cifar10", "peers", "hybrid")]
    assert tables == ["peers"] * 14 + ["hybrid"] * 10
    assert published.find("digits", "hybrid") == []


def table(row: str, source: str = 'source = "someone"') -> str:
    return f'[[table]]\nname = "t"\ndata = "d"\n{source}\nrows = [{{ {row} }}]'


def test_a_row_may_have_its_own_source():
    (row,) = published.parse(table('model = "m", top1 = 0.5, source = "other"'))
    assert (row.source, row.numbers) == ("other", {"top1": Decimal("0.5")})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table('model = "m", top1 = 94.08'), "top1 must be a fraction of 1, got 94.08"),
        (table('model = "m", top1 = -0.1'), "top1 must be a fraction of 1"),
        (table('model = "m", top1 = "0.9"'), "top1 must be a number, got '0.9'"),
        (table('model = "m", top1 = true'), "top1 must be a number, got True"),
        (table('model = "m", top1 = nan'), "top1 must be a finite number"),
        (table('model = "m"'), "at least one number"),
        (table("top1 = 0.5"), "a row needs a model"),
        (table('model = "m", top1 = 0.5', source=""), "source must be str and not empty"),
        (table('model = "m", top1 = 0.5, second_hand = "yes"'), "second_hand must be bool"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(text, message):
    with pytest.raises(ValueError, match=f"table 't' of 'd', row .*{message}"):
        published.parse(text)
