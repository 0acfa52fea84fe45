"""A recipe: frozen dataclasses filled from TOML and `key=value` overrides, checked at birth.

The paper's Approach 1 is a recipe with discriminative epochs only, Approach 2 one with generative epochs
only, Approach 3 (joint) has both.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from gmmc.errors import InputError


def _number(
    default: Any, *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
):
    """A number and the range it must lie in."""
    return field(default=default, metadata={"above": above, "at_least": at_least, "at_most": at_most})


@dataclass(frozen=True)
class Section:
    """Checks its own values, whether they come from a file or from Python."""

    def __post_init__(self):
        hints = typing.get_type_hints(type(self))
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(getattr(self, f.name), hints[f.name], f))


@dataclass(frozen=True)
class DataConfig(Section):
    name: str = "digits"
    valid: float = _number(0.1, at_least=0, at_most=0.9)  # share of the training images held out


@dataclass(frozen=True)
class ModelConfig(Section):
    backbone: str = "small_cnn"  # or "wrn-28-10"
    # Width of a linear layer after pooling; 0: none, the backbone's own features.
    dim: int = _number(0, at_least=0, at_most=1_000_000)
    scale: float = _number(10.0, at_least=1e-3, at_most=1e6)  # S, the norm of the means
    priors: Literal["uniform", "empirical"] = "uniform"


@dataclass(frozen=True)
class TrainConfig(Section):
    batch_size: int = _number(64, at_least=1, at_most=1_000_000)
    beta: float = _number(0.5, at_least=0, at_most=100)  # weight of sampled energies, generative phase
    ramp: int = _number(0, at_least=0)  # updates over which beta grows from 0; 0: a switch
    seed: int = _number(0, at_least=0, at_most=2**63 - 1)
    device: str = "auto"
    threads: int = _number(0, at_least=0, at_most=1024)  # of a CPU run; 0: torch's choice, one per core
    log_every: int = _number(20, at_least=1)  # updates per line of metrics.jsonl
    checkpoint_seconds: float = _number(60.0, at_least=0)  # 0: after every line


@dataclass(frozen=True)
class PhaseConfig(Section):
    """One stretch of training. Epochs of `decay_epochs` count from the start of the phase."""

    epochs: int = _number(0, at_least=0, at_most=1_000_000)
    lr: float = _number(1e-4, above=0, at_most=100)  # Adam's
    schedule: Literal["step", "cosine"] = "step"
    decay_epochs: tuple[int, ...] = _number((), at_least=1)
    decay: float = _number(0.3, above=0, at_most=1)
    shift: int = _number(0, at_least=0)  # pixels, at random, both directions, edges filled by reflection
    flip: bool = False
    noise: float = _number(0.0, at_least=0, at_most=100)  # std of Gaussian pixel noise, in units of [−1, 1]

    def __post_init__(self):
        super().__post_init__()
        if self.schedule == "cosine" and self.decay_epochs:
            raise InputError(
                f"decay_epochs must be empty with a cosine schedule, got {list(self.decay_epochs)}"
            )


@dataclass(frozen=True)
class SamplerConfig(Section):
    name: Literal["staged", "noise_injected"] = "staged"
    steps: int = _number(20, at_least=1, at_most=1_000_000)  # τ
    alpha: float = _number(1 / 64, above=0, at_most=1e6)  # step on the summed unit energy
    target_std: float = _number(0.001, at_least=0, at_most=1e6)  # z ~ N(μ_y′, target_std²·I)


@dataclass(frozen=True)
class BufferConfig(Section):
    size: int = _number(10_000, at_least=1, at_most=1_000_000_000)
    reinit: float = _number(0.025, at_least=0, at_most=1)  # ρ


@dataclass(frozen=True)
class SampleConfig(Section):
    """Fresh chains of the finished model, started from noise."""

    steps: int = _number(200, at_least=1, at_most=1_000_000)


@dataclass(frozen=True)
class EvaluateConfig(Section):
    samples: int = _number(1000, at_least=1, at_most=10_000_000)  # fresh chains, equally many per class
    seed: int = _number(0, at_least=0, at_most=2**63 - 1)  # of the first chain


@dataclass(frozen=True)
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    discriminative: PhaseConfig = field(default_factory=PhaseConfig)
    generative: PhaseConfig = field(default_factory=PhaseConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self):
        if self.discriminative.epochs + self.generative.epochs == 0:
            raise InputError("discriminative.epochs + generative.epochs must be at least 1, got 0")
        samples = self.generative.epochs > 0 and self.train.beta > 0
        if samples and self.buffer.size < self.train.batch_size:
            raise InputError(
                f"buffer.size must be at least train.batch_size={self.train.batch_size}, "
                f"got buffer.size={self.buffer.size}"
            )


# --- in -------------------------------------------------------------------------------------------


def load(path: str | Path, overrides: typing.Iterable[str] = ()) -> Config:
    """Read a recipe and apply overrides such as 'train.beta=0.5'."""
    path = find_recipe(path)
    tree = read_toml(path)
    for override in overrides:
        _apply_override(tree, override)
    return from_dict(tree)


def find_recipe(path: str | Path) -> Path:
    """A file, or the name of a recipe that ships with gmmc."""
    path = Path(path)
    if path.is_file():
        return path
    here = Path(__file__).resolve().parent
    folders = [folder for folder in (here / "recipes", here.parents[1] / "recipes") if folder.is_dir()]
    for folder in folders:
        shipped = folder / f"{path}.toml"
        if shipped.is_file():
            return shipped
    names = sorted(recipe.stem for folder in folders for recipe in folder.glob("*.toml"))
    raise InputError(f"no recipe file {str(path)!r}; recipes that ship with gmmc: {', '.join(names)}")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def from_text(text: str) -> Config:
    return from_dict(_parse(text, "the configuration"))


def _parse(text: str, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"{what} is not valid TOML: {error}") from None


def from_dict(tree: dict[str, Any]) -> Config:
    """A nested dictionary → Config; unknown keys, wrong types and values out of range are refused."""
    return _build(Config, tree, "")


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name):
        raise InputError(f"an override must look like section.key=value, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # TOML's own error is one, and so is a number of thousands of digits
        value = text.strip()  # a bare word is a string: model.backbone=wrn-28-4
    table = tree.setdefault(section, {})
    if isinstance(table, dict):  # otherwise the recipe itself is wrong and is refused below
        table[name] = value


def _build(kind: type, tree: Any, section: str) -> Any:
    if not isinstance(tree, dict):
        raise InputError(f"[{section}] must be a table, got {tree!r}")
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
    what = f"unknown key {key!r} in [{section}]" if section else f"unknown section [{key}]"
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"{what}; did you mean {near[0]!r}?" if near else f"{what}; known are {', '.join(known)}"


def _checked(value: Any, hint: Any, f: dataclasses.Field) -> Any:
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise InputError(f"{f.name} must be one of {', '.join(typing.get_args(hint))}, got {value!r}")
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{f.name} must be a list, got {value!r}")
        return tuple(_checked(item, typing.get_args(hint)[0], f) for item in value)
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 1e300 else math.inf
    if type(value) is not hint:  # not isinstance: True is an int
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise InputError(f"{f.name} must be {names[hint]}, got {value!r}")
    if hint in (int, float):
        _check_range(value, f)
    return value


def _check_range(value: float, f: dataclasses.Field) -> None:
    above, at_least, at_most = (f.metadata.get(rule) for rule in ("above", "at_least", "at_most"))
    if not math.isfinite(value):
        raise InputError(f"{f.name} must be finite, got {value}")
    if above is not None and not value > above:
        raise InputError(f"{f.name} must be above {above:g}, got {value:g}")
    if at_least is not None and not value >= at_least:
        raise InputError(f"{f.name} must be at least {at_least:g}, got {value:g}")
    if at_most is not None and not value <= at_most:
        raise InputError(f"{f.name} must be at most {at_most:g}, got {value:g}")


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
        return json.dumps(value, ensure_ascii=False)
    return repr(value)  # repr of a float reads back to the same bits


def differences(old: Config, new: Config) -> list[str]:
    """One 'section.key: old value, now new value' per differing key."""
    lines = []
    for section in fields(Config):
        a, b = getattr(old, section.name), getattr(new, section.name)
        for key in fields(a):
            x, y = getattr(a, key.name), getattr(b, key.name)
            if x != y:
                lines.append(f"{section.name}.{key.name}: {_toml_value(x)}, now {_toml_value(y)}")
    return lines
