import numpy as np
import pytest
import torch
from scipy.fft import dctn

from conftest import tiny_data
from gmmc.sampling.initial import GaussianStart, UniformStart
from gmmc.sampling.samplers import BatchNoise, SeededNoise


def noise(count, seed=0):
    return BatchNoise(count, torch.Generator().manual_seed(seed))


def test_uniform_starts_fill_the_box():
    x = UniformStart((3, 8, 9))(torch.zeros(500, dtype=torch.long), noise(500))
    assert x.shape == (500, 3, 8, 9)
    assert x.mean().abs() < 0.01
    assert x.var().item() == pytest.approx(1 / 3, rel=0.02)


def dim_images(count=40, classes=2):
    """Correlated pixels well inside the box, so that clamping does not change their law."""
    data = tiny_data(classes=classes, count=count)
    images = (data.train.images.float() * 0.3 + 90).to(torch.uint8)
    images[:, :, 1:] = images[:, :, :-1]  # rows repeat the row above
    return type(data.train)(images, data.train.labels)


@pytest.mark.parametrize("rank", [64, 200])
def test_with_enough_directions_the_law_is_that_of_the_class(rank):
    """Mean and covariance of starts = mean and covariance of the class's pixels, by torch.cov."""
    images = dim_images()
    start = GaussianStart((1, 8, 8), 2, rank)
    start.fit(images)
    count = 40_000
    for y in range(2):
        pixels = images.images[images.labels == y].float().flatten(1) / 127.5 - 1
        x = start(torch.full((count,), y), noise(count, seed=y)).flatten(1)
        assert torch.allclose(x.mean(0), pixels.mean(0), atol=4 * pixels.std(0).max().item() / count**0.5)
        expected = torch.cov(pixels.T)
        assert torch.allclose(torch.cov(x.T), expected, atol=0.05 * expected.abs().max().item())


@pytest.mark.parametrize(("rank", "detail"), [(3, 0), (3, 4), (64, 4), (1, 1), (5, 100)])
def test_with_few_directions_each_cosine_keeps_its_variance(rank, detail):
    """By scipy's DCT: the law of a start is that of the class but for correlations it has no room for."""
    images = dim_images()
    start = GaussianStart((1, 8, 8), 2, rank, detail)
    start.fit(images)
    pixels = images.images[images.labels == 1].double() / 127.5 - 1
    x = start(torch.ones(40_000, dtype=torch.long), noise(40_000))
    drawn, real = (dctn(i.numpy(), axes=(1, 2, 3), norm="ortho") for i in (x, pixels))
    assert drawn.var(0) == pytest.approx(real.var(0, ddof=1), rel=0.06)
    side = detail or 8
    expected = real.mean(0)[:, :side, :side]
    assert drawn.mean(0)[:, :side, :side] == pytest.approx(expected, abs=5 * real.std(0).max() / 200)


def test_coarse_cosines_keep_their_covariance():
    images = dim_images()
    start = GaussianStart((1, 8, 8), 2, rank=9, detail=3)
    start.fit(images)
    pixels = images.images[images.labels == 0].double() / 127.5 - 1
    x = start(torch.zeros(40_000, dtype=torch.long), noise(40_000))
    drawn, real = (dctn(i.numpy(), axes=(2, 3), norm="ortho")[:, 0, :3, :3] for i in (x, pixels))
    expected = np.cov(real.reshape(-1, 9).T)
    assert np.cov(drawn.reshape(-1, 9).T) == pytest.approx(expected, abs=0.04 * np.abs(expected).max())


def test_it_is_small():
    """A start for CIFAR-10 that a shipped model has room for."""
    start = GaussianStart((3, 32, 32), 10, 24, 8)
    assert sum(t.numel() for t in start.state_dict().values()) * 2 < 160_000  # bytes in bf16


def test_a_class_of_one_image_starts_there():
    data = tiny_data(count=3)
    start = GaussianStart((1, 8, 8), 3, 16)
    start.fit(data.train)
    x = start(torch.tensor([2, 0]), noise(2))
    assert torch.allclose(x, data.train.images[[2, 0]].float() / 127.5 - 1, atol=1e-5)


@pytest.mark.parametrize("start", [UniformStart((1, 8, 8)), GaussianStart((1, 8, 8), 2, 8)])
def test_a_seed_decides_alone(start):
    if isinstance(start, GaussianStart):
        start.fit(dim_images())
    labels = torch.tensor([0, 1, 0, 1, 1])
    many = start(labels, SeededNoise(range(5), torch.device("cpu")))
    alone = start(labels[3:4], SeededNoise([3], torch.device("cpu")))
    assert torch.allclose(alone, many[3:4], atol=1e-6)
    assert many.abs().max() <= 1


def test_fitting_leaves_the_global_randomness_alone():
    before = torch.random.get_rng_state()
    GaussianStart((1, 8, 8), 2, 8).fit(dim_images())
    assert torch.equal(torch.random.get_rng_state(), before)
