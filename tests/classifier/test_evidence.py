"""Sizes at noise levels and their density, p-values and their combination, thresholds that rest on them."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gmmc
from conftest import make_model, tiny_config, tiny_data
from gmmc import noise
from gmmc.base import progress
from gmmc.base.names import NOISE_SCORES
from gmmc.base.tensorfile import pack, unpack
from gmmc.classifier import evidence
from gmmc.classifier.abstention import JOINED, JOINED_BY_NOISE, LEAST, Reference
from gmmc.classifier.denoiser import Denoiser
from gmmc.classifier.evidence import gather, held_out_combined, passes, scores_of
from gmmc.classifier.noise_sizes import QUANTILES, Gaussian, levels, noise_sizes, size_scores
from gmmc.classifier.scores import SCORES
from gmmc.cli import app
from gmmc.config.sections import DenoisingConfig, EvaluateConfig
from gmmc.errors import InputError
from gmmc.runs import model_file
from gmmc.train.loop import train

SMOOTH = {"model": {"backbone": "smooth-mlp-2-16"}, "train": {"algorithm": "denoising"}}
K = len(QUANTILES)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Exact(Denoiser):
    """The denoiser of N(mean, std²) in every pixel: D(x) = (std²·x + σ²·mean)/(std² + σ²)."""

    def __init__(self, mean: float, std: float, sigma_data: float = 0.5):
        self.mean, self.std, self.sigma_data = mean, std, sigma_data

    def force(self, u, level):
        scales = noise.scales(level, self.sigma_data)
        x = u / scales.into
        best = (self.std**2 * x + level**2 * self.mean) / (self.std**2 + level**2)
        return (best - scales.skip * x) / scales.out


class TestGaussian:
    def rows(self, count: int) -> torch.Tensor:
        mixed = torch.randn(count, 3, generator=source(), dtype=torch.float64)
        return mixed @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.3], [0.0, 0.0, 0.1]]).double() + 4

    def test_many_rows_give_their_mean_and_covariance(self):
        rows = self.rows(20_000)
        found = Gaussian.of(rows)
        torch.testing.assert_close(found.mean, rows.mean(0))
        torch.testing.assert_close(found.covariance, rows.T.cov(), rtol=1e-2, atol=1e-3)

    def test_densities_are_those_of_scipy_also_of_some_columns(self):
        from scipy.stats import multivariate_normal

        rows, found = self.rows(10), Gaussian.of(self.rows(50))
        for columns in (slice(None), slice(0, 2), slice(2, 3)):
            law = multivariate_normal(found.mean[columns], found.covariance[columns, columns].numpy())
            expected = torch.as_tensor(law.logpdf(rows[:, columns]))
            torch.testing.assert_close(found.log_density(rows, columns), expected)

    def test_of_few_rows_the_correlations_shrink_and_the_variances_stay(self):
        rows = self.rows(4)
        found, sample = Gaussian.of(rows).covariance, rows.T.cov()
        torch.testing.assert_close(found.diagonal(), sample.diagonal(), rtol=1e-4, atol=1e-5)
        assert found[0, 1].item() == pytest.approx(4 / 7 * sample[0, 1].item())

    @pytest.mark.parametrize("rows", [torch.zeros(1, 3), torch.ones(5, 3), torch.eye(3)])
    def test_rows_without_spread_have_a_density_too(self, rows):
        assert Gaussian.of(rows).log_density(rows).isfinite().all()

    @pytest.mark.parametrize("rows", [torch.zeros(0, 3), torch.tensor([[1.0, math.nan]])])
    def test_nothing_to_fit(self, rows):
        with pytest.raises(InputError, match="at least one row, and finite"):
            Gaussian.of(rows)


class TestSizes:
    def test_levels_are_those_of_training(self):
        found = torch.tensor(levels(DenoisingConfig(sigma_mean=-1.0, sigma_std=2.0))).log()
        torch.testing.assert_close((found + 1) / 2, torch.tensor(QUANTILES))

    def test_they_are_those_of_the_equations(self):
        """Of N(0, s²): F = k·u with k from D, and the error of D is that of the posterior mean."""
        x = 0.2 * torch.randn(100, 1, 32, 32, generator=source(), dtype=torch.float64)
        sigmas = [0.1, 1.0]
        found = noise_sizes(Exact(0.0, 0.2), x, sigmas).exp()
        for i, sigma in enumerate(sigmas):
            out = sigma * 0.5 / math.hypot(sigma, 0.5)
            gain = (0.2**2 / (0.2**2 + sigma**2) - 0.25 / (0.25 + sigma**2)) / out
            expected = abs(gain) * x.square().mean((1, 2, 3)).sqrt()
            torch.testing.assert_close(found[:, i], expected)
            error = 0.2 * sigma / math.hypot(0.2, sigma) / out
            assert found[:, 2 + i].square().mean().sqrt().item() == pytest.approx(error, rel=0.1)

    def test_an_image_that_is_denoised_exactly_has_a_size_too(self):
        sizes = noise_sizes(Exact(0.0, 0.5), torch.zeros(2, 1, 4, 4), [0.5])
        assert sizes.isfinite().all()

    @pytest.mark.parametrize("scale", [0.0, 0.3, 3.0])
    def test_plain_images_are_as_unusual_as_noisy_ones(self, scale):
        denoiser, sigmas = Exact(0.0, 0.2), levels(DenoisingConfig())
        usual = 0.2 * torch.randn(300, 1, 8, 8, generator=source())
        density = Gaussian.of(noise_sizes(denoiser, usual[:200], sigmas))
        inside = size_scores(density, noise_sizes(denoiser, usual[200:], sigmas))
        outside = size_scores(density, noise_sizes(denoiser, scale * usual[200:], sigmas))
        for kind in NOISE_SCORES:
            assert outside[kind].quantile(0.95) < inside[kind].quantile(0.05), kind

    def test_a_score_does_not_depend_on_the_other_images(self):
        model = make_model(**SMOOTH).double()
        network, images = model.tempered(), tiny_data().test.images
        together, alone = (gather(network, part).noise_sizes for part in (images, images[3:4]))
        assert together.shape == (len(images), 2 * K)
        torch.testing.assert_close(together[3:4], alone)

    def test_they_are_of_the_marginal_energy(self):
        """The same for every order of the classes."""
        model, images = make_model(**SMOOTH).double(), tiny_data().test.images
        before = gather(model.tempered(), images).noise_sizes
        model.head.means.copy_(model.head.means[[2, 0, 1]])
        torch.testing.assert_close(gather(model.tempered(), images).noise_sizes, before)


class TestPValues:
    values = torch.randn(500, generator=source(), dtype=torch.float64)

    def reference(self, values=None) -> Reference:
        return Reference.of(1.0, {"log_density": self.values if values is None else values})

    def p(self, values, reference=None):
        return (reference or self.reference()).log_p_value("log_density", torch.as_tensor(values)).exp()

    def test_new_images_of_the_same_kind_have_uniform_ones(self):
        new = torch.randn(20_000, generator=source(1), dtype=torch.float64)
        for share in (0.02, 0.05, 0.1, 0.5, 0.9):
            found = (self.p(new) <= share).double().mean().item()
            assert found == pytest.approx(share, abs=0.035)

    @given(st.lists(st.floats(-50, 50), min_size=2, max_size=20))
    def test_they_rise_with_the_score(self, values):
        found = self.p(sorted(values))
        assert (found.diff() >= 0).all()
        assert (found >= 0).all()
        assert (found <= 1).all()

    def test_below_all_references_they_go_on_falling(self):
        reference = self.reference()
        lowest = reference.scores["log_density"][0].item()
        found = reference.log_p_value("log_density", torch.tensor([lowest, lowest - 1, lowest - 2]).double())
        assert found[0] - found[1] == pytest.approx((found[1] - found[2]).item())
        assert found[0] > found[1] > found[2] > -math.inf

    def test_the_tail_has_the_mean_of_the_lowest_references(self):
        """Of an exponential tail the p-values are those of its law."""
        values = torch.distributions.Exponential(2.0).icdf(torch.linspace(0.0005, 0.9995, 1000).double())
        reference = self.reference(-values)
        far = torch.tensor([-6.0, -8.0]).double()
        torch.testing.assert_close(reference.log_p_value("log_density", far), 2.0 * far, rtol=0.05, atol=0.0)

    @pytest.mark.parametrize("values", [torch.zeros(1), torch.ones(40), torch.tensor([1.0, 2.0])])
    def test_few_or_equal_references(self, values):
        found = self.p(torch.tensor([-1e6, 0.0, 1.0, 1e6]), self.reference(values))
        assert found.isfinite().all()
        assert found[0] < 1e-6
        assert found[-1] == 1


class TestCombination:
    def reference(self) -> Reference:
        rows = torch.randn(1000, 2, generator=source(), dtype=torch.float64)
        return Reference.of(1.0, {"log_density": rows[:, 0], "neighbours": rows[:, 1]})

    def test_it_is_the_weighted_sum_of_log_p_values(self):
        sizes = Gaussian.of(torch.randn(9, 2 * K, generator=source()))
        scores = {name: torch.randn(200, generator=source(i)) for i, name in enumerate(SCORES)}
        for density, weights in ((None, JOINED), (sizes, JOINED_BY_NOISE)):
            reference = Reference.of(1.0, scores, density)
            expected = sum(w * reference.log_p_value(name, scores[name]) for name, w in weights.items())
            torch.testing.assert_close(reference.combined(scores), expected)

    def test_it_falls_where_any_score_falls(self):
        reference = self.reference()
        row = torch.zeros(1, dtype=torch.float64)
        usual = reference.combined({"log_density": row, "neighbours": row})
        for name in ("log_density", "neighbours"):
            assert reference.combined({"log_density": row, "neighbours": row, name: row - 2}) < usual

    def test_of_independent_scores_it_is_fishers_statistic(self):
        """−2·Σ ln p follows χ² with 2 degrees of freedom per score."""
        from scipy.stats import chi2

        new = torch.randn(5000, 2, generator=source(1), dtype=torch.float64)
        found = -2 * self.reference().combined({"log_density": new[:, 0], "neighbours": new[:, 1]})
        for share in (0.5, 0.9, 0.95):
            expected = chi2(4).ppf(share)
            assert (found <= expected).double().mean().item() == pytest.approx(share, abs=0.03)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A denoiser of tiny images, and its data."""
    cfg = tiny_config(**SMOOTH, generative={"epochs": 60, "noise": 0.0}, discriminative={"epochs": 0})
    data = tiny_data(count=96)
    valid = tiny_data(count=300).train
    data = dataclasses.replace(data, valid=valid)
    return train(cfg, tmp_path_factory.mktemp("evidence") / "run", data), data


class TestCalibration:
    def test_densities_are_fitted_on_one_half_and_thresholds_on_the_other(self, monkeypatch):
        model, data, fitted = make_model(**SMOOTH), tiny_data(count=51), []
        original = Gaussian.of
        monkeypatch.setattr(evidence.Gaussian, "of", lambda rows: fitted.append(rows) or original(rows))
        model.calibrate(data.train.images, data.train.labels)
        seen = gather(model.tempered(), data.train.images).noise_sizes
        (rows,) = fitted
        assert len(rows) == 26
        used = (seen[:, None] == rows[None]).all(2).any(1)
        assert used.sum() == 26
        other = size_scores(model.reference.sizes, seen[~used])
        for kind in NOISE_SCORES:
            torch.testing.assert_close(model.reference.scores[kind], other[kind].sort().values)
        assert len(model.reference.scores["combined"]) == 25
        assert len(model.reference.scores["log_density"]) == 51

    def test_without_noise_levels_all_images_count_for_the_combination(self):
        model, data = make_model(), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        assert len(model.reference.scores["combined"]) == len(data.valid)
        assert not model.reference.scores.keys() & {*NOISE_SCORES}
        assert passes(model.tempered()) == model.looks == 2

    @pytest.mark.parametrize("count", [1, 2 * LEAST - 1, 2 * LEAST])
    def test_few_images_are_no_density_of_sizes(self, count):
        model, data = make_model(**SMOOTH), tiny_data()
        model.calibrate(data.train.images[:count], data.train.labels[:count])
        enough = count == 2 * LEAST
        assert model.abstains_by == ("combined" if enough else "log_density")
        assert model.answer(data.test.images).accepted.dtype == torch.bool
        assert ({*NOISE_SCORES} <= model.reference.scores.keys()) == enough
        network = model.tempered()
        found = scores_of(network, gather(network, data.test.images), model.gamma2)
        assert ({*NOISE_SCORES, "combined"} <= found.keys()) == ("combined" in found) == enough
        if not enough:
            with pytest.raises(InputError, match=r"'force_size' needs .* 40 validation images"):
                model.answer(data.test.images, score="force_size")

    @pytest.mark.parametrize("count", [20, 70])
    @pytest.mark.parametrize("noise_levels", [False, True])
    def test_thresholds_of_the_combination_accept_as_many_new_images_as_those_of_a_score(
        self, count, noise_levels
    ):
        """Reference images must not count among their own references."""
        density = Gaussian.of(torch.randn(9, 2 * K, generator=source())) if noise_levels else None
        names = [*(JOINED_BY_NOISE if noise_levels else JOINED)]
        shares = {"combined": 0.0, names[0]: 0.0}
        for seed in range(40):
            rows = torch.randn(count + 2000, len(names), generator=source(seed), dtype=torch.float64)
            rows = rows + rows[:, :1]  # they depend on each other
            old, new = (
                {name: part[:, i] for i, name in enumerate(names)} for part in rows.split((count, 2000))
            )
            reference = Reference.of(1.0, old | held_out_combined(1.0, old, density), density)
            new["combined"] = reference.combined(new)
            for score in shares:
                accepted = new[score] >= reference.threshold(score, 0.9)
                shares[score] += accepted.double().mean().item() / 40
        assert shares["combined"] == pytest.approx(shares[names[0]], abs=0.02)

    def test_progress_counts_every_look(self):
        model, data, done = make_model(**SMOOTH), tiny_data(), []
        model.calibrate(data.valid.images, data.valid.labels, on_progress=done.append)
        assert done == sorted(done)
        assert done[-1] == model.looks * len(data.valid) == 3 * len(data.valid)

    @pytest.mark.parametrize("score", ["log_density", "combined"])
    def test_answers_report_progress(self, trained, score):
        model, data = trained
        done = []
        model.answer(data.test.images, score=score, on_progress=done.append)
        assert done == sorted(done)
        assert done[-1] == model.looks_for(score) * len(data.test)
        assert (model.looks_for("log_density"), model.looks_for()) == (1, 2)

    def test_files_that_take_long_show_progress(self, trained, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(progress, "_quiet", False)  # an earlier command may have been --quiet
        model, data = trained
        model_file.save_model(tmp_path / "model.safetensors", model)
        for i, image in enumerate(data.test.images[:12]):
            Image.fromarray(image[0].numpy()).save(tmp_path / f"{i:02d}.png")
        for shown, words in ((True, []), (False, ["--score", "log_density"])):
            with pytest.raises(SystemExit):
                app.main(["predict", str(tmp_path / "model.safetensors"), str(tmp_path), *words])
            assert ("predicting  100%" in capsys.readouterr().err) == shown

    def test_the_combination_is_the_default(self, trained):
        model, data = trained
        assert model.abstains_by == model.answer(data.test.images).score == "combined"
        named = dataclasses.replace(model.abstain, score="log_density")
        before, model.abstain = model.abstain, named
        assert model.abstains_by == "log_density"
        model.abstain = before

    def test_every_score_accepts_its_share_of_new_images(self, trained):
        model, _ = trained
        new = tiny_data(count=900).train.images[300:]
        for score in SCORES:
            accepted = model.answer(new, score=score, tpr=0.9).accepted.double().mean().item()
            assert accepted == pytest.approx(0.9, abs=0.06), score

    def test_noise_is_refused(self, trained):
        model, data = trained
        images = torch.randint(0, 256, data.test.images.shape, generator=source()).to(torch.uint8)
        for score in ("denoising_error", "combined"):
            assert model.answer(images, score=score).accepted.double().mean() < 0.1, score

    def test_it_answers_the_same_from_the_disk(self, trained, tmp_path):
        model, data = trained
        model_file.save_model(tmp_path / "model.safetensors", model)
        again = model_file.load(tmp_path / "model.safetensors")
        for score in SCORES:
            before, after = (each.answer(data.test.images, score=score) for each in (model, again))
            assert torch.equal(before.values, after.values), score
            assert before.threshold == after.threshold, score

    def test_a_file_without_these_scores_abstains_by_its_density(self, trained, tmp_path):
        """As files of earlier versions are."""
        model, data = trained
        model_file.save_model(tmp_path / "model.safetensors", model)
        tensors, info, _ = unpack(tmp_path / "model.safetensors")
        new = (*(f"reference.{name}" for name in (*NOISE_SCORES, "combined")), "noise_sizes.")
        old = {name: tensor for name, tensor in tensors.items() if not name.startswith(new)}
        (tmp_path / "model.safetensors").write_bytes(pack(old, info)[0])
        loaded = model_file.load(tmp_path / "model.safetensors")
        assert loaded.answer(data.test.images).score == "log_density"
        with pytest.raises(InputError, match=r"'combined'.*gmmc calibrate"):
            loaded.answer(data.test.images, score="combined")
        loaded.calibrate(data.valid.images, data.valid.labels)
        assert loaded.answer(data.test.images).threshold == model.answer(data.test.images).threshold

    def test_other_models_have_no_scores_of_noise_levels(self):
        model, data = make_model(), tiny_data()
        model.calibrate(data.valid.images, data.valid.labels)
        for score in NOISE_SCORES:
            with pytest.raises(InputError, match=f"'{score}' needs a model trained by denoising"):
                model.answer(data.test.images, score=score)
            with pytest.raises(InputError, match=rf"abstain.score={score} needs train.algorithm=denoising"):
                tiny_config(abstain={"score": score})


@pytest.mark.parametrize(
    "lost", [("neighbours.features",), ("noise_sizes.mean", "noise_sizes.covariance"), (*JOINED_BY_NOISE,)]
)
def test_a_combination_without_what_it_joins_is_refused(trained, tmp_path, lost):
    path = tmp_path / "model.safetensors"
    model_file.save_model(path, trained[0])
    tensors, info, _ = unpack(path)
    for name in lost:
        del tensors[name if name in tensors else f"reference.{name}"]
    if "noise_sizes.mean" in lost:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(NOISE_SCORES)}
    path.write_bytes(pack(tensors, info)[0])
    with pytest.raises(InputError, match=r"reference\.\w+ needs"):
        model_file.load(path)


def test_a_model_that_is_loaded_in_inference_mode_answers(trained, tmp_path):
    path = tmp_path / "model.safetensors"
    model_file.save_model(path, trained[0])
    with torch.inference_mode():
        answer = model_file.load(path).answer(trained[1].test.images)
    assert answer.score == "combined"


@pytest.mark.parametrize(
    "change", ["indefinite", "skew", "narrow", "missing", "not finite", "without scores"]
)
def test_a_density_that_is_none_is_refused(trained, tmp_path, change):
    model, _ = trained
    path = tmp_path / "model.safetensors"
    model_file.save_model(path, model)
    tensors, info, _ = unpack(path)
    covariance = tensors["noise_sizes.covariance"].clone()
    if change == "indefinite":
        covariance -= 2 * covariance.diagonal().max() * torch.eye(len(covariance))
    elif change == "skew":
        covariance[0, 1] += 1
    elif change == "narrow":
        covariance = covariance[:2, :2]
    elif change == "not finite":
        covariance[0, 0] = math.nan
    kept = {**tensors, "noise_sizes.covariance": covariance}
    if change in ("missing", "without scores"):
        del kept["noise_sizes.covariance"]
    if change == "without scores":
        del kept["noise_sizes.mean"]
    path.write_bytes(pack(kept, info)[0])
    with pytest.raises(InputError, match="noise_sizes"):
        model_file.load(path)


def test_a_density_has_no_place_in_a_model_without_noise_levels(tmp_path):
    model = make_model()
    path = tmp_path / "model.safetensors"
    model_file.save_model(path, model)
    tensors, info, _ = unpack(path)
    sizes = {"noise_sizes.mean": torch.zeros(2 * K), "noise_sizes.covariance": torch.eye(2 * K)}
    path.write_bytes(pack(tensors | sizes, info)[0])
    with pytest.raises(InputError, match=r"noise_sizes.mean must not be in a model without noise levels"):
        model_file.load(path)


def test_the_evaluation_measures_every_score(trained):
    model, data = trained
    found = gmmc.evaluate(model, data, "ood", EvaluateConfig(ood=("noise", "constant")))["ood"]
    measured = {key.split("/")[1] for key in found.values if key.endswith("/auroc")}
    assert measured == {*SCORES}
    assert found.conditions["abstains"]["score"] == "combined"
    accepted = model.answer(data.test.images).accepted.double().mean().item()
    assert found.values["test images/accepted"] == pytest.approx(accepted)
    assert len(found.conditions["noise_levels"]) == K
    assert "ln p(neighbours)" in found.conditions["combined"]


def test_scores_at_another_temperature_keep_the_combination_of_the_threshold():
    """Its confidence is at the γ² that the reference scores have."""
    model, data = make_model(), tiny_data()
    model.calibrate(data.valid.images, data.valid.labels)
    network = model.tempered()
    seen = gather(network, data.test.images)
    at_fitted, at_other = (scores_of(network, seen, gamma2)["combined"] for gamma2 in (model.gamma2, 7.0))
    assert torch.equal(at_fitted, at_other)
