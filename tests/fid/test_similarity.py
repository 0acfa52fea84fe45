"""FID and its relatives: closed forms, symmetries, hand-placed points, and torchmetrics."""

import math

import pytest
import torch
from torch import nn

from gmmc.fid import similarity
from gmmc.fid.similarity import Gaussian, frechet, inception_score, kid, mmd2, nearest, overlap, reaches, some


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gaussian(mean, covariance):
    return Gaussian(torch.tensor(mean, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64))


@pytest.fixture
def little_room(monkeypatch):
    """Call it, and from then on a few rows at a time are worked on."""
    return lambda: monkeypatch.setattr(similarity, "ROOM", 40)


class TestFrechet:
    def test_two_gaussians_with_the_same_axes(self):
        a = gaussian([0.0, 0.0], [[4.0, 0.0], [0.0, 9.0]])
        b = gaussian([3.0, 4.0], [[1.0, 0.0], [0.0, 16.0]])
        assert frechet(a, b) == pytest.approx(25 + (2 - 1) ** 2 + (3 - 4) ** 2)

    def test_two_gaussians_with_other_axes(self):
        """Of 2×2 matrices tr √M = √(tr M + 2√det M)."""
        c1, c2 = [[2.0, 1.0], [1.0, 3.0]], [[5.0, -1.0], [-1.0, 1.0]]
        product = torch.tensor(c1) @ torch.tensor(c2)
        cross = math.sqrt(product.trace() + 2 * math.sqrt(torch.det(product)))
        assert frechet(gaussian([0.0, 1.0], c1), gaussian([0.0, 0.0], c2)) == pytest.approx(
            1 + 5 + 6 - 2 * cross, abs=1e-5
        )

    def test_singular_covariances(self):
        """Of the laws on two lines, √a·t·u and √b·t·v: the cross term is √(ab)·|⟨u, v⟩|."""
        u, v = torch.zeros(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
        u[3], v[3], v[7] = 1.0, 0.6, 0.8
        line = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        a, b = (Gaussian.of(math.sqrt(scale / 2) * line * way) for scale, way in ((4, u), (9, v)))
        assert a.covariance.trace() == pytest.approx(4)
        assert frechet(a, b) == pytest.approx(4 + 9 - 2 * 6 * 0.6, abs=1e-5)

    def test_moments_are_those_of_the_sample(self):
        x = normal(30, 5)
        assert torch.allclose(Gaussian.of(x).mean, x.mean(0))
        assert torch.allclose(Gaussian.of(x).covariance, x.mT.cov())

    @pytest.mark.parametrize("rows", [4, 200])  # fewer and more than there are features
    def test_is_a_distance(self, rows):
        x, y = normal(rows, 12), normal(rows + 5, 12, seed=1) * 2 + 1
        turn = torch.linalg.qr(normal(12, 12, seed=2)).Q
        one, other = Gaussian.of(x), Gaussian.of(y)
        assert frechet(one, one) == pytest.approx(0, abs=1e-5)
        assert frechet(one, other) > 1
        assert frechet(one, other) == pytest.approx(frechet(other, one), abs=1e-5)
        assert frechet(one, other) == pytest.approx(
            frechet(Gaussian.of(x @ turn), Gaussian.of(y @ turn)), abs=1e-5
        )

    def test_more_images_at_once_change_nothing(self, little_room):
        x = normal(50, 6).float()
        at_once = Gaussian.of(x)
        little_room()
        assert torch.allclose(at_once.covariance, Gaussian.of(x).covariance, atol=1e-12)


class TestKid:
    def test_by_the_definition(self):
        x, y = normal(4, 3), normal(5, 3, seed=1)

        def k(a, b):
            return (float(a @ b) / 3 + 1) ** 3

        def within(z):
            return sum(k(a, b) for i, a in enumerate(z) for j, b in enumerate(z) if i != j)

        between = sum(k(a, b) for a in x for b in y)
        assert mmd2(x, y) == pytest.approx(within(x) / 12 + within(y) / 20 - 2 * between / 20)

    def test_is_unbiased(self):
        found = torch.tensor(
            [mmd2(normal(10, 3, seed=2 * i), normal(10, 3, seed=2 * i + 1)) for i in range(500)]
        )
        assert abs(found.mean()) < 3 * found.std() / math.sqrt(500)
        assert (found < 0).any()

    def test_interval_covers_halves_of_one_set_and_not_another_set(self):
        for seed in range(10):
            x = normal(400, 4, seed=seed)
            value, (low, high) = kid(x[:200], x[200:])
            assert low < value < high
            assert low < 0 < high
        assert kid(x[:200], x[200:] + 1).interval[0] > 0

    def test_interval_is_about_as_wide_as_draws_differ(self):
        """Of 95% intervals of one number, most hold it, and they are not wildly too wide."""
        draws = [kid(normal(100, 3, seed=2 * i), normal(100, 3, seed=2 * i + 1) + 0.7) for i in range(30)]
        truth = sum(draw.value for draw in draws) / 30
        assert sum(low < truth < high for _, (low, high) in draws) >= 26
        spread = torch.tensor([draw.value for draw in draws]).std().item()
        assert draws[0].interval[1] - draws[0].interval[0] < 3 * 2 * 1.96 * spread

    def test_the_seed_decides(self):
        x, y = normal(60, 3), normal(60, 3, seed=1)
        assert kid(x, y, seed=5) == kid(x, y, seed=5) != kid(x, y, seed=6)

    def test_few_rows(self):
        assert all(map(math.isfinite, kid(normal(4, 3), normal(9, 3, seed=1)).interval))


class TestOverlap:
    def test_a_set_covers_itself(self):
        x = normal(40, 3)
        found = overlap(x, x)
        assert (found.precision, found.recall, found.coverage) == (1, 1, 1)

    def test_sets_far_apart_share_nothing(self):
        assert overlap(normal(20, 3), normal(20, 3, seed=1) + 100) == (0, 0, 0, 0)

    def test_hand_placed_points(self):
        """The whole numbers 0..9, some points near the lower end, and some far away."""
        real = torch.arange(10.0)[:, None]
        generated = torch.tensor([0.5, 0.75, 1.0, 1.25, 100.0, 101.0, 102.0, 103.0])[:, None]
        assert reaches(real, 3, 5).tolist() == [
            [3, 2, 2, 2, 2, 2, 2, 2, 2, 3],
            [5, 4, 3, 3, 3, 3, 3, 3, 4, 5],
        ]
        assert reaches(generated, 3).tolist() == [[0.75, 0.5, 0.5, 0.75, 3, 2, 2, 3]]
        found = overlap(real, generated)
        assert found.precision == 4 / 8
        assert found.recall == 3 / 10  # 0, 1 and 2
        assert found.density == pytest.approx((4 + 4 + 5 + 5) / 8 / 5)  # 0..3 reach all four, 4 the last two
        assert found.coverage == 5 / 10

    def test_a_collapsed_generator_is_precise_and_recalls_little(self):
        real = normal(200, 2)
        found = overlap(real, 0.01 * normal(200, 2, seed=1))
        assert found.precision == 1
        assert found.recall < 0.05
        assert found.coverage < 0.3

    def test_more_images_at_once_change_nothing(self, little_room):
        real, generated = normal(30, 3), normal(25, 3, seed=1) + 0.5
        at_once = overlap(real, generated), nearest(generated, real, 3)
        little_room()
        again = overlap(real, generated), nearest(generated, real, 3)
        assert at_once[0] == again[0]
        assert torch.allclose(at_once[1][0], again[1][0])
        assert torch.equal(at_once[1][1], again[1][1])

    def test_nearest_first(self):
        found, places = nearest(torch.tensor([[0.9], [5.0]]), torch.tensor([[0.0], [1.0], [3.0]]), 2)
        assert places.tolist() == [[1, 0], [2, 1]]
        assert torch.allclose(found, torch.tensor([[0.1, 0.9], [2.0, 4.0]], dtype=torch.float64), atol=1e-6)


class TestInceptionScore:
    def test_certain_and_balanced_gives_the_number_of_classes(self):
        sorted_by_class = torch.eye(5).repeat_interleave(200, 0)
        assert inception_score(sorted_by_class).value == pytest.approx(5, abs=0.2)
        assert inception_score(sorted_by_class, splits=1).value == pytest.approx(5)

    def test_always_the_same_gives_one(self):
        value, (low, high) = inception_score(torch.tensor([[0.2, 0.8]]).expand(50, 2))
        assert value == pytest.approx(1)
        assert low <= value <= high

    def test_is_the_information_that_an_image_has_about_its_class(self):
        """log IS = H(mean of p) − mean of H(p)."""
        p = normal(50, 4).mul(2).softmax(1)

        def entropy(q):
            return -(q * q.log()).sum(-1)

        wanted = (entropy(p.mean(0)) - entropy(p).mean()).exp().item()
        assert inception_score(p, splits=1).value == pytest.approx(wanted)

    def test_two_images(self):
        assert inception_score(torch.eye(2)).value == pytest.approx(2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_same_numbers():
    x, y = normal(80, 5).float(), normal(70, 5, seed=1).float() + 0.3
    assert overlap(x, y) == overlap(x.cuda(), y.cuda())
    assert kid(x, y).value == pytest.approx(kid(x.cuda(), y.cuda()).value, rel=1e-9)
    on_both = [frechet(Gaussian.of(x.to(d)), Gaussian.of(y.to(d))) for d in ("cpu", "cuda")]
    assert on_both[0] == pytest.approx(on_both[1], rel=1e-9)
    assert torch.equal(nearest(x, y, 2)[1], nearest(x.cuda(), y.cuda(), 2)[1].cpu())


def test_some_rows_are_drawn_by_a_key():
    x = torch.arange(100)[:, None]
    assert torch.equal(some(x, 100, 0), x)
    assert torch.equal(some(x, 10, 0, "a"), some(x, 10, 0, "a"))
    assert not torch.equal(some(x, 10, 0, "a"), some(x, 10, 0, "b"))
    assert len(some(x, 10, 0, "a").unique()) == 10


class Flat(nn.Module):
    num_features = 12

    def forward(self, images):
        return images.flatten(1).double()


class TestTorchmetrics:
    """The same numbers from other code, with pixels as features."""

    images = (torch.rand(2, 60, 3, 2, 2, generator=torch.Generator().manual_seed(0)) * 255).to(torch.uint8)

    def ask(self, metric):
        metric.update(self.images[0], real=True)
        metric.update(self.images[1] // 2, real=False)
        return metric.compute()

    def features(self):
        return self.images[0].flatten(1).double(), (self.images[1] // 2).flatten(1).double()

    def test_fid(self):
        fid = pytest.importorskip("torchmetrics.image.fid")
        theirs = self.ask(fid.FrechetInceptionDistance(Flat(), input_img_size=(3, 2, 2)).double())
        real, generated = self.features()
        assert frechet(Gaussian.of(real), Gaussian.of(generated)) == pytest.approx(theirs.item(), rel=1e-6)

    @pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save")
    def test_kid(self):
        module = pytest.importorskip("torchmetrics.image.kid")
        theirs, _ = self.ask(module.KernelInceptionDistance(Flat(), subsets=1, subset_size=60))
        real, generated = self.features()
        assert mmd2(real, generated) == pytest.approx(theirs.item(), rel=1e-6)
        low, high = kid(real, generated).interval
        assert low < theirs < high
