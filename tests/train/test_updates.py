"""Laws over consecutive updates: what must differ from one to the next, and what must not."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from conftest import make_learner, make_model, real_batch, set_pace, set_state, tiny_config, tiny_data
from gmmc import core
from gmmc.networks.backbones import batch_norms
from gmmc.pixels import to_signed
from gmmc.sampling.samplers import BatchNoise
from gmmc.train.learner import Learner
from gmmc.train.loop import train
from gmmc.train.process import Process

GENERATIVE = {"discriminative": {"epochs": 0}, "generative": {"epochs": 4, "noise": 0.1}}
NOISY_CONTRAST = {**GENERATIVE, "objective": {"name": "balanced"}, "contrast": {"noise": 0.1}}


def batches(learner: Learner, count: int):
    """Images, labels and contrast images of the next updates, without making these."""
    for step in range(learner.step, learner.step + count):
        yield real_batch(learner, step)


def clean_batch(learner: Learner, labels: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The training images that these noisy ones were made from: the nearest of each."""
    originals = to_signed(learner.data.train.images)
    distances = torch.cdist(x.flatten(1), originals.flatten(1))
    assert torch.equal(learner.data.train.labels[distances.argmin(1)], labels)
    return originals[distances.argmin(1)]


def all_differ(tensors: list[torch.Tensor]) -> bool:
    return not any(torch.equal(a, b) for a, b in itertools.combinations(tensors, 2))


class TestRandomness:
    def test_noise_of_images_is_drawn_for_each_update(self, data):
        learner = make_learner(tiny_config(**GENERATIVE), data)
        noise = [x - clean_batch(learner, y, x) for x, y, _ in batches(learner, 6)]
        assert all_differ([part.round(decimals=4) for part in noise])
        correlation = torch.corrcoef(torch.stack([part.flatten() for part in noise])).fill_diagonal_(0)
        assert correlation.abs().max() < 0.2  # of 1,024 independent pairs 0.1 is rare

    def test_noise_of_contrast_images_is_its_own_in_each_update(self, data):
        learner = make_learner(tiny_config(**NOISY_CONTRAST), data)
        noise = []
        for x, y, contrast in batches(learner, 4):
            clean = clean_batch(learner, y, contrast)
            noise += [x - clean, contrast - clean]
        correlation = torch.corrcoef(torch.stack([part.flatten() for part in noise])).fill_diagonal_(0)
        assert correlation.abs().max() < 0.2

    def test_every_epoch_has_every_image_once_in_another_order(self, data):
        learner = make_learner(tiny_config(discriminative={"epochs": 4, "shift": 0}), data)
        steps = learner.plan.steps_per_epoch
        images = [x.flatten(1) for x, _, _ in batches(learner, 4 * steps)]
        epochs = [torch.cat(images[first : first + steps]) for first in range(0, 4 * steps, steps)]
        assert all_differ(epochs)
        for epoch in epochs:
            assert torch.equal(epoch.unique(dim=0), epochs[0].unique(dim=0))
            assert len(epoch.unique(dim=0)) == len(epoch) == 64

    @pytest.mark.parametrize("labels", ["priors", "batch"])
    def test_other_chains_move_in_each_update(self, data, labels):
        cfg = tiny_config(**GENERATIVE, buffer={"size": 90, "labels": labels, "reinit": 0.0, "chains": 4})
        learner = make_learner(cfg, data)
        slots = []
        for _ in range(10):
            before = learner.algorithm.buffer.visits.clone()
            learner.update()
            slots.append((learner.algorithm.buffer.visits > before).nonzero().flatten())
            assert len(slots[-1]) == 4
        assert all_differ(slots)
        assert len(torch.cat(slots).unique()) > 25  # of 90, four at a time: 33 in the mean

    def test_targets_are_drawn_for_each_update(self, data, monkeypatch):
        learner = make_learner(tiny_config(**GENERATIVE, sampler={"target_std": 1.0}), data)
        drawn, normal = [], BatchNoise.normal
        monkeypatch.setattr(
            BatchNoise, "normal", lambda noise, *size: drawn.append(normal(noise, *size)) or drawn[-1]
        )
        for _ in range(4):
            learner.update()
        assert len(drawn) == 4
        assert all_differ(drawn)

    def test_processes_draw_their_own_chains_and_the_first_as_if_it_were_alone(self, data):
        learner = make_learner(tiny_config(), data)
        numbers = []
        for rank in (0, 1, 2):
            fabric = SimpleNamespace(global_rank=rank, device=torch.device("cpu"))
            process = Process(learner.cfg.train, fabric)
            numbers.append(torch.rand(8, generator=process.source("chains", 3)))
        assert all_differ(numbers)

    def test_the_seed_decides_about_weights_order_and_chains(self, data):
        learners = [make_learner(tiny_config(**GENERATIVE, train={"seed": seed}), data) for seed in range(3)]
        assert all_differ([next(learner.model.parameters()) for learner in learners])
        assert all_differ([learner.algorithm.buffer.images for learner in learners])
        assert all_differ([next(batches(learner, 1))[1] for learner in learners])


class TestWeightDecay:
    def course(self, decoupled, weight_decay):
        phase = {"epochs": 1, "weight_decay": weight_decay, "lr": 0.01}
        cfg = tiny_config(train={"decoupled_decay": decoupled, "beta": 0.0}, discriminative=phase)
        learner = make_learner(cfg, tiny_data())
        before = [parameter.detach().clone() for parameter in learner.model.parameters()]
        learner.update()
        return before, list(learner.model.parameters())

    def test_decoupled_decay_shrinks_the_weights_beside_the_step(self):
        """θ ← θ − lr·λ·θ − step (AdamW); without it λ·θ is part of the gradient, whose size Adam forgets."""
        before, without = self.course(decoupled=True, weight_decay=0.0)
        _, decayed = self.course(decoupled=True, weight_decay=0.5)
        for start, a, b in zip(before, without, decayed, strict=True):
            torch.testing.assert_close(b, a - 0.01 * 0.5 * start, rtol=1e-4, atol=1e-6)
        _, coupled = self.course(decoupled=False, weight_decay=0.5)
        _, plain = self.course(decoupled=False, weight_decay=0.0)
        assert all(torch.equal(a, b) for a, b in zip(plain, without, strict=True))
        assert not any(torch.allclose(a, b, atol=1e-4) for a, b in zip(coupled, decayed, strict=True))


class TestContrast:
    def test_fewer_contrast_images_are_the_first_of_the_batch_with_their_labels(self, data):
        cfg = tiny_config(
            **{**NOISY_CONTRAST, "contrast": {"noise": 0.0}},
            buffer={"chains": 5, "size": 60},
        )
        learner = make_learner(cfg, data)
        means, expected = learner.model.head.means, []
        for x, y, contrast in batches(learner, 4):
            assert torch.equal(contrast, clean_batch(learner, y, x)[:5])
            with torch.no_grad():
                expected.append(core.unit_energy(learner.model.backbone(contrast), means[y[:5]]).mean())
        assert len({energy.item() for energy in expected}) == 4
        learner.update()
        assert learner.report()[0]["contrast_energy"] == pytest.approx(expected[0].item(), rel=1e-5)


BATCH_NORM = {**GENERATIVE, "model": {"norm": "batch"}, "sampler": {"steps": 3, "alpha": 0.1}}


class TestBatchNorm:
    @pytest.mark.parametrize("engine", ["auto", "plain"])
    def test_a_training_chain_does_not_depend_on_its_neighbours(self, data, engine):
        learner = make_learner(tiny_config(**BATCH_NORM, train={"engine": engine}), data)
        for _ in range(3):
            learner.update()
        drawn = learner.algorithm.draw(learner.batches.labels[:16], 3)
        together = learner.algorithm.move(drawn, 3, pace=1.0)
        strange = drawn.images.clone()
        strange[1:] = strange[1:] * 0.1 + 0.8
        others = dataclasses.replace(drawn, images=strange)
        moved = learner.algorithm.move(others, 3, pace=1.0)
        assert torch.allclose(moved[0], together[0], atol=1e-6)
        assert not torch.allclose(together[0], drawn.images[0], atol=1e-3)  # it did move

    @pytest.mark.parametrize("engine", ["auto", "plain"])
    def test_fresh_chains_are_those_of_evaluation_mode_and_leave_the_mode_alone(self, engine):
        model = make_model(model={"norm": "batch"}, train={"engine": engine})
        expected = model.eval().sample(3, steps=3)
        statistics = [norm.running_mean.clone() for norm in batch_norms(model)]
        assert torch.equal(model.train().sample(3, steps=3), expected)
        assert model.training
        assert all(norm.training for norm in batch_norms(model))
        for norm, before in zip(batch_norms(model), statistics, strict=True):
            assert torch.equal(norm.running_mean, before)

    def test_the_averaged_network_has_the_present_statistics(self, data):
        learner = make_learner(tiny_config(**BATCH_NORM, train={"ema": 0.9}), data)
        first = [norm.running_mean.clone() for norm in batch_norms(learner.model)]
        for _ in range(3):
            learner.update()
            pairs = zip(batch_norms(learner.model), batch_norms(learner.average.model), strict=True)
            for norm, averaged in pairs:
                assert torch.equal(norm.running_mean, averaged.running_mean)
                assert torch.equal(norm.running_var, averaged.running_var)
        for norm, before in zip(batch_norms(learner.average.model), first, strict=True):
            assert not torch.equal(norm.running_mean, before)


class TestNumbers:
    def test_a_line_is_of_the_updates_since_the_line_before(self, tmp_path, data):
        """The same training logged after every update and after every third."""
        series = {}
        for every in (1, 3):
            cfg = tiny_config(train={"log_every": every, "batch_size": 16, "beta": 0.5}, **GENERATIVE)
            train(cfg, tmp_path / f"{every}", data)
            lines = map(json.loads, (tmp_path / f"{every}" / "metrics.jsonl").read_text().splitlines())
            series[every] = {line["step"]: line for line in lines}
        assert list(series[3]) == [3, 4, 6, 8, 9, 12, 15, 16]
        for first, last in itertools.pairwise([0, *series[3]]):
            for key in ("real_energy", "sampled_energy", "accuracy", "grad_norm"):
                mean = sum(series[1][step][key] for step in range(first + 1, last + 1)) / (last - first)
                assert series[3][last][key] == pytest.approx(mean, rel=1e-6), (last, key)

    def test_gamma2_is_a_mean_over_all_images_however_many(self):
        data = tiny_data(count=600)
        learner = make_learner(tiny_config(), data)
        with torch.no_grad():
            features = learner.model.backbone(to_signed(data.train.images) * 1.0)
        each = (features - learner.model.head.means[data.train.labels]).square().mean(1)
        whole, first = each.mean().item(), each[:256].mean().item()
        assert abs(whole / first - 1) > 1e-5  # the law can fail
        assert learner.estimate_gamma2(learner.model) == pytest.approx(whole, rel=1e-6)

    def test_validation_is_of_the_averaged_weights(self, data):
        learner = make_learner(tiny_config(train={"ema": 0.9}), data)
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.fill_(float("nan"))  # a class that nothing is near
        assert 0 <= learner.validate() <= 1

    def test_a_finished_model_is_fitted_on_validation_images_and_remembers_training_images(self):
        data = tiny_data(count=90)
        learner = make_learner(tiny_config(), data)
        for _ in range(8):
            learner.update()
        model = learner.finish()
        assert model.reference.images("log_density") == len(data.valid) == 12
        assert len(model.neighbours.features) == len(data.train) == 90
        expected = model.log_density(data.valid.images).double().sort().values
        assert torch.allclose(model.reference.scores["log_density"].sort().values, expected, rtol=1e-5)


class TestOptimiser:
    def moved(self, data, **sections):
        """Weights before the last of five updates, and after it."""
        learner = make_learner(tiny_config(**sections), data)
        for _ in range(4):
            learner.update()
        before = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
        learner.update()
        return before, torch.cat([p.detach().flatten() for p in learner.model.parameters()]), learner

    def test_weight_decay_is_a_part_of_the_gradient(self, data):
        """Adam's first moments differ by a tenth of weight_decay·θ, as it is a part of the gradient."""
        phases = {"discriminative": {"epochs": 1}, "train": {"beta": 0.0}}
        before, _, plain = self.moved(data, **phases, generative={"epochs": 1})
        _, _, decayed = self.moved(data, **phases, generative={"epochs": 1, "weight_decay": 0.5})
        moments = [
            torch.cat([learner.updater.slots()[f"{i}.exp_avg"].flatten() for i in range(count)])
            for learner in (plain, decayed)
            if (count := len(learner.updater.parameters))
        ]
        assert torch.allclose(moments[1] - moments[0], 0.1 * 0.5 * before, atol=1e-5)
        assert (moments[1] - moments[0]).abs().max() > 1e-3

    def test_lowered_alpha_and_beta_reach_the_update(self, data):
        still = make_learner(tiny_config(**GENERATIVE, buffer={"reinit": 0.0}), data)
        before = still.algorithm.buffer.images.clone()
        set_pace(still, alpha=1e-12)
        still.update()
        assert torch.equal(still.algorithm.buffer.images, before)
        weights = []
        for pace in (1.0, 0.5, 1.0):
            beta = 0.5 if len(weights) < 2 else 0.25
            cfg = tiny_config(train={"beta": beta, "batch_size": 16}, **GENERATIVE)
            learner = make_learner(cfg, data)
            set_pace(learner, beta=pace)
            for _ in range(3):
                learner.update()
            weights.append(torch.cat([p.detach().flatten() for p in learner.model.parameters()]))
        assert torch.equal(weights[1], weights[2])
        assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("stop", [0, 3, 4, 5])
def test_a_resume_around_the_end_of_a_phase_keeps_the_optimiser_s_memory(data, stop):
    cfg = tiny_config()
    whole, resumed = make_learner(cfg, data), make_learner(cfg, data)
    for _ in range(stop):
        whole.update()
    resumed.update()  # its own memory must go
    resumed.restore(whole.snapshot())
    slots = whole.updater.slots()
    assert slots.keys() == resumed.updater.slots().keys()
    assert len(slots) == (3 * len(whole.updater.parameters) if stop else 0)
    for _ in range(3):
        whole.update()
        resumed.update()
    for p, q in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_resumed_learner_keeps_its_cap_and_its_lowered_steps(data):
    cfg = tiny_config()
    before, after = make_learner(cfg, data), make_learner(cfg, data)
    before.algorithm.capped = True
    set_state(before, pace={"lr": 0.5, "beta": 0.25, "alpha": 0.125}, rollbacks=3, trouble_at=9, failed=2)
    after.restore(before.snapshot())
    assert after.algorithm.capped is True
    assert dataclasses.replace(after.state, seconds=0.0) == before.state
    uncapped = make_learner(cfg, data)
    after.restore(uncapped.snapshot())
    assert after.algorithm.capped is False
