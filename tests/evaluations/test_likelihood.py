"""Bits per dimension: closed forms of Gaussians and mixtures, and the evaluation around them."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

import gmmc
from conftest import make_model, tiny_config, tiny_data
from gmmc import noise
from gmmc.classifier.denoiser import Denoiser, fast_denoiser
from gmmc.classifier.likelihood import angles, bits_per_dimension, log_likelihood
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations import likelihood
from gmmc.networks.heads import MMCHead
from gmmc.pixels import dequantised, to_signed, to_uint8, to_unit
from gmmc.runs.folder import RunFolder
from gmmc.sampling.engine import PlainGradient
from gmmc.sampling.samplers import SeededNoise
from gmmc.train.loop import train

SIGMA_DATA = 0.5
CPU = torch.device("cpu")
BY_DENOISING = {
    "model": {"backbone": "smooth-mlp-2-16", "dim": 8, "scale": 1.0},
    "train": {"algorithm": "denoising"},
    "sampler": {"name": "heun"},
}


class GaussianEnergy(nn.Module):
    """Features whose energy at every σ is that of rows from N(m, diag(λ)) with noise, λ below σ_d².

    The force on u is −a(a·u + b), where a² = σ(σ_d² − λ)/(σ_d(λ + σ²)) and b brings the mean.
    """

    def __init__(self, mean, variance):
        super().__init__()
        self.mean, self.variance = mean, variance

    def forward(self, x):
        u, sigma = x[:, :-1].flatten(1), (4 * x[:, -1].flatten(1)).exp()
        total = self.variance + sigma**2
        a = (sigma * (SIGMA_DATA**2 - self.variance) / (SIGMA_DATA * total)).sqrt()
        b = -self.mean * sigma**2 / (total * a * noise.scales(sigma, SIGMA_DATA).out)
        return torch.cat([torch.zeros(len(x), 2), a * u + b], 1)  # the classes are alike


class Exact(Denoiser):
    """The denoiser of a density of rows that is known at every σ: D = x + σ² ∂log p(x; σ)/∂x."""

    def __init__(self, log_density):
        super().__init__(MMCHead(2, 2, 1.0), SIGMA_DATA, None)
        self.log_density = log_density

    def force(self, u, level):
        scales = noise.scales(level, SIGMA_DATA)
        x = (u / scales.into).detach().requires_grad_(True)
        (score,) = torch.autograd.grad(self.log_density(x.flatten(1), level.flatten(1)).sum(), x)
        return ((1 - scales.skip) * x.detach() + level**2 * score) / scales.out


def gaussian_denoiser(mean, variance):
    return Denoiser(MMCHead(2, 2, 1.0), SIGMA_DATA, PlainGradient(GaussianEnergy(mean, variance)))


def log_normal(x, mean, variance):
    return -((x - mean).square() / variance + variance.log() + math.log(2 * math.pi)).sum(1) / 2


MEAN = torch.tensor([0.2, -0.1, 0.0, 0.3])
VARIANCE = torch.tensor([0.2, 0.05, 0.01, 1e-3])
SIGMA = 0.02


def rows(count, mean=MEAN, variance=VARIANCE):
    x = mean + (variance + SIGMA**2).sqrt() * torch.randn(count, 4)
    return x[:, :, None, None]


def estimate(denoiser, x, *, steps=100, seed=0, sigma=SIGMA):
    return log_likelihood(denoiser, x, SeededNoise(range(seed, seed + len(x)), CPU), sigma=sigma, steps=steps)


class TestClosedForms:
    def test_a_gaussian_with_the_energy_of_a_head(self):
        """Its Jacobian is diagonal, so that random signs have no variance."""
        x = rows(64)
        exact = log_normal(x.flatten(1), MEAN, VARIANCE + SIGMA**2).double()
        found = estimate(gaussian_denoiser(MEAN, VARIANCE), x, steps=400)
        assert (found - exact).abs().max() < 0.02
        assert (found - exact).mean().abs() < 0.005

    def test_the_error_falls_with_the_square_of_the_steps(self):
        x = rows(64)
        exact = log_normal(x.flatten(1), MEAN, VARIANCE + SIGMA**2).double().mean()
        denoiser = gaussian_denoiser(MEAN, VARIANCE)
        errors = [(estimate(denoiser, x, steps=steps).mean() - exact).item() for steps in (20, 40, 80)]
        for coarse, fine in itertools.pairwise(errors):
            assert coarse / fine == pytest.approx(4, rel=0.2)

    def test_a_rotated_gaussian_within_the_standard_error(self):
        """Random signs estimate the trace of a Jacobian that is not diagonal without bias."""
        turn, _ = torch.linalg.qr(torch.randn(4, 4))
        x = (rows(2000).flatten(1) @ turn.T)[:, :, None, None]

        def log_density(x, sigma):
            return log_normal(x @ turn, MEAN, VARIANCE + sigma**2)

        exact = log_density(x.flatten(1), torch.tensor([[SIGMA]])).double()
        error = estimate(Exact(log_density), x, steps=200) - exact
        assert error.std() > 0.1  # of one image
        assert error.mean().abs() < 3 * error.std() / len(x) ** 0.5 + 0.005

    def test_a_mixture_within_the_standard_error(self):
        centres = torch.tensor([[0.4, 0.1, -0.2, 0.0], [-0.3, 0.0, 0.2, 0.1]])
        weights, variance = torch.tensor([0.7, 0.3]), torch.full((4,), 0.01)

        def log_density(x, sigma):
            parts = [log_normal(x, centre, variance + sigma**2) for centre in centres]
            return (torch.stack(parts, 1) + weights.log()).logsumexp(1)

        labels = (torch.rand(1000) < 0.3).long()
        x = (centres[labels] + (variance + SIGMA**2).sqrt() * torch.randn(1000, 4))[:, :, None, None]
        exact = log_density(x.flatten(1), torch.tensor([[SIGMA]])).double()
        error = estimate(Exact(log_density), x, steps=200) - exact
        assert error.mean().abs() < 3 * error.std() / 1000**0.5 + 0.005

    def test_the_divergence_of_a_network_is_that_of_its_jacobian(self):
        """One step from σ_0 to σ_T in float64, against the exact Jacobian with the same signs."""
        model = make_model(**BY_DENOISING).double()
        denoiser = Denoiser(model.head, SIGMA_DATA, PlainGradient(model.backbone))
        x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
        source, theta = SeededNoise(range(3), CPU), angles(SIGMA_DATA, 0.5, 1)[1]
        u, integral = x / 0.5**0.5, torch.zeros(3, dtype=torch.float64)
        force = denoiser.force(u, noise.per_image(0.5, x))
        last = denoiser.force(u - (theta[1] - theta[0]) * force, noise.per_image(80.0, x))
        end = u - (theta[1] - theta[0]) / 2 * (force + last)
        for at, sigma in ((u, 0.5), (end, 80.0)):
            sign = 1 - 2 * source.uniform(1, 8, 8).round()
            small = 1e-5 * sign
            level = noise.per_image(sigma, x)
            change = (denoiser.force(at + small, level) - denoiser.force(at - small, level)) / 2e-5
            integral += (theta[1] - theta[0]) / 2 * (sign * change).flatten(1).sum(1)
        normal = -(end.square() + math.log(2 * math.pi)).flatten(1).sum(1) / 2
        expected = normal - integral - 32 * math.log(0.5)
        torch.testing.assert_close(estimate(denoiser, x, steps=1, sigma=0.5), expected, rtol=1e-3, atol=1e-3)

    def test_levels_go_up_by_equal_ratios(self):
        sigmas, theta = angles(SIGMA_DATA, 0.02, 10)
        assert (len(sigmas), sigmas[0]) == (11, 0.02)
        assert sigmas[-1] == pytest.approx(80)
        assert [b / a for a, b in itertools.pairwise(sigmas)] == pytest.approx([4000**0.1] * 10)
        assert [math.tan(angle) for angle in theta] == pytest.approx([sigma / SIGMA_DATA for sigma in sigmas])


class TestBits:
    def test_8_bit_images_count_their_bins(self):
        """Against the closed form of a Gaussian at the dequantised images."""
        mean, variance = torch.zeros(4), torch.full((4,), 0.1)
        images = to_uint8(to_unit(rows(50, mean, variance)))
        found = bits_per_dimension(
            gaussian_denoiser(mean, variance), images, range(50), sigma=SIGMA, steps=400
        )
        x = dequantised(images, SeededNoise(range(50), CPU).uniform(4, 1, 1))
        nats = log_normal(x.flatten(1), mean, variance + SIGMA**2).double()
        expected = -(nats / 4 + math.log(2 / 255)) / math.log(2)
        torch.testing.assert_close(found, expected, rtol=0, atol=0.005)

    def test_other_images_have_a_density_in_units_of_0_to_1(self):
        unit = to_unit(rows(50))
        found = bits_per_dimension(gaussian_denoiser(MEAN, VARIANCE), unit, range(50), sigma=SIGMA, steps=400)
        spread = (VARIANCE + SIGMA**2) / 4
        nats = log_normal(unit.flatten(1), (MEAN + 1) / 2, spread).double()
        torch.testing.assert_close(found, -nats / 4 / math.log(2), rtol=0, atol=0.01)

    def test_dequantised_images_lie_in_their_bins(self):
        images = torch.arange(256, dtype=torch.uint8).reshape(16, 1, 4, 4)
        for uniform in (0.001, 0.5, 0.999):
            x = dequantised(images, torch.full(images.shape, uniform))
            assert torch.equal(to_uint8(to_unit(x)), images)
        torch.testing.assert_close(dequantised(images, torch.full(images.shape, 0.5)), to_signed(images))
        width = dequantised(images, torch.ones(images.shape)) - dequantised(images, torch.zeros(images.shape))
        torch.testing.assert_close(width, torch.full(images.shape, 2 / 255))

    def test_an_image_alone_has_the_bits_it_has_among_others(self):
        model, images = make_model(**BY_DENOISING), tiny_data().train.images[:40]
        denoiser = fast_denoiser(model)
        all_of_them = bits_per_dimension(denoiser, images, range(7, 47), sigma=SIGMA, steps=4)
        for place in (0, 31, 39):
            alone = bits_per_dimension(denoiser, images[place : place + 1], [7 + place], sigma=SIGMA, steps=4)
            assert torch.equal(alone, all_of_them[place : place + 1])
        other = bits_per_dimension(denoiser, images[:3], range(3), sigma=SIGMA, steps=4)
        assert not (other == all_of_them[:3]).any()

    def test_impossible_arguments_are_refused(self):
        denoiser = gaussian_denoiser(MEAN, VARIANCE)
        for changes, words in (
            ({"sigma": 0.0}, ("sigma", "0")),
            ({"sigma": 80.0}, ("sigma", "80")),
            ({"steps": 0}, ("steps", "0")),
            ({"seeds": [1]}, ("seeds", "2")),
        ):
            arguments = {"seeds": range(2), "sigma": SIGMA, "steps": 2, **changes}
            with pytest.raises(InputError) as error:
                bits_per_dimension(denoiser, rows(2), arguments.pop("seeds"), **arguments)
            assert all(word in str(error.value) for word in words)

    def test_a_network_whose_energy_is_not_finite_is_refused(self):
        denoiser = gaussian_denoiser(MEAN, VARIANCE * math.nan)
        with pytest.raises(InputError, match="not finite for 3 of 3"):
            bits_per_dimension(denoiser, rows(3), range(3), sigma=SIGMA, steps=2)

    def test_other_models_have_no_denoiser(self):
        with pytest.raises(InputError, match=r"train\.algorithm=denoising"):
            fast_denoiser(make_model())


class TestEvaluation:
    def test_what_it_reports(self):
        model, data = make_model(**BY_DENOISING), tiny_data()
        result = likelihood.evaluate(model, data, EvaluateOptions())
        low, high = result.intervals["bits_per_dim"]
        error = result.values["standard_error"]
        assert low < result.values["bits_per_dim"] < high
        assert high - low == pytest.approx(2 * 1.96 * error, rel=1e-3)
        tried = result.curves["chosen"]
        assert tried["sigma"] == [0.002, 0.005, 0.01, 0.02, 0.05]
        fewest = tried["sigma"][tried["bits_per_dim"].index(min(tried["bits_per_dim"]))]
        assert result.conditions["sigma_min"] == fewest
        assert sum(result.curves["histogram"]["images"]) == len(data.test)
        per_class = result.curves["bits_per_class"]
        assert sum(per_class) / 3 == pytest.approx(result.values["bits_per_dim"])  # equally many of each

    def test_the_level_is_chosen_without_test_images(self):
        model, data = make_model(**BY_DENOISING), tiny_data()
        darker = Dataset(data.train, data.valid, data.train[:30], data.class_names)
        first, second = (likelihood.evaluate(model, each, EvaluateOptions()) for each in (data, darker))
        assert first.curves["chosen"] == second.curves["chosen"]
        assert first.values != second.values

    def test_without_validation_images_it_is_where_chains_end(self):
        model, data = make_model(**BY_DENOISING), tiny_data()
        without = Dataset(data.train, data.valid[:0], data.test, data.class_names)
        result = likelihood.evaluate(model, without, EvaluateOptions())
        assert result.conditions["sigma_min"] == model.drawing.sampler.sigma_min
        assert any("sampler.sigma_min" in flag for flag in result.flags)
        assert "chosen" not in result.curves

    def test_a_part_of_the_images_is_drawn_by_the_seed(self):
        model, data = make_model(**BY_DENOISING), tiny_data()
        found = [
            likelihood.evaluate(model, data, EvaluateOptions(likelihood_images=5, seed=seed)).values
            for seed in (0, 0, 1)
        ]
        assert found[0] == found[1]
        assert found[0] != found[2]

    def test_images_that_are_not_8_bit_are_flagged(self):
        model, data = make_model(**BY_DENOISING), tiny_data()
        parts = [LabelledImages(p.images / 255, p.labels) for p in (data.train, data.valid, data.test)]
        result = likelihood.evaluate(model, Dataset(*parts, data.class_names), EvaluateOptions())
        assert any("not 8-bit" in flag for flag in result.flags)
        assert result.conditions["dequantisation"].startswith("none")
        eight = likelihood.evaluate(model, data, EvaluateOptions())
        assert not any("not 8-bit" in flag for flag in eight.flags)
        assert eight.values["bits_per_dim"] - result.values["bits_per_dim"] == pytest.approx(8, abs=0.5)

    def test_a_discretisation_error_above_the_standard_error_is_flagged(self):
        assert likelihood.doubts(-0.02, 0.007, discrete=True) == []
        (flag,) = likelihood.doubts(-0.02, 0.006, discrete=True)
        assert "-0.02" in flag

    def test_images_of_few_grey_levels_are_flagged(self):
        images = torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8)
        assert likelihood.few_values(images) == []
        assert likelihood.few_values(images / 255) == []
        (flag,) = likelihood.few_values(images // 16 * 17)
        assert "16 of the 256" in flag

    def test_one_test_image_is_refused(self):
        data = tiny_data()
        few = Dataset(data.train, data.valid, data.test[:1], data.class_names)
        with pytest.raises(InputError, match="at least 2 test images, got 1"):
            likelihood.evaluate(make_model(**BY_DENOISING), few, EvaluateOptions())

    def test_an_interrupted_call_goes_on(self, tmp_path, monkeypatch):
        model, data, folder = make_model(**BY_DENOISING), tiny_data(), RunFolder(tmp_path)
        whole = likelihood.evaluate(model, data, EvaluateOptions())
        measure, calls = likelihood.bits_per_dimension, []

        def interrupted(*given, **settings):
            calls.append(settings["steps"])
            if len(calls) == 6:
                raise KeyboardInterrupt
            return measure(*given, **settings)

        monkeypatch.setattr(likelihood, "bits_per_dimension", interrupted)
        with pytest.raises(KeyboardInterrupt):
            likelihood.evaluate(model, data, EvaluateOptions(), folder)
        result = likelihood.evaluate(model, data, EvaluateOptions(), folder)
        assert calls == [50] * 5 + [50] + [50, 100]
        assert result.values == whole.values
        assert result.curves == whole.curves
        assert result.unfinished.exists()
        kept = gmmc.evaluate(model, data, "likelihood", EvaluateOptions(), out=tmp_path / "run")
        assert json.loads((tmp_path / "run" / "results.json").read_text())["likelihood"]["values"] == dict(
            kept["likelihood"].values
        )
        assert not (tmp_path / "run" / "work").exists()

    def test_what_was_kept_belongs_to_its_weights_images_and_seed(self, tmp_path):
        data, folder = tiny_data(), RunFolder(tmp_path)
        test, valid = data.test.images, data.valid.images
        cases = [
            (make_model(**BY_DENOISING), test, valid, 0),
            (make_model(seed=1, **BY_DENOISING), test, valid, 0),
            (make_model(**BY_DENOISING), test[1:], valid, 0),
            (make_model(**BY_DENOISING), test, valid[1:], 0),
            (make_model(**BY_DENOISING), test, valid, 1),
        ]
        keys = [likelihood.open_store(folder, *case).key for case in cases]
        assert len(set(keys)) == len(cases)
        assert likelihood.open_store(folder, *cases[0]).key == keys[0]


@pytest.mark.slow
def test_a_trained_network_comes_close_to_the_entropy(tmp_path):
    """Of rows from a Gaussian: the bits of a model with the true density are its entropy."""
    source = torch.Generator().manual_seed(0)
    spread = torch.tensor([[0.18, 0.0], [0.09, 0.08]])
    x = torch.randn(20_000, 2, generator=source) @ spread.T
    part = LabelledImages(((x + 1) / 2)[:, :, None, None].clamp(0, 1), torch.arange(len(x)) % 2)
    data = Dataset(part[2000:], part[:200], part[200:1200], ["a", "b"])
    cfg = tiny_config(
        train={
            "algorithm": "denoising",
            "beta": 1.0,
            "batch_size": 500,
            "ema": 0.998,
            "checkpoint_seconds": 1e9,
            "valid_every": 1000,
        },
        model={"backbone": "smooth-mlp-3-64", "dim": 16, "scale": 1.0},
        discriminative={"epochs": 0, "shift": 0},
        generative={"epochs": 75, "lr": 5e-3, "schedule": "cosine", "noise": 0.0},
        denoising={"noisy_class_weight": 0.3},
        sampler={"name": "heun"},
    )
    model = train(cfg, tmp_path / "run", data, silent=True)
    result = likelihood.evaluate(model, data, EvaluateOptions())
    covariance = spread @ spread.T / 4  # in units of [0, 1]
    normal = torch.distributions.MultivariateNormal(torch.full((2,), 0.5), covariance)
    truth = -normal.log_prob(data.test.images.flatten(1)).mean().item() / 2 / math.log(2)
    assert result.values["bits_per_dim"] == pytest.approx(truth, abs=0.05)
    assert abs(result.values["bits_half_steps"] - result.values["bits_per_dim"]) < 0.02
