"""The sections of a recipe: every key, its default and what it may be. They check themselves at birth."""

import dataclasses
import math
import typing
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from gmmc.base.limits import WHOLE_NUMBER
from gmmc.base.text import shortened
from gmmc.errors import InputError


def _number(
    default: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    place: bool = False,
):
    """A number and the range it must lie in."""
    metadata = {"above": above, "at_least": at_least, "at_most": at_most, "place": place}
    return field(default=default, metadata=metadata)


# Marks keys that say where and how a run is computed, not what: a resumed run may change them.
PLACE = {"place": True}


@dataclass(frozen=True)
class Section:
    """Checks its own values, whether they come from a file or from Python."""

    def __post_init__(self):
        hints = typing.get_type_hints(type(self))
        for f in fields(self):
            object.__setattr__(self, f.name, _checked(getattr(self, f.name), hints[f.name], f))


def _checked(value: Any, hint: Any, f: dataclasses.Field) -> Any:
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise InputError(
                f"{f.name} must be one of {', '.join(typing.get_args(hint))}, got {shortened(value)}"
            )
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise InputError(f"{f.name} must be a list, got {shortened(value)}")
        return tuple(_checked(item, typing.get_args(hint)[0], f) for item in value)
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 1e300 else math.inf
    if type(value) is not hint:  # not isinstance: True is an int
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
        raise InputError(f"{f.name} must be {names[hint]}, got {shortened(value)}")
    if hint in (int, float):
        _check_range(value, f)
    if hint is str:
        _check_text(value, f)
    return value


def _check_text(value: str, f: dataclasses.Field) -> None:
    """Refuse text that config.toml cannot hold: a path of the system may have any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{f.name} must be text in UTF-8, got {shortened(value)}") from None


def _check_range(value: float, f: dataclasses.Field) -> None:
    above, at_least, at_most = (f.metadata.get(rule) for rule in ("above", "at_least", "at_most"))
    if isinstance(value, int) and at_most is None:
        at_most = WHOLE_NUMBER
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{f.name} must be finite, got {value}")
    if above is not None and not value > above:
        raise InputError(f"{f.name} must be above {above:g}, got {shortened(value)}")
    if at_least is not None and not value >= at_least:
        raise InputError(f"{f.name} must be at least {at_least:g}, got {shortened(value)}")
    if at_most is not None and not value <= at_most:
        raise InputError(f"{f.name} must be at most {at_most:g}, got {shortened(value)}")


@dataclass(frozen=True)
class DataConfig(Section):
    name: str = "digits"  # a named set, or a folder of images or parquet files
    # Where named sets are looked for before they are downloaded; "": $GMMC_DATA.
    root: str = field(default="", metadata=PLACE)
    size: int = _number(0, at_least=0, at_most=4096)  # crop to squares and resize; 0: all must be alike
    label: str = ""  # column of the labels in parquet files; "": found by its name
    valid: float = _number(0.1, at_least=0, at_most=0.9)  # share of the training images held out


@dataclass(frozen=True)
class ModelConfig(Section):
    backbone: str = "small_cnn"  # or "wrn-28-10"
    # Frozen while sampling in any case; batch_then_frozen: for good after a discriminative start.
    norm: Literal["none", "batch", "batch_then_frozen"] = "none"
    # Width of a linear layer after pooling; 0: none, the backbone's own features.
    dim: int = _number(0, at_least=0, at_most=1_000_000)
    head: Literal["mmc", "lda", "linear"] = "mmc"  # fixed means, learned means, softmax
    scale: float = _number(10.0, at_least=1e-3, at_most=1e6)  # S, the norm of the means (lda: at the start)
    priors: Literal["uniform", "empirical"] = "uniform"


@dataclass(frozen=True)
class TrainConfig(Section):
    # contrastive: Algorithm 1, with the settings in [objective], [contrast], [sampler] and [buffer];
    # denoising: score matching on noisy images, with those in [denoising]. See train/denoising.py.
    algorithm: Literal["contrastive", "denoising"] = "contrastive"
    batch_size: int = _number(64, at_least=1, at_most=1_000_000)  # of all processes together
    beta: float = _number(0.5, at_least=0, at_most=100)  # weight of sampled energies, generative phase
    ramp: int = _number(0, at_least=0)  # updates over which beta grows from 0; 0: a switch
    # Whether weight_decay of a phase shrinks the weights themselves (AdamW); else it is added to gradients.
    decoupled_decay: bool = False
    clip: float = _number(0.0, at_least=0)  # largest norm of the gradient; 0: no clip
    ema: float = _number(0.0, at_least=0, at_most=0.999999)  # decay of averaged weights; 0: the last weights
    # Decays of further averages; each becomes a run folder of its own, averages/DECAY. See train/ema.py.
    averages: tuple[float, ...] = _number((), above=0, at_most=0.999999)
    seed: int = _number(0, at_least=0, at_most=WHOLE_NUMBER)
    # A run or model file whose weights training begins with; "": random ones; auto: those of a shipped model
    # of other classes whose images have the same shape, else random ones.
    start: str = ""
    # bf16: mixed, weights and energies stay fp32; auto: bf16 where it is built in, else fp32
    precision: Literal["auto", "fp32", "bf16"] = field(default="auto", metadata=PLACE)
    # auto: on a GPU CUDA graphs, compiled code where it pays; plain: the reference. See sampling/engine.py.
    engine: Literal["auto", "compiled", "graph", "plain"] = field(default="auto", metadata=PLACE)
    # GB on the device for images and chains, the rest is streamed; 0: half of what is free.
    memory: float = _number(0.0, at_least=0, place=True)
    # As what the finished model's weights are stored; bf16: rounded to it before γ² and all else is fitted.
    weights: Literal["fp32", "bf16"] = "fp32"
    device: str = field(default="auto", metadata=PLACE)
    devices: int = _number(1, at_least=1, at_most=1024, place=True)  # processes on this machine
    nodes: int = _number(1, at_least=1, at_most=1024, place=True)  # machines
    # Of a CPU run; 0: one for a small network, else one per core. A resumed run keeps its number unless set.
    threads: int = _number(0, at_least=0, at_most=1024, place=True)
    log_every: int = _number(20, at_least=1)  # updates per line of metrics.jsonl
    log: Literal["none", "tensorboard"] = field(default="none", metadata=PLACE)  # beside metrics.jsonl
    valid_every: int = _number(1, at_least=1, place=True)  # epochs from one validation to the next
    # Seconds between checkpoints; more where saving would take over 2% of the time. 0: every good state.
    checkpoint_seconds: float = _number(60.0, at_least=0, place=True)
    # FID of the buffer while training: generative epochs from one to the next; 0: never.
    fid_every: int = _number(0, at_least=0, place=True)

    def __post_init__(self):
        super().__post_init__()
        if len({self.ema, *self.averages}) <= len(self.averages):
            rule = f"averages must be decays that differ from each other and from ema={self.ema:g}"
            raise InputError(f"{rule}, got {shortened(list(self.averages))}")


@dataclass(frozen=True)
class AugmentConfig(Section):
    """What is done to real images at random, on the training device."""

    shift: int = _number(0, at_least=0)  # pixels, both directions: pad by reflection and crop
    flip: bool = False
    # Most by which brightness, contrast and saturation change, as a share; see data/augment.py.
    colour: float = _number(0.0, at_least=0, at_most=1)
    cutout: int = _number(0, at_least=0)  # side of a grey square in front of the image, in pixels
    noise: float = _number(0.0, at_least=0, at_most=100)  # std of Gaussian pixel noise, in units of [−1, 1]


@dataclass(frozen=True)
class PhaseConfig(AugmentConfig):
    """One stretch of training, by Adam. Epochs of `decay_epochs` count from the start of the phase."""

    epochs: int = _number(0, at_least=0, at_most=1_000_000)
    lr: float = _number(1e-4, above=0, at_most=100)
    weight_decay: float = _number(0.0, at_least=0, at_most=1)
    warmup: int = _number(0, at_least=0)  # updates over which the learning rate grows from 0
    schedule: Literal["step", "cosine"] = "step"
    decay_epochs: tuple[int, ...] = _number(
        (), at_least=1
    )  # where step lowers the learning rate to 0.3 of it

    def __post_init__(self):
        super().__post_init__()
        if self.schedule == "cosine" and self.decay_epochs:
            raise InputError(
                f"decay_epochs must be empty with a cosine schedule, got {shortened(list(self.decay_epochs))}"
            )


@dataclass(frozen=True)
class TransferConfig(Section):
    """Training after a start of other classes: the last layer alone, then all layers. See train/schedule.py.

    It takes the place of [discriminative], whose augmentation it keeps; without epochs it does not.
    """

    frozen_epochs: int = _number(0, at_least=0, at_most=1_000_000)  # of the last layer
    frozen_lr: float = _number(1e-4, above=0, at_most=100)  # at first, as both fall by a cosine
    epochs: int = _number(0, at_least=0, at_most=1_000_000)  # of all layers
    lr: float = _number(1e-4, above=0, at_most=100)


@dataclass(frozen=True)
class ObjectiveConfig(Section):
    """The loss of an update; β is `train.beta`. See train/objectives.py."""

    # gmmc: the paper's; balanced: cross-entropy + β(E − E′)
    name: Literal["gmmc", "balanced"] = "gmmc"
    shape: Literal["raw", "cap", "huber"] = "raw"  # of each sampled energy before the mean
    bound: float = _number(100.0, above=0)  # where cap and huber set in, in unit energies
    temperature: float = _number(20.0, above=0)  # γ² in the cross-entropy of balanced (not of a linear head)
    anchor: float = _number(0.05, at_least=0, at_most=100)  # weight of E(x, y) beside that cross-entropy
    # Images whose E(x, y) the anchor pulls; contrast: class images where β = 0, as there are no others.
    anchor_on: Literal["class", "contrast"] = "class"


@dataclass(frozen=True)
class DenoisingConfig(AugmentConfig):
    """Denoising score matching, and how its images are augmented. σ is a standard deviation in [−1, 1].

    Class images use the augmentation of the phase. Denoised images have their own, since the model learns
    their augmentation as part of the data.
    """

    sigma_data: float = _number(0.5, at_least=1e-3, at_most=100)  # σ_d, the standard deviation of the data
    # Gaussian term of the energy: the variance σ_d² in all directions, or that of the training images where
    # it is larger. See networks/gaussian_term.py.
    gaussian: Literal["isotropic", "fitted"] = "isotropic"
    sigma_mean: float = _number(-1.2, at_least=-20, at_most=20)  # ln σ ~ N(sigma_mean, sigma_std²)
    sigma_std: float = _number(1.2, above=0, at_most=10)
    h: float = _number(0.1, at_least=1e-6, at_most=10)  # step of the finite differences
    residual_limit: float = _number(
        1.5, at_least=0
    )  # largest RMS of an image's residual in an update; 0: no limit
    unlabelled: float = _number(0.1, at_least=0, at_most=1)  # share of images denoised without their class
    # σ of predictions; class images are as noisy as that at most.
    class_sigma: float = _number(0.05, at_least=1e-3, at_most=100)
    class_weight: float = _number(0.05, at_least=0, at_most=1000)  # of their cross-entropy
    label_smoothing: float = _number(0.0, at_least=0, at_most=1)  # share of a label spread over all classes
    class_images: int = _number(0, at_least=0)  # of the batch, evenly spaced; 0: all
    noisy_class_weight: float = _number(0.02, at_least=0, at_most=1000)  # of that on noisy images at every σ


@dataclass(frozen=True)
class SamplerConfig(Section):
    # staged: Eq. 8; noise_injected: Eq. 9–10; sgld: Eq. 3; sgld_jem: Eq. 3 as JEM's code runs it;
    # heun: EDM's, the default after training by denoising, with the keys from sigma_min on
    name: Literal["staged", "noise_injected", "sgld", "sgld_jem", "heun"] = "staged"
    steps: int = _number(20, at_least=1, at_most=1_000_000)  # τ
    alpha: float = _number(1 / 64, above=0, at_most=1e6)  # step on the summed unit energy
    max_step: float = _number(0.0, at_least=0, at_most=2)  # most that a gradient moves a pixel; 0: no limit
    target_std: float = _number(0.001, at_least=0, at_most=1e6)  # z ~ N(μ_y′, target_std²·I)
    power: float = _number(0.5, at_least=0, at_most=1)  # of sgld: α_t = α·(1 + t)^−power
    noise: float = _number(0.01, at_least=0, at_most=100)  # of sgld_jem: std of the pixel noise
    # Noise levels: the last, from where images are denoised in one step, and the first.
    sigma_min: float = _number(0.02, at_least=1e-4, at_most=1)
    sigma_max: float = _number(80.0, above=1, at_most=1e4)
    rho: float = _number(7.0, at_least=1, at_most=100)  # the larger, the more steps at low noise
    churn: float = _number(0.0, at_least=0, at_most=1000)  # noise added per step; 0: deterministic
    guidance: float = _number(0.0, at_least=0, at_most=100)  # w: how much more p(y|x) counts than in p(x|y)


@dataclass(frozen=True)
class BufferConfig(Section):
    size: int = _number(10_000, at_least=1, at_most=1_000_000_000)  # of all processes together
    # Moved per update, beside as many real images of the batch; 0: as many as the batch has.
    chains: int = _number(0, at_least=0, at_most=1_000_000)
    reinit: float = _number(0.025, at_least=0, at_most=1)  # ρ
    labels: Literal["priors", "batch"] = "priors"  # y′ of the chains of an update
    start: Literal["uniform", "gaussian"] = "uniform"  # x′_0; gaussian: of the pixels of its class
    rank: int = _number(128, at_least=1, at_most=100_000)  # principal directions of a class's Gaussian
    detail: int = _number(0, at_least=0)  # cosines per side among which these are sought; 0: all


@dataclass(frozen=True)
class GuardConfig(Section):
    """When training counts as diverged, and what is done then. See train/health.py."""

    on: bool = True  # off: stop at the first non-finite number, and at nothing else
    energy: float = _number(2.0, above=0)  # mean energy of real images, in S²; a network that gives 0 has 0.5
    force: float = _number(10.0, above=0)  # R, how hard samples push, relative to the pull of real images
    bounded: float = _number(0.5, above=0, at_most=1)  # share of settled chains at the bound
    every: int = _number(100, at_least=1)  # updates from one good state to the next
    rollbacks: int = _number(5, at_least=0, at_most=100)  # then training stops
    # Of denoising: updates whose loss or gradient norm is so many times its running mean are skipped.
    spike: float = _number(5.0, above=1)
    skipped: float = _number(0.25, above=0, at_most=1)  # share of skipped updates, a running mean
    rise: float = _number(3.0, above=1)  # running mean of the loss, relative to its best


@dataclass(frozen=True)
class SampleConfig(Section):
    """Fresh chains of the finished model."""

    steps: int = _number(200, at_least=1, at_most=1_000_000)  # of a recipe by denoising 18


@dataclass(frozen=True)
class AbstainConfig(Section):
    """When a finished model abstains. Thresholds are fitted on validation images: classifier/scores.py."""

    # auto: combined after training by denoising; span_density after training by chains that walk to a class
    # mean, where more than half of the energy of validation images lies outside the span of the means; else
    # log_density. force_size and denoising_error need training by denoising.
    score: Literal[
        "auto",
        "log_density",
        "span_density",
        "residual",
        "neighbours",
        "max_posterior",
        "gradient_norm",
        "force_size",
        "denoising_error",
        "combined",
    ] = field(default="auto", metadata=PLACE)
    tpr: float = _number(0.95, above=0, at_most=0.9999, place=True)  # share of familiar images to accept


@dataclass(frozen=True)
class EvaluateConfig(Section):
    samples: int = _number(1000, at_least=1, at_most=10_000_000)  # fresh chains, equally many per class
    ood: tuple[str, ...] = ("noise", "constant", "interp")  # or a named set or folder, see data/ood_sets.py
    # generation, validation
    generated: int = _number(50_000, at_least=2, at_most=10_000_000)  # fresh chains
    generated_by_steps: int = _number(10_000, at_least=0, at_most=10_000_000)  # for each number of steps
    # Steps to score at; of a recipe by denoising 12, 18 and 35.
    generation_steps: tuple[int, ...] = _number((100, 200, 400), at_least=1, at_most=1_000_000)


@dataclass(frozen=True)
class EvaluateOptions(EvaluateConfig):
    """Settings of evaluations: [evaluate] of a recipe, and options that no recipe has.

    A recipe travels with its model, and whoever evaluates a model may not know its author. So a recipe names
    no file to read: a TorchScript file can write files when it runs.
    """

    seed: int = _number(0, at_least=0, at_most=WHOLE_NUMBER)  # of the first chain
    # robustness, autoattack
    attacks: Literal["quick", "full"] = "quick"  # see evaluations/robustness.py
    attacked: int = _number(0, at_least=0, at_most=1_000_000)  # test images; 0: the preset's, 256
    surrogate: str = ""  # a run whose adversarial images are tried on this model
    likelihood_images: int = _number(1000, at_least=2, at_most=1_000_000)  # test images for likelihood
    # Noise level of a noise-conditional model in evaluations of its predictions; 0: denoising.class_sigma
    sigma: float = _number(0.0, at_least=0, at_most=100)
    features: str = "auto"  # of generation and validation: auto, inception, small or a TorchScript file

    @classmethod
    def of(cls, recipe: EvaluateConfig, **options: Any) -> "EvaluateOptions":
        """Return the settings of a recipe with these options in place of its values and of the defaults."""
        return cls(**{f.name: getattr(recipe, f.name) for f in fields(recipe)} | options)
