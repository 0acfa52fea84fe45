"""Recipes and overrides, given to `gmmc train`."""

import dataclasses
import random
import typing
from pathlib import Path
from typing import Any

import torch

from fuzz.material import Material, recipe, write_photos
from fuzz.mutating import NUMBERS, TEXTS, mutated, mutated_text, odd_value, replace_file, toml, toml_value
from gmmc.config import former
from gmmc.config.schema import Config
from gmmc.runs import model_file

# Values above these are allowed and take long; the others are drawn from all that is allowed.
COSTLY = {
    "discriminative.epochs": 2,
    "generative.epochs": 2,
    "sampler.steps": 4,
    "buffer.size": 2000,
    "model.dim": 64,
}
COSTLY |= {"train.devices": 1, "train.nodes": 1, "train.fid_every": 0, "train.threads": 2, "data.size": 16}
FIXED = ("train.engine", "train.device")  # a compiler takes a minute, and a GPU is not everywhere
BACKBONES = [
    "small_cnn",
    "mlp-1-4",
    "mlp-0-4",
    "mlp-4",
    "wrn-10-1",
    "wrn-11-1",
    "wrn-28-0",
    "mlp-2-4-8",
    "wrn-10-99999999",
]
HINTS = typing.get_type_hints(Config)
KEYS = {f"{section}.{field.name}": field for section in HINTS for field in dataclasses.fields(HINTS[section])}


def command(draw: random.Random, folder: Path, given: Material) -> tuple[list[str], Any]:
    """Change keys of a recipe, its text or its overrides."""
    tree = recipe(str(write_photos(folder / "photos")))
    overrides: list[str] = []
    place, kind = folder / "recipe.toml", draw.randrange(10)
    if kind < 5:
        for _ in range(draw.choice([1, 1, 2, 3])):
            key, value = draw_setting(draw)
            section, _, name = key.partition(".")
            tree.setdefault(section, {})[name] = value
    elif kind < 7:
        overrides = [override(draw) for _ in range(draw.choice([1, 1, 2, 3]))]
    elif kind == 7:
        tree = mutated(draw, tree)
    place.write_text(toml(bounded(tree)) if isinstance(tree, dict) else toml_value(tree))
    if kind == 8:
        place.write_bytes(mutated_text(draw, place.read_text()))
    elif kind == 9:
        replace_file(draw, place)
    out = folder / "out"
    return ["train", str(place), "--out", str(out), "--", *overrides], lambda _: verify(out)


def draw_former(draw: random.Random) -> tuple[str, Any]:
    """Draw a key of an earlier version, and its value of today or any."""
    key = draw.choice([*former.RENAMED, *former.REMOVED])
    value = former.REMOVED[key].built_in({}) if key in former.REMOVED else draw.choice([0, 1, 0.1])
    return key, value if draw.random() < 0.6 else odd_value(draw)


def draw_setting(draw: random.Random) -> tuple[str, Any]:
    """Draw a key, and a value that mostly has its type."""
    if draw.random() < 0.1:
        return draw_former(draw)
    key = draw.choice([key for key in KEYS if key not in FIXED])
    section, _, name = key.partition(".")
    hint = typing.get_type_hints(HINTS[section])[name]
    if key == "model.backbone":
        return key, draw.choice(BACKBONES)
    if draw.random() < 0.15:
        value = odd_value(draw)
    elif typing.get_origin(hint) is typing.Literal:
        value = draw.choice(typing.get_args(hint))
    elif typing.get_origin(hint) is tuple:
        value = [draw.choice(NUMBERS[:6] if name != "ood" else TEXTS) for _ in range(draw.randrange(3))]
    elif hint is int:
        value = draw.choice([*range(6), 8, 16, *[n for n in NUMBERS if isinstance(n, int)]])
    elif hint is float:
        value = draw.choice([0, 1e-9, 0.001, 0.1, 0.5, 0.9, 1, 2, 10, 1e3, *NUMBERS])
    else:
        value = draw.choice([True, False] if hint is bool else TEXTS)
    return key, cheap(key, value)


def cheap(key: str, value: Any) -> Any:
    """Return the value, or the largest that is cheap."""
    most = KEYS[key].metadata.get("at_most") if key in KEYS else None
    if key in COSTLY and type(value) in (int, float) and COSTLY[key] < value <= (most or value):
        return COSTLY[key]
    return "nowhere" if key == "data.name" and value in (".", "..", "~") else value


def bounded(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with cheap values."""
    return {
        section: {name: cheap(f"{section}.{name}", value) for name, value in table.items()}
        if isinstance(table, dict)
        else table
        for section, table in tree.items()
    }


def override(draw: random.Random) -> str:
    """Draw an argument of the form key=value, or nearly so."""
    key, value = draw_setting(draw)
    text = value if isinstance(value, str) and "\0" not in value else toml_value(value)
    if draw.random() < 0.7:
        return f"{key}={text}"
    forms = [
        key,
        f"{key}=",
        f"={text}",
        f"{key}=={text}",
        f".{key}={text}",
        f"{key}.x={text}",
        key.replace(".", "="),
    ]
    return draw.choice(
        [*forms, f"{key}=[[{text}", f"{key} = {text} ", f"{key}={text}\nmodel.dim=3", key.upper() + "=1"]
    )


def verify(out: Path) -> None:
    """A training that succeeds leaves a model that answers."""
    model = model_file.load(out)
    posterior = model.predict_proba(torch.zeros(2, *model.shape))
    assert posterior.isfinite().all()
    assert (posterior.sum(-1) - 1).abs().max() < 1e-3
