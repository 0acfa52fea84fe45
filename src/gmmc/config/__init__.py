"""Recipes: frozen dataclasses filled from TOML and `key=value` overrides, checked at birth."""

from gmmc.config.recipes import (
    differences,
    find_recipe,
    from_dict,
    from_text,
    load,
    read_toml,
    shipped_recipes,
    stored,
    to_toml,
)
from gmmc.config.schema import Config
from gmmc.config.sections import (
    AbstainConfig,
    AugmentConfig,
    BufferConfig,
    DataConfig,
    EvaluateConfig,
    GuardConfig,
    ModelConfig,
    ObjectiveConfig,
    PhaseConfig,
    SampleConfig,
    SamplerConfig,
    TrainConfig,
)

__all__ = [
    "AbstainConfig",
    "AugmentConfig",
    "BufferConfig",
    "Config",
    "DataConfig",
    "EvaluateConfig",
    "GuardConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "PhaseConfig",
    "SampleConfig",
    "SamplerConfig",
    "TrainConfig",
    "differences",
    "find_recipe",
    "from_dict",
    "from_text",
    "load",
    "read_toml",
    "shipped_recipes",
    "stored",
    "to_toml",
]
