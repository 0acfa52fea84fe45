"""Values of a recipe that are each allowed and together make no sense."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gmmc.config.sections import AugmentConfig, ModelConfig

if TYPE_CHECKING:
    from gmmc.config.schema import Config


def contradictions(cfg: "Config") -> Iterator[tuple[bool, str]]:
    """Values that are each allowed and together make no sense."""
    head, objective, sampler = cfg.model.head, cfg.objective.name, cfg.sampler.name
    langevin = sampler.startswith("sgld")
    yield (
        not (cfg.has_transfer or cfg.discriminative.epochs or cfg.generative.epochs),
        "discriminative.epochs + generative.epochs must be at least 1, got 0",
    )
    yield (
        cfg.samples and cfg.buffer.size < cfg.chains,
        f"buffer.size must be at least the chains of an update, {cfg.chains}, "
        f"got buffer.size={cfg.buffer.size}",
    )
    yield (
        cfg.buffer.chains > cfg.train.batch_size,
        f"buffer.chains must be at most train.batch_size={cfg.train.batch_size}, "
        f"got buffer.chains={cfg.buffer.chains}",
    )
    yield (
        langevin and not cfg.samples,
        f"sampler.name={sampler} is never used: it needs generative.epochs and train.beta above 0, "
        f"got {cfg.generative.epochs} and {cfg.train.beta:g}",
    )
    yield (
        head == "linear" and cfg.samples and not langevin,
        f"sampler.name={sampler} walks to a class mean and model.head=linear has none; use sgld or sgld_jem",
    )
    yield (
        head != "mmc" and objective != "balanced",
        f"objective.name={objective} needs the fixed means of model.head=mmc "
        f"(with {head} the energies alone have no class boundary); use objective.name=balanced",
    )
    yield (
        head == "linear" and cfg.model.scale != ModelConfig.scale,
        f"model.scale is the norm of class means and model.head=linear has none, got {cfg.model.scale:g}",
    )
    yield (
        head == "linear" and cfg.abstain.score in ("span_density", "residual"),
        f"abstain.score={cfg.abstain.score} needs class means and model.head=linear has none",
    )
    yield (
        objective == "gmmc" and cfg.contrast != AugmentConfig(),
        "[contrast] augments the second real term of objective.name=balanced; gmmc has none",
    )
    yield (
        cfg.model.norm == "batch_then_frozen"
        and not ((cfg.discriminative.epochs or cfg.train.start) and cfg.generative.epochs),
        "model.norm=batch_then_frozen needs discriminative.epochs or train.start for the statistics "
        "and generative.epochs to freeze them in",
    )
