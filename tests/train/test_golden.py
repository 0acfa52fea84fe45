"""Short trainings go as recorded. golden.py has the trainings and records them."""

import json

import pytest

from gmmc.networks.heads import HEADS
from gmmc.sampling.samplers import SAMPLERS
from gmmc.train.learner import ALGORITHMS
from gmmc.train.objectives import OBJECTIVES, SHAPES
from golden import CASES, RECORD, configuration, measure

# Of the largest number of a series. With and without AVX2 and oneDNN, and with one and two threads, series
# differed by 1.2e-5 at most.
TOLERANCE = 1e-4

OF_ALGORITHM = {
    "contrastive": ("real_energy", "sampled_energy", "buffer_places"),
    "denoising": ("loss", "class_loss"),
}


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text("utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_training_goes_as_recorded_and_repeats_itself(name, record):
    measured = measure(name)
    assert measured.keys() == record[name].keys()
    for key, expected in record[name].items():
        allowed = TOLERANCE * max(map(abs, expected))
        assert measured[key] == pytest.approx(expected, rel=0, abs=allowed), key
    assert measure(name) == measured  # to the last bit on one machine


def test_every_record_has_a_training_and_nothing_in_it_stands_still(record):
    """A series of zeros would hold whatever the training does."""
    assert record.keys() == CASES.keys()
    for name, series in record.items():
        for key in (
            "weight_norm",
            "grad_norm",
            "test_density",
            *OF_ALGORITHM[configuration(name).train.algorithm],
        ):
            assert len(set(series[key])) > 3, (name, key)


def test_between_them_the_cases_use_every_part():
    used = [configuration(name) for name in CASES]
    assert {cfg.train.algorithm for cfg in used} == set(ALGORITHMS)
    assert {cfg.objective.name for cfg in used} == set(OBJECTIVES)
    assert {cfg.objective.shape for cfg in used} == set(SHAPES)
    assert {cfg.model.head for cfg in used} == set(HEADS)
    assert {cfg.sampler.name for cfg in used} == set(SAMPLERS)
