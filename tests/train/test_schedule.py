import math

import pytest

from conftest import tiny_config
from gmmc.train.schedule import Plan


def plan_of(**sections):
    return Plan(tiny_config(**sections), steps_per_epoch=10)


def test_beta_switches_or_ramps():
    switch = plan_of(discriminative={"epochs": 1}, generative={"epochs": 2})
    assert [switch.at(step).beta for step in (0, 9, 10, 29)] == [0, 0, 0.5, 0.5]
    ramp = plan_of(discriminative={"epochs": 1}, train={"ramp": 5})
    assert [ramp.at(step).beta for step in (9, 10, 12, 14, 20)] == pytest.approx([0, 0.1, 0.3, 0.5, 0.5])


def test_generative_training_samples_from_the_first_update():
    assert plan_of(discriminative={"epochs": 0}).at(0).beta == 0.5


def test_steps_of_the_learning_rate_count_from_the_phase():
    steps = {"epochs": 3, "lr": 1.0, "decay_epochs": [1, 2]}
    plan = plan_of(discriminative=steps, generative={**steps, "lr": 2.0})
    rates = [plan.at(step).lr for step in (0, 9, 10, 20, 29, 30, 40, 50)]
    assert rates == pytest.approx([1, 1, 0.3, 0.09, 0.09, 2, 0.6, 0.18])


def test_cosine_falls_to_zero():
    plan = plan_of(discriminative={"epochs": 2, "lr": 1.0, "schedule": "cosine"})
    rates = [plan.at(step).lr for step in range(20)]
    assert rates[0] == 1.0
    assert rates[10] == pytest.approx(0.5)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.01


def test_work_counts_generative_updates_by_their_cost():
    plan = plan_of(discriminative={"epochs": 1}, generative={"epochs": 1}, sampler={"steps": 20})
    assert plan.work(10, 7.0) == 10
    assert plan.work(20, 7.0) == 80


def test_frozen_epochs_come_first_with_a_schedule_of_their_own_and_cost_little():
    plan = plan_of(
        transfer={"frozen_epochs": 20, "frozen_lr": 1.0},
        discriminative={"epochs": 2, "schedule": "cosine", "lr": 0.1},
        generative={"epochs": 1},
    )
    moments = [plan.at(step) for step in (24, 100, 199, 200, 210, 219, 220)]
    assert [now.phase_name for now in moments] == ["frozen"] * 3 + ["discriminative"] * 3 + ["generative"]
    warm, cold = 0.5 * math.cos(math.pi * 24 / 400) ** 2, math.sin(math.pi / 400) ** 2
    assert [now.lr for now in moments[:3]] == pytest.approx([warm, 0.5, cold])
    assert [now.lr for now in moments[3:5]] == pytest.approx([0.1, 0.05])
    assert (plan.discriminative, plan.total) == (220, 230)
    assert 0 < plan.work(200, 1.0) < plan.work(220, 1.0) - plan.work(200, 1.0)


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 10), (5, 50), (6, 50)])
def test_the_warm_up_of_the_last_layer_is_no_longer_than_its_phase(epochs, warmup):
    plan = plan_of(transfer={"frozen_epochs": epochs, "frozen_lr": 1.0}, discriminative={"flip": True})
    assert plan.frozen_phase.warmup == warmup
    assert plan.at(0).lr == pytest.approx(1 / warmup)
    assert (plan.frozen_phase.flip, plan.frozen_phase.shift) == (True, 0)
