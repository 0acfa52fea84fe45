"""Settings of a model that are each allowed and make no sense together."""

from gmmc.config.schema import Config
from gmmc.config.sections import ModelConfig
from gmmc.errors import InputError
from gmmc.networks.heads import HEADS
from gmmc.sampling.samplers import SAMPLERS

NEED_MEANS = ("span_density", "residual")  # scores


def without_means() -> str:
    """Names of the samplers for a head without class means."""
    return " or ".join(name for name, sampler in SAMPLERS.items() if not sampler.to_means)


def check_sampler(name: str, *, has_means: bool) -> None:
    """Refuse a sampler that walks to class means where the head has none."""
    if SAMPLERS[name].to_means and not has_means:
        raise InputError(
            f"sampler.name={name} walks to a class mean and the head has none (model.head=linear); "
            f"use {without_means()}"
        )


def check_model(cfg: Config) -> None:
    """Refuse settings that need class means where the head has none."""
    head = cfg.model.head
    if HEADS[head].has_means:
        return
    if cfg.samples:
        check_sampler(cfg.sampler.name, has_means=False)
    if cfg.model.scale != ModelConfig.scale:
        raise InputError(
            f"model.scale is the norm of class means and model.head={head} has none, got {cfg.model.scale:g}"
        )
    if cfg.abstain.score in NEED_MEANS:
        raise InputError(
            f"abstain.score={cfg.abstain.score} needs class means and model.head={head} has none"
        )
