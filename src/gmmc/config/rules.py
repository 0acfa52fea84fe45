"""Values of a recipe that are each allowed and together make no sense.

What depends on the kind of head or sampler is in `classifier/checks.py`, what depends on the
objective in `train/contrastive.py`: there stands what they are.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gmmc.base.names import NOISE_SCORES

if TYPE_CHECKING:
    from gmmc.config.schema import Config


def contradictions(cfg: "Config") -> Iterator[tuple[bool, str]]:
    """Values that are each allowed and together make no sense."""
    yield (
        not (cfg.has_transfer or cfg.discriminative.epochs or cfg.generative.epochs),
        "discriminative.epochs + generative.epochs must be at least 1, got 0",
    )
    has_chains = cfg.samples and not cfg.noise_conditional
    yield (
        has_chains and cfg.buffer.size < cfg.chains,
        f"buffer.size must be at least the chains of an update, {cfg.chains}, "
        f"got buffer.size={cfg.buffer.size}",
    )
    yield (
        cfg.buffer.chains > cfg.train.batch_size,
        f"buffer.chains must be at most train.batch_size={cfg.train.batch_size}, "
        f"got buffer.chains={cfg.buffer.chains}",
    )
    yield (
        cfg.abstain.score in NOISE_SCORES and not cfg.noise_conditional,
        f"abstain.score={cfg.abstain.score} needs train.algorithm=denoising, "
        f"got train.algorithm={cfg.train.algorithm}",
    )
    yield (
        cfg.model.norm == "batch_then_frozen"
        and not ((cfg.discriminative.epochs or cfg.train.start) and cfg.generative.epochs),
        "model.norm=batch_then_frozen needs discriminative.epochs or train.start for the statistics "
        "and generative.epochs to freeze them in",
    )
