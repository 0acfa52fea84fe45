import dataclasses
import itertools

import pytest
import torch
from torch import nn
from torchebm.core import BaseModel
from torchebm.samplers import LangevinDynamics

from conftest import make_model
from gmmc.config.sections import SamplerConfig
from gmmc.core import unit_energy
from gmmc.errors import InputError
from gmmc.noise import scales
from gmmc.sampling.engine import PlainGradient
from gmmc.sampling.samplers import (
    SAMPLERS,
    BatchNoise,
    Chains,
    SeededNoise,
    noise_injected,
    sgld,
    sgld_jem,
    staged,
)


class FixedNoise:
    """Gives the same normals again and again, and counts how often it is asked."""

    def __init__(self, normals):
        self.normals, self.asked = normals, 0

    def normal(self, *size):
        self.asked += 1
        return self.normals

    def uniform(self, *size):
        raise AssertionError("samplers draw normals only")


PIXELS = PlainGradient(nn.Identity())  # φ(x) = x
# Those whose steps are α times a gradient of pixels; of heun, see test_heun.py.
OF_STEP_ALPHA = [name for name, sampler in SAMPLERS.items() if not sampler.noise_conditional]


def chains_to(means, noise=None):
    labels = torch.arange(len(means))
    return Chains(
        labels, means, lambda features, y: unit_energy(features, means[y]), noise or FixedNoise(0.0)
    )


def test_descent_is_x_minus_alpha_gradient_clamped():
    """On ½‖x − c‖² a step of α moves x to x − α(x − c)."""
    x, chains = torch.tensor([[0.5, -0.5]]), chains_to(torch.tensor([[0.0, 3.0]]))
    cfg = SamplerConfig(alpha=0.25)
    once = staged(PIXELS, x, chains, cfg, steps=1)
    assert torch.allclose(once, torch.tensor([[0.375, 0.375]]))
    far = staged(PIXELS, x, chains, cfg, steps=50)
    assert torch.allclose(far, torch.tensor([[0.0, 1.0]]), atol=1e-5)  # the box ends at 1


@pytest.mark.parametrize("name", OF_STEP_ALPHA)
def test_a_longest_step_holds_for_each_pixel_alone(name):
    x, chains = torch.tensor([[0.5, -0.5]]), chains_to(torch.tensor([[0.4, 0.5]]))

    def moved(max_step, steps):
        cfg = SamplerConfig(name=name, alpha=0.25, max_step=max_step, power=0.0)
        return SAMPLERS[name].move(PIXELS, x, chains, cfg, steps=steps)

    near = 0.0125 if name == "sgld" else 0.025  # half of α
    assert torch.allclose(moved(0.05, 1), torch.tensor([[0.5 - near, -0.45]]))
    assert torch.equal(moved(2.0, 3), moved(0.0, 3))


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_step_is_shown(name):
    x, chains = torch.tensor([[0.5, -0.5]]), chains_to(torch.zeros(1, 2))
    gradient, sampler, seen = PIXELS, SAMPLERS[name], {}
    if sampler.noise_conditional:
        x, chains = x[..., None, None], dataclasses.replace(chains, sigma_data=0.5)

        def gradient(energy, given, goal):  # F = 0
            return torch.zeros_like(given)

    cfg = SamplerConfig(name=name)
    last = sampler.move(gradient, x, chains, cfg, steps=3, on_step=seen.__setitem__)
    assert list(seen) == [0, 1, 2, 3]
    assert torch.equal(seen[3], last)
    assert not torch.equal(seen[1], seen[2])
    if sampler.noise_conditional:  # it shows D(x; σ), here c_skip·x, as F and the noise are 0
        first = scales(torch.tensor(cfg.sigma_max), 0.5).skip * x
        torch.testing.assert_close(seen[0], first)
        return
    assert torch.equal(seen[0], x)
    assert torch.equal(seen[1], sampler.move(gradient, x, chains, cfg, steps=1))


def test_staged_descent_lowers_its_energy():
    model = make_model().double()
    x = torch.rand(16, 1, 8, 8, dtype=torch.float64) * 2 - 1
    labels = torch.arange(16) % 3
    noise = FixedNoise(torch.randn(16, 64, dtype=torch.float64))
    chains = Chains.of(model.head, model.head.unit_energy, labels, noise)
    target = chains.means + 0.1 * noise.normals

    energies = [unit_energy(model.backbone(x), target)]
    for _ in range(20):
        x = staged(
            PlainGradient(model.backbone), x, chains, SamplerConfig(alpha=0.01, target_std=0.1), steps=1
        )
        energies.append(unit_energy(model.backbone(x), target))
    assert all((later < earlier).all() for earlier, later in itertools.pairwise(energies))


def test_equation_9():
    """The gradient of ½‖φ − μ‖² + σ²/2‖z‖² − σ⟨φ − μ, z⟩, which is that of ½‖φ − μ − σz‖²."""
    x, mu, z = 0.1 * torch.randn(3, 4, 6, dtype=torch.float64).unbind()[0], *torch.randn(2, 4, 6).double()
    cfg = SamplerConfig(target_std=0.3, alpha=0.01)
    moved = noise_injected(PIXELS, x, chains_to(mu, FixedNoise(z)), cfg, steps=1)
    phi = x.clone().requires_grad_(True)
    energy = unit_energy(phi, mu) + 0.3**2 / 2 * z.square().sum(-1) - 0.3 * ((phi - mu) * z).sum(-1)
    (gradient,) = torch.autograd.grad(energy.sum(), phi)
    assert torch.allclose(moved, x - 0.01 * gradient)


@pytest.mark.parametrize(
    ("name", "draws"), [("staged", 1), ("noise_injected", 4), ("sgld", 4), ("sgld_jem", 4)]
)
def test_how_often_noise_is_drawn(name, draws):
    noise = FixedNoise(torch.zeros(2, 3))
    chains = chains_to(torch.ones(2, 3), noise)
    SAMPLERS[name].move(PIXELS, torch.zeros(2, 3), chains, SamplerConfig(), steps=4)
    assert noise.asked == draws


@pytest.mark.parametrize("name", ["staged", "noise_injected"])
def test_without_target_noise_both_samplers_of_the_paper_are_the_same(name):
    model = make_model(sampler={"name": name, "target_std": 0.0})
    reference = make_model(sampler={"target_std": 0.0})
    assert torch.equal(model.sample(4, seed=3), reference.sample(4, seed=3))


# --- Langevin dynamics ---

SPREAD = torch.tensor([0.5, 1.0, 2.0])  # standard deviations of a Gaussian with exp(−E) as its law
CENTRE = torch.tensor([0.3, -2.0, 5.0])


def gaussian_chains(count, seed=0):
    def energy(x, y):
        return 0.5 * ((x - CENTRE) / SPREAD).square().sum(-1)

    noise = BatchNoise(count, torch.Generator().manual_seed(seed))
    return Chains(torch.zeros(count, dtype=torch.long), None, energy, noise)


def test_sgld_reaches_the_stationary_law_of_a_gaussian():
    """With a constant step it is an autoregression: var = α/(1 − a²), a = 1 − α/2s², exactly."""
    count, alpha = 20_000, 0.2
    cfg = SamplerConfig(name="sgld", alpha=alpha, power=0.0)
    x = sgld(PIXELS, torch.zeros(count, 3), gaussian_chains(count), cfg, steps=400)
    carried = 1 - alpha / (2 * SPREAD.square())
    variance = alpha / (1 - carried.square())
    assert torch.allclose(x.mean(0), CENTRE, atol=5 * SPREAD.max().item() / count**0.5)
    assert torch.allclose(x.var(0), variance, rtol=0.05)
    assert torch.allclose(variance, SPREAD.square(), rtol=0.3)  # a finite step is a little too wide
    finer = SamplerConfig(name="sgld", alpha=0.02, power=0.0)
    x = sgld(PIXELS, torch.zeros(4000, 3), gaussian_chains(4000), finer, steps=2000)
    assert torch.allclose(x.var(0), SPREAD.square(), rtol=0.1)


def test_sgld_at_the_temperature_of_jem_s_code():
    """Step α on the energy, noise of its own size: var = noise²/(1 − (1 − α/s²)²)."""
    count, alpha, size = 20_000, 0.1, 0.01
    cfg = SamplerConfig(name="sgld_jem", alpha=alpha, noise=size)
    x = sgld_jem(PIXELS, torch.zeros(count, 3), gaussian_chains(count), cfg, steps=600)
    variance = size**2 / (1 - (1 - alpha / SPREAD.square()).square())
    assert torch.allclose(x.var(0), variance, rtol=0.05)
    assert torch.allclose(x.mean(0), CENTRE, atol=1e-3)


def test_the_step_of_sgld_decays_polynomially():
    """A gradient of 1 everywhere: the chains move by α_t/2 on average, with a variance of α_t."""
    seen = {0: torch.zeros(1, 200_000)}
    noise = BatchNoise(1, torch.Generator().manual_seed(0))
    chains = Chains(torch.zeros(1, dtype=torch.long), None, lambda x, y: x.sum(-1), noise)
    cfg = SamplerConfig(name="sgld", alpha=0.8, power=0.5)
    sgld(PIXELS, seen[0], chains, cfg, steps=4, on_step=seen.__setitem__)
    for t in range(4):
        move, alpha = seen[t + 1] - seen[t], 0.8 / (1 + t) ** 0.5
        assert move.mean().item() == pytest.approx(-alpha / 2, rel=0.05)
        assert move.var().item() == pytest.approx(alpha, rel=0.05)


class Gaussian(BaseModel):
    def forward(self, x):
        return 0.5 * ((x - CENTRE) / SPREAD).square().sum(-1)


def test_sgld_walks_as_torchebm_does():
    """Its η is our α/2; with the same numbers for noise, the same chains."""
    alpha, count = 0.05, 16
    start = torch.randn(count, 3, generator=torch.Generator().manual_seed(1))
    theirs = LangevinDynamics(Gaussian(), step_size=alpha / 2, device="cpu")
    cfg = SamplerConfig(name="sgld", alpha=alpha, power=0.0)
    ours = sgld(PIXELS, start, gaussian_chains(count, seed=5), cfg, steps=50)
    expected = theirs.sample(x=start.clone(), n_steps=50, generator=torch.Generator().manual_seed(5))
    assert torch.allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("backbone", ["small_cnn", "wrn-10-1"])
class TestSeeds:
    """One seed per image, and nothing else decides what it looks like."""

    def model(self, name, backbone):
        sections = {"model": {"backbone": backbone}, "sampler": {"name": name, "target_std": 0.2}}
        if SAMPLERS[name].noise_conditional:
            sections["train"] = {"algorithm": "denoising"}
        return make_model(**sections)

    def test_an_image_is_bit_equal_alone_and_among_others(self, name, backbone):
        model = self.model(name, backbone)
        many = model.sample(40, seed=0)
        assert torch.equal(model.sample(1, seed=17), many[17:18])
        assert torch.equal(model.sample(8, seed=12), many[12:20])
        assert torch.equal(model.sample(1, seed=37), many[37:38])  # of the second block

    def test_seeds_differ(self, name, backbone):
        images = self.model(name, backbone).sample(6)
        assert len(images.flatten(1).unique(dim=0)) == 6

    def test_given_labels_equal_to_the_drawn_ones_change_nothing(self, name, backbone):
        model = self.model(name, backbone)
        labels = model.drawer().labels(9, seed=4)
        assert torch.equal(model.sample(9, labels, seed=4), model.sample(9, seed=4))

    def test_gamma2_changes_no_chain(self, name, backbone):
        model = self.model(name, backbone)
        before = model.sample(4)
        model.head.gamma2.fill_(123.0)
        assert torch.equal(model.sample(4), before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_caller_s_gradient_mode_does_not_matter(model, mode):
    expected = model.sample(2)
    with mode():
        assert torch.equal(model.sample(2), expected)


def test_more_steps_go_on_from_fewer():
    """The noise of the first steps does not depend on how many follow."""
    model = make_model(sampler={"name": "noise_injected", "target_std": 0.5}, model={"dim": 20})
    one, two = model.sample(1, steps=1), model.sample(1, steps=2)
    assert 0 < (one - two).abs().max() < 0.1


def test_samples_are_unit_images(model):
    images = model.sample(5)
    assert images.shape == (5, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert not images.requires_grad
    assert model.sample(0).shape == (0, 1, 8, 8)


def test_labels_follow_the_priors():
    model = make_model()
    model.head.priors.copy_(torch.tensor([0.7, 0.2, 0.1]))
    shares = model.drawer().labels(2000).bincount(minlength=3) / 2000
    assert torch.allclose(shares, torch.tensor([0.7, 0.2, 0.1]), atol=0.04)  # four standard errors


def test_labels_are_independent_of_the_noise_of_their_chains():
    """Else the images of a class would all start alike."""
    seeds = range(4000)
    labels = SeededNoise.quantiles_of(seeds)
    for numbers in (
        SeededNoise(seeds, torch.device("cpu")).uniform(2),
        SeededNoise(seeds, torch.device("cpu")).normal(2),
    ):
        correlations = torch.corrcoef(torch.cat([labels[:, None], numbers], 1).T)[0, 1:]
        assert correlations.abs().max() < 4 / len(seeds) ** 0.5  # four standard errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 2, "labels": [0]}, r"labels must be 2 whole numbers, one per image, got .*\(1,\)"),
        ({"n": 1, "labels": [3]}, r"labels must lie in 0..2, got 3..3"),
        ({"n": -1}, "at least 0, got -1"),
        ({"n": 1, "steps": 0}, "steps must be at least 1, got 0"),
        ({"n": 1, "seed": -5}, "seed must be at least 0, got -5"),
    ],
)
def test_impossible_samples_are_refused(model, arguments, message):
    with pytest.raises(InputError, match=message):
        model.sample(**arguments)
