"""Laws of the preconditioning, and of a model's energies at every noise level."""

from dataclasses import replace

import pytest
import torch

import gmmc
from conftest import make_model, tiny_data
from gmmc.config.sections import EvaluateConfig
from gmmc.errors import InputError
from gmmc.evaluations import latent
from gmmc.evaluations.temperatures import temperatures, used
from gmmc.networks.heads import HEADS
from gmmc.noise import churned, levels, network_input, per_image, radius, scales
from gmmc.pixels import as_unit

SIGMAS = torch.tensor([0.002, 0.05, 0.5, 3.0, 80.0], dtype=torch.float64)
SIGMA_DATA = 0.5
DENOISING = {"train": {"algorithm": "denoising"}, "sampler": {"name": "heun"}}


def make_denoiser(backbone="smooth-mlp-2-16", **sections):
    model = {"backbone": backbone, "dim": 8, "scale": 1.0, **sections.pop("model", {})}
    return make_model(**{**DENOISING, "model": model, **sections}).double()


def images(count=4, shape=(1, 8, 8)):
    return torch.rand(count, *shape, dtype=torch.float64)


class TestScales:
    def test_inputs_and_targets_have_variance_1(self):
        """Of x = x₀ + σn with Var x₀ = σ_d²: u = c_in·x, and t = (x₀ − c_skip·x)/c_out."""
        skip, out, into = scales(SIGMAS, SIGMA_DATA)
        ones = torch.ones_like(SIGMAS)
        torch.testing.assert_close(into**2 * (SIGMAS**2 + SIGMA_DATA**2), ones)
        variance = ((1 - skip) ** 2 * SIGMA_DATA**2 + skip**2 * SIGMAS**2) / out**2
        torch.testing.assert_close(variance, ones)

    def test_the_best_linear_denoiser_is_what_is_skipped(self):
        """F = 0 is the posterior mean of N(0, σ_d²): so u and t are uncorrelated."""
        skip, _, _ = scales(SIGMAS, SIGMA_DATA)
        torch.testing.assert_close((1 - skip) * SIGMA_DATA**2, skip * SIGMAS**2)

    def test_gamma2_turns_force_into_score(self):
        """σ²/γ²·c_in = c_out, as D = x − σ² ∂E/∂x."""
        _, out, into = scales(SIGMAS, SIGMA_DATA)
        torch.testing.assert_close(SIGMAS**2 * into / (SIGMAS / SIGMA_DATA), out)

    def test_the_radius_is_the_gaussian_term(self):
        x = torch.randn(5, 3, 4, 4, dtype=torch.float64)
        level = SIGMAS.view(5, 1, 1, 1)
        u = scales(level, SIGMA_DATA).into * x
        energy = 0.5 * radius(u, level, SIGMA_DATA).square().flatten() / (SIGMAS / SIGMA_DATA)
        term = x.square().sum((1, 2, 3)) / (2 * (SIGMAS**2 + SIGMA_DATA**2))
        torch.testing.assert_close(energy, term)

    def test_the_noise_level_is_one_more_channel(self):
        u = torch.randn(2, 3, 4, 5)
        given = network_input(u, torch.tensor([1.0, torch.e**4]).view(2, 1, 1, 1))
        assert torch.equal(given[:, :3], u)
        torch.testing.assert_close(given[:, 3], torch.tensor([0.0, 1.0]).view(2, 1, 1).expand(2, 4, 5))


class TestLevels:
    def test_they_fall_from_the_highest_to_the_lowest(self):
        found = levels(18, 0.02, 80.0, 7.0)
        assert found[0] == pytest.approx(80)
        assert found[-1] == pytest.approx(0.02)
        assert found == sorted(found, reverse=True)
        roots = torch.tensor(found, dtype=torch.float64) ** (1 / 7)
        torch.testing.assert_close(roots.diff(), roots.diff().mean().expand(17))

    def test_one_step_is_from_the_highest(self):
        assert levels(1, 0.02, 80.0, 7.0) == [80.0]

    def test_churn_raises_noise_between_its_bounds_only(self):
        assert churned(1.0, 10, 0.0, 0.05, 50.0) == 1.0
        assert churned(1.0, 10, 1.0, 0.05, 50.0) == pytest.approx(1.1)
        assert churned(1.0, 10, 1e6, 0.05, 50.0) == pytest.approx(2**0.5)
        assert churned(60.0, 10, 5.0, 0.05, 50.0) == 60.0


class TestModel:
    @pytest.mark.parametrize("backbone", ["smooth-mlp-2-16", "smooth-10-1"])
    @pytest.mark.parametrize("sigma", [0.05, 1.0])
    def test_the_gradient_of_its_energy_denoises(self, backbone, sigma):
        """D = x − σ² ∂E(x, y; σ)/∂x = c_skip·x + c_out·F, F = −∂/∂u ½‖φ(u) − μ_y‖²."""
        model, unit = make_denoiser(backbone), images().requires_grad_(True)
        labels = torch.tensor([0, 1, 2, 0])
        energy = -model.at_noise(sigma)(unit).gather(1, labels[:, None]).sum()
        (by_unit,) = torch.autograd.grad(energy, unit)  # half of that by x in [−1, 1]
        x = (unit * 2 - 1).detach()
        level = per_image(sigma, x)
        skip, out, into = scales(level, SIGMA_DATA)
        u = (into * x).requires_grad_(True)
        goal = torch.stack([labels.double(), torch.full((4,), sigma / SIGMA_DATA), torch.zeros(4)], 1)
        total = model.head.guided_energy(model.backbone(network_input(u, level)), goal.double()).sum()
        (by_u,) = torch.autograd.grad(total, u)
        torch.testing.assert_close(x - sigma**2 * by_unit / 2, skip * x - out * by_u)

    @pytest.mark.parametrize("head", HEADS)
    def test_its_densities_are_those_of_its_energies(self, head):
        """log p(x; σ) = log Σ_y exp(−E(x, y; σ)), and p(y|x; σ) their softmax."""
        settings = {"head": head} | ({"scale": 10.0} if head == "linear" else {})
        model, x = make_denoiser(model=settings), images()
        noisy = model.at_noise(0.7)
        energies = torch.stack([noisy.energy(x, [y] * 4) for y in range(3)], 1)
        torch.testing.assert_close(noisy.log_density(x), (-energies).logsumexp(1))
        torch.testing.assert_close(noisy.predict_proba(x), (-energies).softmax(1))

    def test_without_a_level_it_is_at_that_of_predictions(self):
        model, x = make_denoiser(), images()
        at = model.at_noise(model.denoising.class_sigma)
        torch.testing.assert_close(model.log_density(x), at.log_density(x))
        torch.testing.assert_close(model.energy(x, [0, 1, 2, 0]), at.energy(x, [0, 1, 2, 0]))
        torch.testing.assert_close(model.predict_proba(x), at.predict_proba(x))

    def test_scores_are_at_the_same_level(self):
        model, x = make_denoiser(), images(20)
        model.calibrate(x, torch.arange(20) % 3)
        torch.testing.assert_close(model.answer(x, score="log_density").values, model.log_density(x).double())
        parts = [model.answer(x, score=score).values for score in ("span_density", "residual")]
        torch.testing.assert_close(sum(parts), model.log_density(x).double())

    def test_guidance_weighs_the_class(self):
        """γ²·[E(x, y) − w·log p(y|x)]; w = −1 forgets the class."""
        model, x = make_denoiser(), images()
        sigma, labels = 0.3, torch.tensor([0, 1, 2, 0])
        gamma2 = sigma / SIGMA_DATA
        at, found = model.at_noise(sigma), model.features(x, sigma)
        joint = at.energy(x, labels)
        log_posterior = at.predict_log_proba(x).gather(1, labels[:, None]).squeeze(1)
        for w in (-1.0, 0.0, 0.5, 2.0):
            goal = torch.tensor([[y, gamma2, w] for y in labels.tolist()], dtype=torch.float64)
            guided = model.head.guided_energy(found, goal)
            torch.testing.assert_close(guided, gamma2 * (joint - w * log_posterior))
        torch.testing.assert_close(joint + log_posterior, -at.log_density(x))

    def test_energies_of_a_bf16_network_are_float32(self):
        model = make_denoiser("smooth-10-1").float()
        model.backbone.bfloat16()
        found = model.backbone(torch.randn(2, 2, 8, 8, dtype=torch.bfloat16))
        goal = torch.tensor([[0.0, 1.0, 0.0]] * 2)
        assert found.dtype == torch.bfloat16
        assert model.head.guided_energy(found, goal).dtype == torch.float32

    def test_noise_may_lead_beyond_the_range_of_pixels(self):
        model, x = make_denoiser(), images() + torch.randn(4, 1, 8, 8, dtype=torch.float64)
        assert model.at_noise(2.0).log_density(x).isfinite().all()
        with pytest.raises(InputError, match=r"\[0, 1\]"):
            model.log_density(x)

    @pytest.mark.parametrize("sigma", [0, -1, float("nan"), True, "high"])
    def test_impossible_levels_are_refused(self, sigma):
        with pytest.raises(InputError, match="sigma must be"):
            make_denoiser().at_noise(sigma)

    def test_other_models_have_no_levels(self, model):
        with pytest.raises(InputError, match="denoising"):
            model.at_noise(0.1)

    def test_the_level_is_in_the_units_of_signed_images(self):
        """Its denoiser at σ takes x₀ + σn in [−1, 1]: with σ_d for the data, u has a mean square of 1."""
        model, sigma = make_denoiser(), 3.0
        clean = SIGMA_DATA * torch.randn(500, 1, 8, 8, dtype=torch.float64)
        x = clean + sigma * torch.randn_like(clean)
        seen = []
        model.backbone.register_forward_pre_hook(lambda module, given: seen.append(given[0][:, :-1]))
        model.at_noise(sigma).logits((x + 1) / 2)
        assert torch.cat(seen).square().mean().item() == pytest.approx(1, rel=0.03)

    def test_densities_and_names_are_those_of_training(self):
        """γ² of training is σ/σ_d: the paper's formula has no part in it."""
        model, x = make_denoiser(), images()
        at = model.at("trained")
        torch.testing.assert_close(at.logits(x).logsumexp(1), model.log_density(x))
        assert model.gamma2 == pytest.approx(0.1)
        data = tiny_data()
        assert temperatures(model.tempered(), replace(data, valid=data.valid[:0])) == {
            "trained": pytest.approx(0.1)
        }
        assert (used(model.tempered()), used(at.tempered())) == ("trained", "trained")
        with pytest.raises(InputError, match=r"'paper'.*'trained'"):
            model.at("paper")
        plain = make_model()
        assert temperatures(plain.tempered(), data).keys() == {"fitted", "unit", "paper"}
        images_of_plain = data.test.images[:3]
        assert torch.equal(
            plain.at("trained").logits(images_of_plain), plain.at("unit").logits(images_of_plain)
        )

    def test_other_images_are_judged_at_the_gamma_of_training(self):
        model, data = make_denoiser(abstain={"score": "log_density"}).float(), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        result = gmmc.evaluate(model, data, "ood", EvaluateConfig(ood=("noise",)))["ood"]
        density = {key.split("/")[2] for key in result.values if "/log_density/" in key}
        assert density == {"trained"}
        confidence = {key.split("/")[2] for key in result.values if "/max_posterior/" in key}
        assert confidence == {"fitted", "trained"}
        assert "σ = 0.05" in result.conditions["scores"]
        inside = model.answer(data.test.images, score="span_density").values.median().item()
        assert result.values["test images/energy_in_span"] == pytest.approx(-inside, abs=0.2)

    @pytest.mark.parametrize("backbone", ["smooth-mlp-2-16", "smooth-10-1"])
    def test_neighbours_and_maps_have_the_features_in_which_classes_differ(self, backbone, monkeypatch):
        model, data = make_denoiser(backbone).float(), tiny_data()
        model.keep_neighbours(data.train.images, data.train.labels)
        assert model.neighbours.features.shape[1] == model.dim == 8
        model.calibrate(data.valid.images, data.valid.labels)
        found = model.features(as_unit(data.test.images))[:, :8]
        distance = model.answer(data.test.images, score="neighbours").values
        torch.testing.assert_close(-distance, model.neighbours.distance(found))
        seen, separability = [], latent.separability

        def recorded(features, labels):
            seen.append(features)
            return separability(features, labels)

        monkeypatch.setattr(latent, "separability", recorded)
        for each in (model, model.at("trained")):
            gmmc.evaluate(each, data, "latent")
            torch.testing.assert_close(seen.pop(), found.double(), rtol=1e-4, atol=1e-5)

    def test_classes_with_unequal_priors_weigh_alike_at_every_level(self):
        """p(y|x; σ) ∝ π_y·exp(−½‖φ − μ_y‖²/γ²), also where it is guided."""
        priors = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
        model, x = make_denoiser(), images()
        model.head.priors.copy_(priors)
        for sigma in (0.05, 2.0):
            gamma2 = sigma / SIGMA_DATA
            found = model.features(x, sigma)
            energies = torch.stack([model.head.unit_energy(found, torch.full((4,), y)) for y in range(3)], 1)
            bayes = (priors.log() - energies / gamma2).softmax(1)
            torch.testing.assert_close(model.at_noise(sigma).predict_proba(x), bayes)
            goal = torch.tensor([[y, gamma2, 1.5] for y in (0, 1, 2, 0)], dtype=torch.float64)
            joint = gamma2 * model.at_noise(sigma).energy(x, [0, 1, 2, 0])
            weighed = joint - gamma2 * 1.5 * bayes.log()[torch.arange(4), torch.tensor([0, 1, 2, 0])]
            torch.testing.assert_close(model.head.guided_energy(found, goal), weighed)
