"""Scores that never tie, temperatures that fit, answers that abstain."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import make_model, tiny_config, tiny_data
from gmmc import core, runs
from gmmc.abstention import KEPT, Reference, thinned
from gmmc.errors import InputError
from gmmc.scores import (
    SCORES,
    density_and_confidence,
    evaluating,
    fit_gamma2,
    gradient_norms,
    logits_at,
    tempered,
    unit_energies,
)
from gmmc.train import train


class TestLogOdds:
    @given(st.lists(st.floats(-20, 20), min_size=2, max_size=6))
    def test_orders_and_equals_the_odds_of_the_largest_posterior(self, logits):
        logits = torch.tensor(logits, dtype=torch.float64)
        p = logits.softmax(-1).max()
        if 1 - p > 1e-6:
            assert core.log_odds(logits).item() == pytest.approx((p / (1 - p)).log().item(), abs=1e-6)

    def test_does_not_saturate_where_the_posterior_does(self):
        logits = torch.tensor([[800.0, 0.0, 0.0], [900.0, 0.0, 0.0]], dtype=torch.float64)
        assert (logits.softmax(-1).max(-1).values == 1).all()
        odds = core.log_odds(logits)
        assert odds[1] - odds[0] == pytest.approx(100)

    def test_one_class_is_no_posterior(self):
        with pytest.raises(InputError, match="at least 2 classes, got 1"):
            core.log_odds(torch.zeros(3, 1))


def test_far_features_never_tie():
    """Where exp(−E) underflows a thousand times over, every image still has a score of its own."""
    model = make_model(classes=5)
    network = model.tempered()
    direction = F.normalize(torch.randn(model.dim, generator=torch.Generator().manual_seed(0)), dim=0)
    features = torch.linspace(1e3, 1e6, 500)[:, None] * direction
    for gamma2 in (1e-3, 1.0, 50.0):
        logits = logits_at(network, model.head.unit_energies(features.double()), gamma2)
        assert (logits.exp() == 0).all()
        for score in density_and_confidence(logits).values():
            assert score.isfinite().all()
            assert len(score.unique()) == len(score)
        density = density_and_confidence(logits)["log_density"]
        assert (density.diff() < 0).all()  # farther is less likely


class TestTempered:
    def test_at_the_stored_gamma2_it_is_the_model(self):
        model, images = make_model(), tiny_data().test.images
        model.head.gamma2.fill_(3.7)
        network = tempered(model)
        assert network.paper == pytest.approx(3.7)
        logits = logits_at(network, unit_energies(network, images), network.paper)
        torch.testing.assert_close(logits, model.logits(images).double(), rtol=1e-5, atol=1e-5)

    def test_priors_are_not_divided_by_the_temperature(self):
        model = make_model()
        model.head.priors.copy_(torch.tensor([0.7, 0.2, 0.1]))
        network = tempered(model)
        cold = logits_at(network, torch.zeros(1, 3, dtype=torch.float64), 1e9)
        torch.testing.assert_close(
            cold.softmax(-1)[0], torch.tensor([0.7, 0.2, 0.1]).double(), atol=1e-5, rtol=0
        )

    def test_another_network_is_divided_by_it(self):
        network = tempered(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))
        assert network.paper is None
        images = tiny_data().test.images
        logits = logits_at(network, unit_energies(network, images), 4.0)
        torch.testing.assert_close(logits, network.module(images / 255).double() / 4)

    def test_modes_are_given_back(self):
        network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(), nn.Linear(64, 3)).train()
        network[1].eval()
        with evaluating(network):
            assert not any(part.training for part in network)
        assert [part.training for part in network] == [True, False, True, True]


class TestGradientNorm:
    def test_of_a_linear_network_by_hand(self):
        """∂ logsumexp(Wx)/∂x = Wᵀp."""
        layer = nn.Linear(64, 3)
        network = tempered(nn.Sequential(nn.Flatten(), layer))
        images = tiny_data().test.images
        for gamma2 in (0.5, 2.0):
            norms = gradient_norms(network, images, {"here": gamma2})["here"]
            p = (layer(images.flatten(1) / 255) / gamma2).softmax(-1)
            expected = -(p @ layer.weight / gamma2).norm(dim=1).double()
            torch.testing.assert_close(norms, expected.detach(), rtol=1e-4, atol=1e-7)

    def test_several_temperatures_at_once_are_each_on_its_own(self):
        network, images = make_model().tempered(), tiny_data().test.images
        together = gradient_norms(network, images, {"a": 1.0, "b": 7.0})
        for name, gamma2 in (("a", 1.0), ("b", 7.0)):
            assert torch.equal(together[name], gradient_norms(network, images, {name: gamma2})[name])
        assert all(p.grad is None for p in network.module.parameters())

    def test_no_image_depends_on_its_batch(self):
        network, images = make_model().tempered(), tiny_data().test.images
        alone = torch.cat([gradient_norms(network, image[None], {"t": 1.0})["t"] for image in images])
        torch.testing.assert_close(gradient_norms(network, images, {"t": 1.0})["t"], alone, rtol=1e-5, atol=0)


class TestFit:
    def drawn(self, gamma2: float, count: int = 20_000):
        """Labels drawn from the posterior of random logits at this temperature."""
        source = torch.Generator().manual_seed(0)
        raw = 5 * torch.randn(count, 4, generator=source, dtype=torch.float64)
        labels = torch.multinomial((raw / gamma2).softmax(-1), 1, generator=source).squeeze(1)
        return tempered(nn.Identity()), -raw, labels

    @pytest.mark.parametrize("gamma2", [0.3, 1.0, 8.0])
    def test_finds_the_temperature_that_made_the_labels(self, gamma2):
        assert fit_gamma2(*self.drawn(gamma2)) == pytest.approx(gamma2, rel=0.05)

    def test_no_other_temperature_is_better(self):
        network, energies, labels = self.drawn(2.0, count=500)
        fitted = fit_gamma2(network, energies, labels)

        def nll(gamma2):
            return F.cross_entropy(-energies / gamma2, labels, label_smoothing=1 / 501).item()

        assert all(nll(fitted) <= nll(fitted * factor) for factor in (0.5, 0.99, 1.01, 2))

    def test_a_few_images_all_classified_correctly_do_not_make_it_certain(self):
        raw = 10 * torch.eye(3, dtype=torch.float64).repeat(5, 1)
        gamma2 = fit_gamma2(tempered(nn.Identity()), -raw, torch.arange(15) % 3)
        confidence = (raw / gamma2).softmax(-1).max().item()
        assert 0.9 < confidence < 0.999


class TestReference:
    scores = torch.arange(100, dtype=torch.float64)

    def reference(self):
        return Reference.of(1.0, {"log_density": self.scores[torch.randperm(100)]})

    @given(st.floats(0.01, 0.99))
    def test_the_threshold_is_the_highest_that_accepts_the_share(self, tpr):
        threshold = self.reference().threshold("log_density", tpr)
        assert (self.scores >= threshold).double().mean() >= tpr - 1e-9
        assert (self.scores > threshold).double().mean() < tpr

    def test_round_shares_are_exact(self):
        assert self.reference().threshold("log_density", 0.95) == 5
        twenty = Reference.of(1.0, {"log_density": self.scores[:20]})
        assert twenty.threshold("log_density", 0.95) == 1

    def test_percentiles_count_lower_scores(self):
        values = torch.tensor([-5.0, 0.0, 50.0, 1000.0])
        assert self.reference().percentile("log_density", values).tolist() == [0, 0, 50, 100]

    def test_bad_input(self):
        with pytest.raises(InputError, match="score must be one of log_density, max_posterior"):
            self.reference().threshold("beauty", 0.9)
        with pytest.raises(InputError, match="tpr must lie between 0 and 1, got 1"):
            self.reference().threshold("log_density", 1.0)

    def test_nothing_to_go_by(self):
        for scores in (self.scores[:0], torch.tensor([0.0, math.nan])):
            with pytest.raises(InputError, match="at least one image, and must be finite"):
                Reference.of(1.0, {"log_density": scores})
        with pytest.raises(InputError, match="at least one image, got none"):
            make_model().calibrate(torch.zeros(0, 1, 8, 8), [])

    def test_many_scores_are_thinned_to_quantiles(self):
        many = torch.linspace(0, 1, 10 * KEPT, dtype=torch.float64)
        few = thinned(many)
        assert len(few) == KEPT
        assert few[KEPT // 4].item() == pytest.approx(0.25, abs=1e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    cfg = tiny_config(discriminative={"epochs": 15}, generative={"epochs": 0}, train={"beta": 0.0})
    return train(cfg, tmp_path_factory.mktemp("answer") / "run", tiny_data(count=96))


class TestAnswer:
    def test_accepts_the_share_of_the_validation_images_it_was_asked_for(self, model):
        valid = tiny_data(count=96).valid
        for score in ("log_density", "max_posterior", "gradient_norm"):
            for tpr in (0.5, 0.75, 0.95):
                answer = model.answer(valid.images, score=score, tpr=tpr)
                assert answer.accepted.sum() >= math.floor(tpr * len(valid))
                assert torch.equal(answer.accepted, answer.values >= answer.threshold)

    def test_is_unsure_of_what_it_never_saw(self, model):
        data = tiny_data(count=96)
        noise = torch.randint(0, 256, data.test.images.shape, generator=torch.Generator().manual_seed(0))
        inside, outside = (model.answer(x) for x in (data.test.images, noise.to(torch.uint8)))
        assert inside.score == "log_density"
        assert inside.percentile.mean() > outside.percentile.mean()
        assert 0 <= inside.percentile.min() <= inside.percentile.max() <= 100
        assert inside.names == [model.class_names[y] for y in inside.labels]
        assert torch.equal(inside.labels, model.predict(data.test.images))

    def test_confidence_is_that_of_the_fitted_temperature(self, model):
        images = tiny_data().test.images
        network = model.tempered()
        logits = logits_at(network, unit_energies(network, images), model.reference.gamma2)
        torch.testing.assert_close(model.answer(images).confidence, logits.softmax(-1).max(-1).values)

    def test_survives_the_disk(self, model, tmp_path):
        runs.save_model(tmp_path / "model.safetensors", model)
        again = runs.load(tmp_path / "model.safetensors")
        images = tiny_data().test.images
        before, after = model.answer(images), again.answer(images)
        assert before.threshold == after.threshold
        assert torch.equal(before.values, after.values)
        assert torch.equal(before.percentile, after.percentile)

    def test_without_validation_images_there_is_no_measure(self, tmp_path):
        data = tiny_data()
        nothing = type(data)(data.train, data.valid[:0], data.test, data.class_names)
        model = train(tiny_config(), tmp_path / "run", nothing)
        assert model.reference is None
        with pytest.raises(InputError, match="keeps no scores of validation images"):
            runs.load(tmp_path / "run").answer(data.test.images)

    def test_it_can_be_fitted_afterwards(self):
        model, data = make_model(), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        assert model.answer(data.test.images).accepted.dtype == torch.bool
        for name in SCORES:
            values = model.answer(data.valid.images, score=name).values
            assert torch.equal(model.reference.scores[name], values.sort().values)
