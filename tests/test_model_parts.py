"""A model in small files and back: benchmarks/model_parts.py."""

import runpy
from pathlib import Path

import pytest
import torch

import gmmc
from conftest import interrupted_at, tiny_config, tiny_data
from gmmc.errors import InputError
from gmmc.train.loop import train

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "model_parts.py"


@pytest.fixture(scope="module")
def parts():
    return runpy.run_path(str(SCRIPT))


def test_a_finished_model_comes_back_whole(parts, tmp_path):
    model = train(tiny_config(), tmp_path / "run", tiny_data(), silent=True)
    step, content = parts["current_model"](tmp_path / "run", None)
    places = parts["split"](content, step, tmp_path / "parts", 10_000)
    assert len(places) == -(-len(content) // 10_000) > 1
    assert all(place.stat().st_size <= 10_000 for place in places)
    back = tmp_path / "back.safetensors"
    back.write_bytes(parts["join"](tmp_path / "parts"))
    assert back.read_bytes() == content
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(gmmc.load(back).predict_proba(x), model.predict_proba(x))


def test_an_unfinished_training_gives_its_newest_checkpoint(parts, tmp_path, monkeypatch):
    cfg = tiny_config(train={"checkpoint_seconds": 0.0, "log_every": 1, "ema": 0.9})
    with interrupted_at(4):
        train(cfg, tmp_path / "run", tiny_data(), silent=True)
    so_far = parts["current_model"].__globals__["write_model_so_far"]
    given = parts["current_model"].__globals__
    monkeypatch.setitem(given, "write_model_so_far", lambda run, out, data: so_far(run, out, tiny_data()))
    step, content = parts["current_model"](tmp_path / "run", None)
    assert 0 < step <= 4
    parts["split"](content, step, tmp_path / "parts", 1_000_000)
    assert parts["join"](tmp_path / "parts") == content


def test_the_newest_complete_model_is_joined_and_damage_is_noticed(parts, tmp_path):
    parts["split"](b"old" * 10, 100, tmp_path, 7)
    parts["split"](b"new" * 10, 200, tmp_path, 7)
    newer = parts["split"](b"newest" * 10, 300, tmp_path, 7)
    newer[3].unlink()
    assert parts["join"](tmp_path) == b"new" * 10
    next(tmp_path.glob("200-*-2-of-*")).write_bytes(b"damaged")
    with pytest.raises(InputError, match="SHA-256"):
        parts["join"](tmp_path)
    with pytest.raises(InputError, match="all parts"):
        parts["join"](newer[0].parent.parent)
