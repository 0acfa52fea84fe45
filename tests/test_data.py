import pytest
import torch
from PIL import Image

from gmmc import data
from gmmc.config import AugmentConfig, DataConfig
from gmmc.data import Dataset, LabelledImages, hold_out
from gmmc.data.augment import augment, random_shift
from gmmc.data.files import read_image
from gmmc.errors import InputError


def test_digits_are_whole_disjoint_and_balanced():
    sets = data.load(DataConfig("digits", 0.1), seed=0)
    parts = (sets.train, sets.valid, sets.test)
    assert [len(part) for part in parts] == [1294, 144, 359]
    assert sets.shape == (1, 8, 8)
    assert sets.class_names == tuple("0123456789")
    for part in parts:
        shares = part.labels.bincount(minlength=10) / len(part)
        assert ((shares - 0.1).abs() < 0.02).all()
    assert sets.train.images.max() == 255


def test_the_seed_moves_validation_but_never_the_test_images():
    a, b = (data.load(DataConfig("digits", 0.1), seed=seed) for seed in (0, 1))
    assert torch.equal(a.test.images, b.test.images)
    assert not torch.equal(a.valid.images, b.valid.images)


def test_hold_out_splits_without_loss():
    labels = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)
    images = torch.arange(100, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 8, 8)
    rest, held = hold_out(LabelledImages(images, labels), 0.2, seed=3)
    assert sorted(torch.cat([rest.images, held.images])[:, 0, 0, 0].tolist()) == list(range(100))
    assert held.labels.bincount().tolist() == [12, 6, 2]
    assert len(hold_out(LabelledImages(images, labels), 0.0, seed=3)[1]) == 0


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
        (lambda: LabelledImages(images_of(2).float(), torch.zeros(2, dtype=torch.int64)), "uint8"),
        (lambda: LabelledImages(images_of(2), torch.zeros(3, dtype=torch.int64)), "2 whole numbers"),
        (lambda: LabelledImages(images_of(2), torch.zeros(2)), "int64"),
        (lambda: data.load(DataConfig("cats"), 0), "data.name must be one of digits, got 'cats'"),
    ],
)
def test_bad_data_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_shift_only_moves():
    x = torch.arange(64.0).reshape(1, 1, 8, 8).expand(40, 1, 8, 8)
    shifted = random_shift(x, 2, "reflect", torch.Generator().manual_seed(0))
    # The inner 4×4 pixels of each result stand somewhere in the original, as one block.
    offsets = (shifted[:, 0, 2, 2] - x[0, 0, 2, 2]).unique()
    assert len(offsets) > 10
    assert torch.equal(
        shifted[:, 0, 2:6, 2:6] - x[:, 0, 2:6, 2:6], (shifted - x)[:, :, 2:3, 2:3].expand(-1, 1, 4, 4)[:, 0]
    )


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


@pytest.mark.parametrize(
    ("fill", "brought_in"), [("reflect", {1.0, 2.0, 3.0}), ("edge", {0.0, 7.0}), ("black", {-1.0})]
)
def test_what_a_shift_brings_in(fill, brought_in):
    """Columns numbered 0..7, all moved to the right: the new ones on the left tell where they come from."""
    x = torch.arange(8.0).expand(200, 1, 8, 8)
    shifted = random_shift(x, 3, fill, torch.Generator().manual_seed(0))
    moved_right = shifted[shifted[:, 0, 4, 4] < 4]
    by = (4 - moved_right[:, 0, 4, 4]).long()
    assert set(by.tolist()) == {1, 2, 3}
    new = torch.cat([row[0, 4, :n] for row, n in zip(moved_right, by, strict=True)])
    assert set(new.tolist()) <= brought_in


class TestImageFiles:
    def test_grey_and_colour_files(self, tmp_path):
        array = torch.arange(64, dtype=torch.uint8).reshape(8, 8)
        Image.fromarray(array.numpy()).save(tmp_path / "grey.png")
        assert torch.equal(read_image(tmp_path / "grey.png", (1, 8, 8))[0], array)
        assert torch.equal(read_image(tmp_path / "grey.png", (3, 8, 8))[2], array)
        Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
        assert read_image(tmp_path / "red.png", (3, 8, 8))[:, 0, 0].tolist() == [255, 0, 0]

    def test_width_and_height_are_not_mixed_up(self, tmp_path):
        Image.new("L", (9, 8)).save(tmp_path / "wide.png")
        assert read_image(tmp_path / "wide.png", (1, 8, 9)).shape == (1, 8, 9)

    def test_resizing_is_asked_for(self, tmp_path):
        Image.new("L", (28, 20)).save(tmp_path / "big.png")
        with pytest.raises(InputError, match="must be 8×8 pixels like the training images, got 28×20"):
            read_image(tmp_path / "big.png", (1, 8, 8))
        assert read_image(tmp_path / "big.png", (1, 8, 8), resize=True).shape == (1, 8, 8)

    def test_a_picture_too_large_to_be_meant_is_refused(self, tmp_path, monkeypatch):
        Image.new("L", (60, 60)).save(tmp_path / "huge.png")
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
        with pytest.raises(InputError, match=r"cannot read .*huge.png as an image"):
            read_image(tmp_path / "huge.png", (1, 8, 8), resize=True)

    def test_what_cannot_be_read_is_named(self, tmp_path):
        (tmp_path / "text.png").write_text("not an image")
        with pytest.raises(InputError, match=r"cannot read .*text.png as an image"):
            read_image(tmp_path / "text.png", (1, 8, 8))
        with pytest.raises(InputError, match=r"no image file .*none.png"):
            read_image(tmp_path / "none.png", (1, 8, 8))
        with pytest.raises(InputError, match="cannot read"):
            read_image(tmp_path, (1, 8, 8))
        Image.new("L", (8, 8)).save(tmp_path / "cut.png")
        whole = (tmp_path / "cut.png").read_bytes()
        (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(InputError, match=r"cannot read .*cut.png"):
            read_image(tmp_path / "cut.png", (1, 8, 8))

    @pytest.mark.parametrize("mode", ["RGBA", "LA", "I;16", "CMYK", "F"])
    def test_modes_that_would_lose_something_are_refused(self, tmp_path, mode):
        path = tmp_path / "image.tiff"
        Image.new(mode, (8, 8)).save(path)
        with pytest.raises(InputError, match="8-bit grey or RGB without transparency, got mode"):
            read_image(path, (1, 8, 8))
