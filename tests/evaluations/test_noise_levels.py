"""Losses, slopes and accuracies by noise level, against closed forms of a Gaussian."""

import math

import pytest
import torch
from torch import nn

from conftest import make_model, tiny_data
from gmmc import noise
from gmmc.classifier.denoiser import Denoiser, Regression, fast_denoiser, seeded_blocks
from gmmc.config.sections import DenoisingConfig, EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations import denoising
from gmmc.networks.heads import MMCHead
from gmmc.sampling.engine import PlainGradient

SIGMA_DATA = 0.5
BY_DENOISING = {
    "model": {"backbone": "smooth-mlp-2-16", "dim": 8, "scale": 1.0},
    "train": {"algorithm": "denoising"},
    "sampler": {"name": "heun"},
}


class Linear(nn.Module):
    """Features with the force F = −a²·u at every σ, and no class."""

    def __init__(self, force):
        super().__init__()
        self.force = force

    def forward(self, x):
        u, sigma = x[:, :-1].flatten(1), (4 * x[:, -1].flatten(1)).exp()
        return torch.cat([torch.zeros(len(x), 2), (-self.force(sigma)).sqrt() * u], 1)


def exact_force(variance):
    """F = f·u of rows from N(0, λ): f = −σ(σ_d² − λ)/(σ_d(λ + σ²))."""
    return lambda sigma: -sigma * (SIGMA_DATA**2 - variance) / (SIGMA_DATA * (variance + sigma**2))


def regression(force, variance, sigma, count=4000):
    denoiser = Denoiser(MMCHead(2, 2, 1.0), SIGMA_DATA, PlainGradient(Linear(force)))
    clean = variance**0.5 * torch.randn(count, 8, 1, 1)
    level = noise.per_image(sigma, clean)
    return denoiser.regression(clean, clean + level * torch.randn_like(clean), level)


class TestRegression:
    @pytest.mark.parametrize("sigma", [0.05, 0.3, 2.0])
    def test_the_loss_of_the_exact_denoiser(self, sigma):
        """‖F − t‖²/n is the posterior variance λσ²/(λ + σ²) over c_out², and the slope is 1."""
        variance = 0.04
        found = regression(exact_force(variance), variance, sigma)
        out = noise.scales(torch.tensor(sigma), SIGMA_DATA).out.item()
        values = {name: value for name, (value, _) in denoising.summary(found, 0).items()}
        posterior = variance * sigma**2 / (variance + sigma**2)
        assert values["loss"] == pytest.approx(posterior / out**2, rel=0.03)
        assert values["slope"] == pytest.approx(1, abs=0.05)
        f = exact_force(variance)(torch.tensor(sigma)).item()
        power = f**2 * (variance + sigma**2) / (SIGMA_DATA**2 + sigma**2)
        assert found.power.mean().item() == pytest.approx(power, rel=0.03)
        assert values["zero_loss"] == pytest.approx(posterior / out**2 + power, rel=0.03)

    def test_a_force_that_is_twice_too_large_has_the_slope_one_half(self):
        found = regression(lambda sigma: 2 * exact_force(0.04)(sigma), 0.04, 0.3)
        assert denoising.summary(found, 0)["slope"][0] == pytest.approx(0.5, abs=0.02)

    def test_of_zero_the_loss_is_that_of_the_target(self):
        found = regression(lambda sigma: 0 * sigma, 0.04, 0.3)
        assert torch.equal(found.loss, found.zero_loss)
        slope, interval = denoising.summary(found, 0)["slope"]
        assert math.isnan(slope)
        assert interval is None


class TestIntervals:
    def test_of_a_mean_and_of_a_slope_they_hold_the_truth_in_19_of_20(self):
        inside = {"loss": 0, "slope": 0}
        for trial in range(200):
            torch.manual_seed(trial)
            power = torch.rand(100, dtype=torch.float64) + 0.5
            product = 0.8 * power + 0.3 * torch.randn(100, dtype=torch.float64)
            loss = 1 + torch.randn(100, dtype=torch.float64)
            found = denoising.summary(Regression(loss, loss, product, power), 0)
            for name, truth in (("loss", 1.0), ("slope", 0.8)):
                low, high = found[name][1]
                inside[name] += low < truth < high
        assert all(180 <= hits <= 199 for hits in inside.values()), inside

    def test_one_image_has_none(self):
        one = torch.ones(1, dtype=torch.float64)
        found = denoising.summary(Regression(one, one, one, one), 1)
        assert [found[name][1] for name in ("loss", "zero_loss", "slope")] == [None] * 3


class TestEvaluation:
    def test_levels_span_those_of_training(self):
        sigmas = denoising.levels(DenoisingConfig(sigma_mean=-0.4, sigma_std=1.6))
        assert sigmas[0] == pytest.approx(math.exp(-3.6))
        assert sigmas[4] == pytest.approx(math.exp(-0.4))
        assert sigmas[-1] == pytest.approx(math.exp(2.8))
        assert len(sigmas) == 9

    def test_values_and_curves_agree(self):
        result = denoising.evaluate(make_model(**BY_DENOISING), tiny_data(), EvaluateOptions())
        sigmas = result.curves["sigma"]
        for name in ("loss", "zero_loss", "slope", "top1"):
            by_level = [result.values[f"sigma_{sigma:.3g}/{name}"] for sigma in sigmas]
            assert by_level == result.curves[name]
        assert result.conditions["images"] == 18
        assert set(result.intervals) == set(result.values)

    def test_accuracy_is_that_of_noisy_images(self):
        """Of the same noisy images as the losses, by the model at that level."""
        model, data = make_model(**BY_DENOISING), tiny_data()
        chosen, seeds = denoising.choose_images(data.test, 2000, 0)
        ((_, hits),) = denoising.at_level(model, fast_denoiser(model), chosen, seeds, 0.5)
        (block,) = seeded_blocks(chosen.images, seeds, model.device)
        clean = block.images.float() / 255
        noisy = clean + 0.25 * block.noise.normal(1, 8, 8)  # half as much in [0, 1]
        predicted = model.at_noise(0.5).predict(noisy[:18])
        assert hits == int((predicted == chosen.labels).sum())

    def test_an_image_alone_has_the_errors_it_has_among_others(self):
        model, part = make_model(**BY_DENOISING), tiny_data().train[:40]
        denoiser, seeds = fast_denoiser(model), list(range(40))
        parts = [found for found, _ in denoising.at_level(model, denoiser, part, seeds, 0.5)]
        assert [len(each.loss) for each in parts] == [32, 8]
        ((alone, _),) = denoising.at_level(model, denoiser, part[35:36], [35], 0.5)
        assert alone.loss.item() == parts[1].loss[3].item()

    def test_many_test_images_are_drawn_by_the_seed(self, monkeypatch):
        monkeypatch.setattr(denoising, "IMAGES", 5)
        model, data = make_model(**BY_DENOISING), tiny_data()
        first, again, other = (
            denoising.evaluate(model, data, EvaluateOptions(seed=seed)) for seed in (0, 0, 1)
        )
        assert first.conditions["images"] == 5
        assert first.values == again.values != other.values

    def test_one_test_image_is_enough(self):
        data = tiny_data()
        one = Dataset(data.train, data.valid, data.test[:1], data.class_names)
        result = denoising.evaluate(make_model(**BY_DENOISING), one, EvaluateOptions())
        assert len(result.values) == 36
