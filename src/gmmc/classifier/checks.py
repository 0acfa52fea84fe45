"""Settings of a model that are each allowed and make no sense together."""

from gmmc.config.schema import Config
from gmmc.config.sections import ModelConfig
from gmmc.errors import InputError
from gmmc.networks.heads import HEADS
from gmmc.sampling.samplers import SAMPLERS

NEED_MEANS = ("span_density", "residual")  # scores


def without_means() -> str:
    """Names of the samplers for a head without class means."""
    return " or ".join(
        name for name, sampler in SAMPLERS.items() if not (sampler.to_means or sampler.noise_conditional)
    )


def check_sampler(name: str, *, has_means: bool, noise_conditional: bool) -> None:
    """Refuse a sampler that needs class means or an energy at every noise level where there are none."""
    if SAMPLERS[name].noise_conditional != noise_conditional:
        fit = " or ".join(n for n, s in SAMPLERS.items() if s.noise_conditional == noise_conditional)
        trained = "has" if noise_conditional else "lacks"
        raise InputError(
            f"sampler.name must be {fit}, as the model {trained} an energy at every noise level "
            f"(train.algorithm), got {name}"
        )
    if SAMPLERS[name].to_means and not has_means:
        raise InputError(
            f"sampler.name={name} walks to a class mean and the head has none (model.head=linear); "
            f"use {without_means()}"
        )


def check_model(cfg: Config) -> None:
    """Refuse settings that the head or the way to train does not allow."""
    head = cfg.model.head
    if cfg.samples:
        check_sampler(
            cfg.sampler.name, has_means=HEADS[head].has_means, noise_conditional=cfg.noise_conditional
        )
    if HEADS[head].has_means:
        return
    if cfg.model.scale != ModelConfig.scale:
        raise InputError(
            f"model.scale is the norm of class means and model.head={head} has none, got {cfg.model.scale:g}"
        )
    if cfg.abstain.score in NEED_MEANS:
        raise InputError(
            f"abstain.score={cfg.abstain.score} needs class means and model.head={head} has none"
        )
