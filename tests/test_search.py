"""The search for a recipe of CIFAR-10 by denoising: its runs, and the rule that compares them."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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


def entry(fid):
    """A run that differs from others by its FID alone."""
    found = {
        "values": {"fresh/fid": fid, "top1": 0.9},
        "intervals": {"fresh/fid": (fid - 0.5, fid + 0.5)},
        "cutout": {"log_density": 0.8},
    }
    return {"averages": {"0.9995": found}, "parameters": 6}


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


def answer(run, decay="0.9995"):
    return {"chosen": {"run": run, "decay": decay}}


def test_the_winner_has_the_changes_of_all_chosen_runs(search):
    winning = search["winning_changes"]
    assert winning({"decay": answer("base"), "width": answer("base")}) == ((), "0.9995")
    assert winning({"decay": answer("base", "0.999")}) == ((), "0.999")  # its weights are there already
    answers = {"decay": answer("base", "0.9998"), "width": answer("width-6"), "rate": answer("lr-high")}
    changes, decay = winning(answers)
    assert changes == ("model.backbone=smooth-28-6", "generative.lr=1.4e-3", "train.ema=0.9998")
    assert decay == "0.9998"
    recipes.load(search["RECIPE"], [*search["COMMON"], *changes])


class TestOrder:
    """The runner with trainings and measurements that take no time."""

    @pytest.fixture
    def made(self, search, monkeypatch):
        """Names of the runs that were made, in their order."""
        names = []

        def run(name, changes, data, arguments):
            names.append(name)
            made = entry({"lr-high": 20.0, "width-6": 10.0}.get(name, 30.0)) | {"changes": [*changes]}
            place = arguments.runs / name
            place.mkdir(parents=True)
            (place / "model.safetensors").touch()
            return made | {"seconds_beside": 20.0, "training": {"images_per_second": 1.0}}

        def by_sampling(place, data, arguments):
            return {
                "18": {"fid": 9.0, "steps": 18, "guidance": 0.0},
                "35": {"fid": 7.5, "steps": 35, "guidance": 0.0},
            }

        given = search["make_runs"].__globals__
        monkeypatch.setitem(given, "run", run)
        monkeypatch.setitem(given, "by_sampling", by_sampling)
        return names

    def call(self, search, folder, *only, winner=False, minutes=None):
        arguments = SimpleNamespace(
            out=folder / "search.json", runs=folder, minutes=minutes, seconds=100, only=only, winner=winner
        )
        search["make_runs"](None, arguments)
        search["show"](arguments.out)
        return json.loads(arguments.out.read_text())

    def test_where_later_runs_decide_otherwise_another_winner_is_trained(self, search, made, tmp_path):
        first = self.call(search, tmp_path, "base", "lr-high", winner=True)
        second = self.call(search, tmp_path, "base", "lr-high", "width-6", winner=True)
        one, two = (name for name in made if name.startswith("winner") and not name.endswith("seed-1"))
        assert made == ["base", "lr-high", one, f"{one}-seed-1", "width-6", two, f"{two}-seed-1"]
        assert second["runs"][one] == first["runs"][one]
        assert second["runs"][two]["changes"] == ["model.backbone=smooth-28-6", "generative.lr=1.4e-3"]
        assert set(second["sampling"]) == {one, two}
        assert second["chains"] == {one: "35", two: "35"}
        assert second["adopted"] == {one: False, two: False}  # here they are as good as base

    def test_without_a_change_the_chains_of_base_are_measured(self, search, made, tmp_path):
        content = self.call(search, tmp_path, "base", "lr-low", winner=True)
        assert made == ["base", "lr-low"]
        assert set(content["sampling"]) == {"base"}

    def test_a_later_call_makes_what_did_not_fit_and_loses_nothing(self, search, made, tmp_path, monkeypatch):
        now = iter(range(0, 10_000, 100))  # every look at the clock takes 100 s
        with monkeypatch.context() as patch:
            patch.setattr(search["time"], "monotonic", lambda: next(now))
            first = self.call(search, tmp_path, "base", "lr-low", "class-half", minutes=6)
        assert made == ["base", "lr-low"]
        second = self.call(search, tmp_path, "base", "lr-low", "class-half", winner=True)
        assert made == ["base", "lr-low", "class-half"]
        assert first["runs"].items() <= second["runs"].items()
        third = self.call(search, tmp_path, "base")
        assert third["sampling"] == second["sampling"]

    def test_time_is_kept_for_the_winner(self, search, made, tmp_path, monkeypatch):
        monkeypatch.setattr(search["time"], "monotonic", lambda: 0.0)
        self.call(search, tmp_path, "base")
        needed = 2 * 120 + 90  # s: the run, the winner, its chains
        self.call(search, tmp_path, "base", "lr-low", winner=True, minutes=(needed - 1) / 60)
        assert made == ["base"]
        self.call(search, tmp_path, "base", "lr-low", winner=True, minutes=(needed + 1) / 60)
        assert made == ["base", "lr-low"]


def test_chains_are_chosen_by_more_than_a_tie(rule):
    def grid(**fids):
        return {
            name: {"fid": fid, "steps": int(name[1:3]), "guidance": float(name[4:]) / 10}
            for name, fid in fids.items()
        }

    choose = rule["choose_sampling"]
    assert choose(grid(s18w0=20.0, s35w0=19.0)) == "s18w0"
    assert choose(grid(s18w0=20.0, s35w0=18.0, s18w5=18.9, s18w9=18.5)) == "s18w5"


def test_the_rule_decides_whether_a_winner_is_adopted(rule):
    assert rule["adopted"]({"base": entry(30.0), "w": entry(20.0)}, "w")
    assert not rule["adopted"]({"base": entry(30.0), "w": entry(29.5)}, "w")
    assert not rule["adopted"]({"base": entry(30.0), "w": {"averages": {}}}, "w")
    assert not rule["adopted"]({"w": entry(20.0)}, "w")
    nowhere = {"base": entry(float("nan"))}
    assert rule["decisions"](nowhere)["Which decay of the averaged weights?"]["chosen"]["run"] == "base"
