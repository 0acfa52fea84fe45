"""The plain sampling step in the ways that a CPU can run it: which is best differs from one to the next."""

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gmmc.base.precision import cpu_traps_bf16
from gmmc.bench.cells import Cell
from gmmc.bench.measure import Timing, time_calls
from gmmc.config.sections import ModelConfig
from gmmc.networks import threads
from gmmc.networks.backbones import build_backbone

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Variant:
    threads: int
    channels_last: bool
    bf16: bool
    compiled: bool = False


def eager_variants(most: int) -> list[Variant]:
    counts = dict.fromkeys([1, most])
    bf16 = (False,) if cpu_traps_bf16() else (False, True)
    return [Variant(*choice) for choice in itertools.product(counts, (False, True), bf16)]


def compare(cell: Cell, *, seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """(the ways with their milliseconds, doubts): all eager ones, then the fastest of them compiled."""
    eager = {way: time_variant(cell, way, seconds=seconds) for way in eager_variants(torch.get_num_threads())}
    found, flags = dict(eager), []
    best = min(eager, key=lambda way: eager[way].median)
    compiled = Variant(best.threads, best.channels_last, best.bf16, compiled=True)
    try:
        found[compiled] = time_variant(cell, compiled, seconds=seconds)
    except Exception as error:  # no compiler, or one that does not know this code: nothing else depends on it
        flags.append(f"{cell.name}: the plain step does not compile here ({type(error).__name__})")
    rows = [{**asdict(way), "ms": 1000 * timing.median} for way, timing in found.items()]
    return sorted(rows, key=lambda row: row["ms"]), flags


def time_variant(cell: Cell, way: Variant, *, seconds: float) -> Timing:
    with threads.using(way.threads):
        return time_calls(new_step(cell, way), CPU, warmup=2, seconds=seconds)


def new_step(cell: Cell, way: Variant) -> Callable[[], Tensor]:
    layout = torch.channels_last if way.channels_last else torch.contiguous_format
    network: Any = build_backbone(ModelConfig(backbone=cell.network), cell.shape)  # torch types no layout
    network = network.requires_grad_(False).eval().to(memory_format=layout)
    images = (torch.rand(cell.batch, *cell.shape) * 2 - 1).to(memory_format=layout)
    features = torch.compile(network) if way.compiled else network

    def step() -> Tensor:
        x = images.detach().requires_grad_(True)
        with torch.autocast("cpu", torch.bfloat16) if way.bf16 else contextlib.nullcontext():
            energy = 0.5 * features(x).float().square().sum()
        (grad,) = torch.autograd.grad(energy, x)
        return (x.detach() - grad / 64).clamp(-1, 1)

    return step
