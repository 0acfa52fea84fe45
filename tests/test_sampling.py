import itertools

import pytest
import torch

from conftest import make_model
from gmmc.core import unit_energy
from gmmc.errors import InputError
from gmmc.sampling import SAMPLERS, descend, noise_injected, staged


def constant_noise(value):
    return lambda t: value


def test_descent_is_x_minus_alpha_gradient_clamped():
    """On ½‖x − c‖² a step of α moves x to x − α(x − c)."""
    x, centre = torch.tensor([[0.5, -0.5]]), torch.tensor([[0.0, 3.0]])
    once = descend(lambda x, t: unit_energy(x, centre), x, steps=1, alpha=0.25)
    assert torch.allclose(once, torch.tensor([[0.375, 0.375]]))
    far = descend(lambda x, t: unit_energy(x, centre), x, steps=50, alpha=0.25)
    assert torch.allclose(far, torch.tensor([[0.0, 1.0]]), atol=1e-5)  # the box ends at 1


def test_staged_descent_lowers_its_energy():
    model = make_model().double()
    x = torch.rand(16, 1, 8, 8, dtype=torch.float64) * 2 - 1
    means = model.head.means[torch.arange(16) % 3]
    energy_at = staged(model.backbone, means, constant_noise(torch.randn_like(means)), 0.1)
    energies = [energy_at(x, 0)]
    for _ in range(20):
        x = descend(energy_at, x, steps=1, alpha=0.01)
        energies.append(energy_at(x, 0))
    assert all((later < earlier).all() for earlier, later in itertools.pairwise(energies))


def test_equation_9():
    """½‖φ − μ − σz‖² = ½‖φ − μ‖² + σ²/2‖z‖² − σ⟨φ − μ, z⟩."""
    phi, mu, z = torch.randn(3, 4, 6, dtype=torch.float64).unbind()
    sigma = 0.3
    left = noise_injected(lambda x: x, mu, constant_noise(z), sigma)(phi, 0)
    right = unit_energy(phi, mu) + sigma**2 / 2 * z.square().sum(-1) - sigma * ((phi - mu) * z).sum(-1)
    assert torch.allclose(left, right)


@pytest.mark.parametrize(("name", "draws"), [("staged", [0]), ("noise_injected", [0, 1, 2, 3])])
def test_when_the_target_is_drawn(name, draws):
    asked = []

    def noise(t):
        asked.append(t)
        return torch.zeros(2, 3)

    energy_at = SAMPLERS[name](lambda x: x, torch.ones(2, 3), noise, 0.1)
    descend(energy_at, torch.zeros(2, 3), steps=4, alpha=0.1)
    assert asked == draws


@pytest.mark.parametrize("name", SAMPLERS)
def test_without_target_noise_both_samplers_are_the_same(name):
    model = make_model(sampler={"name": name, "target_std": 0.0})
    reference = make_model(sampler={"target_std": 0.0})
    assert torch.equal(model.sample(4, seed=3), reference.sample(4, seed=3))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("backbone", ["small_cnn", "wrn-10-1"])
class TestSeeds:
    """One seed per image, and nothing else decides what it looks like."""

    def model(self, name, backbone):
        return make_model(model={"backbone": backbone}, sampler={"name": name, "target_std": 0.2})

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
        labels = model.sample_labels(9, seed=4)
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
    shares = model.sample_labels(2000).bincount(minlength=3) / 2000
    assert torch.allclose(shares, torch.tensor([0.7, 0.2, 0.1]), atol=0.04)  # four standard errors


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
