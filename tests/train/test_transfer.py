"""Training from a start of other classes: its trunk, a new last layer, frozen epochs first."""

import re
import shutil

import pytest
import torch

from conftest import interrupted_at, make_learner, make_model, tiny_config, tiny_data
from gmmc.base.seeds import generator
from gmmc.config import former, recipes
from gmmc.config.sections import PhaseConfig
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.networks.backbones import split_last
from gmmc.pixels import to_signed
from gmmc.runs import folder, model_file
from gmmc.train import frozen_trunk
from gmmc.train.learner import Learner
from gmmc.train.loop import initialize, train

NETWORK = {"norm": "batch"}


@pytest.fixture
def start(tmp_path):
    """A model of three classes."""
    path = tmp_path / "start.safetensors"
    model_file.save_model(path, make_model(model=NETWORK))
    return path


@pytest.fixture
def other_data():
    return tiny_data(classes=4)


def recipe(start, **sections):
    """Two frozen epochs and two of all layers."""
    transfer = {"frozen_epochs": 2, "frozen_lr": 1e-2, "epochs": 2, "lr": 1e-3}
    phases = {
        "transfer": {**transfer, **sections.pop("transfer", {})},
        "discriminative": {"epochs": 7, "lr": 2e-3, "flip": True, **sections.pop("discriminative", {})},
        "generative": {"epochs": 0, **sections.pop("generative", {})},
    }
    settings = {"start": str(start), "beta": 0.0, **sections.pop("train", {})}
    return tiny_config(train=settings, **phases, **sections)


def learner_of(cfg, data) -> Learner:
    adapted, start, _ = initialize.begin(cfg, data)
    return make_learner(adapted, data, start)


def weights_of(module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in module.state_dict().values()]


def equal(first, second) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_trunk_is_the_start_s_and_the_rest_is_new(start, other_data):
    learner, model = learner_of(recipe(start), other_data), model_file.load(start)
    mine, its = split_last(learner.model.backbone), split_last(model.backbone)
    assert equal(weights_of(mine[0]), weights_of(its[0]))
    assert not torch.equal(mine[1][-1].weight, its[1][-1].weight)
    assert len(learner.model.head.means) == 4
    assert learner.state.seconds == 0


@pytest.mark.parametrize("names", ["abc", ["class 1", "class 0", "class 2"]], ids=["other", "reordered"])
def test_as_many_classes_are_not_the_same_classes(start, names):
    """The last layer of the start would answer by the wrong names."""
    same = tiny_data(classes=3)
    others = Dataset(same.train, same.valid, same.test, list(names))
    learner, model = learner_of(recipe(start), others), model_file.load(start)
    assert learner.cfg.transfer.frozen_epochs == 2
    mine, its = (split_last(network)[1][-1].weight for network in (learner.model.backbone, model.backbone))
    assert not torch.equal(mine, its)


def test_the_recipe_becomes_what_is_trained(tmp_path, start, other_data):
    steep = {"warmup": 3, "weight_decay": 0.1, "decay_epochs": [1], "cutout": 2}
    cfg = recipe(start, discriminative=steep)
    model = train(cfg, tmp_path / "run", other_data)
    stored = folder.RunFolder(tmp_path / "run").recipe()
    expected = PhaseConfig(epochs=2, lr=1e-3, schedule="cosine", shift=1, flip=True, cutout=2)
    for trained in (stored, model.cfg):
        assert trained.model.norm == "batch"
        assert trained.discriminative == expected
        assert trained.transfer == cfg.transfer
    again = recipes.load(tmp_path / "run" / "config.toml")
    assert initialize.begin(again, other_data).cfg == again
    story = folder.RunFolder(tmp_path / "run").metrics()
    assert list(dict.fromkeys(line["phase"] for line in story)) == ["frozen", "discriminative"]
    assert model.trained["updates"] == 4 * 4
    assert model.reference is not None


def test_it_prints_whose_network_it_is(tmp_path, start, other_data, capsys):
    train(recipe(start), tmp_path / "run", other_data)
    printed = capsys.readouterr().err
    assert str(start) in printed
    assert "test images" in printed  # which a start of one's own may have seen
    assert "small_cnn" in printed


def test_a_recipe_without_epochs_of_a_transfer_keeps_its_own(start, other_data):
    cfg = recipe(start, transfer={"frozen_epochs": 0, "epochs": 0})
    assert initialize.begin(cfg, other_data).cfg.discriminative == cfg.discriminative


def test_a_recipe_may_have_epochs_of_a_transfer_alone(tmp_path, start, data, other_data):
    cfg = recipe(start, discriminative={"epochs": 0}, train={"checkpoint_seconds": 0.0})
    with interrupted_at(5):
        train(cfg, tmp_path / "run", other_data)
    assert train(cfg, tmp_path / "run", other_data).trained["updates"] == 4 * 4
    with pytest.raises(InputError, match=r"discriminative\.epochs.*at least 1, got 0"):
        train(recipe("", discriminative={"epochs": 0}), tmp_path / "other", data)


@pytest.mark.parametrize(
    "key", ["model.norm", "discriminative.epochs", "transfer.lr", "frozen.epochs", "finetune.lr"]
)
@pytest.mark.parametrize("transfer", [True, False])
def test_settings_that_are_not_used_are_refused(tmp_path, start, other_data, key, transfer):
    cfg = recipe(start if transfer else "")
    keys = [key, "train.start", "model.dim"]
    if transfer == key.startswith(("transfer", "frozen", "finetune")):
        train(cfg, tmp_path / "run", other_data, changed=[*keys, "discriminative.shift", "guard.slower"])
        return
    now = former.RENAMED.get(key, key)
    with pytest.raises(InputError, match=f"^{re.escape(now)} would not be used") as error:
        train(cfg, tmp_path / "run", other_data, changed=keys)
    assert (str(start) in str(error.value)) == transfer
    assert not (tmp_path / "run").exists()


def test_a_setting_that_a_transfer_keeps_is_allowed(tmp_path, start, other_data):
    cfg = recipe(start, generative={"epochs": 1}, train={"beta": 0.5}, model={"norm": "batch_then_frozen"})
    train(cfg, tmp_path / "run", other_data, changed=["model.norm"])


def test_without_a_start_or_with_one_of_the_same_classes_there_are_no_such_phases(tmp_path, data):
    plain = tiny_config(generative={"epochs": 0}, train={"beta": 0.0})
    train(plain, tmp_path / "same", data)
    for start in ("", tmp_path / "same"):
        adapted = initialize.begin(recipe(start), data).cfg
        assert (adapted.has_transfer, adapted.discriminative.epochs) == (False, 7)


def test_frozen_epochs_change_the_last_layer_alone_and_later_ones_all(start, other_data):
    learner = learner_of(recipe(start, train={"ema": 0.9}), other_data)
    trunk, last = split_last(learner.model.backbone)
    before = weights_of(trunk)
    for _ in range(learner.plan.frozen):
        old = weights_of(last)
        learner.update()
        assert equal(weights_of(trunk), before)
        assert not equal(weights_of(last), old)
    assert equal(weights_of(split_last(learner.best_model.backbone)[0]), before)
    learner.update()
    assert not equal(weights_of(trunk), before)


def test_an_update_of_the_last_layer_is_that_of_the_whole_network(start, other_data):
    """Without augmentation: the same energies and the same gradient of the last layer."""
    cfg = recipe(start, discriminative={"flip": False})
    learner = learner_of(cfg, other_data)
    batch = learner.batches.at(learner.moment(0))
    y, nothing = batch.labels, (None, None, None, 0.0)
    loss, outcome = learner.algorithm.loss(batch.network, batch.images, y, *nothing)
    loss.backward()
    last = split_last(learner.model.backbone)[1][-1]
    gradient = last.weight.grad.clone()
    learner.model.zero_grad()
    learner.model.eval()
    order = torch.randperm(64, generator=generator(0, "order", 0))[:16]
    images = to_signed(other_data.train.images[order])
    plain, whole = learner.algorithm.loss(learner.model.backbone, images, y, *nothing)
    plain.backward()
    assert torch.equal(other_data.train.labels[order], y)
    torch.testing.assert_close(outcome.real, whole.real)
    torch.testing.assert_close(gradient, last.weight.grad)


def test_features_are_computed_once(start, other_data, monkeypatch):
    looks = []
    look = frozen_trunk.FrozenTrunk._look
    monkeypatch.setattr(
        frozen_trunk.FrozenTrunk, "_look", lambda self, x: looks.append(len(x)) or look(self, x)
    )
    learner = learner_of(recipe(start), other_data)
    for _ in range(learner.plan.frozen):
        learner.update()
        learner.validate()
    assert sum(looks) == 2 * len(other_data.train) + len(other_data.valid)


def test_both_sides_of_an_image_are_drawn(start, other_data):
    learner = learner_of(recipe(start), other_data)
    index = torch.zeros(64, dtype=torch.long)
    drawn = learner.batches._frozen_trunk(learner.moment(0)).take(index, generator(0, "test")).flatten(1)
    image = to_signed(other_data.train.images[:1])
    trunk = split_last(learner.model.backbone)[0].eval()
    sides = torch.cat([trunk(image), trunk(image.flip(-1))])
    nearest = (drawn[:, None] - sides).norm(dim=-1)
    assert set(nearest.argmin(1).tolist()) == {0, 1}
    assert nearest.min(1).values.max() < 1e-4


@pytest.mark.parametrize("updates", [5, 16], ids=["frozen", "later"])
def test_validation_is_that_of_the_model(start, other_data, updates):
    cfg = recipe(start, train={"ema": 0.5}, transfer={"lr": 0.3})
    learner = learner_of(cfg, other_data)
    for _ in range(updates):
        learner.update()
        learner.validate()
    predicted = learner.best_model.predict(other_data.valid.images)
    assert learner.validate() == (predicted == other_data.valid.labels).float().mean().item()


@pytest.mark.parametrize("step", [3, 8, 11], ids=["frozen", "between", "later"])
def test_a_resumed_run_ends_with_the_same_bits_and_needs_no_start(tmp_path, start, other_data, step):
    cfg = recipe(start, train={"checkpoint_seconds": 0.0, "ema": 0.9}, guard={"every": 1})
    whole = train(cfg, tmp_path / "whole", other_data)
    with interrupted_at(step):
        train(cfg, tmp_path / "cut", other_data)
    shutil.move(start, tmp_path / "elsewhere.safetensors")
    resumed = train(cfg, tmp_path / "cut", other_data)
    assert resumed.trained["start"] == whole.trained["start"]
    assert equal(whole.state_dict().values(), resumed.state_dict().values())
    with pytest.raises(InputError, match=r"transfer\.lr"):
        train(recipe(start, transfer={"lr": 1e-4}), tmp_path / "cut", other_data)


def test_a_rollback_into_the_frozen_epochs_repeats_them(start, other_data):
    learner = learner_of(recipe(start), other_data)
    for _ in range(3):
        learner.update()
    good = learner.snapshot()
    ends = []
    for _ in range(2):
        learner.restore(good)
        while learner.step < learner.plan.total:
            learner.update()
        ends.append(weights_of(learner.model))
    assert equal(*ends)


def test_joint_training_follows_frozen_epochs(tmp_path, start, other_data):
    cfg = recipe(start, generative={"epochs": 1}, train={"beta": 0.5}, model={"norm": "batch_then_frozen"})
    model = train(cfg, tmp_path / "run", other_data)
    assert model.cfg.model.norm == "batch_then_frozen"
    assert model.sample(2).shape == (2, 1, 8, 8)


def test_images_of_another_size_are_refused(tmp_path, start):
    with pytest.raises(InputError, match=r"train\.start=\S+ needs .*1×8×8.*data\.size=8.*3×16×16"):
        train(recipe(start), tmp_path / "run", tiny_data(classes=4, channels=3, size=16))
    assert not (tmp_path / "run").exists()


def test_frozen_epochs_need_something_to_learn(tmp_path):
    cfg = {"backbone": "wrn-10-1", "dim": 0}
    path = tmp_path / "start.safetensors"
    model_file.save_model(path, make_model(model=cfg))
    with pytest.raises(InputError, match=r"frozen_epochs=2.*model\.dim=0"):
        train(recipe(path, model=cfg), tmp_path / "run", tiny_data(classes=4))
    model = train(recipe(path, model={**cfg, "dim": 5}), tmp_path / "run", tiny_data(classes=4))
    assert model.dim == 5


# --- train.start=auto ---


@pytest.fixture(scope="module")
def shipped():
    return model_file.load("cifar10")


def photos_of(classes, shape=(3, 32, 32)):
    source = torch.Generator().manual_seed(0)
    images = torch.randint(256, (2 * len(classes), *shape), dtype=torch.uint8, generator=source)
    part = LabelledImages(images, torch.arange(len(images)) % len(classes))
    return Dataset(part, part, part, classes)


def test_auto_is_a_shipped_model_of_other_classes_whose_images_fit(shipped):
    cfg, start, _ = initialize.begin(recipe("auto", model={"dim": 8}), photos_of(["a", "b"]))
    assert cfg == initialize.begin(recipe("cifar10", model={"dim": 8}), photos_of(["a", "b"])).cfg
    assert (cfg.train.start, cfg.model.backbone) == ("cifar10", shipped.cfg.model.backbone)
    assert start.class_names == shipped.class_names


@pytest.mark.parametrize("case", ["size", "channels", "classes", "last layer"])
def test_auto_falls_back_to_random_weights_and_prints_it(shipped, case):
    classes = shipped.class_names if case == "classes" else ("a", "b")
    shape = {"size": (3, 16, 16), "channels": (1, 32, 32)}.get(case, (3, 32, 32))
    own = recipe("auto", model={"dim": 0 if case == "last layer" else 8})
    cfg, start, note = initialize.begin(own, photos_of(classes, shape))
    assert start is None
    assert (cfg.train.start, cfg.has_transfer) == ("", False)
    assert (cfg.model, cfg.discriminative) == (own.model, own.discriminative)
    assert "random weights" in note


def test_the_note_is_printed_and_the_run_resumed(tmp_path, other_data, capsys):
    cfg = recipe("auto", model={"dim": 8})
    train(cfg, tmp_path / "run", other_data)
    assert "1×8×8" in capsys.readouterr().err
    assert folder.RunFolder(tmp_path / "run").recipe().train.start == ""
    assert train(cfg, tmp_path / "run", other_data).trained["updates"] == 4 * 7


@pytest.mark.parametrize(
    "change",
    ["model.backbone=wrn-10-1", "model.norm=none", "discriminative.epochs=3"],
)
def test_settings_of_random_weights_begin_with_them(tmp_path, capsys, change):
    file = tmp_path / "recipe.toml"
    file.write_text(recipes.to_toml(recipe("auto")))
    assert recipes.load(file, [change]).train.start == ""
    assert change.partition("=")[0] in capsys.readouterr().err
    for other in ("model.dim=9", "transfer.epochs=3", "transfer.frozen_lr=0.1"):
        assert recipes.load(file, [other]).train.start == "auto"
    assert recipes.load(file, [change, "train.start=cifar10"]).train.start == "cifar10"
    assert capsys.readouterr().err == ""


def test_photos_of_32_pixels_begin_with_the_shipped_network():
    cfg = initialize.begin(recipes.load("photos"), photos_of(["a", "b"])).cfg
    assert (cfg.train.start, cfg.model.backbone) == ("cifar10", "wrn-28-4")
    assert cfg.transfer.frozen_epochs > 0
    assert (cfg.discriminative.epochs, cfg.discriminative.lr) == (cfg.transfer.epochs, cfg.transfer.lr)
    own = recipes.load("photos")
    other = initialize.begin(own, photos_of(["a", "b"], (3, 64, 64))).cfg
    assert (other.train.start, other.model, other.discriminative) == ("", own.model, own.discriminative)
