"""The search for a recipe of CIFAR-10 by denoising: its runs, and the rule that compares them."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gmmc.config import recipes

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def rule():
    return runpy.run_path(str(BENCHMARKS / "search_rule.py"))


@pytest.fixture(scope="module")
def search():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        return runpy.run_path(str(BENCHMARKS / "search_denoising.py"))


@pytest.fixture
def base(rule):
    return rule["Candidate"]("base", "0.9995", 30.0, 0.4, 0.93, 0.8, 6)


class TestRule:
    def test_a_lower_fid_wins_beyond_a_tie(self, rule, base):
        better = replace(base, run="better", fid=28.9, accuracy=0.928, parameters=13)
        assert rule["choose"]([base, better], base) == better
        assert rule["choose"]([base, replace(better, fid=29.0)], base) == base  # a tie: fewer parameters

    def test_a_tie_is_as_wide_as_the_interval_or_the_seeds(self, rule, base):
        better = replace(base, run="better", fid=27.0, parameters=13)
        assert rule["choose"]([base, better], base, between_seeds=3.0) == base
        assert rule["choose"]([base, replace(better, half_width=3.0)], base) == base
        assert (
            rule["choose"]([base, replace(better, half_width=2.9)], base, between_seeds=2.9).run == "better"
        )

    def test_in_a_tie_accuracy_decides_then_parameters_then_the_order(self, rule, base):
        accurate = replace(base, run="accurate", fid=30.9, accuracy=0.9331, parameters=13)
        assert rule["choose"]([base, accurate], base) == accurate
        assert rule["choose"]([base, replace(accurate, accuracy=0.933)], base) == base
        small = replace(base, run="small", parameters=5)
        assert rule["choose"]([base, small], base) == small
        assert rule["choose"]([base, replace(base, run="equal")], base) == base

    @pytest.mark.parametrize("worse", [{"accuracy": 0.9269}, {"cutout": 0.749}])
    def test_what_costs_accuracy_or_learns_the_cut_out_is_refused(self, rule, base, worse):
        better = replace(base, run="better", fid=10.0)
        assert rule["choose"]([base, better], base) == better
        assert rule["choose"]([base, replace(better, **worse)], base) == base
        within = {"accuracy": 0.927} if "accuracy" in worse else {"cutout": 0.75}
        assert rule["choose"]([base, replace(better, **within)], base).run == "better"

    def test_questions_are_answered_when_their_runs_are_there(self, rule):
        def entry(fid):
            found = {
                "values": {"fresh/fid": fid, "top1": 0.9},
                "intervals": {"fresh/fid": (fid - 0.5, fid + 0.5)},
                "cutout": {"log_density": 0.8},
            }
            return {"averages": {"0.9995": found}, "parameters": 6}

        assert rule["decisions"]({}) == {}
        one = rule["decisions"]({"base": entry(30.0)})
        assert len(one) == 1
        network = "Which network at equal time?"
        two = rule["decisions"]({"base": entry(30.0), "width-6": entry(20.0)})
        assert two[network]["chosen"]["run"] == "width-6"
        assert two[network]["missing"] == ["attention", "scales-3"]
        lost = {"averages": {}, "diverged": "loss"}
        both = rule["decisions"]({"base": entry(30.0), "width-6": lost, "base-seed-1": entry(33.0)})
        assert both[network]["chosen"]["run"] == "base"
        assert both[network]["between_seeds"] == 3
        assert rule["decisions"]({"base": lost}) == {}


def test_every_run_is_a_recipe_with_one_change(search, rule):
    base = recipes.load(search["RECIPE"], search["COMMON"])
    assert (base.denoising.gaussian, base.train.ema) == ("fitted", 0.9995)
    keys = {}
    for name, changes in search["RUNS"].items():
        cfg = recipes.load(search["RECIPE"], [*search["COMMON"], *changes])
        keys[name] = [line.split(":")[0] for line in recipes.differences(base, cfg)]
        assert sorted(keys[name]) == sorted(change.split("=")[0] for change in changes)
    assert {name for runs in rule["QUESTIONS"].values() for name in runs} <= keys.keys()
    assert rule["REFERENCE"] == search["REFERENCE"] == next(iter(search["RUNS"]))
    assert rule["OTHER_SEED"] in keys
    assert search["WINNER"] not in keys


def test_the_winner_has_the_changes_of_all_chosen_runs(search):
    def answer(run, decay="0.9995"):
        return {"chosen": {"run": run, "decay": decay}}

    winning = search["winning_changes"]
    assert winning({"decay": answer("base"), "width": answer("base")}) == ()
    found = winning(
        {"decay": answer("base", "0.9998"), "width": answer("width-6"), "rate": answer("lr-high")}
    )
    assert found == ("model.backbone=smooth-28-6", "generative.lr=1.4e-3", "train.ema=0.9998")
    recipes.load(search["RECIPE"], [*search["COMMON"], *found])


def test_a_run_is_begun_only_if_those_of_the_winner_still_fit(search, monkeypatch):
    now = 0.0
    monkeypatch.setattr(search["time"], "monotonic", lambda: now)
    budget = search["Budget"](10, seconds=100)
    made = {"base": {"wall_seconds": 150.0}}
    assert budget.fits(made, reserved_runs=2)  # 3 × 150 s and the grid's 90 s of 600 s
    now = 61.0
    assert not budget.fits(made, reserved_runs=2)
    assert budget.fits(made, reserved_runs=1)
    assert search["Budget"](None, seconds=100).fits(made, reserved_runs=99)
