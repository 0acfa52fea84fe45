import json
import math
import threading
from typing import ClassVar

import pytest
import torch

import gmmc.train.loop
from conftest import make_learner, tiny_config, tiny_data
from gmmc.base.progress import Progress
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.pixels import as_unit
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.learner import Learner, epoch_order
from gmmc.train.loop import Loop, health, rollback, train

# Tiny settings that diverge within a few updates, and stay finite.
WILD = {
    "train": {"log_every": 2, "beta": 1.0},
    "discriminative": {"epochs": 2, "lr": 5e-3},
    "generative": {"epochs": 8, "lr": 0.02},
    "sampler": {"alpha": 3.0},
    "guard": {"every": 2},
}


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


class TestVerdict:
    healthy: ClassVar = {"real_energy": 3.0, "sampled_energy": 5.0, "bounded": 0.1}

    def test_a_healthy_line_is_no_trouble(self):
        assert health.trouble(self.healthy, tiny_config()) is None
        assert health.trouble({}, tiny_config()) is None

    @pytest.mark.parametrize(
        "key", ["real_energy", "contrast_energy", "sampled_energy", "grad_norm", "weight_norm"]
    )
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("on", [True, False])
    def test_what_is_not_finite_always_is(self, key, value, on):
        assert "is not finite" in health.trouble({**self.healthy, key: value}, tiny_config(guard={"on": on}))

    def test_divergence_that_stays_finite(self):
        line = {**self.healthy, "real_energy": 201.0}
        assert health.trouble(line, tiny_config()) == "the mean energy of real images is 201, above 200"
        assert health.trouble(line, tiny_config(model={"scale": 20.0})) is None  # in units of S²
        assert health.trouble(line, tiny_config(guard={"energy": 3.0})) is None
        assert health.trouble(line, tiny_config(guard={"on": False})) is None

    def test_divergence_that_a_bound_hides(self):
        line = {**self.healthy, "bounded": 0.51}
        told = health.trouble(line, tiny_config(objective={"shape": "cap", "bound": 30.0}))
        assert told == "51% of the chains have energies of 30 and more"
        assert "100 and more" in health.trouble(line, tiny_config())  # without a cap: S²
        assert health.trouble(line, tiny_config(guard={"bounded": 0.6})) is None

    def test_samples_that_push_too_hard(self):
        line = {**self.healthy, "force_ratio": 10.5}
        assert "push 10.5 times as hard" in health.trouble(line, tiny_config())
        assert health.trouble(line, tiny_config(guard={"force": 11.0})) is None
        young = {"real_energy": 3.0, "sampled_energy": 5.0, "force_ratio": 99.0}
        assert health.trouble(young, tiny_config()) is None  # no settled chains yet
        assert health.trouble({**young, "force_ratio": 101.0}, tiny_config()) is not None

    def test_energies_that_nothing_anchors_may_be_large(self):
        cfg = tiny_config(objective={"name": "balanced", "anchor": 0.0})
        assert health.trouble({"real_energy": 1e6}, cfg) is None
        assert "1e+06 apart" in health.trouble({"real_energy": 1e6, "sampled_energy": 1.0}, cfg)
        assert health.trouble({"real_energy": 1e6}, tiny_config(objective={"name": "balanced"})) is not None

    def test_what_is_not_anchored_has_no_bound_but_a_cap(self):
        loose = {"name": "balanced", "anchor": 0.0}
        assert health.bound(tiny_config()) == 100.0
        assert health.bound(tiny_config(objective=loose)) == math.inf
        assert health.bound(tiny_config(objective={**loose, "shape": "cap", "bound": 7.0})) == 7.0

    def test_of_a_linear_head_only_the_difference_counts(self):
        cfg = tiny_config(model={"head": "linear"}, objective={"name": "balanced"}, sampler={"name": "sgld"})
        assert health.trouble({"real_energy": -1e6, "sampled_energy": -1e6 + 10}, cfg) is None
        assert "201 apart" in health.trouble({"real_energy": -1000.0, "sampled_energy": -799.0}, cfg)


@pytest.mark.parametrize(
    ("steps", "reinit", "visits"), [(20, 0.025, 3), (10, 0.0, 5), (200, 0.1, 1), (2, 0.1, 10), (1, 1.0, 1)]
)
def test_a_chain_is_settled_after_fifty_steps_or_a_mean_life(steps, reinit, visits):
    cfg = tiny_config(sampler={"steps": steps}, buffer={"reinit": reinit})
    assert health.settled_after(cfg) == visits


def test_the_force_ratio_of_each_objective():
    assert health.force_ratio(4.0, 9.0, 0.5, tiny_config()) == pytest.approx(0.75)
    balanced = tiny_config(objective={"name": "balanced", "anchor": 0.0})
    assert health.force_ratio(4.0, 9.0, 0.3, balanced) == pytest.approx(1.5)  # both sides weigh β
    anchored = tiny_config(objective={"name": "balanced", "anchor": 0.3})
    assert health.force_ratio(4.0, 9.0, 0.3, anchored) == pytest.approx(0.75)
    assert health.force_ratio(4.0, -1.0, 0.5, tiny_config()) == 0.0


def test_beyond_a_cap_a_sample_pushes_no_harder():
    meter = health.Meter(torch.device("cpu"))
    real, sampled = torch.full((4,), 4.0), torch.tensor([9.0, 9.0, 1e6, 1e9])
    meter.add(real, None, sampled, real > 0, torch.tensor(1.0), limit=9.0)
    line = health.summary(meter.sums.tolist(), [4.0, 4.0, 0.0, 0.0], tiny_config(), 0.5)
    assert line["sampled_energy"] > 1e8
    assert line["force_ratio"] == pytest.approx(0.75)


def test_the_share_at_the_bound_is_of_settled_chains():
    """Few settled chains give no share: it would say little."""
    meter, energies = health.Meter(torch.device("cpu")), torch.ones(4)
    meter.add(energies, None, energies, energies > 0, torch.tensor(1.0), limit=9.0)
    cfg = tiny_config(train={"batch_size": 16})
    for settled, bounded, share in ((20.0, 5.0, 0.25), (16.0, 0.0, 0.0), (15.0, 5.0, None)):
        census = [80.0, 40.0, settled, bounded]  # visits, chains
        assert health.summary(meter.sums.tolist(), census, cfg, 0.5).get("bounded") == share


def test_samples_are_balanced_against_contrast_images(data):
    """Class images are noise, contrast images clean: both energies are logged, and R follows the latter."""
    cfg = tiny_config(
        objective={"name": "balanced", "anchor": 0.3},
        discriminative={"epochs": 0},
        generative={"noise": 100.0},
        buffer={"chains": 8},
    )
    learner = make_learner(cfg, data)
    expected, count = [], 3
    for _ in range(count):
        order = epoch_order(len(data.train), cfg.train.seed, 0, learner.device)
        clean = data.train[order[16 * learner.step : 16 * learner.step + 8]]  # the first half of a batch
        with torch.no_grad():
            features = learner.model.features(as_unit(clean.images))
            expected.append(learner.model.head.unit_energy(features, clean.labels).mean().item())
        learner.update()
    line, _ = learner.report()
    assert line["contrast_energy"] == pytest.approx(sum(expected) / count, rel=1e-5)
    assert abs(line["contrast_energy"] / line["real_energy"] - 1) > 0.05
    pull = 0.5 + 0.3  # β + anchor
    ratio = line["sampled_energy"] / line["contrast_energy"]
    assert line["force_ratio"] == pytest.approx(0.5 / pull * ratio**0.5)


def test_a_state_without_sums_of_contrast_images_is_restored(data):
    cfg = tiny_config(objective={"name": "balanced"}, discriminative={"epochs": 0})
    before, after = make_learner(cfg, data), make_learner(cfg, data)
    before.update()
    state = before.state()
    line = before.report()[0]
    state.tensors["meter.sums"] = state.tensors["meter.sums"][:8]
    after.update()  # what it has summed itself must go
    after.restore(state)
    restored = after.report()[0]
    assert "contrast_energy" not in restored
    for key in ("real_energy", "sampled_energy", "accuracy", "grad_norm"):
        assert restored[key] == line[key], key
    after.update()
    assert after.report()[0]["contrast_energy"] > 0


def test_looking_does_not_wait_for_the_device_between_lines(data, monkeypatch):
    """An update reads nothing back: .item(), .tolist(), bool() and float() of a tensor would."""
    learner = make_learner(tiny_config(train={"clip": 1.0, "ema": 0.9}), data)
    learner.step = 4

    def forbidden(*_, **__):
        raise AssertionError("an update waited for the device")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    learner.buffer.draw(4, torch.Generator())
    learner.meter.add(*torch.ones(4, 3), torch.ones(()), limit=9.0)
    learner.average.update(learner.model, 3)
    learner.buffer.census(settled_after=1, limit=1.0)


class TestRollingBack:
    def test_it_is_told_recorded_and_leads_to_the_end(self, tmp_path, capsys):
        cfg = tiny_config(**WILD)
        model = train(cfg, tmp_path / "run", tiny_data())
        story = lines(tmp_path / "run")
        events = [line for line in story if line.get("event") == "rollback"]
        assert events
        assert [line["rollbacks"] for line in events] == list(range(1, len(events) + 1))
        assert model.trained["rollbacks"] == len(events)
        for event in events:
            assert event["to"] < event["step"]
            assert event["lowered"]
            assert event["reason"]
        told = [line for line in capsys.readouterr().err.splitlines() if "back to update" in line]
        assert len(told) == len(events)
        assert "sampler.alpha now ×" in told[0]  # too long a step is what is wrong here
        assert story[-1]["step"] == 40
        assert story[-1]["real_energy"] < 200

    def test_the_model_samples_with_the_step_it_was_trained_with(self, tmp_path):
        model = train(tiny_config(**WILD), tmp_path / "run", tiny_data())
        last = [line for line in lines(tmp_path / "run") if "alpha" in line.get("lowered", {})][-1]
        assert model.cfg.sampler.alpha == pytest.approx(3.0 * last["lowered"]["alpha"])
        assert model_file.load(tmp_path / "run").cfg.sampler.alpha == model.cfg.sampler.alpha
        assert (
            train(tiny_config(**WILD), tmp_path / "run", tiny_data()).trained["rollbacks"] > 0
        )  # not refused

    def test_without_the_guard_the_same_settings_are_ruined(self, tmp_path):
        cfg = tiny_config(**{**WILD, "guard": {"on": False}})
        train(cfg, tmp_path / "run", tiny_data())
        assert lines(tmp_path / "run")[-1]["real_energy"] > 200

    def test_it_is_deterministic(self, tmp_path):
        a, b = (train(tiny_config(**WILD), tmp_path / name, tiny_data()) for name in "ab")
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            assert torch.equal(p, q)

    def test_a_state_comes_back_whole(self, data):
        learner = make_learner(tiny_config(train={"ema": 0.9}), data)
        for _ in range(6):
            learner.update()
        good = learner.state()
        with torch.no_grad():
            for tensor in [*learner.model.parameters(), *learner.average.model.parameters()]:
                tensor.fill_(math.nan)
        learner.buffer.images.fill_(math.nan)
        learner.step = 9
        done = rollback.roll_back(learner, good, failed=0)
        assert learner.step == done["to"] == 6
        for name, tensor in learner.state().tensors.items():
            assert torch.equal(tensor, good.tensors[name]), name
        assert torch.equal(learner.buffer.images, good.shard["buffer.images"])
        learner.update()  # and the state is a copy: going on does not change it
        assert not torch.equal(learner.buffer.images, good.shard["buffer.images"])
        assert good.tensors["optimizer.0.step"] == 6
        assert learner.updater.optimizer.state_dict()["state"][0]["step"] == 7

    def test_what_is_lowered_when(self, data):
        """A cap, and α if a shorter one brings chains further down; then β; without samples the rate."""
        for alpha, first, second in ((1000.0, ["alpha"], ["alpha"]), (1e-4, [], ["beta"])):
            learner = make_learner(tiny_config(sampler={"alpha": alpha}), data)
            for _ in range(6):
                learner.update()
            good = learner.state()
            done = rollback.roll_back(learner, good, failed=0)
            assert done["capped"]
            assert list(done["lowered"]) == first
            learner.step = 6
            learner.pace["alpha"] = 1.0
            assert list(rollback.roll_back(learner, good, failed=0)["lowered"]) == second
            learner.step = 6
            assert list(rollback.roll_back(learner, good, failed=1)["lowered"]) == ["alpha", "beta"]
            learner.step = 6
            assert list(rollback.roll_back(learner, good, failed=2)["lowered"]) == ["alpha", "beta", "lr"]
            assert learner.rollbacks == 4
        learner = make_learner(tiny_config(), data)
        learner.update()
        done = rollback.roll_back(learner, learner.state(), failed=0)
        assert done["lowered"] == {"lr": 0.5}
        assert not done["capped"]

    def test_under_the_huber_shape_the_rate_is_lowered_and_nothing_capped(self, data):
        cfg = tiny_config(objective={"name": "balanced", "shape": "huber"}, sampler={"alpha": 1e-4})
        learner = make_learner(cfg, data)
        for _ in range(6):
            learner.update()
        good = learner.state()
        done = rollback.roll_back(learner, good, failed=0)
        assert (done["capped"], done["lowered"]) == (False, {"lr": 0.5})
        learner.step = 6
        assert list(rollback.roll_back(learner, good, failed=1)["lowered"]) == ["alpha", "beta", "lr"]

    def test_a_capped_learner_does_not_push_far_chains(self, data):
        gradients = []
        for capped in (False, True):
            learner = make_learner(tiny_config(model={"scale": 0.01}), data)  # all are beyond S²
            learner.step, learner.capped = 5, capped
            learner.update()
            gradients.append(learner.report()[0]["grad_norm"])
            assert learner.updater.loss.limit == (1e-4 if capped else math.inf)
        assert gradients[0] != gradients[1]
        alone = make_learner(tiny_config(model={"scale": 0.01}, train={"beta": 0.0}), data)
        alone.step = 5
        alone.update()
        assert gradients[1] == pytest.approx(alone.report()[0]["grad_norm"], rel=1e-5)

    def test_a_rollback_is_not_forgotten_for_a_later_state(self, tmp_path):
        """What was saved on the course that diverged must not be gone on with."""
        cfg = tiny_config(**{**WILD, "train": {"log_every": 2, "beta": 1.0, "checkpoint_seconds": 0.0}})
        learner = make_learner(cfg, tiny_data())
        folder = RunFolder(tmp_path / "run")
        with folder.opened_for(cfg), Progress("", 1) as bar:
            loop = Loop(learner, folder, bar, threading.Event())
            loop.begin(None, [])
            for _ in range(12):
                learner.update()
            loop.save()
            loop.recover({"step": 12}, "trouble")
            state, _ = folder.load_state()
        assert state.step == 0
        assert state.info["rollbacks"] == 1
        assert state.info["trouble_at"] == 12

    def test_lowered_steps_are_used(self, data):
        learner = make_learner(tiny_config(), data)
        learner.step = 5
        learner.pace.update(lr=0.25, beta=0.5)
        learner.update()
        assert learner.updater.optimizer.param_groups[0]["lr"] == pytest.approx(0.25e-3)
        assert learner.report()[0]["beta"] == 0.25

    def test_far_chains_are_dropped(self, data):
        learner = make_learner(tiny_config(), data)
        learner.step = 4
        learner.update()
        learner.buffer.visits.fill_(3)
        learner.buffer.energies.fill_(1.0)
        learner.buffer.energies[:7] = 100.0
        assert rollback.roll_back(learner, learner.state(), failed=0)["dropped"] == 7


class TestGivingUp:
    cfg = tiny_config(**{**WILD, "guard": {"every": 2, "rollbacks": 1, "energy": 0.45}})  # nothing will do

    def test_the_last_good_weights_are_left(self, tmp_path):
        with pytest.raises(
            Diverged, match=r"diverged at update \d+ after 1 rollbacks: the mean energy .* in a new"
        ):
            train(self.cfg, tmp_path / "run", tiny_data())
        assert not (tmp_path / "run" / "model.safetensors").exists()
        model = model_file.load(tmp_path / "run" / "last-good.safetensors")
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        assert 0 < model.head.gamma2 < math.inf
        state, complaints = RunFolder(tmp_path / "run").load_state()
        assert not complaints
        assert state.step == model.trained["updates"]
        assert lines(tmp_path / "run")[-1]["event"] == "diverged"

    def test_the_same_command_ends_the_same_way(self, tmp_path):
        for _ in range(2):
            with pytest.raises(Diverged):
                train(self.cfg, tmp_path / "run", tiny_data())
        counts = [line.get("event") for line in lines(tmp_path / "run")].count("diverged")
        assert counts == 1

    def test_what_to_do_is_told_by_the_other_commands(self, tmp_path):
        with pytest.raises(Diverged):
            train(self.cfg, tmp_path / "run", tiny_data())
        with pytest.raises(
            InputError, match=r"diverged and has no finished model; its last good weights are"
        ):
            model_file.load(tmp_path / "run")

    def test_not_a_number_is_never_saved_nor_written(self, tmp_path, monkeypatch):
        update = Learner.update

        def poisoned(learner):
            update(learner)
            if learner.step == 7:
                with torch.no_grad():
                    next(learner.model.parameters()).fill_(math.nan)

        monkeypatch.setattr(Learner, "update", poisoned)
        cfg = tiny_config(guard={"rollbacks": 2}, train={"checkpoint_seconds": 0.0})
        with pytest.raises(Diverged, match="is not finite"):
            train(cfg, tmp_path / "run", tiny_data())
        assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
        state, _ = RunFolder(tmp_path / "run").load_state()
        assert all(t.isfinite().all() for name, t in state.tensors.items() if name.startswith("model"))


def test_an_interrupt_does_not_save_a_diverged_state(tmp_path, data):
    learner = make_learner(tiny_config(), data)
    folder = RunFolder(tmp_path / "run")
    stop = threading.Event()
    with folder.opened_for(learner.cfg), Progress("", 1) as bar:
        loop = Loop(learner, folder, bar, stop)
        loop.begin(None, [])
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1e6)
        learner.update()
        with pytest.raises(Interrupted):
            loop.interrupt()
        assert folder.load_state()[0].step == 0


def test_rollbacks_and_pace_survive_a_resume(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    cfg = tiny_config(**{**WILD, "train": {"log_every": 2, "beta": 1.0, "checkpoint_seconds": 0.0}})
    update, updates = Learner.update, 0

    def killed(learner):
        nonlocal updates
        updates += 1
        if learner.rollbacks and learner.step > 14:
            raise Killed
        update(learner)

    with monkeypatch.context() as patch:
        patch.setattr(gmmc.train.loop.Learner, "update", killed)
        with pytest.raises(Killed):
            train(cfg, tmp_path / "run", tiny_data())
    state, _ = RunFolder(tmp_path / "run").load_state()
    assert state.info["rollbacks"] > 0
    model = train(cfg, tmp_path / "run", tiny_data())
    assert model.trained["rollbacks"] >= state.info["rollbacks"]
    assert model.cfg.sampler.alpha < 3.0


def test_a_model_at_chance_is_not_passed_off_as_a_success(tmp_path, capsys):
    cfg = tiny_config(
        train={"batch_size": 128}, discriminative={"epochs": 1, "lr": 1e-9}, generative={"epochs": 0}
    )
    train(cfg, tmp_path / "run", tiny_data(classes=8, count=512))
    assert "hardly better than chance" in capsys.readouterr().err
