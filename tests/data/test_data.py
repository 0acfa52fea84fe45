import dataclasses
import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from conftest import tiny_data
from gmmc.config.sections import AugmentConfig, DataConfig
from gmmc.data import sources
from gmmc.data.arrays import from_arrays
from gmmc.data.augment import augment, random_shift
from gmmc.data.ood_sets import outside
from gmmc.data.splits import Dataset, LabelledImages, hold_out
from gmmc.errors import InputError


def test_digits_are_whole_disjoint_and_balanced():
    sets = sources.load(DataConfig("digits", valid=0.1), seed=0)
    parts = (sets.train, sets.valid, sets.test)
    assert [len(part) for part in parts] == [1294, 144, 359]
    assert sets.shape == (1, 8, 8)
    assert sets.class_names == tuple("0123456789")
    for part in parts:
        shares = part.labels.bincount(minlength=10) / len(part)
        assert ((shares - 0.1).abs() < 0.02).all()
    assert sets.train.images.max() == 255


def test_the_seed_moves_validation_but_never_the_test_images():
    a, b = (sources.load(DataConfig("digits", valid=0.1), seed=seed) for seed in (0, 1))
    assert torch.equal(a.test.images, b.test.images)
    assert not torch.equal(a.valid.images, b.valid.images)


def test_the_test_digits_are_always_the_same():
    """Recorded: published numbers are of these images, so no change of the code may exchange them."""
    test = sources.load(DataConfig("digits"), seed=0).test
    digest = hashlib.sha256(test.images.numpy().tobytes() + test.labels.numpy().tobytes()).hexdigest()
    assert digest == "264f5b34df617def1e43c88fdce64a193c9308f945f66e0ab7ffa529d378afbe"


def test_digits_keep_the_levels_of_their_file():
    """The sixteenths of the file, k → 255·k/16, in all images."""
    sets = sources.load(DataConfig("digits", valid=0.0), seed=0)
    found = torch.cat([sets.train.images, sets.test.images]).flatten(1)
    wanted = torch.from_numpy(load_digits().data) / 16 * 255
    assert sorted(map(bytes, found.numpy())) == sorted(map(bytes, wanted.round().to(torch.uint8).numpy()))


def test_the_test_images_of_arrays_are_those_of_the_digits():
    """One rule for every source that does not name its test images."""
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16 * 255).round().astype(np.uint8).reshape(-1, 8, 8)
    for seed in (0, 5):
        held = from_arrays(images, labels, seed=seed).test
        assert torch.equal(held.images, sources.load(DataConfig("digits"), seed=seed).test.images)


def test_digits_of_another_size():
    larger, plain = (sources.load(DataConfig("digits", size=size), seed=0) for size in (12, 0))
    assert larger.shape == (1, 12, 12)
    assert torch.equal(larger.test.labels, plain.test.labels)
    means = [sets.test.images.float().mean().item() for sets in (larger, plain)]
    assert means[0] == pytest.approx(means[1], rel=0.03)
    with pytest.raises(InputError, match=r"data\.label is for parquet files, got 'digit' with digits"):
        sources.load(DataConfig("digits", label="digit"), seed=0)


def test_the_fingerprint_is_of_what_is_learned_from():
    sets = dataset([0, 1, 1])
    notes = Dataset(sets.train, sets.valid, sets.test, sets.class_names, "name", "root", ("a note",))
    assert notes.fingerprint == sets.fingerprint
    assert dataset([0, 1, 0]).fingerprint != sets.fingerprint
    assert dataset([0, 1, 1], ["a", "c"]).fingerprint != sets.fingerprint


def test_the_second_fingerprint_is_of_all_other_images():
    """It is blind to training images, and sees which image is held out for what."""
    sets = tiny_data()
    found = {sets.held_out_fingerprint}
    for part in ("valid", "test"):
        old = getattr(sets, part)
        for changed in (
            LabelledImages(old.images.clone().index_fill_(0, torch.tensor([3]), 7), old.labels),
            LabelledImages(old.images, old.labels.roll(1)),
            old[:-1],
            old[:0],
        ):
            other = dataclasses.replace(sets, **{part: changed})
            assert other.fingerprint == sets.fingerprint
            found.add(other.held_out_fingerprint)
    found.add(dataclasses.replace(sets, valid=sets.test, test=sets.valid).held_out_fingerprint)
    together = (
        torch.cat([sets.valid.images, sets.test.images]),
        torch.cat([sets.valid.labels, sets.test.labels]),
    )
    whole = LabelledImages(*together)
    found.add(dataclasses.replace(sets, valid=whole[:13], test=whole[13:]).held_out_fingerprint)
    assert len(found) == 11
    assert dataclasses.replace(sets, train=sets.train[3:]).held_out_fingerprint == sets.held_out_fingerprint


def test_hold_out_splits_without_loss():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    rest, held = hold_out(LabelledImages(images, labels), 0.2, seed=3)
    assert sorted(torch.cat([rest.images, held.images])[:, 0, 0, 0].tolist()) == list(range(100))
    assert held.labels.bincount().tolist() == [12, 6, 2]
    assert len(hold_out(LabelledImages(images, labels), 0.0, seed=3)[1]) == 0


def test_the_only_images_of_a_class_are_never_held_out():
    labels = torch.tensor([0] + [1] * 9)
    images = torch.arange(10, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    for seed in range(10):
        rest, held = hold_out(LabelledImages(images, labels), 0.5, seed)
        assert (rest.labels == 0).sum() == 1
        assert len(rest) + len(held) == 10


def test_a_folder_is_remembered_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    assert sources.located(DataConfig("photos")).name == str(tmp_path / "photos")
    assert sources.located(DataConfig("digits")).name == "digits"
    assert sources.located(DataConfig("nowhere")).name == "nowhere"


def images_of(count, size=8):
    return torch.zeros(count, 1, size, size, dtype=torch.uint8)


def dataset(labels, class_names=("a", "b"), valid=(), size=8):
    train = LabelledImages(images_of(len(labels)), torch.tensor(labels, dtype=torch.int64))
    held = LabelledImages(images_of(len(valid), size), torch.tensor(valid, dtype=torch.int64))
    return Dataset(train, held, train, class_names)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset([]), "at least one image, got none"),
        (lambda: dataset([0, 2]), r"train labels must lie in 0..1, got 0..2"),
        (lambda: dataset([0, -1]), r"train labels must lie in 0..1, got -1..0"),
        (lambda: dataset([0, 0]), "every class needs a training image, got none for b"),
        (lambda: dataset([0, 1], valid=[0], size=9), r"valid images must be \(1, 8, 8\) like train"),
        (
            lambda: LabelledImages(images_of(2).double(), torch.zeros(2, dtype=torch.int64)),
            "uint8 or float32",
        ),
        (lambda: LabelledImages(images_of(2) + 2.0, torch.zeros(2, dtype=torch.int64)), "from 2 to 2"),
        (lambda: LabelledImages(images_of(2), torch.zeros(3, dtype=torch.int64)), "2 whole numbers"),
        (lambda: LabelledImages(images_of(2), torch.zeros(2)), "int64"),
        (lambda: dataset([0, 0], ["a"]), "images of at least two classes, got 'a'"),
        (lambda: dataset([0, 1, 2], ["a", "b", "a"]), "class_names must differ, got 'a' twice"),
    ],
)
def test_bad_data_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_part_of_the_data_may_lack_a_class():
    part = dataclasses.replace(dataset([0, 1]), train=dataset([0, 1]).train[:1], partial=True)
    assert part.class_counts.tolist() == [1, 0]


def test_floating_point_images_are_as_good_as_bytes():
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    labels = torch.tensor([0, 1, 0, 1])
    of_bytes, of_floats = (
        Dataset(part, part, part, ("a", "b"))
        for part in (LabelledImages(images, labels), LabelledImages(images / 255, labels))
    )
    for name in ("inverted", "interp"):
        assert torch.equal(outside(name, of_bytes), outside(name, of_floats))


def test_shift_only_moves():
    x = torch.arange(64.0).reshape(1, 1, 8, 8).expand(40, 1, 8, 8)
    shifted = random_shift(x, 2, torch.Generator().manual_seed(0))
    # The inner 4×4 pixels of each result stand somewhere in the original, as one block.
    offsets = (shifted[:, 0, 2, 2] - x[0, 0, 2, 2]).unique()
    assert len(offsets) > 10
    assert torch.equal(
        shifted[:, 0, 2:6, 2:6] - x[:, 0, 2:6, 2:6], (shifted - x)[:, :, 2:3, 2:3].expand(-1, 1, 4, 4)[:, 0]
    )


@pytest.mark.parametrize("most", [1, 2])
def test_shifts_are_as_likely_in_all_directions_and_as_far_as_asked(most):
    """Every offset from −m to m in rows and in columns, each as often, independent of one another."""
    count, sides = 4000, 2 * most + 1
    x = torch.arange(64.0).reshape(1, 1, 8, 8).expand(count, 1, 8, 8)
    moved = (random_shift(x, most, torch.Generator().manual_seed(0)) - x)[:, 0, 4, 4].long()
    rows, columns = (moved + 4).div(8, rounding_mode="floor"), (moved + 4) % 8 - 4
    pairs = ((rows + most) * sides + columns + most).bincount(minlength=sides**2)
    assert len(pairs) == sides**2
    spread = (count / sides**2) ** 0.5
    assert (pairs - count / sides**2).abs().max() < 4.5 * spread


@pytest.mark.parametrize("side", [1, 3, 4])
def test_cutout_covers_one_square_with_grey(side):
    x = torch.rand(500, 3, 8, 8) + 0.1
    y = augment(x, AugmentConfig(cutout=side), torch.Generator().manual_seed(0))
    covered = y == 0
    assert (covered == covered[:, :1]).all()  # in all channels alike
    assert torch.equal(y[~covered], x[~covered])
    covered = covered[:, 0]
    rows, columns = covered.any(2), covered.any(1)
    assert (covered == rows[:, :, None] & columns[:, None, :]).all()  # a rectangle
    for sides in (rows.sum(1), columns.sum(1)):
        assert sides.max() == side
        assert sides.min() == 1 + (side - 1) // 2  # one whose centre is at the edge
    assert (covered.float().mean(0) > 0).all()  # anywhere


class TestColour:
    def jittered(self, x, most=0.4):
        return augment(x, AugmentConfig(colour=most), torch.Generator().manual_seed(0))

    def test_one_colour_only_gets_brighter_or_darker(self):
        x = torch.full((2000, 3, 4, 4), 0.1)
        moved = self.jittered(x) - x
        torch.testing.assert_close(moved, moved[:, :1, :1, :1].expand_as(x))
        shifts = moved[:, 0, 0, 0].sort().values
        torch.testing.assert_close(shifts, torch.linspace(-0.4, 0.4, 2000), atol=0.04, rtol=0)

    def test_contrast_and_saturation_are_factors_of_their_own(self):
        """Of the differences of greys from the mean, and of pixels from their grey; both from 0.6 to 1.4."""
        x = 0.2 * torch.rand(2000, 3, 4, 4)
        y = self.jittered(x)
        greys = [z.mean(1, keepdim=True) for z in (x, y)]
        factors = []
        for a, b in (
            [z - z.mean((1, 2, 3), keepdim=True) for z in greys],
            [z - grey for z, grey in zip((x, y), greys, strict=True)],
        ):
            factor = (a * b).sum((1, 2, 3)) / a.square().sum((1, 2, 3))
            torch.testing.assert_close(b, factor[:, None, None, None] * a, atol=1e-5, rtol=1e-3)
            factors.append(factor)
        contrast, saturation = factors[0], factors[1] / factors[0]
        for factor in (contrast, saturation):
            expected = torch.linspace(0.6, 1.4, 2000)
            torch.testing.assert_close(factor.sort().values, expected, atol=0.04, rtol=0)
        assert torch.corrcoef(torch.stack([contrast, saturation]))[0, 1].abs() < 0.1

    def test_grey_images_stay_grey(self):
        """An image of one channel, and the same in three."""
        x = 2 * torch.rand(100, 1, 6, 6) - 1
        one, three = self.jittered(x), self.jittered(x.expand(-1, 3, -1, -1))
        torch.testing.assert_close(three, one.expand(-1, 3, -1, -1), atol=1e-5, rtol=0)

    def test_pixels_stay_in_range(self):
        y = self.jittered((torch.rand(200, 3, 6, 6) < 0.5).float() * 2 - 1, most=1.0)
        assert y.min() >= -1
        assert y.max() <= 1

    def test_a_cut_out_stays_grey(self):
        y = augment(torch.full((50, 3, 8, 8), 0.7), AugmentConfig(colour=0.5, cutout=3), torch.Generator())
        assert ((y == 0).all(1).flatten(1).sum(1) >= 4).all()


def test_flip_mirrors_half_of_the_images():
    x = torch.rand(400, 3, 8, 8)
    y = augment(x, AugmentConfig(flip=True), torch.Generator().manual_seed(0))
    mirrored = (y == x.flip(-1)).flatten(1).all(1)
    assert ((y == x).flatten(1).all(1) ^ mirrored).all()
    assert 140 < mirrored.sum() < 260


def test_noise_has_the_stated_size_and_nothing_means_nothing():
    x = torch.zeros(100, 1, 8, 8)
    source = torch.Generator().manual_seed(0)
    assert augment(x, AugmentConfig(noise=0.03), source).std().item() == pytest.approx(0.03, rel=0.05)
    assert augment(x, AugmentConfig(), source) is x


def test_a_shift_brings_in_a_reflection():
    """Columns numbered 0..7, all moved to the right: the new ones on the left tell where they come from."""
    x = torch.arange(8.0).expand(200, 1, 8, 8)
    shifted = random_shift(x, 3, torch.Generator().manual_seed(0))
    moved_right = shifted[shifted[:, 0, 4, 4] < 4]
    by = (4 - moved_right[:, 0, 4, 4]).long()
    assert set(by.tolist()) == {1, 2, 3}
    new = torch.cat([row[0, 4, :n] for row, n in zip(moved_right, by, strict=True)])
    assert set(new.tolist()) == {1.0, 2.0, 3.0}


class TestArrays:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 6, 5), dtype=np.uint8)
    labels = np.arange(40) % 4

    def whole(self, sets):
        """All images and labels in an order that does not depend on the split."""
        parts = [(sets.train, "train"), (sets.valid, "valid"), (sets.test, "test")]
        return sorted(
            (name, image.numpy().tobytes(), label)
            for part, name in parts
            for image, label in zip(part.images, part.labels.tolist(), strict=True)
        )

    def test_nothing_is_lost_and_shares_are_held_out(self):
        sets = from_arrays(self.images, self.labels, test=0.2, valid=0.25)
        assert [len(part) for part in (sets.train, sets.valid, sets.test)] == [24, 8, 8]
        assert sets.name == "arrays"
        assert sets.class_names == ("0", "1", "2", "3")
        given = sorted(
            (image.tobytes(), label) for image, label in zip(self.images, self.labels, strict=True)
        )
        assert sorted((image, label) for _, image, label in self.whole(sets)) == given

    def test_every_layout_and_type_gives_the_same(self):
        expected = self.whole(from_arrays(self.images, self.labels))
        for images in (
            self.images.transpose(0, 2, 3, 1),
            torch.from_numpy(self.images),
            self.images / 255,
            (self.images / 255).astype(np.float32).transpose(0, 2, 3, 1),
            torch.from_numpy(self.images).float().div(255).requires_grad_(),
            list(self.images),
        ):
            assert self.whole(from_arrays(images, self.labels)) == expected
        grey = self.images[:, :1]
        expected = self.whole(from_arrays(grey, self.labels))
        assert self.whole(from_arrays(grey[:, 0], self.labels)) == expected
        assert self.whole(from_arrays(grey.transpose(0, 2, 3, 1), self.labels)) == expected

    def test_every_kind_of_labels_gives_the_same(self):
        expected = self.whole(from_arrays(self.images, self.labels))
        names = np.array(["ant", "bee", "cat", "dog"])
        for labels in (
            self.labels.tolist(),
            self.labels.astype(np.uint8),
            torch.from_numpy(self.labels).int(),
            self.labels + 7,
            names[self.labels],
            names[self.labels].astype(object),
            names[self.labels].tolist(),
        ):
            assert self.whole(from_arrays(self.images, labels)) == expected
        assert from_arrays(self.images, names[self.labels]).class_names == tuple(names)
        assert from_arrays(self.images, self.labels * 5).class_names == ("0", "5", "10", "15")

    def test_class_names_give_the_order(self):
        order = ("dog", "cat", "bee", "ant")
        by_name = from_arrays(self.images, [order[label] for label in self.labels], order)
        by_number = from_arrays(self.images, self.labels, order)
        assert by_name.class_names == by_number.class_names == order
        assert self.whole(by_name) == self.whole(by_number)

    def test_the_seed_moves_validation_but_never_the_test_images(self):
        a, b = (from_arrays(self.images, self.labels, seed=seed) for seed in (0, 1))
        assert torch.equal(a.test.images, b.test.images)
        assert not torch.equal(a.valid.images, b.valid.images)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"images": np.zeros((40, 3, 6, 3), np.uint8)},
                r"either axis 1 or axis 3 .* got \(40, 3, 6, 3\)",
            ),
            ({"images": np.zeros((40, 2, 6, 5), np.uint8)}, r"of length 1 or 3 .* got \(40, 2, 6, 5\)"),
            ({"images": np.zeros((40, 30), np.uint8)}, r"shape \(N, height, width\), .* got \(40, 30\)"),
            ({"images": images.astype(np.int64)}, "uint8 or floating point in \\[0, 1\\], got torch.int64"),
            ({"images": images.astype(np.float32)}, "must lie in \\[0, 1\\], got values from 0 to 255"),
            ({"images": np.full((40, 6, 5), np.nan)}, "must lie in \\[0, 1\\], got values from nan"),
            ({"images": [[1], [2, 3]]}, "images must be an array"),
            (
                {"labels": np.zeros(39, int)},
                r"labels must be one per image, 40 in one row, got the shape \(39,\)",
            ),
            ({"labels": np.zeros((40, 1), int)}, r"got the shape \(40, 1\)"),
            ({"labels": labels / 2}, "labels must be whole numbers or strings, got float64"),
            ({"labels": [None] * 40}, "labels must be whole numbers or strings, got object"),
            ({"labels": np.zeros(40, int)}, "at least two classes, got '0'"),
            ({"class_names": ["a", "b"]}, r"labels must lie in 0..1, the positions of class_names, got 2"),
            (
                {"class_names": "abcd", "labels": labels - 1},
                r"lie in 0..3, the positions of class_names, got -1",
            ),
            ({"class_names": "ab", "labels": ["a", "c"] * 20}, "labels must be class names, got 'c'"),
            ({"class_names": "abcde"}, "every class needs a training image, got none for e"),
            ({"test": 1.0}, "test must be a share from 0 to 0.9, got 1.0"),
            ({"valid": -0.1}, "valid must be a share from 0 to 0.9, got -0.1"),
            ({"valid": float("nan")}, "valid must be a share from 0 to 0.9, got nan"),
        ],
    )
    def test_bad_arrays_are_refused(self, changes, message):
        with pytest.raises(InputError, match=message) as refusal:
            from_arrays(**{"images": self.images, "labels": self.labels, **changes})
        assert "\n" not in str(refusal.value)
