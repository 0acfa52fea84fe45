"""Keys that recipes had in earlier versions: four are renamed, the others have one value, which is built in.

`stored` reads the recipe of a run or model, which gmmc wrote, and `given` a recipe and overrides of a user.
"""

import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gmmc.base.text import shortened
from gmmc.config.schema import Config
from gmmc.errors import InputError

Tree = dict[str, Any]  # a recipe: section → key → value

RENAMED = {
    "frozen.epochs": "transfer.frozen_epochs",
    "frozen.lr": "transfer.frozen_lr",
    "finetune.epochs": "transfer.epochs",
    "finetune.lr": "transfer.lr",
}
UNAUGMENTED = {"shift": 0, "cutout": 0, "noise": 0.0}
# What [frozen] and [finetune] had where a file names no such key, and [transfer] may not have.
DEFAULTS = {**UNAUGMENTED, "flip": False, "warmup": 0, "schedule": "step"}
SHOWN_KEYS = 8  # in a warning

KINDS = typing.get_type_hints(Config)


def _value(tree: Tree, key: str) -> Any:
    """Value of a key that recipes have; its default where the recipe does not name it."""
    section, name = key.split(".")
    table = tree.get(section)
    default = getattr(KINDS[section], name)
    return table.get(name, default) if isinstance(table, dict) else default


def _is(value: Any) -> Callable[[Tree], Any]:
    return lambda tree: value


ALWAYS, NEVER = _is(True), _is(False)


def _equals(key: str) -> Callable[[Tree], Any]:
    return lambda tree: _value(tree, key)


def _if(*keys: str) -> Callable[[Tree], bool]:
    """Whether all of these keys have a value that is neither 0 nor empty."""
    return lambda tree: all(_value(tree, key) not in (0, [], ()) for key in keys)


def _activation(tree: Tree) -> str:
    return "silu" if _value(tree, "model.backbone") == "small_cnn" else "leaky_relu"


def _decays(phase: str) -> Callable[[Tree], bool]:
    used = _if(f"{phase}.epochs", f"{phase}.decay_epochs")
    return lambda tree: used(tree) and _value(tree, f"{phase}.schedule") == "step"


@dataclass(frozen=True)
class Removed:
    """A key that is gone, the value that takes its place, and whether another value changed anything."""

    built_in: Callable[[Tree], Any]
    matters: Callable[[Tree], bool] = ALWAYS
    rule: str = "{} is built in"
    same: tuple[Any, ...] = ()  # other values with the same meaning
    # What is done with another value in a stored recipe. One that never changed a model is not refused.
    stored: Literal["refused", "noted", "dropped"] = "refused"


def _option(name: str, value: Any) -> Removed:
    return Removed(_is(value), rule=f"give --{name} to gmmc evaluate", stored="noted")


def _phase(name: str) -> dict[str, Removed]:
    trains = _if(f"{name}.epochs")
    return {
        f"{name}.fill": Removed(_is("reflect"), _if(f"{name}.epochs", f"{name}.shift")),
        f"{name}.optimizer": Removed(_is("adam"), trains),
        f"{name}.momentum": Removed(_is(0.9), NEVER),  # Adam has none
        f"{name}.decay": Removed(_is(0.3), _decays(name)),
    }


def _transfer(
    section: str, epochs: str, built_in: Tree, as_discriminative: tuple[str, ...]
) -> Iterator[tuple[str, Removed]]:
    """Yield the keys of [frozen] or [finetune], which matter where `epochs`, a key, is not 0."""
    built_in = {"optimizer": "adam", "schedule": "cosine", "weight_decay": 0.0, **built_in}
    for key, value in built_in.items():
        yield f"{section}.{key}", Removed(_is(value), _if(epochs))
    for key in as_discriminative:
        same = f"discriminative.{key}"
        yield f"{section}.{key}", Removed(_equals(same), _if(epochs), f"{same}={{}} takes its place")
    matters = _if(epochs, "discriminative.shift") if "shift" in as_discriminative else NEVER
    yield f"{section}.fill", Removed(_is("reflect"), matters)
    meaningless = {"momentum": 0.9, "decay_epochs": [], "decay": 0.3}  # to Adam and a cosine
    for key, value in meaningless.items():
        yield f"{section}.{key}", Removed(_is(value), NEVER)


REMOVED: dict[str, Removed] = {
    "model.activation": Removed(_activation, same=("default",)),
    "train.fid_images": Removed(_is(10_000), stored="dropped"),
    "guard.slower": Removed(_is(0.5)),
    **_phase("discriminative"),
    **_phase("generative"),
    "contrast.fill": Removed(_is("reflect"), _if("contrast.shift")),
    **dict(_transfer("frozen", "transfer.frozen_epochs", {"warmup": 50, **UNAUGMENTED}, ("flip",))),
    **dict(_transfer("finetune", "transfer.epochs", {"warmup": 0}, ("flip", *UNAUGMENTED))),
    "evaluate.seed": _option("seed", 0),
    "evaluate.latent": Removed(_is(2000), stored="noted"),
    "evaluate.attacks": _option("attacks", "quick"),
    "evaluate.attacked": _option("attacked", 0),
    "evaluate.surrogate": _option("surrogate", ""),
    "evaluate.features": _option("features", "auto"),
}


def stored(tree: Tree) -> tuple[Tree, list[str]]:
    """Return (recipe with the keys of this version, a line for each value that is not used).

    InputError names a value that changed the training and can no longer be given.
    """
    tree, notes = _renamed(tree, whole=True), []
    for key, value, removed in _take_removed(tree):
        if removed.stored == "refused":
            raise InputError(_refusal(tree, key, value))
        if removed.stored == "noted":
            notes.append(f"{key}={shortened(value)} of its recipe is not used")
    return tree, notes


def given(tree: Tree, changes: Tree | None = None) -> tuple[Tree, str]:
    """Return (recipe with its overrides, in the keys of this version; a warning, or "").

    InputError names a value that is not the one that is built in.
    """
    merged = _renamed(tree, whole=True)
    for section, table in _renamed(changes or {}, whole=False).items():
        mine = merged.setdefault(section, {})
        if isinstance(mine, dict):  # otherwise the recipe itself is wrong and is refused later
            mine |= table
    for key, value, _ in _take_removed(merged):
        raise InputError(_refusal(merged, key, value))
    return merged, _warning(dict.fromkeys([*_keys(tree), *_keys(changes or {})]))


def present(keys: Iterable[str]) -> list[str]:
    """Keys of overrides by their names in this version, without those that are gone."""
    return [RENAMED.get(key, key) for key in keys if key not in REMOVED]


def value_in(tree: Tree, key: str) -> Any:
    """Value that a removed key has in a stored recipe; the one that is built in where it has none."""
    section, name = key.split(".")
    table, built_in = tree.get(section), REMOVED[key].built_in(tree)
    value = table.get(name, built_in) if isinstance(table, dict) else built_in
    return value if type(value) is type(built_in) else built_in


def _renamed(tree: Tree, *, whole: bool) -> Tree:
    """Copy with the new names of keys; `whole`: sections have the defaults of what they do not name."""
    tree = {section: dict(table) if isinstance(table, dict) else table for section, table in tree.items()}
    for old, new in RENAMED.items():
        (section, key), (new_section, new_key) = old.split("."), new.split(".")
        table = tree.get(section)
        if not isinstance(table, dict) or key not in table:
            continue
        goal = tree.setdefault(new_section, {})
        if isinstance(goal, dict) and new_key in goal:
            raise InputError(f"{old} is now {new}; give one of them, got both")
        value = table.pop(key)
        if isinstance(goal, dict):  # otherwise the recipe itself is wrong and is refused later
            goal[new_key] = value
        if whole and key == "epochs":
            tree[section] = DEFAULTS | table
    return tree


def _take_removed(tree: Tree) -> Iterator[tuple[str, Any, Removed]]:
    """Remove the keys that are gone; yield those with a value that meant something else."""
    _keep_flip(tree)
    for key, removed in REMOVED.items():
        section, name = key.split(".")
        table = tree.get(section)
        if not isinstance(table, dict) or name not in table:
            continue
        value = table.pop(name)
        is_same = value == removed.built_in(tree) or value in removed.same
        if not is_same and removed.matters(tree):
            yield key, value, removed
    for section in dict.fromkeys(key.split(".")[0] for key in RENAMED):
        table = tree.get(section)
        if not isinstance(table, dict):
            continue
        for key in table:
            raise InputError(f"unknown key {shortened(key)} in [{section}], which is now [transfer]")
        del tree[section]


def _keep_flip(tree: Tree) -> None:
    """Move frozen.flip to [discriminative] where only the last layer is trained: nothing else reads it."""
    frozen, discriminative = tree.get("frozen"), tree.get("discriminative", {})
    if not isinstance(frozen, dict) or not isinstance(discriminative, dict) or "flip" not in frozen:
        return
    all_layers = _value(tree, "discriminative.epochs"), _value(tree, "transfer.epochs")
    if _value(tree, "transfer.frozen_epochs") != 0 and all_layers == (0, 0):
        tree["discriminative"] = discriminative | {"flip": frozen["flip"]}


def _refusal(tree: Tree, key: str, value: Any) -> str:
    removed = REMOVED[key]
    rule = removed.rule.format(shortened(removed.built_in(tree)))
    return f"{key}={shortened(value)} can no longer be set: {rule}"


def _keys(tree: Tree) -> list[str]:
    return [f"{section}.{key}" for section, table in tree.items() if isinstance(table, dict) for key in table]


def _warning(keys: Iterable[str]) -> str:
    """Name the keys of earlier versions among these, and what to write; "" if there are none."""
    parts = [f"write {RENAMED[key]} for {key}" for key in keys if key in RENAMED]
    built_in = [key for key in keys if key in REMOVED]
    if built_in:
        more = len(built_in) - SHOWN_KEYS
        others = f" and {more} more keys" if more > 0 else ""
        parts.append(f"leave out {', '.join(built_in[:SHOWN_KEYS])}{others}")
    return f"deprecated settings: {'; '.join(parts)}" if parts else ""
