"""Heun's method on data whose best denoiser is known."""

import dataclasses
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch

from conftest import make_model, tiny_data
from gmmc.classifier.drawing import with_guidance
from gmmc.config.sections import SamplerConfig
from gmmc.errors import InputError
from gmmc.noise import per_image, scales
from gmmc.sampling.samplers import BatchNoise, Chains, denoised, heun

SIGMA_DATA = 0.5
CFG = SamplerConfig(name="heun")


class GaussianData:
    """Input gradient of the energy whose denoiser is the posterior mean of N(mean, covariance)."""

    def __init__(self, mean, covariance):
        self.mean, self.covariance, self.calls = mean, covariance, 0

    def __call__(self, energy, given, goal):
        self.calls += 1
        u, sigma = given[:, :-1].flatten(1), goal[:, 1:2] * SIGMA_DATA
        skip, out, into = scales(sigma, SIGMA_DATA)
        x = u / into
        denoised = torch.empty_like(x)
        for level in sigma.unique():
            rows = (sigma == level).flatten()
            gain = self.covariance @ torch.linalg.inv(
                self.covariance + level**2 * torch.eye(x.shape[1]).to(x)
            )
            denoised[rows] = self.mean + (x[rows] - self.mean) @ gain.T
        force = (denoised - skip * x) / out
        return torch.cat([-force[:, :, None, None], torch.zeros(len(x), 1, 1, 1).to(x)], 1)


def gaussian():
    mean = torch.tensor([0.3, -0.2], dtype=torch.float64)
    covariance = torch.tensor([[0.3, 0.12], [0.12, 0.1]], dtype=torch.float64)
    return GaussianData(mean, covariance)


def drawn(data, count=1, *, steps=18, x=None, **settings):
    source = torch.Generator().manual_seed(0)
    noise = BatchNoise(count, source)
    start = torch.zeros(count, 2, 1, 1, dtype=torch.float64) if x is None else x
    labels = torch.zeros(count, dtype=torch.long)
    chains = Chains(labels, None, lambda features, goal: features, noise, SIGMA_DATA)
    return heun(data, start, chains, dataclasses.replace(CFG, **settings), steps=steps).flatten(1)


class Silence:
    """Noise of a chain that begins where it is put."""

    def uniform(self, *size):
        raise AssertionError

    def normal(self, *size):
        return torch.zeros(1, *size)


def exact(data, x, high, low):
    """The solution of dx/dσ = (x − D)/σ: along each principal direction x − m falls as √(λ + σ²)."""
    values, vectors = torch.linalg.eigh(data.covariance)
    along = (x.flatten(1) - data.mean) @ vectors
    return data.mean + along * ((values + low**2) / (values + high**2)).sqrt() @ vectors.T


def test_its_error_falls_with_the_square_of_the_steps():
    low, high = 0.02, 20.0
    data, x = gaussian(), high * torch.randn(8, 2, 1, 1, dtype=torch.float64)

    def error(steps):
        """Of D(x; σ_min), the last step."""
        chains = Chains(torch.zeros(8).long(), None, lambda f, g: f, Silence(), SIGMA_DATA)
        cfg = dataclasses.replace(CFG, sigma_min=low, sigma_max=high)
        found = heun(data, x, chains, cfg, steps=steps)
        noisy = exact(data, x, high, low)[:, :, None, None]
        wanted = denoised(data, noisy, low, chains, 0.0)
        return (found - wanted).norm().item()

    errors = [error(steps) for steps in (40, 80, 160)]
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("settings", [{}, {"churn": 6.0}], ids=["deterministic", "stochastic"])
def test_it_recovers_mean_and_covariance(settings):
    data, count = gaussian(), 40_000
    x = drawn(data, count, steps=100, **settings)
    deviation = (data.covariance.diagonal() / count).sqrt()
    assert ((x.mean(0) - data.mean).abs() < 4 * deviation + 0.002).all()
    torch.testing.assert_close(x.T.cov(), data.covariance, rtol=0.03, atol=0.003)


def test_it_takes_two_gradients_per_step_but_for_the_last():
    data = gaussian()
    drawn(data, steps=18)
    assert data.calls == 35
    drawn(data, steps=1)
    assert data.calls == 36


def test_churn_adds_noise_and_its_absence_adds_none():
    first, second = drawn(gaussian()), drawn(gaussian())
    assert torch.equal(first, second)
    assert not torch.equal(first, drawn(gaussian(), churn=10.0))


class TestModel:
    SECTIONS: ClassVar[dict[str, dict[str, Any]]] = {
        "train": {"algorithm": "denoising"},
        "model": {"backbone": "smooth-10-1", "dim": 8, "scale": 1.0},
        "sampler": {"name": "heun"},
        "sample": {"steps": 4},
    }

    @pytest.mark.parametrize("churn", [0.0, 5.0])
    def test_the_image_of_a_seed_does_not_depend_on_the_batch(self, churn):
        model = make_model(**{**self.SECTIONS, "sampler": {"name": "heun", "churn": churn}})
        labels = torch.arange(40) % 3
        many = model.sample(40, labels, seed=5)
        assert torch.equal(many[17:18], model.sample(1, labels[17:18], seed=22))
        assert torch.equal(many[34:38], model.sample(4, labels[34:38], seed=39))
        assert 0 <= many.min() <= many.max() <= 1

    def test_guidance_changes_images(self):
        plain, strong = (
            make_model(**{**self.SECTIONS, "sampler": {"name": "heun", "guidance": w}}).sample(2, [0, 1])
            for w in (0.0, 2.0)
        )
        assert not torch.equal(plain, strong)

    def test_guidance_may_be_set_on_a_finished_model(self):
        model = make_model(**self.SECTIONS)
        model.drawing = with_guidance(model.drawing, 2.0)
        built = make_model(**{**self.SECTIONS, "sampler": {"name": "heun", "guidance": 2.0}})
        assert torch.equal(model.sample(2, [0, 1]), built.sample(2, [0, 1]))
        with pytest.raises(InputError, match="guidance"):
            with_guidance(make_model().drawing, 1.0)

    def test_the_plain_engine_draws_the_same(self):
        model = make_model(**{**self.SECTIONS, "train": {"algorithm": "denoising", "precision": "fp32"}})
        fast = model.sample(2, [0, 1])
        model.drawing = dataclasses.replace(model.drawing, engine="plain")
        torch.testing.assert_close(fast, model.sample(2, [0, 1]), rtol=1e-4, atol=1e-5)

    def test_chains_of_gaussian_images_begin_there(self):
        """[buffer] start = "gaussian": the noise is added to images of the class's Gaussian."""
        model = make_model(**self.SECTIONS, buffer={"start": "gaussian", "rank": 4})
        assert model.start.name == "Gaussian of the class's pixels"
        data = tiny_data()
        model.start.fit(data.train)
        assert not torch.equal(model.sample(2, [0, 1]), make_model(**self.SECTIONS).sample(2, [0, 1]))

    def test_a_film_shows_estimates_and_ends_with_the_image(self):
        """The last step is x ← D(x; σ_min), so the estimate before it is the image, too."""
        model = make_model(**self.SECTIONS)
        film = model.drawer().film([0, 1], frames=[0, 2, 3, 4])
        torch.testing.assert_close(film[-1], model.sample(2, [0, 1]))
        torch.testing.assert_close(film[-2], film[-1], rtol=1e-4, atol=1e-5)
        assert ((film[0] > 0) & (film[0] < 1)).float().mean() > 0.9  # no noise of σ_max = 80, clipped
        assert torch.equal(model.drawer().film([0], frames=[0], steps=1)[0], film[0, :1])

    def test_the_steps_of_a_film_are_those_of_its_chains(self):
        """Noise levels depend on their number."""
        drawer = make_model(**self.SECTIONS).drawer()
        whole = drawer.film([0, 1], frames=[1, 2, 4])
        torch.testing.assert_close(drawer.film([0, 1], frames=[1, 2], steps=4), whole[:2])
        with pytest.raises(InputError, match=r"frames must be at most steps=4, got .*5"):
            drawer.film([0], frames=[5], steps=4)

    def test_initial_images_are_without_noise(self):
        model = make_model(**self.SECTIONS)
        assert (model.drawer().initial_images([0, 1]) == 0.5).all()

    def test_levels_are_per_image(self):
        assert torch.equal(per_image(2.0, torch.zeros(3, 1, 2, 2)).flatten(), torch.full((3,), 2.0))
