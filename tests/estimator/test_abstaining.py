"""Which rows the estimator accepts, by the score of each way to train."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import make_moons

from gmmc import GMMCClassifier
from gmmc.base.names import NOISE_SCORES
from gmmc.classifier.scores import SCORES
from gmmc.errors import InputError

SHORT = {"generative.epochs": 20}


@pytest.fixture(scope="module")
def rows():
    return make_moons(400, noise=0.1, random_state=0)


@pytest.fixture(scope="module")
def denoiser(rows):
    return GMMCClassifier("vectors-denoising", settings=SHORT, random_state=0).fit(*rows)


def test_by_denoising_it_accepts_by_the_combination(denoiser, rows):
    x, _ = rows
    unseen, _ = make_moons(1000, noise=0.1, random_state=1)
    assert denoiser.abstains_by_ == "combined"
    assert denoiser.threshold_ == denoiser.model_.reference.threshold("combined", 0.95)
    assert np.array_equal(denoiser.accepts(x), denoiser.acceptance_scores(x) >= denoiser.threshold_)
    assert denoiser.accepts(unseen).mean() > 0.8
    assert not denoiser.accepts(x + 5).any()
    answers = denoiser.predict_or_abstain(np.vstack([unseen, x + 5]), unknown=-1)
    assert (answers[len(unseen) :] == -1).all()
    kept = denoiser.accepts(unseen)
    assert np.array_equal(answers[: len(unseen)][kept], denoiser.predict(unseen)[kept])
    assert (answers[: len(unseen)][~kept] == -1).all()


def test_a_row_is_judged_alone(denoiser, rows):
    x, _ = rows
    together = denoiser.acceptance_scores(x[:50])
    alone = np.concatenate([denoiser.acceptance_scores(row[None]) for row in x[:50]])
    assert np.allclose(together, alone, rtol=1e-9)


def test_its_density_stays_a_density(denoiser, rows):
    x, _ = rows
    assert not np.allclose(denoiser.score_samples(x), denoiser.acceptance_scores(x))


def test_it_survives_pickle(denoiser, rows):
    again = pickle.loads(pickle.dumps(denoiser))
    assert again.abstains_by_ == "combined"
    assert np.array_equal(again.acceptance_scores(rows[0]), denoiser.acceptance_scores(rows[0]))


@pytest.mark.parametrize("score", SCORES)
def test_settings_choose_any_score(rows, score):
    x, y = rows
    settings = {**SHORT, "abstain.score": score}
    recipe = "vectors-denoising" if score in NOISE_SCORES else "vectors"
    if recipe == "vectors":
        settings |= {"discriminative.epochs": 1, "generative.epochs": 1}
    model = GMMCClassifier(recipe, settings=settings, min_updates=0, random_state=0).fit(x, y)
    assert model.abstains_by_ == score
    held = model.model_.reference.scores[score]
    assert held[0] <= model.threshold_ <= held[-1]
    assert 0.7 < model.accepts(x).mean() <= 1


def test_without_a_setting_chains_accept_by_the_density(rows):
    settings = {"discriminative.epochs": 1, "generative.epochs": 1}
    model = GMMCClassifier(settings=settings, min_updates=0, random_state=0).fit(*rows)
    assert model.abstains_by_ == "log_density"
    assert np.array_equal(model.acceptance_scores(rows[0]), model.score_samples(rows[0]))


def test_scores_of_noise_levels_need_them(rows):
    settings = {"abstain.score": "force_size"}
    with pytest.raises(InputError, match=r"abstain.score=force_size needs train.algorithm=denoising"):
        GMMCClassifier(settings=settings).fit(*rows)
