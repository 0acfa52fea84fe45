"""Where a training that diverges goes back to, and what it takes along."""

import gc
import math
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from conftest import make_learner, tiny_config
from gmmc.base.progress import Progress
from gmmc.runs.folder import RunFolder
from gmmc.train.loop import Loop, rollback

LONG = {
    "train": {"beta": 0.5, "log_every": 1},
    "discriminative": {"epochs": 2},
    "generative": {"epochs": 8},
    "guard": {"every": 2, "rollbacks": 9},
}
PHASE_END = 8  # 64 images in batches of 16, two epochs


@contextmanager
def begun(folder, data, state=None, **sections):
    """A loop that has made no update, from the start or from a saved state."""
    learner = make_learner(tiny_config(**{**LONG, **sections}), data)
    place = RunFolder(folder)
    with place.opened_for(learner.cfg), Progress("", 1, silent=True) as bar:
        loop = Loop(learner, place, bar, threading.Event())
        loop.begin(state, [])
        yield loop


def go_on(loop, updates):
    """Healthy updates, each with its line."""
    for _ in range(updates):
        loop.learner.update()
        loop.log(loop.learner.report()[0])
        loop.learner.meter.reset()
        loop.remember()


def diverge(loop, after=1):
    """Updates without a line, then trouble; the update that training is back at."""
    for _ in range(after):
        loop.learner.update()
    loop.recover(loop.learner.report()[0], "trouble")
    return loop.learner.step


class TestHowFar:
    def test_good_states_lie_the_stated_number_of_updates_apart(self, tmp_path, data):
        with begun(tmp_path / "run", data, guard={"every": 3}) as loop:
            go_on(loop, 1)
            assert [state.step for state in loop.good] == [0]
            go_on(loop, 6)
            assert [state.step for state in loop.good] == [3, 6]

    def test_the_first_time_to_the_last_good_state_and_then_to_the_one_before(self, tmp_path, data):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 5)
            assert [state.step for state in loop.good] == [10, 12]
            assert diverge(loop) == 12
            assert diverge(loop, after=2) == 10  # it was no help
            assert diverge(loop, after=3) == 10  # there is none before
            assert loop.failed == 2

    def test_past_the_trouble_the_next_one_is_a_first(self, tmp_path, data):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 4)
            assert diverge(loop, after=2) == 12
            assert loop.trouble_at == 14
            go_on(loop, 6)
            assert diverge(loop) == 18
            assert loop.failed == 0

    def test_short_of_the_trouble_the_next_one_is_a_failure(self, tmp_path, data):
        """Good states that were reached again, but not beyond the place of the trouble."""
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 4)
            assert diverge(loop, after=8) == 12
            go_on(loop, 4)
            assert diverge(loop) == 14
            assert (loop.failed, loop.trouble_at) == (1, 20)

    def test_never_into_the_phase_before(self, tmp_path, data):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END)
            assert [state.step for state in loop.good] == [PHASE_END]
            go_on(loop, 1)
            assert diverge(loop) == PHASE_END
            assert diverge(loop) == PHASE_END

    def test_a_resumed_training_counts_failures_on(self, tmp_path, data):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 4)
            diverge(loop, after=3)
            diverge(loop)
            known = loop.failed, loop.trouble_at
            state, _ = loop.folder.load_state()
        assert known == (1, 15)
        with begun(tmp_path / "run", data, state) as again:
            assert (again.failed, again.trouble_at) == known


class TestSavedGoodStates:
    """Where a training was killed and resumed, the guard goes back as if it had not been."""

    def killed_after(self, loop, monkeypatch, writes):
        """Let the folder write so many more states, then none."""
        save, left = loop.folder.save_state, [writes]

        def write(*arguments):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            save(*arguments)

        monkeypatch.setattr(loop.folder, "save_state", write)

    @pytest.mark.parametrize("writes", [0, 1, 2, 3])
    def test_a_kill_between_the_writes_of_a_rollback_changes_nothing(
        self, tmp_path, data, monkeypatch, writes
    ):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 4)
            assert [state.step for state in loop.good] == [10, 12]
            go_on(loop, 1)
            with monkeypatch.context() as patch:
                self.killed_after(loop, patch, writes)
                try:
                    diverge(loop)
                    finished = True
                except KeyboardInterrupt:
                    finished = False
            state, _ = loop.folder.load_state()
        assert finished == (writes >= 2)  # the older good state, and the one that was rolled back to
        with begun(tmp_path / "run", data, state) as again:
            if not finished:
                go_on(again, PHASE_END + 5 - again.learner.step)
                assert diverge(again) == 12
            assert (again.learner.step, again.failed, again.trouble_at) == (12, 0, 14)
            assert [good.step for good in again.good] == [10, 12]
            assert diverge(again, after=2) == 10

    def test_what_is_on_disk_is_not_kept_in_memory(self, tmp_path, data):
        with begun(tmp_path / "run", data) as loop:
            go_on(loop, PHASE_END + 4)
            old = [weakref.ref(state) for state in loop.good]
            loop.save()
            go_on(loop, 4)
            gc.collect()
            assert [state.step for state in loop.good] == [14, 16]
            assert [reference() for reference in old] == [None, None]


@pytest.mark.parametrize(
    ("interval", "saving", "waited", "due"),
    [
        (60.0, 0.1, 50, False),
        (60.0, 0.1, 70, True),
        (60.0, 3.0, 70, False),
        (60.0, 3.0, 160, True),
        (0.0, 3.0, 0, True),
        (60.0, 1000.0, 610, True),  # a write that stalled
    ],
)
def test_saving_takes_a_small_share_of_the_time(tmp_path, data, monkeypatch, interval, saving, waited, due):
    """Two in a hundred seconds, unless every good state is to be saved."""
    with begun(tmp_path / "run", data, train={"checkpoint_seconds": interval}) as loop:
        assert loop.saving_seconds > 0  # of the first state
        loop.saving_seconds = saving
        now = loop.saved_at + waited
        with monkeypatch.context() as clock:
            clock.setattr("gmmc.train.loop.time", SimpleNamespace(monotonic=lambda: now))
            assert loop._save_is_due() is due


class TestChains:
    def learner(self, data):
        learner = make_learner(tiny_config(discriminative={"epochs": 0}), data)
        for _ in range(4):
            learner.update()
        learner.buffer.energies.fill_(1.0)
        learner.buffer.visits.fill_(3)
        return learner

    def test_those_of_the_course_that_diverged_are_forgotten(self, data):
        learner = self.learner(data)
        good = learner.state()
        learner.buffer.images.fill_(0.25)
        learner.buffer.labels.fill_(0)
        rollback.roll_back(learner, good, failed=0)
        for name, tensor in learner.buffer.state_dict().items():
            assert torch.equal(tensor, good.shard[f"buffer.{name}"]), name

    def test_those_beyond_the_bound_and_those_that_led_to_the_trouble_start_again(self, data):
        learner = self.learner(data)
        learner.buffer.energies[:3] = 200.0  # beyond the bound in the good state already
        good = learner.state()
        learner.buffer.energies[5:7] = 1e9  # beyond it, and far above the others, when it diverged
        learner.buffer.energies[7:9] = 150.0  # dragged along
        assert rollback.roll_back(learner, good, failed=0)["dropped"] == 5
        moved = (learner.buffer.images != good.shard["buffer.images"]).flatten(1).any(1)
        expected = [0, 1, 2, 5, 6]
        assert moved.nonzero().flatten().tolist() == expected
        assert (learner.buffer.visits == 0).nonzero().flatten().tolist() == expected
        assert learner.buffer.energies[expected].tolist() == [0.0] * 5

    def test_those_that_start_again_differ_from_one_rollback_to_the_next(self, data):
        learner = self.learner(data)
        learner.buffer.energies[:3] = 200.0
        good, images = learner.state(), []
        for _ in range(3):
            rollback.roll_back(learner, good, failed=0)
            images.append(learner.buffer.images[:3].clone())
        assert not any(torch.equal(images[i], images[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(
    ("energies", "best"),
    [
        ({1.0: [4.0] * 8, 0.5: [3.0] * 8, 0.25: [5.0] * 8}, 0.5),
        ({1.0: [1.0] * 63 + [1e9], 0.5: [2.0] * 64}, 1.0),  # one chain that climbs counts for one
        ({1.0: [4.0, 4.0], 0.5: [4.0, math.inf]}, 1.0),
    ],
)
def test_the_sampler_step_that_brings_most_chains_down(energies, best):
    """A learner whose chains have these energies after a walk with each factor on α; later ones rise."""

    def move(drawn, pace):
        return torch.tensor(energies.get(pace, [50.0] * len(energies[1.0])))

    head = SimpleNamespace(means=torch.zeros(1), unit_energy=lambda features, labels: features)
    stub = SimpleNamespace(
        buffer=SimpleNamespace(draw=lambda *_: SimpleNamespace(labels=None)),
        model=SimpleNamespace(backbone=nn.Identity(), head=head),
        source=lambda *_: None,
        over_processes=lambda total: total,
        chains=1,
        step=0,
        rollbacks=0,
        pace={"alpha": 1.0},
        move=move,
    )
    assert rollback.best_alpha_pace(stub) == best
