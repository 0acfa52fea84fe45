"""Settings of the digits that diverge without the guard, and what it makes of them."""

import json

import pytest
import torch

from gmmc import config, data
from gmmc.errors import Diverged
from gmmc.train import train

SETTINGS = {
    "too long a sampler step": [
        "generative.optimizer=sgd",
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
    digits = data.load(model.cfg.data, model.cfg.train.seed)
    images = torch.cat([digits.valid.images, digits.test.images])
    labels = torch.cat([digits.valid.labels, digits.test.labels])
    return (model.predict(images) == labels).float().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_ends_in_non_finite_numbers_finishes_with_the_guard(tmp_path, settings):
    with pytest.raises(Diverged, match="is not finite"):
        train(config.load("digits", [*settings, "guard.on=false"]), tmp_path / "off")
    guarded = train(config.load("digits", settings), tmp_path / "on")
    discriminative = train(config.load("digits", [*settings, "train.beta=0"]), tmp_path / "zero")
    assert guarded.trained["rollbacks"] > 0
    assert accuracy(guarded) > accuracy(discriminative) - 0.03
    last = json.loads((tmp_path / "on" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["real_energy"] < 20  # healthy to the end
    assert last["bounded"] < 0.5
