"""Scores that never tie, temperatures that fit, answers that abstain."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from conftest import make_model, tiny_config, tiny_data
from gmmc import core
from gmmc.base.names import NOISE_SCORES
from gmmc.base.tensorfile import pack, unpack
from gmmc.classifier.abstention import KEPT, NEIGHBOURS, Neighbours, Reference, balanced_subset, thinned
from gmmc.classifier.scores import (
    SCORES,
    evaluating,
    feature_energies,
    feature_scores,
    fit_gamma2,
    gradient_norms,
    logits_at,
    tempered,
    unit_energies,
)
from gmmc.errors import InputError
from gmmc.runs import model_file, restore
from gmmc.train.loop import train

BY_CHAINS = [score for score in SCORES if score not in NOISE_SCORES]  # scores of a model without noise levels


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
        found = feature_scores(network, features, gamma2)
        assert (logits_at(network, network.energies_of(features), gamma2).exp() == 0).all()
        for score in found.values():
            assert score.isfinite().all()
            assert len(score.unique()) == len(score)
        assert (found["log_density"].diff() < 0).all()  # farther is less likely


class TestParts:
    """E = a part inside the span of the means + a rest that is the same for every class."""

    @pytest.fixture(params=["mmc", "lda"])
    def model(self, request):
        return make_model(classes=4, model={"head": request.param}, objective={"name": "balanced"})

    def features(self, model, count: int = 50) -> torch.Tensor:
        return 20 * torch.randn(count, model.dim, generator=torch.Generator().manual_seed(1))

    def test_parts_sum_to_the_energy(self, model):
        network, found = model.tempered(), self.features(model)
        inside, rest = network.split(found)
        torch.testing.assert_close(inside + rest[:, None], network.energies_of(found))

    def test_density_in_the_span_and_residual_sum_to_log_p(self, model):
        scores = feature_scores(model.tempered(), self.features(model), 3.0)
        torch.testing.assert_close(scores["span_density"] + scores["residual"], scores["log_density"])

    def test_moving_out_of_the_span_changes_the_residual_alone(self, model):
        network, found = model.tempered(), self.features(model)
        basis = core.span_basis(model.head.means.detach())
        away = torch.randn(model.dim, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        away = away - away @ basis.T @ basis
        before, after = (feature_scores(network, x, 1.0) for x in (found.double(), found.double() + 5 * away))
        for name in ("span_density", "max_posterior"):
            torch.testing.assert_close(before[name], after[name])
        assert not torch.allclose(before["residual"], after["residual"])

    def test_moving_within_the_span_leaves_the_residual(self, model):
        network, found = model.tempered(), self.features(model).double()
        along = (model.head.means[0] - model.head.means[1]).detach().double()
        _, before = network.split(found)
        _, after = network.split(found + 0.7 * along)
        torch.testing.assert_close(before, after)

    def test_span_has_one_dimension_less_than_classes(self, model):
        basis = core.span_basis(model.head.means.detach())
        assert basis.shape == (3, model.dim)
        torch.testing.assert_close(basis @ basis.T, torch.eye(3, dtype=torch.float64))

    def test_means_that_fill_the_space_leave_no_rest(self):
        means = core.simplex_means(5, 4).double()
        features = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        _, rest = core.split_energies(features, means, core.span_basis(means))
        assert rest.abs().max() < 1e-12

    def test_a_network_without_means_has_no_parts(self):
        scores = feature_scores(tempered(nn.Identity()), torch.randn(5, 3), 1.0)
        assert scores.keys() == {"log_density", "max_posterior"}


def test_gamma2_changes_the_confidence_alone():
    """Densities are those of training and sampling, γ = 1, whatever γ² was fitted or stored."""
    model, data = make_model(), tiny_data()
    model.keep_neighbours(data.train.images, data.train.labels)
    model.calibrate(data.valid.images, data.valid.labels)
    images = data.test.images
    before = {name: model.answer(images, score=name).values for name in BY_CHAINS}
    density = model.log_density(images)
    model.head.gamma2.fill_(7.0)
    model.reference = Reference(50 * model.reference.gamma2, model.reference.scores)
    for name in BY_CHAINS:
        same = torch.equal(model.answer(images, score=name).values, before[name])
        assert same == (name not in ("max_posterior", "combined")), name
    assert torch.equal(model.log_density(images), density)
    network = model.tempered()
    by_hand = (-unit_energies(network, images)).logsumexp(-1)
    torch.testing.assert_close(before["log_density"], by_hand)


def test_scores_do_not_depend_on_how_many_features_are_in_memory(monkeypatch):
    network = make_model().tempered()
    found = torch.randn(30, network.module.dim, generator=torch.Generator().manual_seed(0))
    whole, energies = feature_scores(network, found, 2.0), feature_energies(network, found)
    monkeypatch.setattr("gmmc.classifier.scores.FEATURES_AT_ONCE", 7)
    for name, values in feature_scores(network, found, 2.0).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-12, atol=1e-12)
    assert torch.equal(feature_energies(network, found), energies)
    assert feature_scores(network, found, 2.0, ["residual"]).keys() == {"residual"}


class TestNeighbours:
    def test_distance_is_that_of_the_kth_nearest(self):
        kept = torch.arange(20.0)[:, None] * torch.tensor([[3.0, 4.0]])  # 5 apart, on a line
        neighbours = Neighbours.of(kept)
        found = neighbours.distance(torch.tensor([[0.0, 0.0], [57.0, 76.0]]))
        assert found.tolist() == [5.0 * (NEIGHBOURS - 1)] * 2

    def test_fewer_features_than_k_are_enough(self):
        assert Neighbours.of(torch.zeros(1, 2)).distance(torch.tensor([[3.0, 4.0]])).tolist() == [5.0]

    def test_features_beyond_half_precision_are_refused(self):
        with pytest.raises(InputError, match="float16"):
            Neighbours.of(torch.full((3, 2), 1e6))

    def test_a_model_whose_features_do_not_fit_has_all_other_thresholds(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Neighbours, "of", lambda _: (_ for _ in ()).throw(InputError("too large")))
        model = train(tiny_config(), tmp_path / "run", tiny_data())
        assert model.neighbours is None
        assert model.reference.scores.keys() == {*BY_CHAINS} - {"neighbours"}

    def test_subset_is_balanced_and_random(self):
        labels = torch.tensor([0] * 500 + [1] * 50 + [2] * 3)
        places = balanced_subset(labels, 60, torch.Generator().manual_seed(0))
        assert labels[places].bincount().tolist() == [20, 20, 3]
        assert len(places.unique()) == len(places)
        assert places[:20].max() > 100  # not the first ones
        assert len(balanced_subset(labels[:0], 60, torch.Generator())) == 0
        with pytest.raises(InputError, match="at least one image"):
            make_model().keep_neighbours(torch.zeros(0, 1, 8, 8), [])

    def test_a_model_keeps_features_of_its_training_images_in_half_precision(self, model):
        assert model.neighbours.features.dtype == torch.float16
        data = tiny_data(count=96)
        of_training = model.answer(data.train.images, score="neighbours").values
        noise = torch.randint(0, 256, data.test.images.shape, generator=torch.Generator().manual_seed(0))
        assert of_training.mean() > model.answer(noise.to(torch.uint8), score="neighbours").values.mean()


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
        norms = gradient_norms(network, images)
        p = layer(images.flatten(1) / 255).softmax(-1)
        expected = -(p @ layer.weight).norm(dim=1).double()
        torch.testing.assert_close(norms, expected.detach(), rtol=1e-4, atol=1e-7)

    def test_parameters_get_no_gradients(self):
        network, images = make_model().tempered(), tiny_data().test.images
        gradient_norms(network, images)
        assert all(p.grad is None for p in network.module.parameters())

    def test_no_image_depends_on_its_batch(self):
        network, images = make_model().tempered(), tiny_data().test.images
        alone = torch.cat([gradient_norms(network, image[None]) for image in images])
        torch.testing.assert_close(gradient_norms(network, images), alone, rtol=1e-5, atol=0)


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
        with pytest.raises(InputError, match=r"score must be one of log_density, .*got .beauty."):
            self.reference().threshold("beauty", 0.9)
        with pytest.raises(InputError, match="tpr must lie between 0 and 1, got 1"):
            self.reference().threshold("log_density", 1.0)

    @pytest.mark.parametrize("tpr", [0, 1, -0.5, math.nan, math.inf, -math.inf, 10**400, "0.5", None, 1j])
    def test_a_share_that_is_none(self, tpr):
        with pytest.raises(InputError, match="tpr must lie between 0 and 1, got"):
            self.reference().threshold("log_density", tpr)

    @pytest.mark.parametrize("tpr", [1e-17, 5e-324, np.float32(1e-9)])
    def test_a_share_of_nearly_nothing_is_the_highest_score(self, tpr):
        reference = self.reference()
        assert reference.threshold("log_density", tpr) == reference.scores["log_density"][-1].item()

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
        for score in BY_CHAINS:
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
        model_file.save_model(tmp_path / "model.safetensors", model)
        again = model_file.load(tmp_path / "model.safetensors")
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
            model_file.load(tmp_path / "run").answer(data.test.images)

    def test_it_can_be_fitted_afterwards(self):
        model, data = make_model(), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        assert model.answer(data.test.images).accepted.dtype == torch.bool
        with pytest.raises(InputError, match=r"no threshold for the score 'neighbours'.*gmmc calibrate"):
            model.answer(data.test.images, score="neighbours")
        model.keep_neighbours(data.train.images, data.train.labels)
        model.calibrate(data.valid.images, data.valid.labels)
        for name in set(BY_CHAINS) - {"combined"}:  # whose reference images are judged by the others
            values = model.answer(data.valid.images, score=name).values
            assert torch.equal(model.reference.scores[name], values.sort().values)

    def test_thresholds_of_an_older_file_are_refused_where_their_temperature_was_another(
        self, model, tmp_path
    ):
        """Its densities were taken at the fitted γ². The confidence was right, and so is its threshold."""
        model_file.save_model(tmp_path / "model.safetensors", model)
        tensors, info, _ = unpack(tmp_path / "model.safetensors")
        del info[restore.DENSITY_GAMMA2]
        (tmp_path / "model.safetensors").write_bytes(pack(tensors, info)[0])
        old, images = model_file.load(tmp_path / "model.safetensors"), tiny_data().test.images
        assert old.reference.gamma2 == model.reference.gamma2
        wanted = model.answer(images, score="max_posterior")
        assert old.answer(images, score="max_posterior").threshold == wanted.threshold
        for score in ("log_density", "gradient_norm", None):
            with pytest.raises(InputError, match=r"no threshold for the score .*gmmc calibrate RUN"):
                old.answer(images, score=score)
        data = tiny_data(count=96)
        old.calibrate(data.valid.images, data.valid.labels)
        assert old.answer(images).threshold == model.answer(images).threshold


class TestDefaultScore:
    """abstain.score = "auto"."""

    def chosen(self, share_outside: float, **sections) -> str:
        model = make_model(**sections)
        energies = torch.full((9,), 10.0)
        scores = {"span_density": -(1 - share_outside) * energies, "residual": -share_outside * energies}
        model.reference = Reference.of(1.0, scores)
        return model.abstains_by

    def test_is_in_the_span_after_chains_where_most_of_the_energy_is_outside(self):
        assert self.chosen(0.84) == "span_density"
        assert self.chosen(0.2) == "log_density"

    def test_is_the_whole_density_where_training_shapes_all_of_it_or_draws_nothing(self):
        assert self.chosen(0.84, sampler={"name": "sgld"}) == "log_density"
        assert self.chosen(0.84, train={"beta": 0.0}) == "log_density"

    def test_the_recipe_decides_where_it_names_one(self):
        assert self.chosen(0.84, abstain={"score": "max_posterior"}) == "max_posterior"

    def test_without_means_there_is_no_span(self):
        linear = {"model": {"head": "linear"}, "objective": {"name": "balanced"}, "train": {"beta": 0.0}}
        model, data = make_model(**linear), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        assert model.abstains_by == "log_density"
        with pytest.raises(InputError, match="no threshold for the score 'span_density'"):
            model.answer(data.test.images, score="span_density")
