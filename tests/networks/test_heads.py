import pytest
import torch

from gmmc import core
from gmmc.networks.heads import HEADS, LDAHead, LinearHead, MMCHead


def features(count=7, dim=6):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", HEADS)
class TestEveryHead:
    def head(self, name):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return HEADS[name](4, 6, 10.0, None)

    def test_energies_are_negated_logits(self, name):
        """E(x, y) = −logit_y at γ² = 1 with uniform priors."""
        head, phi = self.head(name), features()
        assert torch.allclose(head.unit_energies(phi), -head(phi), atol=1e-4)

    def test_the_energy_of_a_label_is_its_column(self, name):
        head, phi = self.head(name), features()
        labels = torch.arange(7) % 4
        expected = head.unit_energies(phi)[torch.arange(7), labels]
        assert torch.allclose(head.unit_energy(phi, labels), expected, rtol=1e-5)

    def test_gamma2_is_a_temperature(self, name):
        head, phi = self.head(name), features()
        before = head(phi)
        head.gamma2.fill_(4.0)
        assert torch.allclose(head(phi), before / 4, atol=1e-5)
        assert torch.allclose(head.logits_at(phi, 1.0), before)

    def test_energies_are_in_full_precision_under_bf16(self, name):
        head, phi = self.head(name), features().bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            energies = head.unit_energies(phi)
        assert energies.dtype == torch.float32
        assert torch.allclose(energies, head.unit_energies(phi.float()))


def test_fixed_means_are_not_learned_and_learned_ones_are():
    fixed, learned = MMCHead(4, 6, 10.0), LDAHead(4, 6, 10.0)
    assert list(fixed.parameters()) == []
    assert [p.shape for p in learned.parameters()] == [(4, 6)]
    assert torch.equal(fixed.means, core.simplex_means(4, 6, 10.0))


def test_learned_means_start_about_as_long_as_fixed_ones_in_any_dimension():
    for dim in (3, 50, 2000):  # fewer dimensions than fixed means would need, too
        lengths = LDAHead(500, dim, 7.0).means.norm(dim=1)
        assert lengths.square().mean().sqrt().item() == pytest.approx(7.0, rel=0.1)


def test_learned_means_follow_their_class():
    """The gradient of E(x, y) moves μ_y towards φ and no other mean."""
    head, phi = LDAHead(4, 6, 10.0), features(1)
    (grad,) = torch.autograd.grad(head.unit_energy(phi, torch.tensor([2])).sum(), head.means)
    assert torch.allclose(grad[2], head.means[2] - phi[0])
    assert grad[[0, 1, 3]].abs().max() == 0


def test_priors_enter_the_logits_of_means_but_not_of_a_linear_layer():
    priors, phi = torch.tensor([0.5, 0.3, 0.1, 0.1]), features()
    uneven = MMCHead(4, 6, 10.0, priors)
    assert torch.allclose(uneven(phi) - MMCHead(4, 6, 10.0)(phi), (priors * 4).log().expand(7, 4), atol=1e-4)
    linear = LinearHead(4, 6, 10.0, priors)
    assert torch.equal(linear(phi), linear.linear(phi))
