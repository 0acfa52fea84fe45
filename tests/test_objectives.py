import torch

from conftest import make_model
from gmmc import objectives
from gmmc.core import unit_energy


def batches(count=6):
    source = torch.Generator().manual_seed(1)
    x = torch.rand(2, count, 1, 8, 8, generator=source) * 2 - 1
    y = torch.randint(0, 3, (2, count), generator=source)
    return (x[0], y[0]), (x[1], y[1])


def gradient(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.backbone.parameters()))])


def mean_energy(model, pair):
    return unit_energy(model.backbone(pair[0]), model.head.means[pair[1]]).mean()


def test_the_gradient_is_that_of_equation_7():
    """∂L = ∂E(x, y) − β ∂E(x′, y′), each a mean over its batch."""
    model = make_model()
    real, sampled = batches()
    ours = gradient(model, objectives.gmmc(model, real, sampled, beta=0.3).loss)
    literal = gradient(model, mean_energy(model, real)) - 0.3 * gradient(model, mean_energy(model, sampled))
    assert torch.allclose(ours, literal, atol=1e-5 * literal.abs().max().item())


def test_without_samples_it_is_the_centre_regression_of_equation_5():
    model = make_model()
    real, _ = batches()
    outcome = objectives.gmmc(model, real, None, beta=0.0)
    assert torch.allclose(outcome.loss, mean_energy(model, real))
    assert outcome.sampled is None


def test_energies_come_back_per_sample():
    model = make_model()
    real, sampled = batches()
    outcome = objectives.gmmc(model, real, sampled, beta=0.5)
    assert outcome.real.shape == outcome.correct.shape == (6,)
    assert torch.allclose(outcome.loss, outcome.real.mean() - 0.5 * outcome.sampled.mean())
    assert torch.equal(outcome.correct, model.logits((real[0] + 1) / 2).argmax(-1) == real[1])


def test_gamma2_changes_no_gradient():
    model = make_model()
    real, sampled = batches()
    before = gradient(model, objectives.gmmc(model, real, sampled, beta=0.5).loss)
    model.head.gamma2.fill_(0.01)
    assert torch.equal(gradient(model, objectives.gmmc(model, real, sampled, beta=0.5).loss), before)
