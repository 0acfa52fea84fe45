"""The Gaussian term of a denoiser's energy with the variances of the data's cosines."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from torch import nn

import gmmc
from conftest import interrupted_at, make_learner, make_model, tiny_config, tiny_data
from gmmc.classifier.denoiser import Denoiser, fast_denoiser
from gmmc.classifier.likelihood import log_likelihood
from gmmc.config.sections import SamplerConfig
from gmmc.errors import InputError
from gmmc.networks.gaussian_term import GaussianTerm
from gmmc.networks.heads import MMCHead
from gmmc.noise import per_image, radius, scales
from gmmc.runs import model_file
from gmmc.sampling.engine import PlainGradient
from gmmc.sampling.samplers import BatchNoise, Chains, SeededNoise, denoised, heun
from gmmc.train.loop import train

SIGMA_DATA = 0.5
SHAPE = (1, 4, 6)
SIGMAS = (0.02, 0.5, 3.0, 80.0)


class Silent(nn.Module):
    """A network whose features do not depend on the image."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 1))

    def forward(self, x):
        return x.flatten(1)[:, :2] * 0


def fitted(shape=SHAPE):
    """Variances from σ_d² to 50 times that, and directions at random."""
    term = GaussianTerm(shape, SIGMA_DATA)
    term.directions.copy_(torch.linalg.qr(torch.randn_like(term.directions)).Q)
    coarseness = sum(torch.meshgrid(*[torch.arange(n, 0, -1.0) for n in shape], indexing="ij"))
    term.excess.copy_((coarseness - 6).clamp(min=0) ** 2 / 4)
    return term


def variances(term):
    return (term.excess + SIGMA_DATA**2).double()


def covariance_of(term):
    """Of images with the variance v_k along each direction."""
    eye = torch.eye(term.excess.numel()).view(-1, *term.excess.shape)
    directions = term.coordinates(eye).flatten(1).double()  # a column each
    return directions * variances(term).flatten() @ directions.T


def chains(term, count, noise=None):
    labels = torch.zeros(count, dtype=torch.long)
    head = MMCHead(2, 2, 1.0)
    return Chains(labels, None, head.guided_energy, noise, SIGMA_DATA, term)


def as_denoising(**denoising):
    return {
        "train": {"algorithm": "denoising", "beta": 1.0, "ema": 0.9},
        "model": {"backbone": "smooth-mlp-2-16", "dim": 8, "scale": 1.0},
        "discriminative": {"epochs": 0, "shift": 0},
        "sampler": {"name": "heun"},
        "denoising": {"gaussian": "fitted", **denoising},
    }


class TestClosedForms:
    @pytest.mark.parametrize("sigma", SIGMAS)
    def test_with_a_silent_network_it_is_the_best_linear_denoiser(self, sigma):
        """The posterior mean of N(0, Σ_k v_k d_k d_kᵀ), with its covariance matrix written out."""
        term, x = fitted(), torch.randn(3, *SHAPE, dtype=torch.float64)
        found = denoised(PlainGradient(Silent()), x, sigma, chains(term, 3), 0.0)
        covariance = covariance_of(term)
        gain = covariance @ torch.linalg.inv(covariance + sigma**2 * torch.eye(len(covariance)))
        expected = (x.flatten(1) @ gain).view_as(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("sigma", SIGMAS)
    def test_the_radius_is_its_energy(self, sigma):
        """½ρ²/γ² = Σ_k c_k(x)²/2(σ² + v_k)."""
        term, x = fitted(), torch.randn(3, *SHAPE, dtype=torch.float64)
        level = per_image(sigma, x)
        found = term.radius(scales(level, SIGMA_DATA).into * x, level).square().flatten() / 2
        precision = torch.linalg.inv(covariance_of(term) + sigma**2 * torch.eye(24))
        energy = (x.flatten(1) @ precision * x.flatten(1)).sum(1) / 2
        torch.testing.assert_close(found / (sigma / SIGMA_DATA), energy, rtol=1e-4, atol=1e-5)

    def test_without_excess_it_is_the_isotropic_one(self):
        term, u = GaussianTerm(SHAPE, SIGMA_DATA), torch.randn(4, *SHAPE)
        level = torch.tensor(SIGMAS).view(4, 1, 1, 1)
        assert not term.force(u, level).any()
        torch.testing.assert_close(term.radius(u, level), radius(u, level, SIGMA_DATA))

    def test_heun_draws_its_gaussian(self):
        term, count = fitted((1, 2, 3)), 20_000
        term.excess.mul_(5)
        noise = BatchNoise(count, torch.Generator().manual_seed(0))
        cfg = SamplerConfig(name="heun", sigma_min=1e-3)
        start = torch.zeros(count, 1, 2, 3)
        x = heun(PlainGradient(Silent()), start, chains(term, count, noise), cfg, steps=60)
        expected = covariance_of(term)
        torch.testing.assert_close(x.flatten(1).T.cov().double(), expected, rtol=0.04, atol=0.03)

    def test_its_bits_are_those_of_the_gaussian(self):
        """log p(x; σ₀) by the probability flow equals log N(x; 0, v + σ₀²)."""
        term, sigma = fitted(), 0.02
        total = variances(term) + sigma**2
        drawn = (total.sqrt() * torch.randn(64, *SHAPE)).flatten(1)
        directions = term.coordinates(torch.eye(24).view(24, *SHAPE)).flatten(1).T
        x = (drawn.float() @ directions).view(64, *SHAPE)
        denoiser = Denoiser(MMCHead(2, 2, 1.0), SIGMA_DATA, PlainGradient(Silent()), term)
        noise = SeededNoise(range(64), torch.device("cpu"))
        found = log_likelihood(denoiser, x, noise, sigma=sigma, steps=200)
        exact = (
            -(term.coordinates(x).double().square() / total + (2 * math.pi * total).log()).sum((1, 2, 3)) / 2
        )
        error = found - exact
        assert abs(error.mean()) < 3 * error.std() / 8 + 0.05


class TestFit:
    def test_coarse_cosines_keep_their_covariance_and_fine_ones_their_variance(self):
        """By scipy's DCT and numpy's eigenvalues, none below σ_d²."""
        images = torch.randint(0, 256, (400, 1, 8, 10), dtype=torch.uint8)
        images[:, :, :, 1:] = images[:, :, :, 1:] // 4 + images[:, :, :, :-1] // 4
        term = GaussianTerm((1, 8, 10), SIGMA_DATA)
        term.fit(images)
        c = dctn(images.double().numpy() / 127.5 - 1, axes=(1, 2, 3), norm="ortho")
        coarse, fine = c[:, 0, :, :8].reshape(400, 64), c[:, 0, :, 8:]
        values, vectors = np.linalg.eigh(coarse.T @ coarse / 400)
        expected = vectors * values.clip(SIGMA_DATA**2) @ vectors.T
        directions = term.directions.double()
        found = directions.T @ (variances(term)[0, :, :8].reshape(64, 1) * directions)
        assert found.numpy() == pytest.approx(expected, abs=1e-4)
        assert variances(term)[0, :, 8:].numpy() == pytest.approx((fine**2).mean(0).clip(0.25), rel=1e-5)
        assert 0 < (term.excess > 0).sum() < term.excess.numel()

    @pytest.mark.parametrize("shape", [(3, 9, 12), (1, 8, 8), (5, 1, 1)])
    def test_its_coordinates_are_orthonormal(self, shape):
        term = GaussianTerm(shape, SIGMA_DATA)
        term.fit(torch.rand(50, *shape))
        x = torch.randn(4, *shape)
        products = term.coordinates(x).flatten(1) @ term.coordinates(x).flatten(1).T
        torch.testing.assert_close(products, x.flatten(1) @ x.flatten(1).T, rtol=1e-4, atol=1e-2)

    def test_it_does_not_depend_on_how_many_are_looked_at_at_once(self, monkeypatch):
        images, whole, parts = torch.rand(50, *SHAPE), fitted(), fitted()
        whole.fit(images)
        monkeypatch.setattr("gmmc.networks.gaussian_term.AT_ONCE", 7)
        parts.fit(images)
        torch.testing.assert_close(covariance_of(whole), covariance_of(parts), rtol=1e-4, atol=1e-4)


class TestModel:
    @pytest.fixture
    def model(self):
        model = make_model(**as_denoising()).double()
        model.gaussian.excess[:, :3, :3] = 2.0
        return model

    @pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
    def test_the_gradient_of_its_energy_denoises(self, model, sigma):
        """D = x − σ² ∂E(x, y; σ)/∂x, also with these variances."""
        unit = torch.rand(4, 1, 8, 8, dtype=torch.float64).requires_grad_(True)
        labels = torch.tensor([0, 1, 2, 0])
        energy = -model.at_noise(sigma)(unit).gather(1, labels[:, None]).sum()
        (by_unit,) = torch.autograd.grad(energy, unit)  # half of that by x in [−1, 1]
        x = (unit * 2 - 1).detach()
        found = denoised(
            PlainGradient(model.backbone),
            x,
            sigma,
            Chains(labels, None, model.head.guided_energy, None, SIGMA_DATA, model.gaussian),
            0.0,
        )
        torch.testing.assert_close(found, x - sigma**2 * by_unit / 2, rtol=1e-4, atol=1e-5)

    def test_posteriors_do_not_feel_it_and_densities_do(self, model):
        x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
        proba, density = model.at_noise(0.3).predict_proba(x), model.at_noise(0.3).log_density(x)
        model.gaussian.excess.zero_()
        torch.testing.assert_close(model.at_noise(0.3).predict_proba(x), proba)
        assert (model.at_noise(0.3).log_density(x) - density).abs().min() > 0.1

    def test_recipes_have_none_unless_they_ask(self):
        assert make_model().gaussian is None
        assert make_model(**as_denoising(gaussian="isotropic")).gaussian is None

    def test_every_denoiser_of_a_model_has_it(self, model):
        """D of the marginal energy is x + σ² ∂log p(x; σ)/∂x."""
        model.drawing = replace(model.drawing, engine="plain")
        unit = torch.rand(2, 1, 8, 8, dtype=torch.float64).requires_grad_(True)
        (score,) = torch.autograd.grad(model.at_noise(0.7)(unit).logsumexp(1).sum(), unit)
        x = (unit * 2 - 1).detach()
        level = per_image(0.7, x)
        skip, out, into = scales(level, SIGMA_DATA)
        found = skip * x + out * fast_denoiser(model).force(into * x, level)
        torch.testing.assert_close(found, x + 0.7**2 * score / 2, rtol=1e-4, atol=1e-5)
        sizes = model._noise_sizes(unit.detach())
        model.gaussian.excess.zero_()
        assert (model._noise_sizes(unit.detach()) - sizes).abs().min() > 1e-4


class TestTraining:
    def test_it_is_fitted_kept_in_the_file_and_used(self, tmp_path):
        data = tiny_data()
        cfg = as_denoising()
        cfg["train"]["weights"] = "bf16"  # of the network
        model = train(tiny_config(**cfg), tmp_path, data, silent=True)
        expected = GaussianTerm((1, 8, 8), SIGMA_DATA)
        expected.fit(data.train.images)
        loaded = gmmc.load(tmp_path)
        assert torch.equal(model.gaussian.excess, expected.excess)
        for name, tensor in loaded.gaussian.state_dict().items():
            assert torch.equal(tensor, expected.state_dict()[name])
        images = loaded.sample(3, seed=1, steps=4)
        torch.testing.assert_close(images, model.sample(3, seed=1, steps=4))
        loaded.gaussian.excess.zero_()
        assert (loaded.sample(3, seed=1, steps=4) - images).abs().max() > 1e-3

    def test_the_network_is_fitted_to_what_it_leaves(self):
        """The residual F + G·u − t of an update, where an isotropic term has F − t; likewise the target."""
        residuals, targets = {}, {}
        for gaussian in ("isotropic", "fitted"):
            learner = make_learner(tiny_config(**as_denoising(gaussian=gaussian)), tiny_data())
            batch = learner.batches.at(learner.moment(0))
            noisy = learner.algorithm.noisy(batch, 0)
            residuals[gaussian], targets[gaussian] = learner.algorithm.residual(noisy), noisy.target
        term = learner.model.gaussian
        assert term.excess.max() > 0
        difference = residuals["fitted"] - residuals["isotropic"]
        expected = term.force(noisy.u, noisy.level)
        torch.testing.assert_close(difference, expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(targets["isotropic"] - targets["fitted"], expected, rtol=1e-4, atol=1e-5)

    def test_a_resumed_training_is_bit_equal(self, tmp_path):
        cfg = tiny_config(**as_denoising())
        whole = train(cfg, tmp_path / "whole", tiny_data(), silent=True)
        with interrupted_at(3):
            train(cfg, tmp_path / "run", tiny_data(), silent=True)
        resumed = train(cfg, tmp_path / "run", tiny_data(), silent=True)
        for mine, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
            assert torch.equal(mine, other)

    def test_a_start_brings_its_own(self, tmp_path):
        data = tiny_data()
        first = train(tiny_config(**as_denoising()), tmp_path / "first", data, silent=True)
        first.gaussian.excess[0, 5, 5] = 3.0  # as of other data
        model_file.save_model(tmp_path / "first" / "model.safetensors", first)
        begin = {"train": {**as_denoising()["train"], "start": str(tmp_path / "first")}}
        second = train(tiny_config(**{**as_denoising(), **begin}), tmp_path / "second", data, silent=True)
        assert torch.equal(second.gaussian.excess, first.gaussian.excess)

    @pytest.mark.parametrize("classes", [3, 2])
    @pytest.mark.parametrize(
        ("start", "other"),
        [
            ({"gaussian": "fitted"}, {"gaussian": "isotropic"}),
            ({"gaussian": "isotropic"}, {"gaussian": "fitted"}),
            ({"sigma_data": 0.5}, {"sigma_data": 0.6}),
        ],
    )
    def test_a_start_with_another_term_is_refused(self, tmp_path, start, other, classes):
        train(tiny_config(**as_denoising(**start)), tmp_path / "start", tiny_data(), silent=True)
        sections = as_denoising(**other)
        sections["train"]["start"] = str(tmp_path / "start")
        cfg, data = tiny_config(**sections), tiny_data(classes=classes)
        with pytest.raises(InputError, match=r"denoising\.gaussian"):
            train(cfg, tmp_path / "next", data, silent=True)

    @pytest.mark.parametrize(("name", "value"), [("excess", -1.0), ("directions", 0.5), ("excess", math.nan)])
    def test_values_that_no_fit_gives_are_refused(self, tmp_path, name, value):
        model = make_model(**as_denoising())
        model.gaussian.get_buffer(name)[..., 0, 0] = value
        model_file.save_model(tmp_path / "model.safetensors", model)
        with pytest.raises(InputError, match=rf"gaussian\.{name}"):
            gmmc.load(tmp_path / "model.safetensors")
