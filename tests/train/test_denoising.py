"""Denoising score matching: its gradient, its guard, and what a trained denoiser must equal."""

import copy
import itertools
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import make_moons

from conftest import interrupted_at, make_learner, make_model, tiny_config, tiny_data
from gmmc.config import recipes, schema
from gmmc.config.sections import SampleConfig
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import Diverged, InputError
from gmmc.networks import threads
from gmmc.noise import network_input, scales
from gmmc.runs import model_file
from gmmc.train.denoising import Denoising, Noisy
from gmmc.train.ema import Average
from gmmc.train.initialize import choose_start, with_start
from gmmc.train.learner import ALGORITHMS
from gmmc.train.loop import train
from gmmc.train.so_far import write_model_so_far
from processes import finished, gmmc_command

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIGMA_DATA = 0.5


def config(**sections):
    basis = {
        "train": {"algorithm": "denoising", "beta": 1.0, "ema": 0.9},
        "model": {"backbone": "smooth-mlp-2-16", "dim": 8, "scale": 1.0},
        "discriminative": {"epochs": 0, "shift": 0},
        "sampler": {"name": "heun"},
    }
    return tiny_config(
        **{name: {**basis.get(name, {}), **sections.get(name, {})} for name in basis | sections}
    )


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def as_float64(learner):
    learner.model.double()
    return learner.algorithm


class TestGradient:
    """The finite difference against the gradient of a gradient, in float64."""

    @pytest.fixture
    def parts(self):
        learner = make_learner(config(), tiny_data())
        algorithm = as_float64(learner)
        source = torch.Generator().manual_seed(1)
        level = torch.tensor([0.1, 0.5, 2.0, 0.3], dtype=torch.float64).view(4, 1, 1, 1)
        u, target = torch.randn(2, 4, 1, 8, 8, generator=source, dtype=torch.float64)
        labels = torch.tensor([0.0, 1.0, 2.0, 1.0], dtype=torch.float64)
        without_class = torch.tensor([0.0, 0.0, 0.0, -1.0], dtype=torch.float64)
        goal = torch.stack([labels, level.flatten() / SIGMA_DATA, without_class], 1)
        return learner, algorithm, Noisy(u, level, target, goal)

    def exact(self, learner, noisy):
        """∂/∂θ of mean ‖F − t‖²/n, and F − t."""
        network, head = learner.model.backbone, learner.model.head
        u = noisy.u.clone().requires_grad_(True)
        total = head.guided_energy(network(network_input(u, noisy.level)), noisy.goal).sum()
        (gradient,) = torch.autograd.grad(total, u, create_graph=True)
        residual = -gradient - noisy.target
        loss = residual.square().flatten(1).mean(1).mean()
        found = torch.autograd.grad(loss, [*network.parameters()])
        return torch.cat([part.flatten() for part in found]), residual.detach()

    def by_difference(self, learner, algorithm, noisy, residual, h):
        algorithm.settings = algorithm.loss.cfg = replace(algorithm.settings, h=h, residual_limit=0.0)
        network = learner.model.backbone
        lower, higher = algorithm.sides(noisy, residual)
        features = network(torch.cat([lower, higher])).split(4)
        numbers = noisy.u[0].numel()
        loss = algorithm.loss.contrast(*features, noisy.goal, numbers)
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*network.parameters()])])

    def test_its_error_falls_with_the_square_of_h(self, parts):
        learner, algorithm, noisy = parts
        exact, residual = self.exact(learner, noisy)
        errors = []
        for h in (0.04, 0.02, 0.01):
            found = self.by_difference(learner, algorithm, noisy, residual, h)
            errors.append((found - exact).norm() / exact.norm())
        assert errors[-1] < 1e-3
        for coarse, fine in itertools.pairwise(errors):
            assert coarse / fine == pytest.approx(4, rel=0.05)

    def test_the_residual_is_that_of_the_regression(self, parts):
        learner, algorithm, noisy = parts
        _, residual = self.exact(learner, noisy)
        torch.testing.assert_close(
            algorithm.residual(noisy), residual.float(), rtol=1e-4, atol=1e-4, check_dtype=False
        )

    def test_a_large_residual_is_shortened(self, parts):
        _, algorithm, noisy = parts
        residual = torch.ones_like(noisy.u) * torch.tensor([1.0, 3.0, 1.5, 0.0]).view(4, 1, 1, 1)
        lower, higher = algorithm.sides(noisy, residual)
        moved = (higher - lower)[:, :1] / (2 * algorithm.settings.h)
        assert moved.mean((1, 2, 3)).tolist() == pytest.approx([1.0, 1.5, 1.5, 0.0])


@pytest.mark.parametrize("section", ["generative", "denoising"])
def test_rows_of_numbers_have_no_colour(tmp_path, section):
    data = rows(torch.zeros(24, 2), torch.arange(24) % 2, ["a", "b"])
    with pytest.raises(InputError, match=rf"{section}\.colour"):
        train(config(**{section: {"colour": 0.2}}), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


class TestLabelSmoothing:
    def terms(self, share):
        learner = make_learner(config(denoising={"label_smoothing": share}), tiny_data())
        batch = learner.batches.at(learner.moment(0))
        x, y = learner.algorithm.class_images(batch, 0)
        loss, record = learner.algorithm.loss(
            learner.model.backbone, x, y, None, None, None, torch.tensor(1.0)
        )
        logits = learner.model.head.logits_at(learner.model.backbone(x), learner.model.density_gamma2)
        return loss, record.class_loss, logits.log_softmax(1), y, learner

    def test_a_share_of_each_label_is_spread_over_all_classes(self):
        for share in (0.0, 0.3, 1.0):
            loss, class_loss, log_p, y, learner = self.terms(share)
            own = -log_p.gather(1, y[:, None]).mean()
            expected = (1 - share) * own - share * log_p.mean()
            torch.testing.assert_close(class_loss, expected.detach())
            torch.testing.assert_close(loss, learner.cfg.denoising.class_weight * expected)

    def test_labels_of_noisy_images_stay_sharp(self):
        def loss(share):
            learner = make_learner(config(denoising={"label_smoothing": share}), tiny_data())
            features = torch.randn(8, learner.model.dim, generator=torch.Generator().manual_seed(0))
            goal = torch.tensor([[0.0, 0.5, 0.0], [1.0, 0.5, 0.0], [2.0, 2.0, 0.0], [0.0, 1.0, -1.0]])
            return learner.algorithm.loss.noisy_class_loss(features, goal)

        assert torch.equal(loss(0.0), loss(0.5))


class TestNoise:
    def test_noisy_images_and_targets_make_the_clean_image(self):
        """c_skip·x + c_out·t = x₀, where x = u/c_in."""
        learner = make_learner(config(), tiny_data())
        batch = learner.batches.at(learner.moment(0))
        noisy = learner.algorithm.noisy(batch, 0)
        skip, out, into = scales(noisy.level, SIGMA_DATA)
        clean = batch.augmented(learner.cfg.denoising, "denoised")
        torch.testing.assert_close(skip * noisy.u / into + out * noisy.target, clean, rtol=1e-3, atol=1e-3)
        assert torch.equal(noisy.goal[:, 0].long(), batch.labels)
        torch.testing.assert_close(noisy.goal[:, 1], noisy.level.flatten() / SIGMA_DATA)

    def test_noise_levels_are_lognormal_and_some_images_have_no_label(self):
        learner = make_learner(
            config(train={"batch_size": 2000}, denoising={"unlabelled": 0.25}), tiny_data(count=2000)
        )
        noisy = learner.algorithm.noisy(learner.batches.at(learner.moment(0)), 0)
        logs = noisy.level.log()
        assert logs.mean().item() == pytest.approx(-1.2, abs=0.1)
        assert logs.std().item() == pytest.approx(1.2, abs=0.1)
        assert (noisy.goal[:, 2] == -1).float().mean().item() == pytest.approx(0.25, abs=0.04)

    def test_every_update_has_its_own(self):
        learner = make_learner(config(), tiny_data())
        batch = learner.batches.at(learner.moment(0))
        first, second, again = (learner.algorithm.noisy(batch, step).u for step in (0, 1, 0))
        assert torch.equal(first, again)
        assert not torch.equal(first, second)

    def test_class_images_are_rows_of_the_batch_with_little_noise(self):
        cfg = config(denoising={"class_images": 4}, generative={"noise": 0.0})
        learner = make_learner(cfg, tiny_data())
        batch = learner.batches.at(learner.moment(0))
        x, labels = learner.algorithm.class_images(batch, 0)
        assert torch.equal(labels, batch.labels[::4])
        into = scales(torch.tensor(0.05), SIGMA_DATA).into
        noise = x[:, :1] / into - batch.images[::4]
        assert 0 < noise.std() < 0.05

    def test_at_beta_0_nothing_is_denoised(self, monkeypatch):
        def never(*given):
            raise AssertionError

        monkeypatch.setattr(Denoising, "noisy", never)
        monkeypatch.setattr(Denoising, "residual", never)
        learner = make_learner(config(train={"beta": 0.0}, discriminative={"epochs": 2}), tiny_data())
        assert learner.algorithm.gradient is None
        learner.update()
        line, _ = learner.report()
        assert "loss" not in line
        assert line["class_loss"] > 0


# --- the guard ---


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(a, b):
    return all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def spoil_updates(monkeypatch, spoiled):
    """Give the updates of these numbers a denoising target that is far from all images."""
    noisy, seen = Denoising.noisy, []

    def spoil(self, batch, step):
        found = noisy(self, batch, step)
        seen.append(step)
        return replace(found, target=found.target * 1e4) if len(seen) - 1 in spoiled else found

    monkeypatch.setattr(Denoising, "noisy", spoil)


def judged(loss):
    """Values of an update with this loss."""
    ones = dict.fromkeys(("grad_norm", "class_loss", "zero_loss"), torch.ones(()))
    return {"loss": torch.tensor(loss), **ones}


DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


class TestGuard:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("value", [1e4, math.nan])
    def test_a_far_update_is_skipped_counted_and_not_averaged(self, monkeypatch, device, value):
        cfg = config(train={"device": device, "algorithm": "denoising"}, generative={"epochs": 40})
        learner = make_learner(cfg, tiny_data())
        for _ in range(60):
            learner.update()
        noisy = Denoising.noisy
        monkeypatch.setattr(
            Denoising,
            "noisy",
            lambda self, batch, step: replace(n := noisy(self, batch, step), target=n.target * value),
        )
        learner.meter.reset()
        before = (
            weights(learner.model),
            weights(learner.average.model),
            copy.deepcopy(learner.updater.slots()),
        )
        state = learner.algorithm.info()["spikes"]["denoising"]
        learner.update()
        assert same(before[0], learner.model.state_dict())
        assert same(before[1], learner.average.model.state_dict())
        assert same(before[2], learner.updater.slots())
        after = learner.algorithm.info()["spikes"]["denoising"]
        assert after == {**state, "skipped": 1 / 50}
        line, _ = learner.report()
        assert line["skipped"] == 1
        assert math.isfinite(line["loss"])
        monkeypatch.setattr(Denoising, "noisy", noisy)
        learner.update()
        assert not same(before[0], learner.model.state_dict())
        line, _ = learner.report()
        assert line["skipped"] == 0.5

    def test_an_update_that_is_not_finite_is_skipped_from_the_first_on(self, monkeypatch):
        """Before there are means to compare with."""
        learner = make_learner(config(), tiny_data())
        noisy, before = Denoising.noisy, weights(learner.model)
        monkeypatch.setattr(
            Denoising,
            "noisy",
            lambda self, batch, step: replace(n := noisy(self, batch, step), target=n.target * math.nan),
        )
        learner.update()
        assert same(before, learner.model.state_dict())
        assert learner.report()[0]["skipped"] == 1

    def test_its_memory_is_part_of_a_state(self):
        cfg = config(discriminative={"epochs": 1}, generative={"epochs": 40})
        learner, other = (make_learner(cfg, tiny_data()) for _ in range(2))
        for _ in range(60):
            learner.update()
        state = learner.algorithm.info()
        assert all(kind["accepted"] for kind in state["spikes"].values())
        assert state["spikes"]["denoising"]["lowest"][0] > 0
        other.resume(learner.snapshot())
        assert other.algorithm.info() == state
        for each in (learner, other):
            each.update()
        assert other.algorithm.info() == learner.algorithm.info() != state

    def test_ordinary_updates_are_not_skipped(self):
        learner = make_learner(config(generative={"epochs": 40}), tiny_data())
        for _ in range(80):
            learner.update()
        assert learner.report()[0]["skipped"] == 0

    def test_repeated_spikes_lead_to_a_rollback_at_half_the_rate(self, tmp_path, monkeypatch):
        spoil_updates(monkeypatch, range(69, 84))  # 1 − 0.98¹⁵ > 0.25
        cfg = config(generative={"epochs": 25}, guard={"every": 6})
        model = train(cfg, tmp_path / "run", tiny_data())
        (event,) = [line for line in lines(tmp_path / "run") if "event" in line]
        assert event["lowered"] == {"lr": 0.5}
        assert event["to"] <= 84
        assert event["skipped_share"] > 0.25
        assert model.trained["rollbacks"] == 1
        assert all(parameter.isfinite().all() for parameter in model.parameters())

    def test_one_spike_in_a_line_of_one_update_is_no_divergence(self, tmp_path, monkeypatch):
        spoil_updates(monkeypatch, {60})
        cfg = config(train={"log_every": 1, "algorithm": "denoising"}, generative={"epochs": 17})
        train(cfg, tmp_path / "run", tiny_data())
        written = lines(tmp_path / "run")
        assert [line["step"] for line in written if line.get("skipped")] == [61]
        assert not any("event" in line for line in written)

    def test_a_loss_that_climbs_slowly_leads_to_a_rollback(self):
        """Each update is like the one before, so that none is skipped."""
        learner = make_learner(config(), tiny_data())
        spikes = learner.algorithm.spikes["denoising"]
        for update in range(1000):
            loss = 0.25 * max(1, 1.005 ** (update - 500))  # at last 3.0 times as much, its mean is behind
            assert spikes.judge(judged(loss))
            if update in (400, 600, 700):
                assert learner.algorithm.trouble(learner.report()[0]) is None
        line = learner.report()[0]
        assert line["loss_rise"] > 3
        assert "loss" in learner.algorithm.trouble(line)

    def test_the_first_losses_are_no_measure_of_a_rise(self):
        """One batch may have an easy draw of noise levels; the mean of many counts."""
        learner = make_learner(config(), tiny_data())
        spikes = learner.algorithm.spikes["denoising"]
        for loss in [0.01, *[0.25] * 100]:
            spikes.judge(judged(loss))
            assert spikes.rise("loss", "zero_loss") < 1.1

    def test_a_loss_far_above_that_of_zero_leads_to_a_rollback(self):
        """A network that explodes before its losses have settled has no lower mean to compare with."""
        learner = make_learner(config(), tiny_data())
        spikes = learner.algorithm.spikes["denoising"]
        for update in range(80):
            spikes.judge(judged(100.0 if update > 20 else 1.0))
            learner.report()
            if update < 30:
                assert learner.algorithm.trouble(learner.report()[0]) is None
        assert "loss" in learner.algorithm.trouble(learner.report()[0])

    def test_its_measure_is_the_loss_of_zero(self):
        learner = make_learner(config(), tiny_data())
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.zero_()
        learner.update()
        loss, *_, zero_loss = learner.algorithm.info()["spikes"]["denoising"]["means"]
        assert loss == pytest.approx(zero_loss)
        assert 0.1 < loss < 4

    def test_a_learning_rate_far_too_high_is_noticed(self, tmp_path):
        cfg = config(generative={"epochs": 60, "lr": 3.0}, guard={"every": 10, "rollbacks": 1})
        with pytest.raises(Diverged, match="loss"):
            train(cfg, tmp_path / "run", tiny_data())

    @pytest.mark.parametrize("count", [12, 24])
    def test_few_rows_are_no_divergence(self, tmp_path, count):
        """Their updates are few, and the losses of these differ much."""
        x, y = make_moons(count, noise=0.1, random_state=0)
        data = rows(torch.tensor(x) / 3, torch.tensor(y), ["a", "b"])
        cfg = config(generative={"epochs": 300, "lr": 1e-3})
        model = train(cfg, tmp_path / "run", data, silent=True)
        assert model.trained["rollbacks"] == 0

    def test_updates_that_denoise_after_others_that_do_not(self, tmp_path):
        """More discriminative updates than the guard needs to settle must not hold up what follows."""
        cfg = config(discriminative={"epochs": 20}, generative={"epochs": 20})
        train(cfg, tmp_path / "run", tiny_data())
        written = lines(tmp_path / "run")
        assert {line["phase"] for line in written} == {"discriminative", "generative"}
        assert not any(line["skipped"] for line in written)

    def test_a_report_changes_nothing(self):
        """A line that a stop cuts short leaves no trace in the guard's memory."""
        learner = make_learner(config(generative={"epochs": 40}), tiny_data())
        for _ in range(60):
            learner.update()
        state = learner.algorithm.info()
        learner.report()
        assert learner.algorithm.info() == state

    def test_a_training_that_never_recovers_ends_with_advice(self, tmp_path, monkeypatch):
        spoil_updates(monkeypatch, range(60, 10_000))
        cfg = config(generative={"epochs": 25}, guard={"every": 6, "rollbacks": 2})
        with pytest.raises(Diverged, match="skipped") as raised:
            train(cfg, tmp_path / "run", tiny_data())
        assert "learning rate" in str(raised.value)

    def test_without_guard_nothing_is_skipped(self, tmp_path, monkeypatch):
        spoil_updates(monkeypatch, {60})
        cfg = config(generative={"epochs": 17}, guard={"on": False})
        train(cfg, tmp_path / "run", tiny_data())
        assert not any(line["skipped"] for line in lines(tmp_path / "run"))


class TestAverage:
    def test_an_accepted_update_is_averaged_as_ever(self):
        learner = make_learner(config(), tiny_data())
        plain, tensor = (Average(learner.model, 0.9) for _ in range(2))
        learner.update()
        plain.update(learner.model, 5)
        tensor.update(learner.model, 5, torch.tensor(True))
        for a, b in zip(plain.model.parameters(), tensor.model.parameters(), strict=True):
            torch.testing.assert_close(a, b)


# --- resuming, processes, devices ---


def test_a_resumed_training_is_bit_equal(tmp_path):
    cfg = config(train={"checkpoint_seconds": 0.0}, guard={"every": 4}, generative={"epochs": 20})
    whole = train(cfg, tmp_path / "whole", tiny_data())
    with interrupted_at(65):  # past the updates after which spikes are looked for
        train(cfg, tmp_path / "run", tiny_data())
    resumed = train(cfg, tmp_path / "run", tiny_data())
    assert same(whole.state_dict(), resumed.state_dict())
    without_clock = [{**line, "seconds": 0} for line in lines(tmp_path / "run")]
    assert without_clock == [{**line, "seconds": 0} for line in lines(tmp_path / "whole")]


def test_a_training_resumed_after_a_rollback_is_bit_equal(tmp_path, monkeypatch):
    cfg = config(train={"checkpoint_seconds": 0.0}, guard={"every": 4}, generative={"epochs": 30})
    spoil_updates(monkeypatch, range(69, 84))
    whole = train(cfg, tmp_path / "whole", tiny_data())
    assert whole.trained["rollbacks"] == 1
    with monkeypatch.context() as patch:
        spoil_updates(patch, range(69, 84))
        with interrupted_at(100):
            train(cfg, tmp_path / "run", tiny_data())
    monkeypatch.undo()
    resumed = train(cfg, tmp_path / "run", tiny_data())
    assert resumed.trained["rollbacks"] == 1
    assert same(whole.state_dict(), resumed.state_dict())


class TestModelSoFar:
    @pytest.fixture
    def cfg(self):
        settings = {"algorithm": "denoising", "checkpoint_seconds": 0.0, "batch_size": 256}
        return config(train=settings, model={"dim": 16}, guard={"every": 2})

    @pytest.fixture
    def run(self, cfg, tmp_path):
        with interrupted_at(7):
            train(cfg, tmp_path / "run")
        return tmp_path / "run"

    def test_it_is_that_of_the_last_checkpoint(self, cfg, run, tmp_path):
        """Its metrics end there too."""
        with (run / "metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 7}\n')
        model = write_model_so_far(run, tmp_path / "now")
        assert model.trained["updates"] == lines(tmp_path / "now")[-1]["step"] == 6
        assert model.reference is not None
        done = finished(gmmc_command("evaluate", tmp_path / "now", "accuracy"))
        assert "top1" in done.stdout
        with pytest.raises(InputError, match="exist"):
            write_model_so_far(run, tmp_path / "now")
        assert train(cfg, run).trained["updates"] > model.trained["updates"]

    def test_the_run_stays_as_it_is_also_where_it_is_damaged(self, run, tmp_path):
        newest = max((run / "resume").glob("step-*"))
        newest.write_bytes(newest.read_bytes()[:-10])
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        assert write_model_so_far(run, tmp_path / "now").trained["updates"] < 6
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

    @pytest.mark.parametrize("count", [1, 2])
    def test_the_caller_keeps_its_number_of_threads(self, run, tmp_path, count):
        """One of the two is not that of the training."""
        with threads.using(count):
            write_model_so_far(run, tmp_path / "now")
            assert torch.get_num_threads() == count

    def test_data_in_memory_are_given_again(self, tmp_path):
        cfg, data = config(train={"checkpoint_seconds": 0.0}, guard={"every": 2}), tiny_data()
        with interrupted_at(7):
            train(cfg, tmp_path / "run", data)
        assert write_model_so_far(tmp_path / "run", tmp_path / "now", data).trained["updates"] == 6
        with pytest.raises(InputError, match="other images"):
            write_model_so_far(tmp_path / "run", tmp_path / "again", tiny_data(count=80))
        with pytest.raises(InputError, match=r"data\.name"):
            write_model_so_far(tmp_path / "run", tmp_path / "again")

    def test_one_of_several_devices_needs_one(self, run, tmp_path):
        recipe = run / "config.toml"
        recipe.write_text(recipe.read_text().replace("devices = 1", "devices = 2"))
        assert write_model_so_far(run, tmp_path / "now").trained["processes"] == 1

    def test_without_a_checkpoint_nothing_is_written(self, run, tmp_path):
        shutil.rmtree(run / "resume")
        with pytest.raises(InputError, match="no intact state"):
            write_model_so_far(run, tmp_path / "now")
        (run / "metrics.jsonl").unlink()
        with pytest.raises(InputError, match="checkpoint"):
            write_model_so_far(run, tmp_path / "now")
        assert not (tmp_path / "now").exists()


@pytest.mark.slow
def test_two_processes_make_the_training_of_one(tmp_path):
    recipe = tmp_path / "tiny.toml"
    cfg = config(
        train={"batch_size": 128, "algorithm": "denoising"},
        model={"dim": 16},
        denoising={"class_images": 32, "label_smoothing": 0.1, "colour": 0.1},
        generative={"epochs": 8, "lr": 1e-5, "colour": 0.3},
        guard={"spike": 1.02, "skipped": 1.0},  # many updates are skipped, alike in all processes
    )
    recipe.write_text(recipes.to_toml(cfg))
    for count in (1, 2):
        out = tmp_path / f"{count}"
        finished(gmmc_command("train", recipe, f"train.devices={count}", "--out", out))
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("1", "2"))
    for name, tensor in one.items():
        if name.startswith("backbone"):
            torch.testing.assert_close(tensor, two[name], rtol=1e-4, atol=1e-5)
    for a, b in zip(lines(tmp_path / "1"), lines(tmp_path / "2"), strict=True):
        for name in ("loss", "class_loss", "grad_norm"):
            assert a[name] == pytest.approx(b[name], rel=1e-3)
        assert a["skipped"] == b["skipped"]
    assert sum(line["skipped"] for line in lines(tmp_path / "1")) > 0


@on_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_update_does_not_wait_for_the_gpu(precision):
    train = {"device": "cuda", "precision": precision, "clip": 1.0, "algorithm": "denoising"}
    learner = make_learner(config(train=train, generative={"epochs": 20}), tiny_data())
    for _ in range(10):
        learner.update()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            learner.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
@pytest.mark.parametrize("engine", ["graph", "compiled"])
@pytest.mark.parametrize("backbone", ["smooth-mlp-2-16", "smooth-10-1"])
def test_faster_engines_make_the_same_updates(engine, backbone):
    def course(engine):
        train = {"device": "cuda", "precision": "fp32", "engine": engine, "algorithm": "denoising"}
        cfg = config(train=train, model={"backbone": backbone}, generative={"epochs": 4, "lr": 1e-4})
        learner = make_learner(cfg, tiny_data())
        for _ in range(12):
            learner.update()
        return learner.report()[0]

    plain, fast = course("plain"), course(engine)
    for name in ("loss", "class_loss", "grad_norm"):
        assert fast[name] == pytest.approx(plain[name], rel=0.02)


# --- refusals ---


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"sampler": {"name": "staged"}}, "sampler.name must be heun"),
        ({"denoising": {"class_images": 5}}, "class_images must divide train.batch_size=16"),
        ({"model": {"backbone": "wrn-10-1", "norm": "batch"}}, "does not use model.norm"),
        ({"contrast": {"shift": 1}}, "contrast"),
        ({"objective": {"name": "balanced"}}, "objective"),
        ({"transfer": {"epochs": 1}}, "transfer"),
        ({"train": {"algorithm": "denoising", "fid_every": 1}}, "fid_every"),
        ({"train": {"algorithm": "contrastive"}}, "sampler.name must be staged"),
        (
            {
                "train": {"algorithm": "contrastive"},
                "sampler": {"name": "staged"},
                "denoising": {"h": 0.3},
            },
            r"contrastive does not use \[denoising\]",
        ),
        (
            {"train": {"algorithm": "contrastive"}, "sampler": {"name": "staged", "churn": 3.0}},
            "contrastive does not use sampler.churn",
        ),
        (
            {
                "train": {"algorithm": "contrastive"},
                "sampler": {"name": "staged"},
                "guard": {"rise": 2.0, "energy": 3.0},
            },
            "contrastive does not use guard.rise;",
        ),
        ({"sampler": {"name": "heun", "steps": 50}}, "denoising does not use sampler.steps"),
        ({"buffer": {"size": 50, "reinit": 0.5}}, "denoising does not use buffer.size, buffer.reinit;"),
        ({"guard": {"force": 1.0}}, "denoising does not use guard.force"),
        ({"denoising": {"shift": 8}}, "denoising.shift must be less than the image size 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, sections, message):
    with pytest.raises(InputError, match=message):
        train(config(**sections), tmp_path / "run", tiny_data())
    assert not (tmp_path / "run").exists()


def test_a_recipe_by_denoising_has_defaults_of_its_own():
    """Heun's method takes fewer steps; what a recipe gives is kept, also in a stored recipe."""
    tree = {"train": {"algorithm": "denoising"}, "generative": {"epochs": 1}}
    cfg = recipes.from_dict(tree)
    assert (cfg.sampler.name, cfg.sample.steps) == ("heun", 18)
    assert cfg.evaluate.generation_steps == (12, 18, 35)
    assert recipes.from_dict(tree | {"sample": {"steps": 7}}).sample.steps == 7
    stored = recipes.to_toml(replace(cfg, sample=SampleConfig()))
    assert recipes.from_text(stored).sample.steps == SampleConfig().steps != 18
    assert recipes.from_dict({"generative": {"epochs": 1}}).sample.steps == SampleConfig().steps


def test_every_noise_conditional_model_is_trained_by_an_algorithm_with_noise_levels():
    assert ALGORITHMS.keys() >= schema.NOISE_CONDITIONAL
    for name in ALGORITHMS:
        model = make_model(train={"algorithm": name})
        assert (model.denoising is not None) == (name in schema.NOISE_CONDITIONAL)


# --- train.start ---


class TestStart:
    """A start takes noise levels if, and only if, the recipe's network does."""

    @pytest.fixture
    def runs(self, tmp_path):
        """Runs by their algorithm, with networks of the same names."""
        contrastive = config(
            train={"algorithm": "contrastive"}, sampler={"name": "staged"}, generative={"epochs": 1}
        )
        recipes = {"contrastive": contrastive, "denoising": config(generative={"epochs": 1})}
        for name, cfg in recipes.items():
            train(cfg, tmp_path / name, tiny_data())
        return {name: (tmp_path / name, cfg) for name, cfg in recipes.items()}

    @pytest.mark.parametrize("classes", [3, 2])
    @pytest.mark.parametrize("kinds", [("contrastive", "denoising"), ("denoising", "contrastive")])
    def test_one_of_the_other_kind_is_refused(self, runs, kinds, classes, tmp_path):
        (start, _), (_, cfg) = (runs[kind] for kind in kinds)
        cfg = with_start(cfg, str(start))
        with pytest.raises(InputError, match=rf"train\.algorithm={kinds[1]}.*got {kinds[0]}"):
            train(cfg, tmp_path / "next", tiny_data(classes=classes))
        if classes == 3:
            with pytest.raises(InputError, match=r"train\.algorithm"):
                train(with_start(cfg, ""), tmp_path / "next", tiny_data(), start=model_file.load(start))
        assert not (tmp_path / "next").exists()

    @pytest.mark.parametrize("classes", [3, 2])
    def test_one_trained_by_denoising_is_trained_further(self, runs, classes, tmp_path):
        start, cfg = runs["denoising"]
        model = train(with_start(cfg, str(start)), tmp_path / "next", tiny_data(classes=classes))
        assert model.trained["start"]["updates"] == 4
        assert len(model.class_names) == classes

    def test_pooled_and_spatial_features_are_taken_over_together(self, tmp_path):
        """A start of other classes; the last layers of a smooth network are no linear layer."""
        cfg = config(model={"backbone": "smooth-10-1"}, generative={"epochs": 1})
        train(cfg, tmp_path / "start", tiny_data())
        cfg = with_start(cfg, str(tmp_path / "start"))
        assert train(cfg, tmp_path / "same", tiny_data(classes=2)).dim == 8
        cfg = replace(cfg, model=replace(cfg.model, dim=12))
        with pytest.raises(InputError, match=r"model.dim must be 8 .*got 12"):
            train(cfg, tmp_path / "next", tiny_data(classes=2))

    def test_auto_is_no_model_of_the_other_kind(self):
        images = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
        part = LabelledImages(images, torch.arange(4) % 2)
        data = Dataset(part, part, part, ["a", "b"])
        name, note = choose_start(config(train={"start": "auto"}), data)
        assert name == ""
        assert "denoising" in note


# --- what a trained denoiser must equal ---


def rows(x, labels, names):
    """Vectors in [−1, 1] as a data set."""
    unit = ((x + 1) / 2).float()[:, :, None, None]
    part = LabelledImages(unit, labels)
    return Dataset(part, part[:200], part[:200], names)


def trained_on(x, labels, tmp_path, **sections):
    cfg = config(
        train={
            "algorithm": "denoising",
            "batch_size": 500,
            "ema": 0.998,
            "log_every": 100,
            "checkpoint_seconds": 1e9,
            "valid_every": 1000,
        },
        model={"backbone": "smooth-mlp-3-64", "dim": 16, "scale": 1.0},
        generative={"epochs": 75, "lr": 5e-3, "schedule": "cosine", "noise": 0.0},
        denoising={"unlabelled": 0.1, "noisy_class_weight": 0.3},
        **sections,
    )
    names = [f"class {y}" for y in range(int(labels.max()) + 1)]
    return train(cfg, tmp_path / "run", rows(x, labels, names), silent=True)


def denoised(model, x, sigma):
    """D(x; σ) = x + σ² ∂log p(x; σ)/∂x."""
    unit = ((x + 1) / 2)[:, :, None, None].float().requires_grad_(True)
    log_density = model.at_noise(sigma)(unit).logsumexp(1).sum()
    (by_unit,) = torch.autograd.grad(log_density, unit)
    return x + sigma**2 * by_unit.flatten(1) / 2


@pytest.mark.slow
def test_of_gaussian_data_it_learns_the_posterior_mean(tmp_path):
    source = torch.Generator().manual_seed(0)
    mean, spread = torch.tensor([0.1, -0.1]), torch.tensor([[0.18, 0.0], [0.09, 0.08]])
    x = mean + torch.randn(20_000, 2, generator=source) @ spread.T
    model = trained_on(x, torch.arange(len(x)) % 2, tmp_path)  # classes that mean nothing
    covariance = spread @ spread.T
    for sigma in (0.1, 0.3, 1.0):
        noisy = x[:2000] + sigma * torch.randn(2000, 2, generator=source)
        gain = covariance @ torch.linalg.inv(covariance + sigma**2 * torch.eye(2))
        best = mean + (noisy - mean) @ gain.T
        error = (denoised(model, noisy, sigma) - best).square().mean().sqrt()
        assert error < 0.01, sigma  # the data's standard deviation is 0.15


@pytest.mark.slow
def test_of_a_mixture_it_learns_bayes_rule_at_every_level(tmp_path):
    source = torch.Generator().manual_seed(0)
    centres, width = torch.tensor([[0.4, 0.0], [-0.3, 0.3], [-0.2, -0.4]]), 0.15
    labels = torch.arange(20_001) % 3
    x = centres[labels] + width * torch.randn(len(labels), 2, generator=source)
    model = trained_on(x, labels, tmp_path)
    for sigma in (0.1, 0.3, 0.6):
        noisy = x[:2000] + sigma * torch.randn(2000, 2, generator=source)
        distances = torch.cdist(noisy, centres).square()
        bayes = (-distances / (2 * (width**2 + sigma**2))).softmax(1)
        found = model.at_noise(sigma)(((noisy + 1) / 2)[:, :, None, None]).softmax(1)
        assert (found - bayes).abs().mean() < 0.03, sigma
        gain = width**2 / (width**2 + sigma**2)
        means = centres + gain * (noisy[:, None] - centres)  # of each class
        mean = (bayes[:, :, None] * means).sum(1)
        error = (denoised(model, noisy, sigma) - mean).square().mean().sqrt()
        assert error < 0.01, sigma  # the data's standard deviation is 0.33
