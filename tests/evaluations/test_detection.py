"""Detection metrics against scikit-learn, by hand, and by their symmetries."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import nn

import gmmc
from conftest import make_model, tiny_data
from gmmc import core
from gmmc.base import intervals
from gmmc.base.names import NOISE_SCORES
from gmmc.classifier.evidence import Evidence
from gmmc.classifier.scores import SCORES
from gmmc.config.sections import EvaluateOptions
from gmmc.data.ood_sets import Outside
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations import ood
from gmmc.evaluations.detection import bootstrap, detect, histogram

BY_CHAINS = [score for score in SCORES if score not in NOISE_SCORES]  # scores of a model without noise levels


def drawn(seed=0, n=300, m=200, digits=None):
    source = np.random.default_rng(seed)
    inside, outside = source.normal(1, 1, n), source.normal(0, 1.5, m)
    return (inside, outside) if digits is None else (inside.round(digits), outside.round(digits))


@pytest.mark.parametrize("digits", [None, 1, 0], ids=["no ties", "some ties", "many ties"])
def test_against_scikit_learn(digits):
    inside, outside = drawn(digits=digits)
    truth, scores = np.r_[np.ones(len(inside)), np.zeros(len(outside))], np.r_[inside, outside]
    weights = np.random.default_rng(1).integers(0, 4, (3, len(scores))).astype(float)
    for rows, row in [(None, None), *((weights, i) for i in range(3))]:
        weight = None if rows is None else rows[row]
        found = detect(inside, outside, rows)
        i = row or 0
        assert found.auroc[i] == pytest.approx(roc_auc_score(truth, scores, sample_weight=weight))
        assert found.aupr[i] == pytest.approx(average_precision_score(truth, scores, sample_weight=weight))
        fpr, tpr, _ = roc_curve(truth, scores, sample_weight=weight, drop_intermediate=False)
        assert found.fpr95[i] == pytest.approx(fpr[(tpr >= 0.95 - 1e-9).argmax()])


def test_by_hand():
    apart = detect(np.array([3.0, 4.0]), np.array([1.0, 2.0]))
    assert (apart.auroc[0], apart.aupr[0], apart.fpr95[0]) == (1, 1, 0)
    same = detect(np.zeros(5), np.zeros(5))
    assert (same.auroc[0], same.fpr95[0]) == (0.5, 1)
    wrong_way = detect(np.array([0.0]), np.array([1.0]))
    assert (wrong_way.auroc[0], wrong_way.fpr95[0]) == (0, 1)


def test_exchanging_the_sets_turns_the_curve_around_and_order_is_all_that_counts():
    inside, outside = drawn()
    assert detect(outside, inside).auroc[0] == pytest.approx(1 - detect(inside, outside).auroc[0])
    assert detect(np.exp(inside), np.exp(outside)).auroc[0] == detect(inside, outside).auroc[0]


def test_a_bootstrap_covers_the_truth_about_as_often_as_it_says():
    truth = detect(*drawn(99, 200_000, 200_000)).auroc[0]
    covered = 0
    for seed in range(100):
        inside, outside = drawn(seed, 60, 60)
        replicates = bootstrap(inside, outside, 200, np.random.default_rng(seed))
        low, high = intervals.of_replicates(replicates.auroc)
        covered += low <= truth <= high
    assert 88 <= covered <= 99


def test_histograms_lose_no_image():
    inside, outside = drawn()
    outside[0], inside[0] = -1e9, 1e9
    counts = histogram(inside, outside)
    assert len(counts["edges"]) == 51
    assert (sum(counts["inside"]), sum(counts["outside"])) == (300, 200)
    assert counts["edges"][0] > -10
    constant = histogram(np.zeros(3), np.zeros(2))
    assert (sum(constant["inside"]), sum(constant["outside"])) == (3, 2)


class TestWilson:
    def test_is_inside_zero_and_one_and_never_certain(self):
        assert intervals.of_proportion(18, 18)[0] == pytest.approx(0.824, abs=1e-3)  # not 1
        assert intervals.of_proportion(18, 18)[1] == 1
        assert intervals.of_proportion(0, 18)[0] == 0
        low, high = intervals.of_proportion(9800, 10_000)
        assert low < 0.98 < high
        assert high - low == pytest.approx(2 * 1.96 * (0.98 * 0.02 / 10_000) ** 0.5, rel=0.02)

    def test_is_that_of_scipy(self):
        for count in (1, 7, 100, 10_000):
            for hits in {0, 1, count // 3, count - 1, count}:
                low, high = intervals.of_proportion(hits, count)
                wanted = binomtest(hits, count).proportion_ci(method="wilson")
                assert (low, high) == pytest.approx((wanted.low, wanted.high), abs=1e-6)

    def test_nothing_is_known_of_no_images(self):
        assert intervals.of_proportion(0, 0) == (0, 1)


class TestEvaluation:
    cfg = EvaluateOptions(ood=("noise", "constant"))

    def test_it_is_told_where_the_model_abstains(self):
        model, data = make_model(), tiny_data()
        assert "abstains" not in gmmc.evaluate(model, data, "ood", self.cfg)["ood"].conditions
        model.calibrate(data.valid.images, data.valid.labels)
        told = gmmc.evaluate(model, data, "ood", self.cfg)["ood"].conditions["abstains"]
        assert told["below"] == model.answer(data.test.images).threshold
        assert (told["score"], told["tpr"]) == ("log_density", 0.95)

    def test_every_set_score_and_temperature_has_its_numbers_intervals_and_histogram(self):
        """Confidence at three temperatures, four scores at γ = 1; two energies of each set and the test."""
        result = gmmc.evaluate(make_model(), tiny_data(), "ood", self.cfg)["ood"]
        assert len(result.values) == 2 * (3 + 4) * 3 + 3 * 2
        assert result.intervals.keys() <= result.values.keys()
        assert {place for place in result.values if place.endswith("fpr95")} <= result.intervals.keys()
        for place, (low, high) in result.intervals.items():
            assert 0 <= low <= high <= 1, place
        assert len(result.curves) == 2 * (3 + 4)
        assert result.conditions["outside"] == {"noise": 18, "constant": 18}
        others = {tuple(place.split("/")[1:3]) for place in result.curves}
        assert {t for score, t in others if score != "max_posterior"} == {"unit"}

    @pytest.mark.parametrize("kind", ["contrastive", "denoising"])
    def test_shares_accepted_are_those_of_the_answers(self, kind):
        smooth = {"model": {"backbone": "smooth-mlp-1-16"}, "train": {"algorithm": "denoising"}}
        model, data = make_model(**(smooth if kind == "denoising" else {})), tiny_data()
        data = dataclasses.replace(data, valid=tiny_data(count=60).train)
        model.keep_neighbours(data.train.images, data.train.labels)
        model.calibrate(data.valid.images, data.valid.labels)
        for score in SCORES if kind == "denoising" else BY_CHAINS:
            model.abstain = dataclasses.replace(model.abstain, score=score, tpr=0.6)
            result = gmmc.evaluate(model, data, "ood", self.cfg)["ood"]
            for name, images in {
                "test images": data.test.images,
                **{name: gmmc.data.outside(name, data) for name in self.cfg.ood},
            }.items():
                accepted = model.answer(images).accepted.double().mean().item()
                assert result.values[f"{name}/accepted"] == pytest.approx(accepted), (score, name)
                warned = any(flag.startswith(f"{name}: the model accepts") for flag in result.flags)
                assert warned == (accepted > 0.5 and name != "test images"), (score, name)
                low, high = result.intervals[f"{name}/accepted"]
                assert low <= accepted <= high

    @pytest.mark.parametrize("score", [score for score in BY_CHAINS if score != "combined"])
    def test_of_the_images_that_its_threshold_is_from_a_model_accepts_the_share(self, score):
        """One of them has exactly the score of the threshold, and is accepted."""
        model, data = make_model(abstain={"score": score, "tpr": 0.5}), tiny_data()
        model.keep_neighbours(data.train.images, data.train.labels)
        model.calibrate(data.valid.images, data.valid.labels)
        same = dataclasses.replace(data, test=data.valid)
        result = gmmc.evaluate(model, same, "ood", self.cfg)["ood"]
        assert result.values["test images/accepted"] == 0.5

    @pytest.mark.parametrize("count", [0, 12])
    def test_a_confidence_is_judged_at_the_temperature_of_its_threshold(self, count):
        """Also on data whose validation images would fit another temperature, or that have none."""
        rule = {"score": "max_posterior", "tpr": 0.6}
        model, data = make_model(abstain=rule), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        labels = 2 - data.valid.labels[:count]
        valid = LabelledImages(data.valid.images[:count], labels)
        other = Dataset(data.train, valid, data.test, data.class_names)
        result = gmmc.evaluate(model, other, "ood", self.cfg)["ood"]
        accepted = model.answer(data.test.images).accepted.double().mean().item()
        assert 0 < accepted < 1
        assert result.values["test images/accepted"] == pytest.approx(accepted)

    def test_both_parts_of_the_energy_are_those_of_the_features(self):
        model, data = make_model(), tiny_data()
        result = gmmc.evaluate(model, data, "ood", self.cfg)["ood"]
        network = model.tempered()
        inside, rest = network.split(model.features(data.test.images / 255).detach())
        expected = -(-inside).logsumexp(-1).numpy(), rest.numpy()
        for key, values in zip(("energy_in_span", "energy_outside_span"), expected, strict=True):
            assert result.values[f"test images/{key}"] == pytest.approx(np.median(values), rel=1e-5)

    def test_images_of_the_same_kind_cannot_be_told_apart(self, monkeypatch):
        """The test set itself as the other set: every AUROC is exactly one half."""
        monkeypatch.setattr(ood, "find_outside", lambda name, data, seed: Outside(name, data.test.images))
        result = gmmc.evaluate(make_model(), tiny_data(), "ood", EvaluateOptions(ood=("itself",)))["ood"]
        for place, value in result.values.items():
            if place.endswith("auroc"):
                assert value == pytest.approx(0.5, abs=1e-6), place

    def test_pairs_are_drawn_together(self, monkeypatch):
        """Copies of the test images come and go with them: no draw can tell the two sets apart."""
        data = tiny_data()
        for paired in (True, False):
            copies = Outside("copies", data.test.images, paired=paired)
            monkeypatch.setattr(ood, "find_outside", lambda *_, copies=copies: copies)
            result = gmmc.evaluate(make_model(), data, "ood", EvaluateOptions(ood=("copies",)))["ood"]
            ends = [ends for place, ends in result.intervals.items() if place.endswith("/auroc")]
            widest = max((high - low for low, high in ends), default=0.0)
            assert widest < 1e-9 if paired else widest > 0.1

    def test_scores_that_are_all_the_same_have_the_aupr_of_chance(self, monkeypatch):
        class Fixed(nn.Module):
            def forward(self, x):
                return torch.zeros(len(x), 3)

        data = tiny_data()
        few = Outside("few", 255 - data.test.images[:5])
        monkeypatch.setattr(ood, "find_outside", lambda *_: few)
        result = gmmc.evaluate(Fixed(), data, "ood", EvaluateOptions(ood=("few",)))["ood"]
        chance = result.conditions["aupr_by_chance"]["few"]
        assert result.values["few/log_density/unit/aupr"] == pytest.approx(chance, abs=1e-4)

    def test_confidence_is_that_of_each_temperature_and_all_else_of_gamma_1(self):
        network = make_model().tempered()
        features = network.features(tiny_data().test.images / 255).detach()
        seen = Evidence(features, torch.zeros(len(features)))
        gamma2s = {"paper": 0.3, "unit": 1.0, "fitted": 40.0}
        scores = ood.all_scores(network, seen, gamma2s)
        energies = network.energies_of(features)
        for name, gamma2 in gamma2s.items():
            wanted = core.log_odds(-energies / gamma2)
            assert scores["max_posterior", name] == pytest.approx(wanted.numpy(), rel=1e-6)
        assert scores["log_density", "unit"] == pytest.approx((-energies).logsumexp(1).numpy(), rel=1e-6)

    def test_a_set_that_looks_more_likely_is_flagged(self):
        scores = ("log_density", "gradient_norm")
        values = {f"svhn/{score}/{t}/auroc": 0.2 for t in ("unit", "fitted") for score in scores}
        (flag,) = ood.doubts(values, dict.fromkeys(values, (0.1, 0.3)))
        assert "0.20 by log p(x), 0.20 by the gradient norm" in flag
        assert ood.doubts(values, dict.fromkeys(values, (0.1, 0.6))) == []
        unfitted = {place: value for place, value in values.items() if "unit" in place}
        assert len(ood.doubts(unfitted, {})) == 1

    def test_no_set_at_all_is_refused(self):
        with pytest.raises(InputError, match="at least one set of other images"):
            gmmc.evaluate(make_model(), tiny_data(), "ood", EvaluateOptions(ood=()))

    def test_two_sets_of_one_name_are_refused(self):
        with pytest.raises(InputError, match="different names, got noise, noise"):
            gmmc.evaluate(make_model(), tiny_data(), "ood", EvaluateOptions(ood=("noise", "noise")))

    def test_images_of_its_own_are_pointed_out(self, monkeypatch):
        monkeypatch.setattr(ood, "find_outside", lambda name, data, seed: Outside(name, data.test.images))
        result = gmmc.evaluate(make_model(), tiny_data(), "ood", EvaluateOptions(ood=("itself",)))["ood"]
        assert "itself: 18 of these images are in the model's own data" in result.flags

    def test_a_set_that_cannot_be_made_of_these_images_is_left_out(self):
        data = tiny_data()
        one = Dataset(data.train, data.valid, data.test[:1], data.class_names)
        result = gmmc.evaluate(make_model(), one, "ood", EvaluateOptions(ood=("noise", "interp")))["ood"]
        assert result.conditions["outside"] == {"noise": 1}
        assert "left out: interp needs at least two test images" in result.flags[0]
        with pytest.raises(InputError, match="interp needs at least two"):
            gmmc.evaluate(make_model(), one, "ood", EvaluateOptions(ood=("interp",)))


def test_inside_is_the_positive_class():
    source = np.random.default_rng(0)
    familiar, strange = np.array([3.0, 4.0, 5.0]), np.array([1.0, 2.0])
    apart, _ = ood.measure(familiar, strange, source, paired=False)
    assert apart == {"auroc": 1, "aupr": 1, "fpr95": 0}
    turned, _ = ood.measure(strange, familiar, source, paired=False)
    assert (turned["auroc"], turned["fpr95"]) == (0, 1)


def test_intervals_of_pairs_are_those_of_their_differences():
    """Each copy scores the same amount lower: with pairs, hardly any draw differs from another."""
    inside = np.random.default_rng(0).normal(0, 5, 200)
    outside = inside - 0.01
    widths = {}
    for paired in (False, True):
        _, ranges = ood.measure(inside, outside, np.random.default_rng(1), paired=paired)
        widths[paired] = ranges["auroc"][1] - ranges["auroc"][0]
    assert widths[True] < widths[False] / 10


def test_a_paired_bootstrap_knows_that_an_image_and_its_copy_come_together():
    """Scores of copies that are each a little lower: the pairs hardly vary, and neither does the AUROC."""
    source = np.random.default_rng(0)
    inside = source.normal(0, 5, 200)
    outside = inside - np.abs(source.normal(0, 0.1, 200))
    apart, paired = (
        bootstrap(inside, outside, 200, np.random.default_rng(1), paired=pairing).auroc.std()
        for pairing in (False, True)
    )
    assert paired < apart / 5


def test_replicates_without_any_doubt_give_no_interval():
    assert intervals.of_replicates(np.ones(10)) is None
    assert intervals.of_replicates(np.linspace(0, 1, 101)) == pytest.approx((0.025, 0.975))
