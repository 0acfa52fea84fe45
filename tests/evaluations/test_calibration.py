"""Expected calibration error: hand-placed confidences, laws, and what chance alone gives."""

import copy
import dataclasses
import math

import pytest
import torch
from sklearn.metrics import log_loss
from torch import nn

import gmmc
from conftest import make_model, tiny_data
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.evaluations.calibration import (
    BINS,
    brier,
    calibration_error,
    equal_bins,
    errors_if_perfect,
    measure,
    reliability,
)
from gmmc.evaluations.temperatures import temperatures


def ece(confidence, correct):
    confidence, correct = (torch.tensor(x, dtype=torch.float64) for x in (confidence, correct))
    return calibration_error(*reliability(confidence, correct, equal_bins(confidence)))


def test_bins_are_equal_and_the_last_one_is_closed():
    edges = torch.tensor([0.0, 0.049, 0.051, 0.5, 0.949, 0.951, 1.0], dtype=torch.float64)
    assert equal_bins(edges).tolist() == [0, 0, 1, 10, 18, 19, 19]


def test_by_hand():
    # Two images at 0.9 of which one is right, two at 0.6 both right: ½·0.4 + ½·0.4.
    assert ece([0.9, 0.9, 0.6, 0.6], [1, 0, 1, 1]) == pytest.approx(0.4)
    assert ece([0.75] * 4, [1, 1, 1, 0]) == pytest.approx(0)
    # Errors of opposite sign cancel within a bin, not across bins.
    assert ece([0.71, 0.74], [1, 0]) == pytest.approx(abs(0.71 + 0.74 - 1) / 2)


def test_certain_and_always_right_is_perfect_and_certain_and_wrong_is_the_error_rate():
    assert ece([1.0] * 10, [1] * 10) == 0
    assert ece([1.0] * 10, [1] * 7 + [0] * 3) == pytest.approx(0.3)


def test_against_a_loop_over_the_bins():
    """The same definition, computed bin by bin."""
    source = torch.Generator().manual_seed(0)
    confidence = torch.rand(500, generator=source, dtype=torch.float64)
    correct = (torch.rand(500, generator=source) < 0.6).double()
    total = 0.0
    for m in range(BINS):
        low, high = m / BINS, (m + 1) / BINS
        here = (confidence >= low) & (confidence < high)
        if here.any():
            gap = (correct[here].mean() - confidence[here].mean()).abs()
            total += here.double().mean().item() * gap.item()
    assert calibration_error(*reliability(confidence, correct, equal_bins(confidence))) == pytest.approx(
        total
    )


def test_brier_by_hand():
    posterior = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert brier(posterior, torch.tensor([0, 0])) == pytest.approx((0 + 0.5) / 2)


class TestMeasure:
    def logits_and_labels(self, count, temperature=1.0):
        source = torch.Generator().manual_seed(1)
        logits = 3 * torch.randn(count, 5, generator=source, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(-1), 1, generator=source).squeeze(1)
        return logits / temperature, labels

    def test_a_calibrated_posterior_shows_what_chance_gives(self):
        values, _ = measure(*self.logits_and_labels(2000), seed=0)
        assert values["ece"] < 2 * values["ece_if_perfect"]
        assert values["adaptive_ece"] < 0.04

    def test_overconfidence_shows(self):
        logits, labels = self.logits_and_labels(2000, temperature=0.2)
        values, _ = measure(logits, labels, seed=0)
        assert values["ece"] > 5 * values["ece_if_perfect"]

    def test_chance_falls_with_the_number_of_images(self):
        confidence = torch.full((100,), 0.75, dtype=torch.float64)
        few, many = (errors_if_perfect(x, 0).mean().item() for x in (confidence, confidence.repeat(100)))
        # |mean of n Bernoulli − p| has the mean √(2p(1−p)/πn).
        assert few == pytest.approx(math.sqrt(2 * 0.75 * 0.25 / math.pi / 100), rel=0.2)
        assert many == pytest.approx(few / 10, rel=0.3)

    def test_saturated_confidences_are_counted_and_still_ranked(self):
        logits = torch.zeros(40, 3, dtype=torch.float64)
        logits[:, 0] = torch.arange(40) * 10 + 1000  # every posterior is exactly 1
        values, curve = measure(logits, torch.tensor([0] * 30 + [1] * 10), seed=0)
        assert values["saturated"] == 1
        assert values["ece"] == pytest.approx(0.25)
        assert curve["count"] == [0] * 19 + [40]
        assert curve["accuracy"] == [None] * 19 + [0.75]
        assert curve["confidence"][-1] == 1

    def test_images_that_tie_share_a_bin_whatever_their_order(self):
        """A constant network is as often right as it says, sorted by class or not."""
        labels = torch.arange(40) // 10
        values, _ = measure(torch.zeros(40, 4, dtype=torch.float64), labels, seed=0)
        assert values["adaptive_ece"] == pytest.approx(0)

    def test_perfect_calibration_is_seen_as_such_19_times_of_20(self):
        source = torch.Generator().manual_seed(3)
        seen = 0
        for seed in range(100):
            logits = 2 * torch.randn(300, 5, generator=source, dtype=torch.float64)
            labels = torch.multinomial(logits.softmax(-1), 1, generator=source).squeeze(1)
            values, _ = measure(logits, labels, seed)
            seen += values["ece"] <= values["ece_if_perfect_95"]
        assert 88 <= seen <= 99

    def test_adaptive_bins_are_ranked_by_log_odds_not_by_the_order_of_the_data(self):
        """20 images per bin where the confidences all tie at 1: wrong ones are together or spread."""
        logits = torch.zeros(400, 2, dtype=torch.float64)
        logits[:, 0] = 1000 + torch.arange(400)
        labels = (torch.arange(400) < 200).long()  # the less sure half is wrong
        shuffle = torch.randperm(400, generator=torch.Generator().manual_seed(0))
        values, _ = measure(logits[shuffle], labels[shuffle], seed=0)
        assert values["adaptive_ece"] == pytest.approx(0.5)


def test_adaptive_bins_keep_sure_images_apart_whose_confidences_are_all_1():
    """Ten correct images at 0.6 err by 4 together; of 390 certain ones the 100 surest are wrong."""
    logits = torch.zeros(400, 2, dtype=torch.float64)
    logits[:, 0] = 1000 + torch.arange(400)
    logits[:10, 0] = math.log(0.6 / 0.4)
    values, _ = measure(logits, (torch.arange(400) >= 300).long(), seed=0)
    assert values["adaptive_ece"] == pytest.approx((4 + 100) / 400)


def test_three_temperatures_for_ours_two_for_others():
    data = tiny_data()
    ours = gmmc.evaluate(make_model(), data, "calibration")["calibration"]
    assert [key for key in ours.values if key.endswith("/gamma2")] == [
        "fitted/gamma2",
        "unit/gamma2",
        "paper/gamma2",
    ]
    assert ours.values["fitted/nll"] <= ours.values["unit/nll"] + 0.2  # fitted on other images
    other = gmmc.evaluate(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), data, "calibration")["calibration"]
    assert set(other.curves) == {"unit", "fitted"}


def test_accuracy_is_measured_at_the_temperature_that_users_get(digits):
    """The fitted γ² of a calibrated model; no warning about the saturated γ² of the paper."""
    model, data = copy.deepcopy(digits[0]), digits[1]
    model.head.gamma2.fill_(1e-4)
    model.reference = None
    before = gmmc.evaluate(model, data, ["accuracy", "calibration"])
    assert before["accuracy"].values["nll"] == pytest.approx(
        before["calibration"].values["paper/nll"], rel=1e-4
    )
    assert any("knowing nothing" in flag for flag in before["accuracy"].flags)
    assert any("saturated" in flag for flag in before["calibration"].flags)
    model.calibrate(data.valid.images, data.valid.labels)
    after = gmmc.evaluate(model, data, ["accuracy", "calibration"])
    accuracy, calibration = after["accuracy"], after["calibration"]
    for key in ("nll", "brier"):
        assert accuracy.values[key] == pytest.approx(calibration.values[f"fitted/{key}"], rel=1e-4)
    assert accuracy.conditions["gamma2"] == pytest.approx(calibration.values["fitted/gamma2"], rel=1e-4)
    assert accuracy.flags == calibration.flags == []
    assert calibration.values["paper/gamma2"] == pytest.approx(1e-4)


def test_without_validation_images_the_fitted_temperature_is_the_models():
    data, model = tiny_data(), make_model()
    none = with_parts(data, valid=data.valid[:0])
    assert "fitted" not in temperatures(model.tempered(), none)
    model.calibrate(data.valid.images, data.valid.labels)
    assert temperatures(model.tempered(), none)["fitted"] == model.gamma2


def test_a_calibrated_model_keeps_its_temperature_whatever_the_validation_images():
    data, model = tiny_data(), make_model()
    model.calibrate(data.valid.images, data.valid.labels)
    other = with_parts(data, valid=noise_like(data.valid))
    results = gmmc.evaluate(model, other, ["accuracy", "calibration"])
    assert results["calibration"].values["fitted/gamma2"] == model.gamma2
    assert results["accuracy"].conditions["gamma2"] == model.gamma2
    assert str(len(data.valid)) not in results["calibration"].conditions["fitted_on"]


def with_parts(data: Dataset, **parts: LabelledImages) -> Dataset:
    return dataclasses.replace(data, **parts)


def noise_like(part: LabelledImages) -> LabelledImages:
    """Other images and labels, as many."""
    source = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, part.images.shape, generator=source).to(torch.uint8)
    return LabelledImages(images, part.labels.flip(0))


def test_the_temperature_depends_on_validation_images_alone():
    data, network = tiny_data(), make_model().tempered()
    fitted = temperatures(network, data)["fitted"]
    for part in ("train", "test"):
        other = with_parts(data, **{part: noise_like(getattr(data, part))})
        assert temperatures(network, other)["fitted"] == fitted
    assert temperatures(network, with_parts(data, valid=noise_like(data.valid)))["fitted"] != fitted


def test_numbers_are_those_of_the_test_images():
    """At γ = 1 they are the logits themselves, so the evaluation `accuracy` gives the same numbers."""
    data, network = tiny_data(), nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    results = gmmc.evaluate(network, data, ["calibration", "accuracy"])
    found, expected = results["calibration"].values, results["accuracy"].values
    logits = network(data.test.images / 255).detach().double()
    assert found["unit/nll"] == pytest.approx(log_loss(data.test.labels, logits.softmax(-1)), rel=1e-5)
    for name in ("nll", "brier"):
        assert found[f"unit/{name}"] == pytest.approx(expected[name], rel=1e-5)


def test_a_saturated_posterior_is_flagged():
    model = make_model()
    model.head.gamma2.fill_(1e-6)
    result = gmmc.evaluate(model, tiny_data(), "calibration", EvaluateOptions())["calibration"]
    assert any(flag.startswith("saturated with the paper's γ²") for flag in result.flags)
    assert not any(flag.startswith("saturated with the fitted γ²") for flag in result.flags)


def test_without_validation_images_nothing_is_fitted():
    data = tiny_data()
    nothing = gmmc.data.Dataset(data.train, data.valid[:0], data.test, data.class_names)
    result = gmmc.evaluate(make_model(), nothing, "calibration")["calibration"]
    assert set(result.curves) == {"paper", "unit"}
    assert "no temperature is fitted" in result.flags[0]
