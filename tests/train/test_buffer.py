from functools import partial

import pytest
import torch

from conftest import tiny_data
from gmmc.errors import InputError
from gmmc.sampling.initial import GaussianStart, UniformStart
from gmmc.train.buffer import ReplayBuffer, check_quotas
from gmmc.train.memory import OnDevice, OnHost

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def make(size=50, reinit=0.0, priors=(0.2, 0.2, 0.2, 0.2, 0.2), seed=0, device="cpu", start=None, kind=None):
    source = torch.Generator(device).manual_seed(seed)
    start = start or UniformStart((1, 8, 8))
    priors = torch.tensor(priors, device=device)
    place = partial(kind, device=device) if kind else None
    return ReplayBuffer(size, start, priors, reinit=reinit, generator=source, place=place), source


def gaussian_start(device):
    start = GaussianStart((1, 8, 8), 5, 4)
    start.fit(tiny_data(classes=5).train)
    return start.to(device)


def assert_equal_states(one, other):
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor.cpu(), other.state_dict()[name].cpu()), name


def test_it_starts_with_noise_and_every_class_has_its_share():
    buffer, _ = make()
    assert buffer.labels.bincount().tolist() == [10] * 5
    assert buffer.images.dtype == torch.float16
    assert -1 <= buffer.images.min() < -0.9
    assert 0.9 < buffer.images.max() <= 1
    uneven, _ = make(priors=(0.5, 0.3, 0.1, 0.06, 0.04))
    assert uneven.labels.bincount().tolist() == [25, 15, 5, 3, 2]


def test_no_slot_is_drawn_twice_in_a_batch():
    buffer, source = make()
    for _ in range(20):
        assert len(buffer.draw(30, source).slots.unique()) == 30


def test_without_reinitialisation_it_gives_back_what_was_put():
    buffer, source = make()
    drawn = buffer.draw(50, source)
    assert torch.equal(drawn.images, buffer.images[drawn.slots].float())
    buffer.put(drawn, drawn.images * 0.5, torch.arange(50.0))
    again = buffer.draw(50, source)
    order, order_again = drawn.slots.argsort(), again.slots.argsort()
    assert torch.allclose(again.images[order_again], drawn.images[order] * 0.5, atol=1e-3)
    assert torch.equal(again.labels[order_again], drawn.labels[order])
    assert torch.equal(buffer.energies[drawn.slots], torch.arange(50.0))


@pytest.mark.parametrize("reinit", [0.1, 0.5, 1.0])
def test_the_share_of_fresh_chains(reinit):
    buffer, source = make(size=4000, reinit=reinit)
    buffer.images.fill_(0.5)
    buffer.visits.fill_(7)
    drawn = buffer.draw(4000, source)
    fresh = (drawn.images != 0.5).flatten(1).any(1)
    assert fresh.float().mean().item() == pytest.approx(reinit, abs=4 * (reinit * (1 - reinit) / 4000) ** 0.5)
    shares = drawn.labels[fresh].bincount(minlength=5) / fresh.sum()
    assert torch.allclose(shares, torch.tensor(0.2), atol=0.1)
    assert torch.equal(drawn.visits, torch.where(fresh, 0, 7).int())


def test_a_fresh_chain_has_a_label_of_its_own_starts_as_that_class_and_keeps_it():
    start = gaussian_start("cpu")
    buffer, source = make(size=1000, reinit=1.0, start=start)
    before = buffer.labels.clone()
    drawn = buffer.draw(1000, source)
    same = (drawn.labels == before[drawn.slots]).float().mean().item()
    assert same == pytest.approx(0.2, abs=0.06)  # five classes, drawn whatever the slot held
    levels = [drawn.images[drawn.labels == y].mean().item() for y in range(5)]
    assert levels == sorted(levels)  # brightness tells the class
    assert levels[4] - levels[0] > 0.5
    buffer.put(drawn, drawn.images, torch.zeros(1000))
    assert torch.equal(buffer.labels[drawn.slots], drawn.labels)


def test_a_slot_is_of_its_class_whatever_the_random_number(monkeypatch):
    """The largest number below 1 must not round a label up to the next class."""
    buffer, source = make(size=6, priors=(0.25, 0.25, 0.5))
    buffer.labels.copy_(torch.tensor([2, 2, 0, 1, 2, 1]))
    numbers = torch.tensor([0.0, 0.0, 0.5, 1 - 2**-24, 0.0, 0.5])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: numbers)
    labels = torch.tensor([1, 1, 2, 2, 2, 0])
    slots = buffer._slots_of(labels, source)
    assert torch.equal(buffer.labels[slots], labels)
    assert sorted(slots.tolist()) == list(range(6))


def test_slots_of_a_class_are_drawn_in_any_order():
    buffer, source = make(size=60)
    drawn = [tuple(buffer.draw(5, source, torch.arange(5)).slots.tolist()) for _ in range(20)]
    assert len(set(drawn)) > 15
    assert len({slot for slots in drawn for slot in slots}) > 40


def test_small_moves_survive_storage():
    buffer, source = make()
    drawn = buffer.draw(10, source)
    moved = (drawn.images * 0.9 + 1.5e-3).clamp(-1, 1)  # the size of a late sampler step
    buffer.put(drawn, moved, torch.zeros(10))
    assert (buffer.images[drawn.slots].float() - moved).abs().max() < 5e-4


@pytest.mark.parametrize("reinit", [0.0, 0.5])
def test_chains_of_the_labels_of_a_batch(reinit):
    buffer, source = make(reinit=reinit)
    wanted = torch.tensor([3, 0, 3, 3, 4, 0, 3, 3, 3, 3, 3, 3, 3])
    assert (wanted == 3).sum() == (buffer.labels == 3).sum() == 10  # all chains of a class
    for _ in range(20):
        drawn = buffer.draw(len(wanted), source, wanted)
        assert torch.equal(drawn.labels, wanted)
        assert torch.equal(buffer.labels[drawn.slots], wanted)
        assert len(drawn.slots.unique()) == len(wanted)
        buffer.put(drawn, drawn.images, torch.zeros(len(wanted)))
    assert buffer.labels.bincount().tolist() == [10] * 5
    assert (buffer.draw(10, source, torch.arange(5).repeat(2)).slots != drawn.slots[:10]).any()


def test_too_few_chains_of_a_class_are_refused():
    check_quotas(50, 10, torch.full((5,), 0.2))
    check_quotas(6400, 64, torch.full((100,), 0.01))
    with pytest.raises(InputError, match="a whole batch of 11 among the chains of every class, got 10 of 50"):
        check_quotas(50, 11, torch.full((5,), 0.2))


def test_far_chains_start_anew_and_only_they():
    buffer, source = make()
    drawn = buffer.draw(50, source)
    energies = torch.ones(50)
    energies[3], energies[7], energies[9] = 100.0, float("nan"), float("inf")
    buffer.put(drawn, torch.zeros(50, 1, 8, 8), energies)
    far = buffer.beyond(100.0)
    assert far.sum() == 3
    buffer.start_anew(far, source)
    restarted = (buffer.images != 0).flatten(1).any(1)
    assert sorted(restarted.nonzero().flatten().tolist()) == sorted(drawn.slots[[3, 7, 9]].tolist())
    assert torch.equal(buffer.visits == 0, restarted)
    assert buffer.energies.isfinite().all()
    assert not buffer.beyond(100.0).any()
    assert buffer.labels.bincount().tolist() == [10] * 5


def test_offenders_are_the_few_that_outdo_the_others():
    buffer, _ = make()
    buffer.visits.fill_(1)
    buffer.energies.copy_(torch.linspace(1e4, 2e4, 50))  # all are far in a network that has blown up
    buffer.energies[7], buffer.energies[9] = 1e9, float("nan")
    assert buffer.beyond(100.0).all()
    assert buffer.offenders(100.0).nonzero().flatten().tolist() == [7, 9]


def test_the_census_counts_settled_chains_only():
    buffer, _ = make()
    buffer.visits[:20] = 5
    buffer.visits[20:30] = 4
    buffer.energies[:5] = 100.0
    buffer.energies[25:30] = 1e9
    assert buffer.census(settled_after=5, limit=100.0).tolist() == [140, 50, 20, 5]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [OnDevice, OnHost])
def test_state_round_trip(device, kind):
    buffer, source = make(device=device, kind=kind)
    drawn = buffer.draw(20, source)
    buffer.put(drawn, drawn.images * 0.3, torch.rand(20, device=device))
    saved = {name: tensor.clone() for name, tensor in buffer.state_dict().items()}
    for other_kind in (OnDevice, OnHost):
        other, _ = make(seed=1, device=device, kind=other_kind)
        again = other.draw(20, source)
        other.put(again, again.images, torch.zeros(20, device=device))  # is not to come after the restored
        other.load_state_dict(saved)
        assert_equal_states(buffer, other)


# --- chains on the device and in host memory ---


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gaussian", [False, True])
def test_chains_are_the_same_wherever_they_lie(device, gaussian):
    start = gaussian_start(device) if gaussian else None
    buffers = [make(reinit=0.2, device=device, start=start, kind=kind) for kind in (OnDevice, OnHost)]
    (near, _), (far, _) = buffers
    assert (near.images.device.type, far.images.device.type) == (device, "cpu")
    assert_equal_states(near, far)
    for step in range(12):
        labels = torch.arange(10, device=device) % 5 if step % 2 else None
        drawn = []
        for buffer, source in buffers:
            drawn.append(buffer.draw(10, source, labels))
            energies = torch.arange(10.0, device=device) * step
            buffer.put(drawn[-1], (drawn[-1].images * 0.9 + 0.01).clamp(-1, 1), energies)
            if step % 4 == 3:
                buffer.start_anew(buffer.beyond(50.0), source)
        assert drawn[0].images.device == drawn[1].images.device == near.device
        for name in ("slots", "images", "labels", "visits"):
            assert torch.equal(getattr(drawn[0], name), getattr(drawn[1], name)), name
    assert_equal_states(near, far)
    assert torch.equal(near.census(settled_after=2, limit=50.0), far.census(settled_after=2, limit=50.0))
    assert near.visits.max() > 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_table_in_host_memory_is_never_whole_on_the_device(device, monkeypatch):
    monkeypatch.setattr("gmmc.train.buffer.ROWS_AT_ONCE", 16)

    class Watched(UniformStart):
        counts = ()

        def forward(self, labels, noise):
            self.counts += (len(labels),)
            return super().forward(labels, noise)

    start = Watched((1, 8, 8))
    buffer, source = make(device=device, start=start, kind=OnHost)
    assert start.counts == (16, 16, 16, 2)
    assert len(buffer.images.flatten(1).unique(dim=0)) == 50  # all filled, and each with its own noise
    assert 0.9 < buffer.images.abs().max() <= 1

    before = buffer.images.clone()
    chosen = torch.zeros(50, dtype=torch.bool, device=device)
    chosen[[0, 15, 16, 49]] = True
    buffer.start_anew(chosen, source)
    assert start.counts == 2 * (16, 16, 16, 2)
    changed = (buffer.images != before).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [0, 15, 16, 49]


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("with_labels", [False, True])
def test_on_a_gpu_drawing_and_putting_wait_for_nothing(with_labels):
    buffer, source = make(reinit=0.2, device="cuda")
    labels = torch.arange(10, device="cuda") % 5 if with_labels else None
    energies = torch.zeros(10, device="cuda")
    buffer.put(
        buffer.draw(10, source, labels), torch.zeros(10, 1, 8, 8, device="cuda"), energies
    )  # loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = buffer.draw(10, source, labels)
        buffer.put(drawn, drawn.images, energies)
    finally:
        torch.cuda.set_sync_debug_mode("default")
