import pytest
import torch

from gmmc.buffer import ReplayBuffer


def make(size=50, reinit=0.0, priors=(0.2, 0.2, 0.2, 0.2, 0.2), seed=0):
    source = torch.Generator().manual_seed(seed)
    return ReplayBuffer(size, (1, 8, 8), torch.tensor(priors), reinit=reinit, generator=source), source


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
        slots, _, _ = buffer.draw(30, source)
        assert len(slots.unique()) == 30


def test_without_reinitialisation_it_gives_back_what_was_put():
    buffer, source = make()
    slots, x, y = buffer.draw(50, source)
    assert torch.equal(x, buffer.images[slots].float())
    buffer.put(slots, x * 0.5, (y + 1) % 5)
    again, x_again, y_again = buffer.draw(50, source)
    order, order_again = slots.argsort(), again.argsort()
    assert torch.allclose(x_again[order_again], x[order] * 0.5, atol=1e-3)
    assert torch.equal(y_again[order_again], (y[order] + 1) % 5)


@pytest.mark.parametrize("reinit", [0.1, 0.5, 1.0])
def test_the_share_of_fresh_chains(reinit):
    buffer, source = make(size=4000, reinit=reinit)
    buffer.images.fill_(0.5)
    _, x, y = buffer.draw(4000, source)
    fresh = (x != 0.5).flatten(1).any(1)
    assert fresh.float().mean().item() == pytest.approx(reinit, abs=4 * (reinit * (1 - reinit) / 4000) ** 0.5)
    assert torch.allclose(y[fresh].bincount(minlength=5) / fresh.sum(), torch.tensor(0.2), atol=0.1)


def test_small_moves_survive_storage():
    buffer, source = make()
    slots, x, y = buffer.draw(10, source)
    moved = (x * 0.9 + 1.5e-3).clamp(-1, 1)  # the size of a late sampler step
    buffer.put(slots, moved, y)
    assert (buffer.images[slots].float() - moved).abs().max() < 5e-4


def test_state_round_trip():
    buffer, source = make()
    slots, x, y = buffer.draw(20, source)
    buffer.put(slots, x * 0.3, y)
    other, _ = make(seed=1)
    other.load_state_dict({name: tensor.clone() for name, tensor in buffer.state_dict().items()})
    assert torch.equal(other.images, buffer.images)
    assert torch.equal(other.labels, buffer.labels)
