"""Whatever way to train stands behind `Algorithm.step`, the rest of a training works with it."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import interrupted_at, make_learner, make_model, real_batch, tiny_config
from gmmc.config import recipes
from gmmc.errors import Diverged
from gmmc.networks.heads import HEADS
from gmmc.sampling.engine import Engine, FastGradient
from gmmc.sampling.samplers import SAMPLERS, BatchNoise, Chains
from gmmc.train import learner as learners
from gmmc.train.loop import train
from gmmc.train.meter import Meter
from gmmc.train.objectives import OBJECTIVES, Objective, Terms, marginal
from gmmc.train.state import TrainingState
from processes import finished
from toy import Toy

DISCRIMINATIVE = {
    "train": {"beta": 0.0, "checkpoint_seconds": 0.0},
    "discriminative": {"epochs": 6, "lr": 5e-3},
}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(learners.ALGORITHMS, "contrastive", Toy)


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class TestToy:
    def test_it_trains(self, toy, tmp_path, data, capsys):
        train(tiny_config(**DISCRIMINATIVE), tmp_path / "run", data)
        first, *_, last = lines(tmp_path / "run")
        assert last["loss"] < first["loss"] / 2
        assert last["valid_accuracy"] > 0.9
        assert "sampled_energy" not in last
        assert "train" in capsys.readouterr().err  # its progress, without energies

    def test_it_resumes_bit_equal(self, toy, tmp_path, data):
        cfg = tiny_config(**DISCRIMINATIVE)
        whole = train(cfg, tmp_path / "whole", data)
        with interrupted_at(13):
            train(cfg, tmp_path / "run", data)
        resumed = train(cfg, tmp_path / "run", data)
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name
        without_clock = [{**line, "seconds": 0} for line in lines(tmp_path / "run")]
        assert without_clock == [{**line, "seconds": 0} for line in lines(tmp_path / "whole")]

    def test_it_is_guarded(self, toy, tmp_path, data, monkeypatch):
        """One update breaks the weights: back to a good state, at half the rate, and on to the end."""
        step, broken = Toy.step, []

        def breaks(self, batch, now):
            outcome = step(self, batch, now)
            if now.step == 14 and not broken:
                broken.append(now.step)
                with torch.no_grad():
                    next(self.model.parameters()).fill_(math.nan)
            return outcome

        monkeypatch.setattr(Toy, "step", breaks)
        cfg = tiny_config(**{**DISCRIMINATIVE, "guard": {"every": 4}})
        model = train(cfg, tmp_path / "run", data)
        (event,) = [line for line in lines(tmp_path / "run") if "event" in line]
        assert event["lowered"] == {"lr": 0.5}
        assert event["to"] < 14
        assert model.trained["rollbacks"] == 1
        assert all(parameter.isfinite().all() for parameter in model.parameters())

    def test_it_gives_up_with_advice_that_does_not_speak_of_samples(self, toy, tmp_path, data, monkeypatch):
        monkeypatch.setattr(Toy, "trouble", lambda self, line: "never satisfied")
        with pytest.raises(Diverged, match="never satisfied") as raised:
            train(tiny_config(**{**DISCRIMINATIVE, "guard": {"rollbacks": 1}}), tmp_path / "run", data)
        assert "learning rate" in str(raised.value)
        assert "sampler" not in str(raised.value)

    @pytest.mark.slow
    def test_it_runs_in_two_processes(self, tmp_path):
        """As one process on the union of their rows."""
        recipe = tmp_path / "tiny.toml"
        sections = {"train": {"beta": 0.0, "batch_size": 128}, "discriminative": {"epochs": 2, "lr": 1e-4}}
        recipe.write_text(recipes.to_toml(tiny_config(**sections)))
        program = Path(__file__).parents[1] / "toy.py"
        for count in (1, 2):
            out = tmp_path / f"{count}"
            finished([sys.executable, program, "train", recipe, f"train.devices={count}", "--out", out])
        one, two = (
            {k: v for k, v in load_file(tmp_path / name / "model.safetensors").items() if "backbone" in k}
            for name in ("1", "2")
        )
        # Adam turns the rounding of a gradient of almost zero into a whole step.
        weights = [torch.cat([part.flatten().double() for part in model.values()]) for model in (one, two)]
        assert (weights[0] - weights[1]).norm() < 0.01 * weights[0].norm()
        for a, b in zip(lines(tmp_path / "1"), lines(tmp_path / "2"), strict=True):
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


class TestBuffers:
    def test_rows_of_an_algorithm_are_stored_and_dealt_out(self, tmp_path, data, monkeypatch):
        """Whatever their names are."""

        class Remembers(Toy):
            def __init__(self, setup):
                super().__init__(setup)
                self.rows = torch.zeros(8)

            def step(self, batch, now):
                self.rows[now.step % 8] = now.step
                return super().step(batch, now)

            def state_dict(self):
                return {"rows": self.rows}

            def load_state(self, tensors, info):
                super().load_state(tensors, info)
                self.rows.copy_(tensors["rows"])

        monkeypatch.setitem(learners.ALGORITHMS, "contrastive", Remembers)
        cfg = tiny_config(**DISCRIMINATIVE)
        with interrupted_at(12):
            train(cfg, tmp_path / "run", data)
        seen, load = [], Remembers.load_state
        monkeypatch.setattr(
            Remembers,
            "load_state",
            lambda self, *given: (load(self, *given), seen.append(self.rows.tolist())),
        )
        train(cfg, tmp_path / "run", data)
        assert seen[0] == [8, 9, 10, 11, 4, 5, 6, 7]


def test_an_update_enters_the_algorithm_once(data, monkeypatch):
    calls = []
    for name in ("step", "census", "summary"):
        method = getattr(learners.ALGORITHMS["contrastive"], name)
        monkeypatch.setattr(
            learners.ALGORITHMS["contrastive"],
            name,
            lambda self, *given, name=name, method=method: calls.append(name) or method(self, *given),
        )
    learner = make_learner(tiny_config(), data)
    for _ in range(6):
        learner.update()
    assert calls == ["step"] * 6
    learner.report()
    assert calls[6:] == ["census", "summary"]


def test_nobody_writes_the_state_of_a_training():
    state = TrainingState()
    with pytest.raises(AttributeError):
        state.step = 3
    assert TrainingState.from_info(0, state.to_info()) == state
    assert (state.advanced().step, state.logged().lines, state.step) == (1, 1, 0)


class TestMeter:
    def test_means_are_over_images_and_missing_measures_are_left_out(self):
        meter = Meter(("loss", "accuracy", "never"), torch.device("cpu"))
        meter.add({"loss": torch.tensor([1.0, 2.0]), "accuracy": torch.tensor([True, False])})
        meter.add({"loss": torch.tensor([6.0])})
        assert meter.means(meter.totals().flatten().tolist()) == {"loss": 3.0, "accuracy": 0.5}
        other = Meter(meter.measures, torch.device("cpu"))
        other.restore(meter.totals())
        assert torch.equal(other.totals(), meter.totals())
        other.reset()
        assert other.means(other.totals().flatten().tolist()) == {}


class TestWhatTheyAre:
    """Objectives, heads and samplers carry what the rest must know, beside their functions."""

    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_an_objective_s_pull_is_the_weight_of_real_energies(self, name):
        """The derivative of its loss by a real energy, class part aside, at several β."""
        objective, model = OBJECTIVES[name], make_model(objective={"name": name})
        cfg = model.cfg.objective
        x = torch.rand(6, 1, 8, 8) * 2 - 1
        y = torch.arange(6) % 3
        for beta in (0.0, 0.3):
            real = torch.ones(6, requires_grad=True)
            contrast = torch.ones(6, requires_grad=True) if objective.contrasts and beta else None
            sampled = torch.ones(6, requires_grad=True) if beta else None
            features = model.backbone(x).detach()
            terms = Terms(features, y, model.head, real, contrast, sampled)
            loss = objective.loss(terms, cfg, beta)
            given = [part for part in (real, contrast) if part is not None]
            pulls = torch.autograd.grad(loss, given, allow_unused=True)
            total = sum(part.sum().item() for part in pulls if part is not None)
            assert total == pytest.approx(objective.pull(cfg, beta)), beta
            if sampled is not None:
                (push,) = torch.autograd.grad(objective.loss(terms, cfg, beta), sampled)
                assert -push.sum().item() == pytest.approx(beta)

    @pytest.mark.parametrize("name", HEADS)
    def test_a_head_s_means(self, name):
        head = HEADS[name](3, 4, 2.0, None)
        assert head.has_means == (head.means is not None)
        assert head.fixed_means == (head.has_means and not list(head.parameters()))

    @pytest.mark.parametrize("name", HEADS)
    def test_the_marginal_energy_is_the_log_density_negated(self, name):
        objective = {} if name == "mmc" else {"name": "balanced"}
        sampler = {"name": "staged" if HEADS[name].has_means else "sgld"}
        model = make_model(model={"head": name}, objective=objective, sampler=sampler)
        images = torch.rand(5, 1, 8, 8)
        energy = model.head.marginal_energy(model.features(images), torch.zeros(5, dtype=torch.long))
        torch.testing.assert_close(-energy, model.log_density(images))

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_samplers_that_walk_to_means_need_them_and_no_energy(self, name):
        """And the others the reverse."""
        sampler, x = SAMPLERS[name], torch.zeros(2, 3)
        noise = BatchNoise(2, torch.Generator())
        labels, means = torch.zeros(2, dtype=torch.long), torch.ones(2, 3)

        def forbidden(features, goal):
            raise AssertionError("asked for the energy of the head")

        cfg = tiny_config(sampler={"name": name}).sampler

        def gradient(energy, x, goal):
            energy(x, goal)
            return torch.zeros_like(x)

        if sampler.noise_conditional:  # of images, which get one more channel
            x = x[..., None, None]
        if sampler.to_means:
            sampler.move(gradient, x, Chains(labels, means, forbidden, noise), cfg, steps=2)
        else:
            with pytest.raises(AssertionError, match="asked for the energy"):
                sampler.move(gradient, x, Chains(labels, None, forbidden, noise, 0.5), cfg, steps=2)


class TestTheEnergyThatIsSampled:
    def marginally(self, monkeypatch):
        plain = OBJECTIVES["balanced"]
        monkeypatch.setitem(
            OBJECTIVES,
            "balanced",
            Objective(plain.loss, pull=plain.pull, energy=marginal, contrasts=True),
        )

    def test_an_objective_with_the_marginal_energy_trains_by_it(self, data, monkeypatch):
        self.marginally(monkeypatch)
        cfg = tiny_config(
            objective={"name": "balanced"}, sampler={"name": "sgld"}, discriminative={"epochs": 0}
        )
        learner = make_learner(cfg, data)
        loss = learner.algorithm.loss
        assert loss.energy == learner.model.head.marginal_energy
        x, y = torch.rand(2, 4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
        _, energies = loss(learner.model.backbone, x[0], y, x[1], x[1], y, 0.5)
        torch.testing.assert_close(energies.contrast, energies.sampled)
        torch.testing.assert_close(
            -energies.sampled, learner.model.log_density((x[1] + 1) / 2), rtol=1e-4, atol=1e-4
        )
        for _ in range(3):
            learner.update()
        assert math.isfinite(learner.report()[0]["sampled_energy"])

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_updates_use_one_captured_gradient(self, data, name, monkeypatch):
        """A function that is new in every update would be captured again in every update."""
        denoising = SAMPLERS[name].noise_conditional
        cfg = tiny_config(
            train={"algorithm": "denoising" if denoising else "contrastive"},
            sampler={"name": name},
            discriminative={"epochs": 0},
            generative={"epochs": 2},
        )
        learner = make_learner(cfg, data)
        model, algorithm = learner.model, learner.algorithm
        algorithm.gradient = FastGradient(model.backbone, Engine(), "fp32")
        for _ in range(6):
            learner.update()
        assert len(algorithm.gradient._captured) == 1


def test_a_graph_does_not_outlive_updates_of_the_last_layer_alone(data):
    """They replace the gradients that a captured update writes into."""
    learner = make_learner(tiny_config(discriminative={"epochs": 2}), data)
    learner.updater.engine = Engine(graph=True)  # on a CPU the same calls without a graph
    learner.update()
    assert learner.updater.how == "plain"
    assert learner.updater._captured is not None
    x, y, _ = real_batch(learner, 1)
    loss, nothing = learner.algorithm.loss, (None, None, None, torch.zeros(()))
    learner.updater(loss, x, y, *nothing, network=learner.model.backbone)
    assert learner.updater._captured is None
