"""A recipe as frozen dataclasses, checked at birth.

The paper's Approach 1 is a recipe with discriminative epochs only, Approach 2 one with generative epochs
only, Approach 3 (joint) has both.
"""

from dataclasses import dataclass, field

from gmmc.config.rules import contradictions
from gmmc.config.sections import (
    AbstainConfig,
    AugmentConfig,
    BufferConfig,
    DataConfig,
    DenoisingConfig,
    EvaluateConfig,
    GuardConfig,
    ModelConfig,
    ObjectiveConfig,
    PhaseConfig,
    SampleConfig,
    SamplerConfig,
    TrainConfig,
    TransferConfig,
)
from gmmc.errors import InputError

AUTO_START = "auto"
NOISE_CONDITIONAL = {"denoising"}  # algorithms whose energy is one of noisy images at every σ


@dataclass(frozen=True)
class Config:
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    discriminative: PhaseConfig = field(default_factory=PhaseConfig)
    generative: PhaseConfig = field(default_factory=PhaseConfig)
    contrast: AugmentConfig = field(default_factory=AugmentConfig)  # of balanced: E(x) beside E(x′)
    denoising: DenoisingConfig = field(default_factory=DenoisingConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    abstain: AbstainConfig = field(default_factory=AbstainConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)

    def __post_init__(self):
        for wrong, message in contradictions(self):
            if wrong:
                raise InputError(message)

    @property
    def samples(self) -> bool:
        """Whether training draws samples at all."""
        return self.generative.epochs > 0 and self.train.beta > 0

    @property
    def noise_conditional(self) -> bool:
        """Whether the model has an energy at every noise level."""
        return self.train.algorithm in NOISE_CONDITIONAL

    @property
    def has_transfer(self) -> bool:
        """Whether a start of other classes is trained by [transfer], not by [discriminative] as it is."""
        return self.transfer.frozen_epochs + self.transfer.epochs > 0

    @property
    def chains(self) -> int:
        """How many an update moves, of all processes together."""
        return self.buffer.chains or self.train.batch_size
