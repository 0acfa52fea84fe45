"""Threads: chosen by the network alone, recorded in a training, given back to the caller."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import make_model, tiny_config, tiny_data
from gmmc.config import recipes
from gmmc.config.sections import ModelConfig
from gmmc.estimator.classifier import GMMCClassifier
from gmmc.networks import threads
from gmmc.networks.backbones import build_backbone
from gmmc.runs import folder, model_file
from gmmc.train.loop import train

CPU = torch.device("cpu")
LARGE = {"backbone": "wrn-28-4"}


@pytest.fixture(autouse=True)
def callers_number():
    with threads.using(torch.get_num_threads()):
        yield


class Stop(Exception):
    pass


# --- the choice -----------------------------------------------------------------------------------


def test_multiply_adds_of_linear_layers_are_their_weights():
    assert threads.multiply_adds(ModelConfig(backbone="mlp-2-64", dim=10), (5, 1, 1)) == 64 * (5 + 64 + 10)


def test_multiply_adds_of_convolutions_grow_with_the_area():
    network = ModelConfig(backbone="wrn-10-2")
    small, large = (threads.multiply_adds(network, (3, side, side)) for side in (32, 64))
    assert large == 4 * small
    first = 32 * 32 * 9 * 3 * 16
    assert small > first


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("dim", [0, 10])
@pytest.mark.parametrize("backbone", ["small_cnn", "wrn-10-2", "mlp-2-64"])
def test_multiply_adds_are_half_the_operations_that_torch_counts(backbone, dim, norm):
    cfg, shape = ModelConfig(backbone=backbone, dim=dim, norm=norm), (3, 19, 30)
    with FlopCounterMode(display=False) as counter:
        build_backbone(cfg, shape).eval()(torch.zeros(1, *shape))
    assert 2 * threads.multiply_adds(cfg, shape) == counter.get_total_flops()


def test_multiply_adds_are_counted_without_computing():
    before = torch.random.get_rng_state()
    assert threads.multiply_adds(ModelConfig(backbone="wrn-100-100"), (3, 512, 512)) > 10**12
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_small_network_has_one_thread_and_a_large_one_torch_s(number):
    torch.set_num_threads(number)
    shape = (3, 32, 32)
    assert threads.choose(tiny_config(), shape, CPU) == 1
    assert threads.choose(tiny_config(model=LARGE), shape, CPU) == number
    assert threads.choose(tiny_config(), shape, torch.device("cuda")) == number
    assert threads.choose(tiny_config(train={"threads": 3}), shape, CPU) == 3


def test_recipes_for_a_cpu_are_small_and_the_shipped_model_is_not():
    torch.set_num_threads(4)
    photos, digits = recipes.load("photos"), recipes.load("digits")
    assert threads.choose(photos, (3, photos.data.size, photos.data.size), CPU) == 1
    assert threads.choose(digits, (1, 8, 8), CPU) == 1
    # A number in a recipe would count as asked for, and a resumed training would not keep its own.
    assert (photos.train.threads, digits.train.threads) == (0, 0)
    model = model_file.load("cifar10")
    assert threads.choose(model.cfg, model.shape, CPU) == 4


# --- training -------------------------------------------------------------------------------------


def numbers_in(out, cfg, data, *, stop=False):
    """Train; return the numbers of threads that metrics lines were written with."""
    seen = []

    def look(line):
        seen.append(torch.get_num_threads())
        if stop:
            raise Stop

    train(cfg, out, data, on_metrics=look, silent=True)
    return set(seen)


def test_one_seed_gives_the_same_bits_whatever_the_caller_s_number(tmp_path, data):
    files = []
    for number in (1, 3):
        torch.set_num_threads(number)
        assert numbers_in(tmp_path / str(number), tiny_config(), data) == {1}
        assert torch.get_num_threads() == number
        files.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_the_number_of_threads_is_a_setting(tmp_path, data):
    assert numbers_in(tmp_path / "run", tiny_config(train={"threads": 2}), data) == {2}


@pytest.mark.parametrize(("asked", "number"), [(0, 2), (2, 2), (1, 1)])
def test_a_resumed_training_keeps_its_number_unless_another_is_asked_for(
    tmp_path, data, asked, number, capsys
):
    with pytest.raises(Stop):
        numbers_in(tmp_path, tiny_config(train={"threads": 2}), data, stop=True)
    capsys.readouterr()
    train(tiny_config(train={"threads": asked}), tmp_path, data)
    err = capsys.readouterr().err
    assert ("instead of 2" in err) == (number != 2)
    state, _ = folder.RunFolder(tmp_path).load_state()
    assert state is not None
    assert state.info["threads"] == number


def test_the_estimator_computes_with_one_and_gives_the_number_back(monkeypatch):
    seen = []
    monkeypatch.setattr("gmmc.train.loop.Loop.log", lambda *_: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    data = tiny_data().train
    GMMCClassifier(beta=0, min_updates=3, random_state=0).fit(data.images.flatten(1).numpy(), data.labels)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


# --- a finished model -----------------------------------------------------------------------------


def test_loading_in_python_changes_nothing(tmp_path):
    model = make_model(train={"threads": 3})
    model_file.save_model(tmp_path / "model.safetensors", model)
    torch.set_num_threads(2)
    model_file.load(tmp_path)
    assert torch.get_num_threads() == 2
