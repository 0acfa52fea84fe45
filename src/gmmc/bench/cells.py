"""What is measured: networks and batch sizes, and presets of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gmmc.base.text import shortened
from gmmc.errors import InputError
from gmmc.pixels import Shape

SAMPLING, GENERATIVE, DISCRIMINATIVE = PHASES = ("sampling", "generative", "discriminative")
SAMPLED = (SAMPLING, GENERATIVE)


@dataclass(frozen=True)
class Cell:
    """One network at one batch size."""

    network: str
    batch: int
    shape: Shape = (3, 32, 32)
    phases: tuple[str, ...] = PHASES
    taus: tuple[int, ...] = ()  # lengths of the sampler to compare

    @property
    def name(self) -> str:
        return f"{self.network}/{self.batch}"


@dataclass(frozen=True)
class Preset:
    name: str
    cells: tuple[Cell, ...]
    variants: bool = False  # also the plain step in all the ways that a CPU can run it
    images: int = 50_000  # as many as CIFAR-10 trains on
    buffer: int = 10_000
    steps: int = 20  # τ
    seconds: float = 0.8  # of measuring one thing, after its warm-up
    warmup: int = 6  # calls of ours; the first compile and capture
    matmul: int = 8192
    train: Mapping[str, str] = field(default_factory=lambda: {"engine": "auto", "precision": "auto"})


DEFAULT = Preset(
    "default",
    (
        Cell("wrn-28-10", 64, phases=SAMPLED, taus=(10, 20, 40)),
        Cell("wrn-28-10", 256, phases=(SAMPLING,)),
        Cell("wrn-28-4", 64, phases=SAMPLED),
        Cell("wrn-28-4", 128),
    ),
)
FULL = Preset(
    "full",
    tuple(
        Cell(f"wrn-28-{width}", batch, taus=(10, 20, 40) if (width, batch) == (10, 64) else ())
        for width in (2, 4, 10)
        for batch in (64, 128, 256, 512)
    ),
)
CPU = Preset(
    "cpu",
    (Cell("small_cnn", 64, (1, 8, 8), taus=(10, 20, 40)), Cell("wrn-10-1", 16)),
    variants=True,
    images=2_000,
    buffer=2_000,
    warmup=2,
    matmul=2048,
)
PRESETS = {preset.name: preset for preset in (DEFAULT, FULL, CPU)}


def choose_preset(name: str, device_type: str) -> Preset:
    """A preset by its name; auto is the default one on a GPU."""
    if name == "auto":
        return DEFAULT if device_type == "cuda" else CPU
    if name not in PRESETS:
        raise InputError(f"--preset must be one of auto, {', '.join(PRESETS)}, got {shortened(name)}")
    if name != CPU.name and device_type != "cuda":
        raise InputError(
            f"--preset {name} is for a GPU and would take hours here; auto takes the one for a CPU"
        )
    return PRESETS[name]
