import pytest
import torch
import torch.nn.functional as F

from conftest import make_model
from gmmc.core import unit_energy
from gmmc.train.objectives import OBJECTIVES, SHAPES, Loss, huber


def batches(count=6):
    source = torch.Generator().manual_seed(1)
    x = torch.rand(3, count, 1, 8, 8, generator=source) * 2 - 1
    y = torch.randint(0, 3, (2, count), generator=source)
    return (x[0], y[0]), x[2], (x[1], y[1])


def gradient(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.backbone.parameters()))])


def mean_energy(model, x, y):
    return unit_energy(model.backbone(x), model.head.means[y]).mean()


def loss_of(model, real, contrast, sampled, beta):
    return Loss(model, model.cfg)(real, contrast, sampled, beta)


def assert_close(ours, literal):
    assert torch.allclose(ours, literal, atol=1e-5 * literal.abs().max().item())


def test_the_gradient_is_that_of_equation_7():
    """∂L = ∂E(x, y) − β ∂E(x′, y′), each a mean over its batch."""
    model = make_model()
    real, _, sampled = batches()
    ours = gradient(model, loss_of(model, real, None, sampled, 0.3)[0])
    literal = gradient(model, mean_energy(model, *real)) - 0.3 * gradient(model, mean_energy(model, *sampled))
    assert_close(ours, literal)


def test_without_samples_it_is_the_centre_regression_of_equation_5():
    model = make_model()
    real, _, _ = batches()
    loss, (energies, contrast, sampled, _) = loss_of(model, real, None, None, 0.0)
    assert torch.allclose(loss, mean_energy(model, *real))
    assert torch.allclose(energies.mean(), loss)
    assert contrast is None
    assert sampled is None


@pytest.mark.parametrize("head", ["mmc", "lda"])
def test_balanced_is_cross_entropy_and_an_even_difference(head):
    """CE(φᵀμ/γ²) + λ[E(x_contrast) − E(x′)]; the logits of equally long means are φᵀμ/γ²."""
    model = make_model(
        model={"head": head}, objective={"name": "balanced", "temperature": 5.0, "anchor": 0.1}
    )
    real, contrast, sampled = batches()
    features = model.backbone(real[0])
    logits = -(features.unsqueeze(1) - model.head.means).square().sum(-1) / 10
    if head == "mmc":
        assert torch.allclose(
            logits.log_softmax(-1), (features @ model.head.means.T / 5).log_softmax(-1), atol=1e-4
        )
    expected = F.cross_entropy(logits, real[1]) + 0.1 * mean_energy(model, *real)
    expected += 0.3 * (mean_energy(model, contrast, real[1]) - mean_energy(model, *sampled))
    assert torch.allclose(loss_of(model, real, contrast, sampled, 0.3)[0], expected, rtol=1e-4)


def test_the_anchor_pulls_class_images_or_contrast_images():
    """Class images where β = 0: there are no others."""
    real, contrast, sampled = batches()
    contrast = 100 * contrast  # an untrained network gives all ordinary images the same energy
    plain, on_class, on_contrast = (
        make_model(objective={"name": "balanced", **keys})
        for keys in ({"anchor": 0.0}, {"anchor": 0.1}, {"anchor": 0.1, "anchor_on": "contrast"})
    )
    energies = [mean_energy(plain, images, real[1][: len(images)]) for images in (real[0], contrast)]
    assert abs(energies[0] / energies[1] - 1) > 0.01
    rest = loss_of(plain, real, contrast, sampled, 0.3)[0]
    for model, images in ((on_class, real[0]), (on_contrast, contrast)):
        pull = loss_of(model, real, contrast, sampled, 0.3)[0] - rest
        assert torch.allclose(pull, 0.1 * mean_energy(model, images, real[1][: len(images)]), rtol=1e-4)
    assert torch.equal(
        loss_of(on_contrast, real, None, None, 0.0)[0], loss_of(on_class, real, None, None, 0.0)[0]
    )


def test_balanced_with_a_linear_head_is_softmax_training():
    model = make_model(model={"head": "linear"}, objective={"name": "balanced"}, sampler={"name": "sgld_jem"})
    real, _, _ = batches()
    expected = F.cross_entropy(model((real[0] + 1) / 2), real[1])
    assert torch.allclose(loss_of(model, real, None, None, 0.0)[0], expected, rtol=1e-5)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_objective_and_shape(name, shape):
    """Below the bound all shapes are the same; without samples none of them has a say; γ² changes nothing."""
    model = make_model(objective={"name": name, "shape": shape, "bound": 1e6})
    real, contrast, sampled = batches()
    contrast = None if name == "gmmc" else contrast
    before = gradient(model, loss_of(model, real, contrast, sampled, 0.5)[0])
    raw = make_model(objective={"name": name})
    assert torch.equal(before, gradient(raw, loss_of(raw, real, contrast, sampled, 0.5)[0]))
    model.head.gamma2.fill_(0.01)
    assert torch.equal(gradient(model, loss_of(model, real, contrast, sampled, 0.5)[0]), before)
    assert torch.equal(loss_of(model, real, None, None, 0.0)[0], loss_of(raw, real, None, None, 0.0)[0])


def test_what_is_recorded_comes_per_sample_and_unshaped():
    model = make_model(objective={"shape": "cap", "bound": 1.0})
    real, _, sampled = batches()
    loss, (energies, _, sampled_energies, correct) = loss_of(model, real, None, sampled, 0.5)
    assert energies.shape == sampled_energies.shape == correct.shape == (6,)
    assert sampled_energies.min() > 1.0
    assert torch.allclose(loss, energies.mean() - 0.5)
    assert not energies.requires_grad
    assert torch.equal(correct, model.logits((real[0] + 1) / 2).argmax(-1) == real[1])


class TestShapes:
    energies = torch.tensor([0.0, 1.0, 9.999, 10.001, 40.0, 1e6, 1e20], dtype=torch.float64)

    def push(self, shape):
        """‖r′‖·h′, the push of a sample at a distance ‖r′‖ = √(2E′)."""
        energies = self.energies.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(SHAPES[shape](energies, 10.0).sum(), energies)
        assert slope.isfinite().all()
        return slope, (2 * self.energies).sqrt() * slope

    def test_raw_pushes_without_bound(self):
        assert torch.equal(self.push("raw")[0], torch.ones(7, dtype=torch.float64))

    def test_cap_does_not_push_above(self):
        assert self.push("cap")[0].tolist() == [1, 1, 1, 0, 0, 0, 0]

    def test_huber_pushes_at_most_as_at_the_bound_and_never_less(self):
        slope, push = self.push("huber")
        assert slope[:3].tolist() == [1, 1, 1]
        assert torch.allclose(push[3:], torch.tensor(20.0, dtype=torch.float64).sqrt())
        for h in (huber(torch.tensor(10.0 - 1e-9), 10.0), huber(torch.tensor(10.0 + 1e-9), 10.0)):
            assert h.item() == pytest.approx(10.0)

    def test_gradients(self):
        energies = torch.rand(20, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda e: huber(e * 30, 10.0), energies)


class TestBatchNorm:
    def model(self):
        model = make_model(model={"backbone": "wrn-10-1", "norm": "batch"})
        return model.train()

    def test_real_and_sampled_images_do_not_mix(self):
        """Each part is normalised by its own statistics, and only those of real images are recorded."""
        real, _, sampled = batches()
        alone, both = self.model(), self.model()
        expected = loss_of(alone, real, None, None, 0.0)[1].real
        energies = loss_of(both, real, None, (sampled[0] * 3, sampled[1]), 0.5)[1].real
        assert torch.allclose(energies, expected, rtol=1e-5)
        for name, statistic in alone.backbone.named_buffers():
            if "num_batches" not in name:
                assert torch.equal(statistic, dict(both.backbone.named_buffers())[name]), name

    def test_frozen_statistics_make_one_pass(self):
        model = self.model().eval()
        real, _, sampled = batches()
        energies = loss_of(model, real, None, sampled, 0.5)[1].real
        assert torch.allclose(energies, loss_of(model, real, None, None, 0.0)[1].real, rtol=1e-5)
