import pytest
import torch

from gmmc.buffer import ReplayBuffer, check_quotas
from gmmc.errors import InputError
from gmmc.starts import UniformStart


def make(size=50, reinit=0.0, priors=(0.2, 0.2, 0.2, 0.2, 0.2), seed=0):
    source = torch.Generator().manual_seed(seed)
    start = UniformStart((1, 8, 8))
    return ReplayBuffer(size, start, torch.tensor(priors), reinit=reinit, generator=source), source


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


def test_small_moves_survive_storage():
    buffer, source = make()
    drawn = buffer.draw(10, source)
    moved = (drawn.images * 0.9 + 1.5e-3).clamp(-1, 1)  # the size of a late sampler step
    buffer.put(drawn, moved, torch.zeros(10))
    assert (buffer.images[drawn.slots].float() - moved).abs().max() < 5e-4


@pytest.mark.parametrize("reinit", [0.0, 0.5])
def test_chains_of_the_labels_of_a_batch(reinit):
    buffer, source = make(reinit=reinit)
    wanted = torch.tensor([3, 0, 3, 3, 4, 0, 3, 3, 3, 3, 3, 3])  # ten of a class that has ten
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


def test_state_round_trip():
    buffer, source = make()
    drawn = buffer.draw(20, source)
    buffer.put(drawn, drawn.images * 0.3, torch.rand(20))
    other, _ = make(seed=1)
    other.load_state_dict({name: tensor.clone() for name, tensor in buffer.state_dict().items()})
    for name, tensor in buffer.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
