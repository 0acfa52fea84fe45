"""FID of the buffer while training."""

import pytest
import torch

from conftest import tiny_config, tiny_data
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.evaluations.buffer_images import read_buffer
from gmmc.fid import features
from gmmc.fid.chain_images import evenly
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.runs.folder import RunFolder
from gmmc.train import buffer_fid
from gmmc.train.loop import train

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(autouse=True)
def few_images(monkeypatch):
    monkeypatch.setattr(buffer_fid, "IMAGES", 20)


def watched(every: int, **sections):
    return tiny_config(train={"fid_every": every}, generative={"epochs": 3}, **sections)


def fids(folder) -> dict[int, float]:
    """By generative epoch; there is one discriminative."""
    lines = RunFolder(folder).metrics()
    return {line["epoch"] - 1: line["buffer_fid"] for line in lines if "buffer_fid" in line}


@pytest.mark.parametrize(("every", "epochs"), [(0, []), (1, [1, 2, 3]), (2, [2, 3]), (5, [3])])
def test_it_is_logged_every_so_many_epochs_and_at_the_end(tmp_path, data, every, epochs):
    train(watched(every), tmp_path / "run", data)
    assert list(fids(tmp_path / "run")) == epochs


def test_it_is_the_distance_of_the_buffer_to_the_training_images(tmp_path, data):
    model = train(watched(3), tmp_path / "run", data)
    network = features.find("small", data, torch.device("cpu"))
    real = torch.cat([network.features(data.train.images), network.features(data.valid.images)])
    buffer = read_buffer(RunFolder(tmp_path / "run"), model).images[::2]  # 20 of 40
    wanted = frechet(Gaussian.of(real), Gaussian.of(network.features(buffer)))
    assert fids(tmp_path / "run")[3] == pytest.approx(wanted, rel=1e-5)


def test_watching_changes_no_bit_of_the_training(tmp_path, data):
    with_it = train(watched(1), tmp_path / "with", data)
    without = train(watched(0), tmp_path / "without", data)
    for name, tensor in without.state_dict().items():
        assert torch.equal(tensor, with_it.state_dict()[name]), name


def test_it_is_silent_and_the_training_s_bar_goes_on(tmp_path, data, capsys):
    train(watched(1), tmp_path / "run", data)
    assert "features of the buffer" not in capsys.readouterr().err


def test_its_time_is_not_training_time(tmp_path, data, monkeypatch):
    """A clock that jumps by an hour whenever the buffer is looked at."""
    from gmmc.train.buffer_fid import Watch

    clock = [0.0]
    monkeypatch.setattr("gmmc.train.state.time.monotonic", lambda: clock[0])

    def fid(self, buffer):
        clock[0] += 3600
        return 1.0

    monkeypatch.setattr(Watch, "fid", fid)
    train(watched(1), tmp_path / "run", data)
    assert RunFolder(tmp_path / "run").metrics()[-1]["seconds"] == 0
    assert clock[0] == 3 * 3600


def test_nothing_is_looked_at_where_nothing_is_sampled(tmp_path, data):
    train(tiny_config(train={"fid_every": 1, "beta": 0.0}), tmp_path / "run", data)
    assert not fids(tmp_path / "run")


def test_a_missing_network_is_told_before_the_training(tmp_path):
    with pytest.raises(InputError, match=r"features must be .*nothing\.pt"):
        train(tiny_config(train={"fid_every": 1}), tmp_path / "run", tiny_data(), features="nothing.pt")
    assert not (tmp_path / "run").exists()


def test_a_network_that_would_see_nothing_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        app.main(["train", "digits", "--features", "nothing.pt", "--out", str(tmp_path / "run")])
    assert "train.fid_every" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("count", "most"), [(10, 3), (10, 10), (10, 20), (7, 1), (100, 99)])
def test_evenly_spaced_places(count, most):
    places = evenly(count, most)
    assert len(places) == min(count, most)
    assert places[0] == 0
    gaps = places.diff()
    assert places[-1] < count
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
