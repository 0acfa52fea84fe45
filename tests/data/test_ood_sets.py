"""Images from outside of a data set have its shape, and are what their names say."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from conftest import tiny_data
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.data.ood_sets import GENERATED, find_outside, outside
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from image_files import pictures, png, write_folder, write_shard, write_table


@pytest.fixture(autouse=True)
def own_places(monkeypatch, tmp_path):
    monkeypatch.delenv("GMMC_DATA", raising=False)
    monkeypatch.setenv("GMMC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("channels", [1, 3])
def test_as_many_as_test_images_of_their_shape_by_seed(name, channels):
    sets = tiny_data(channels=channels)
    images = outside(name, sets, seed=1)
    assert images.dtype == torch.uint8
    assert images.shape == sets.test.images.shape
    assert images.is_contiguous()
    assert torch.equal(images, outside(name, sets, seed=1))
    drawn = name in ("noise", "constant", "interp", "cutout")
    assert torch.equal(images, outside(name, sets, seed=2)) != drawn


def test_noise_is_uniform():
    sets = tiny_data(channels=3, size=32)
    levels = outside("noise", sets).flatten().bincount(minlength=256)
    expected = levels.sum() / 256
    assert ((levels - expected) ** 2 / expected).sum() < 350  # χ² of 255 degrees: 350 is beyond 1 in 10⁴


def test_constant_images_have_one_colour_each_and_many_together():
    images = outside("constant", tiny_data(channels=3))
    assert torch.equal(images, images[:, :, :1, :1].expand_as(images))
    assert len(images[:, :, 0, 0].unique(dim=0)) == len(images)
    assert not torch.equal(images[:, 0], images[:, 1])


def test_interpolations_lie_in_the_middle_of_two_different_images():
    sets = tiny_data()
    test = sets.test.images.short()
    for seed in range(5):
        for first, middle in zip(test, outside("interp", sets, seed=seed), strict=True):
            away = (test + first - 2 * middle.short()).abs().amax((1, 2, 3))  # 0 or 1: the middle, rounded
            partners = [image for image, error in zip(test, away, strict=True) if error <= 1]
            assert len(partners) == 1
            assert not torch.equal(partners[0], first)


def test_inverting_and_rotating_can_be_undone():
    sets = tiny_data(channels=3)
    assert torch.equal(255 - outside("inverted", sets), sets.test.images)
    turned = outside("rotated", sets)
    assert not torch.equal(turned, sets.test.images)
    assert torch.equal(turned.rot90(3, (2, 3)), sets.test.images)
    np.testing.assert_array_equal(turned[0, 1].numpy(), np.rot90(sets.test.images[0, 1].numpy()))


def test_a_cut_out_image_is_its_own_behind_a_grey_square():
    sets = tiny_data(channels=3, size=12)
    images = outside("cutout", sets)
    assert find_outside("cutout", sets).paired
    sizes = set()
    for image, original in zip(images, sets.test.images, strict=True):
        grey = (image != original).any(0)
        assert (image[:, grey] == 128).all()
        rows, columns = grey.any(1).sum().item(), grey.any(0).sum().item()
        assert torch.equal(grey, grey.any(1)[:, None] & grey.any(0))
        sizes.add((rows, columns))
    assert max(sizes) == (6, 6)  # half the side; less where the edge of the image cuts it
    pixels = [
        LabelledImages(part.images[:, :, :1, :1], part.labels) for part in (sets.train, sets.valid, sets.test)
    ]
    with pytest.raises(InputError, match="cutout needs images of at least 2×2 pixels, got 1×1"):
        outside("cutout", Dataset(*pixels, sets.class_names))


def test_sets_made_from_the_test_images_come_in_pairs_and_drawn_ones_do_not():
    """Image i of a pair follows test image i through any reordering, where nothing random has a say."""
    sets = tiny_data()
    turned = dataclasses.replace(sets, test=sets.test[torch.arange(len(sets.test)).roll(1)])
    for name in GENERATED:
        found = find_outside(name, sets)
        depends = not torch.equal(found.images, find_outside(name, turned).images)
        assert found.paired == depends, name


def test_sets_of_one_seed_share_no_numbers():
    """The colours of the constant images are not pixels of the noise."""
    sets = tiny_data(channels=3)
    colours = outside("constant", sets)[:, :, 0, 0].flatten()
    first = outside("noise", sets).flatten()[: len(colours)]
    assert (first == colours).double().mean() < 0.1


def test_images_of_a_folder_are_cropped_and_resized_to_fit(tmp_path):
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[..., 0] = np.arange(60) * 4
    write_folder(tmp_path / "photos", [wide, wide[:, :30]], ["a", "b"])
    sets = tiny_data(channels=3, size=8)
    images = outside(str(tmp_path / "photos"), sets)
    assert images.shape == (2, 3, 8, 8)
    reference = np.asarray(ImageOps.fit(Image.fromarray(wide), (8, 8)))
    assert torch.equal(images[0], torch.from_numpy(reference.copy()).permute(2, 0, 1))
    assert abs(int(images[0, 0, 4, 3]) + int(images[0, 0, 4, 4]) - 4 * 59) <= 2  # the centre stays there


def test_shapes_that_are_not_square(tmp_path):
    write_folder(tmp_path / "photos", pictures(3, size=20), ["a", "b", "c"])
    sets = tiny_data(channels=3, size=8)
    flat = [part[:] for part in (sets.train, sets.valid, sets.test)]
    flat = [LabelledImages(part.images[:, :, :5], part.labels) for part in flat]
    oblong = Dataset(*flat, sets.class_names)
    assert outside(str(tmp_path / "photos"), oblong).shape == (3, 3, 5, 8)
    with pytest.raises(InputError, match="rotated needs square images, got 8×5"):
        outside("rotated", oblong)


def test_grey_and_colour_are_converted_both_ways(tmp_path):
    red = np.zeros((8, 8, 3), np.uint8)
    red[..., 0] = 255
    write_folder(tmp_path / "red", [red], ["any"])
    write_folder(tmp_path / "grey", [np.full((8, 8), 9, np.uint8)], ["any"])
    assert (outside(str(tmp_path / "red"), tiny_data()) == 76).all()  # 0.299 of 255, the luma of red
    assert (outside(str(tmp_path / "grey"), tiny_data(channels=3)) == 9).all()


def test_neither_labels_nor_all_files_are_needed_and_that_is_stated(tmp_path, capsys):
    """As one of three files of faces without labels."""
    cells = {"img": [png(image) for image in pictures(6, size=8)], "celeba_id": list(range(6))}
    write_table(tmp_path / "celeba64" / "part-00000-of-00003.parquet", cells)
    sets = tiny_data(channels=3)
    images = outside(str(tmp_path / "celeba64"), sets)
    assert torch.equal(images[5].permute(1, 2, 0), torch.from_numpy(pictures(6, size=8)[5]))
    assert (
        "celeba64: only 1 of the 3 files of part are there; their images are used" in capsys.readouterr().err
    )
    near = Dataset(sets.train, sets.valid, sets.test, sets.class_names, root=str(tmp_path))
    assert torch.equal(outside("celeba", near), images)  # the same by its name, where the data set is from


def test_of_another_set_the_test_images_are_taken(tmp_path):
    for split, seed in (("train", 1), ("test", 2)):
        images = pictures(4, size=8, seed=seed)
        write_shard(tmp_path / "tables" / f"{split}-00000-of-00001.parquet", images, [0, 1, 0, 1])
        write_folder(tmp_path / "loose", images, [split] * 4)  # no classes, only splits
    expected = torch.from_numpy(np.stack(pictures(4, size=8, seed=2))).permute(0, 3, 1, 2)
    for name in ("tables", "loose"):
        assert torch.equal(outside(str(tmp_path / name), tiny_data(channels=3)), expected)


def test_empty_folders_of_splits_tell_nothing(tmp_path):
    (tmp_path / "photos" / "test").mkdir(parents=True)
    (tmp_path / "photos" / "loose.png").write_bytes(png(pictures(1, size=8)[0]))
    assert len(outside(str(tmp_path / "photos"), tiny_data())) == 1


def test_without_test_images_all_are_taken(tmp_path):
    for i, split in enumerate(("train", "validation")):
        write_shard(tmp_path / "set" / f"{split}.parquet", pictures(4, size=8, seed=i), [0, 1, 0, 1])
    assert len(outside(str(tmp_path / "set"), tiny_data())) == 8


def test_the_digits_are_outside_of_other_sets():
    images = outside("digits", tiny_data(channels=3, size=16))
    assert images.shape == (359, 3, 16, 16)
    same_shape = outside("digits", tiny_data())
    assert torch.equal(same_shape, sources.load(DataConfig(), 0).test.images)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nosie",
            "no folder, parquet file or known set of images 'nosie' exists; did you mean 'noise'",
        ),
        (
            "no/such/folder",
            "'no/such/folder' exists; known are noise, constant, .*, digits, cifar10",
        ),
    ],
)
def test_unknown_names_list_the_known_ones(name, message):
    with pytest.raises(InputError, match=message):
        outside(name, tiny_data())


def test_generated_images_need_test_images():
    sets = tiny_data()
    without = Dataset(sets.train, sets.valid, sets.test[:0], sets.class_names)
    with pytest.raises(InputError, match="noise is made from test images, got none"):
        outside("noise", without)
    with pytest.raises(InputError, match="interp needs at least two test images, got 1"):
        outside("interp", Dataset(sets.train, sets.valid, sets.test[:1], sets.class_names))
