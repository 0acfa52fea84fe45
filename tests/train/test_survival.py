"""Settings of the digits that diverge without the guard, and what it makes of them."""

import json
from contextlib import suppress

import pytest
import torch

from gmmc.config import recipes
from gmmc.data import sources
from gmmc.errors import Diverged
from gmmc.train.loop import train

SETTINGS = {
    "too long a sampler step": [
        "generative.lr=2e-3",
        "generative.epochs=10",
        "sampler.alpha=0.25",
    ],
    "too few sampler steps": [
        "sampler.steps=2",
        "generative.lr=5e-3",
        "discriminative.epochs=10",
        "generative.epochs=40",
        "train.beta=0.5",
        "train.ramp=0",
    ],
}


def accuracy(model):
    """On all images that were not trained on."""
    digits = sources.load(model.cfg.data, model.cfg.train.seed)
    images = torch.cat([digits.valid.images, digits.test.images])
    labels = torch.cat([digits.valid.labels, digits.test.labels])
    return (model.predict(images) == labels).float().mean().item()


def last_line(run):
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_diverges_finishes_with_the_guard(tmp_path, settings):
    # Which of the two ends it takes depends on the CPU's rounding.
    with suppress(Diverged):
        train(recipes.load("digits", [*settings, "guard.on=false"]), tmp_path / "off")
        assert last_line(tmp_path / "off")["real_energy"] > 1e6
    guarded = train(recipes.load("digits", settings), tmp_path / "on")
    discriminative = train(recipes.load("digits", [*settings, "train.beta=0"]), tmp_path / "zero")
    assert guarded.trained["rollbacks"] > 0
    assert accuracy(guarded) > accuracy(discriminative) - 0.05
    last = last_line(tmp_path / "on")
    assert last["real_energy"] < 20  # healthy to the end
    assert last["bounded"] < 0.5
