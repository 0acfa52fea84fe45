"""Read and write recipes: TOML files, `key=value` overrides, differences."""

import dataclasses
import json
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

from gmmc.base.inputs import kind_of, parse_toml, read_bytes
from gmmc.base.leader import is_leader
from gmmc.base.limits import LONG_SHOWN, SHOWN
from gmmc.base.text import cut, print_line, printable, shortened, suggestion
from gmmc.config import former
from gmmc.config.schema import AUTO_START, NOISE_CONDITIONAL, Config
from gmmc.errors import InputError

# Settings of a training from random weights; a transfer has the start's network, and [transfer].
OF_RANDOM_WEIGHTS = ("model.backbone", "model.norm", "discriminative.")
# Defaults of noise-conditional models, where they differ: Heun's method takes few steps.
NOISE_DEFAULTS = {
    "sampler": {"name": "heun"},
    "sample": {"steps": 18},
    "evaluate": {"generation_steps": [12, 18, 35]},
}


# --- in -------------------------------------------------------------------------------------------


def load(path: str | Path, overrides: typing.Iterable[str] | typing.Mapping[str, Any] = ()) -> Config:
    """Read a recipe and apply overrides such as 'train.beta=0.5', or {"train.beta": 0.5}."""
    path = find_recipe(path)
    tree = read_toml(path)
    pairs = overrides.items() if isinstance(overrides, typing.Mapping) else map(_parsed, overrides)
    changes, overridden = dict(pairs), {}
    for key, value in changes.items():
        _apply_override(overridden, key, value)
    cfg = _given(tree, overridden)
    of_random = [key for key in former.present(changes) if key.startswith(OF_RANDOM_WEIGHTS)]
    if cfg.train.start == AUTO_START and of_random:
        if is_leader():
            note = f"beginning with random weights, to which {', '.join(of_random)} belongs"
            print_line(note, file=sys.stderr)
        cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, start=""))
    return cfg


def find_recipe(path: str | Path) -> Path:
    """A file, or the name of a recipe that ships with gmmc."""
    path = Path(path)
    if path.is_file():
        return path
    shipped = shipped_recipes()
    if str(path) in shipped:
        return shipped[str(path)]
    hint = suggestion(path.stem, shipped, "recipes that ship with gmmc:")
    shown = shortened(str(path), LONG_SHOWN)
    raise InputError(f"no recipe file {shown}: it {kind_of(path)}; {hint}")


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that ship with gmmc by their names, in order."""
    here = Path(__file__).resolve().parents[1]
    # At the top of a clone, and inside of an installed package.
    files = [file for place in (here.parents[1], here) for file in (place / "recipes").glob("*.toml")]
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_bytes(path), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def stored(tree: dict[str, Any]) -> tuple[Config, list[str]]:
    """Read the recipe of a run or model: (recipe, a line for each value that is not used any more)."""
    tree, notes = former.stored(tree)
    return _build(Config, tree, ""), notes


def from_text(text: str) -> Config:
    return from_dict(parse_toml(text, "the configuration"))


def from_dict(tree: dict[str, Any]) -> Config:
    """A nested dictionary → Config; unknown keys, wrong types and values out of range are refused."""
    return _given(tree) if isinstance(tree, dict) else _build(Config, tree, "")


def _given(tree: dict[str, Any], changes: dict[str, Any] | None = None) -> Config:
    """Build a user's recipe, with a warning about keys of earlier versions."""
    tree, warning = former.given(tree, changes)
    cfg = _build(Config, _with_noise_defaults(tree), "")
    if warning and is_leader():
        print_line(warning, file=sys.stderr)
    return cfg


def _with_noise_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of noise-conditional models to a recipe of one."""
    train = tree.get("train")
    if not isinstance(train, dict) or train.get("algorithm") not in tuple(NOISE_CONDITIONAL):
        return tree
    tables = {name: tree.get(name, {}) for name in NOISE_DEFAULTS}
    return tree | {
        name: {**NOISE_DEFAULTS[name], **table} if isinstance(table, dict) else table
        for name, table in tables.items()
    }


def _parsed(override: str) -> tuple[str, Any]:
    """'key=value' → key and value."""
    key, equals, text = override.partition("=")
    if not equals:
        raise InputError(f"an override must look like section.key=value, got {shortened(override)}")
    try:
        return key.strip(), parse_toml(f"value = {text}", key)["value"]
    except InputError:
        return key.strip(), text.strip()  # a bare word is a string: model.backbone=wrn-28-4


def _apply_override(tree: dict[str, Any], key: str, value: Any) -> None:
    section, dot, name = key.partition(".")
    if not (dot and section and name):
        raise InputError(f"an override must look like section.key=value, got the key {shortened(key)}")
    tree.setdefault(section, {})[name] = value


def _build(kind: type, tree: Any, section: str) -> Any:
    if not isinstance(tree, dict):
        raise InputError(f"[{section}] must be a table, got {shortened(tree)}")
    hints = typing.get_type_hints(kind)
    for key in tree:
        if key not in hints:
            raise InputError(_unknown_key(key, section, list(hints)))
    if kind is Config:
        return Config(**{key: _build(hints[key], table, key) for key, table in tree.items()})
    try:
        return kind(**tree)
    except InputError as error:
        raise InputError(f"{section}.{error}") from None


def _unknown_key(key: str, section: str, known: list[str]) -> str:
    shown = shortened(key)
    what = f"unknown key {shown} in [{section}]" if section else f"unknown section [{shown[1:-1]}]"
    return f"{what}; {suggestion(key, known)}"


# --- out ------------------------------------------------------------------------------------------


def to_toml(cfg: Config) -> str:
    """The whole recipe, defaults included, as `config.toml` keeps it."""
    lines = []
    for section, table in dataclasses.asdict(cfg).items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON allows it as it is
    return repr(value)  # repr of a float reads back to the same bits


def differences(old: Config, new: Config) -> list[str]:
    """One 'section.key: old value, now new value' per key that makes it another run."""
    lines = []
    for section in fields(Config):
        a, b = getattr(old, section.name), getattr(new, section.name)
        for key in fields(a):
            x, y = getattr(a, key.name), getattr(b, key.name)
            if x != y and not key.metadata.get("place"):
                lines.append(f"{section.name}.{key.name}: {_brief(x)}, now {_brief(y)}")
    return lines


def _brief(value: Any) -> str:
    return cut(printable(_toml_value(value)), SHOWN)
