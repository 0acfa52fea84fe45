"""Our sampler and updates against a plain reference loop, in one run on one machine.

`cells` says what, `measure` how; `ours` and `reference` are the two sides; `summary` makes numbers of times.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gmmc import __version__
from gmmc.base import provenance
from gmmc.base.progress import Progress
from gmmc.bench import measure, reference, summary, variants
from gmmc.bench.cells import DISCRIMINATIVE, GENERATIVE, SAMPLING, Cell, Preset
from gmmc.bench.ours import CLASSES, LR, new_learner
from gmmc.bench.summary import OURS, REFERENCE, Measured
from gmmc.evaluations.result import Result
from gmmc.sampling.engine import first_line, resolve_precision
from gmmc.train.contrastive import Contrastive

REFERENCE_WARMUP = 2


@dataclass
class Bench:
    """All that was measured so far."""

    preset: Preset
    device: torch.device
    found: list[Measured] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)  # TFLOP/s of the matrix product
    lengths: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # of the sampler: τ and ms
    ways: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # to run the plain step on a CPU
    doubts: list[str] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=dict)
    done: int = 0  # parts of the work

    def time(self, call: Callable[[], object], *, warmup: int) -> measure.Timing:
        return measure.time_calls(call, self.device, warmup=warmup, seconds=self.preset.seconds)

    def note(self, cell: Cell, phase: str, side: str, timing: measure.Timing) -> None:
        self.found.append(Measured(cell, phase, side, timing, measure.peak_memory(self.device)))


def measure_all(preset: Preset, device: torch.device) -> Iterator[Result]:
    """Yield the result so far after every part of the work; the last is the whole."""
    bench = Bench(preset, device)
    parts = list(work(preset))
    with Progress("bench", len(parts) + 2) as bar:
        for done, (name, part) in enumerate([("matrix product", rate), *parts, ("matrix product", rate)]):
            bar.update(done, name)
            try:
                part(bench)
            except Exception as error:  # one that does not fit into memory must not take the others with it
                bench.doubts.append(f"{name}: not measured, {first_line(error)}")
            bench.done += 1
            tidy_up(device)
            yield result_of(bench, left=len(parts) + 1 - done)
        bar.update(len(parts) + 2)


def work(preset: Preset) -> Iterator[tuple[str, Callable[[Bench], None]]]:
    """Each part builds what it needs, and leaves nothing behind."""
    for cell in preset.cells:
        if GENERATIVE in cell.phases or SAMPLING in cell.phases:
            yield f"{cell.name}, ours", lambda bench, cell=cell: our_sampler(bench, cell)
        if DISCRIMINATIVE in cell.phases:
            yield f"{cell.name}, ours, discriminative", lambda bench, cell=cell: our_classifier(bench, cell)
        yield f"{cell.name}, reference", lambda bench, cell=cell: plain_reference(bench, cell)
        if preset.variants:
            yield f"{cell.name}, ways to run it", lambda bench, cell=cell: ways_to_run(bench, cell)


def rate(bench: Bench) -> None:
    preset = bench.preset
    bench.rates.append(measure.matmul_rate(bench.device, preset.matmul, seconds=preset.seconds))


# --- the parts ------------------------------------------------------------------------------------


def our_sampler(bench: Bench, cell: Cell) -> None:
    """One learner for the sampling step, the lengths of the sampler and the generative iteration."""
    preset = bench.preset
    measure.forget_peak(bench.device)
    learner = new_learner(cell, GENERATIVE, preset, bench.device)
    algorithm = learner.algorithm
    assert isinstance(algorithm, Contrastive)
    assert algorithm.buffer is not None
    drawn = algorithm.buffer.draw(cell.batch, learner.process.source("bench"))

    def moved(steps: int) -> measure.Timing:
        return bench.time(lambda: algorithm.move(drawn, 0, pace=1.0, steps=steps), warmup=preset.warmup)

    if SAMPLING in cell.phases:
        bench.note(cell, SAMPLING, OURS, moved(preset.steps).per(preset.steps))
    if cell.taus:
        times = [1000 * moved(tau).median for tau in cell.taus]
        bench.lengths[cell.name] = {"tau": list(cell.taus), "ms": times}
    if GENERATIVE in cell.phases:
        bench.note(cell, GENERATIVE, OURS, bench.time(learner.update, warmup=preset.warmup))
    bench.engines[f"{cell.name}/generative"] = algorithm.how


def our_classifier(bench: Bench, cell: Cell) -> None:
    measure.forget_peak(bench.device)
    learner = new_learner(cell, DISCRIMINATIVE, bench.preset, bench.device)
    bench.note(cell, DISCRIMINATIVE, OURS, bench.time(learner.update, warmup=bench.preset.warmup))
    bench.engines[f"{cell.name}/discriminative"] = learner.algorithm.how


def plain_reference(bench: Bench, cell: Cell) -> None:
    preset = bench.preset
    loop = reference.plain_loop(
        cell.network,
        cell.shape,
        bench.device,
        classes=CLASSES,
        buffer=preset.buffer,
        steps=preset.steps,
        lr=LR,
    )
    x = torch.rand(cell.batch, *cell.shape, device=bench.device) * 2 - 1
    y = torch.arange(cell.batch, device=bench.device) % CLASSES
    target = loop.means[y]

    def walk() -> None:
        at = x
        for _ in range(preset.steps):
            at = reference.sampling_step(loop.network, at, target, step_size=loop.step_size)

    calls: dict[str, Callable[[], object]] = {
        SAMPLING: walk,
        GENERATIVE: lambda: reference.generative_iteration(loop, x, y),
        DISCRIMINATIVE: lambda: reference.discriminative_iteration(loop, x, y),
    }
    with reference.as_published():
        for phase in cell.phases:
            measure.forget_peak(bench.device)
            timing = bench.time(calls[phase], warmup=REFERENCE_WARMUP)
            bench.note(cell, phase, REFERENCE, timing.per(preset.steps) if phase == SAMPLING else timing)


def ways_to_run(bench: Bench, cell: Cell) -> None:
    bench.ways[cell.name], doubts = variants.compare(cell, seconds=bench.preset.seconds / 4)
    bench.doubts += doubts


def tidy_up(device: torch.device) -> None:
    """Free what was compiled and captured for one network: the next has no use for it."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# --- the whole ------------------------------------------------------------------------------------


def result_of(bench: Bench, *, left: int) -> Result:
    values, ranges = summary.tabulate(bench.found, bench.rates, bench.preset.steps)
    images = summary.per_image(bench.found)
    void = summary.void_reference(values, provenance.hardware(bench.device))
    for key in [key for key in values if key.endswith("/ratio") and key.rsplit("/", 2)[0] in void]:
        del values[key], ranges[key]
    flags = [
        *([f"incomplete: {left} of {left + bench.done} parts were not reached"] if left else []),
        *void.values(),
        *summary.rising(images),
        *summary.unsteady(ranges),
        *(
            flag
            for name, curve in bench.lengths.items()
            for flag in summary.bent(name, curve["tau"], curve["ms"])
        ),
        *bench.doubts,
    ]
    curves: dict[str, Any] = {"tau": bench.lengths, "per_image": images, "variants": bench.ways}
    curves = {name: curve for name, curve in curves.items() if curve}
    return Result(values, conditions(bench), ranges, curves, flags=flags)


def conditions(bench: Bench) -> dict[str, Any]:
    preset, on_gpu = bench.preset, bench.device.type == "cuda"
    hardware = provenance.hardware(bench.device)
    return {
        "data": "synthetic images",
        "preset": preset.name,
        "steps": preset.steps,
        "matrix_product": f"{preset.matmul}³, {resolve_precision('auto', bench.device)}, before and after",
        "intervals": "the range of the blocks of calls, not 95% intervals",
        "reference": "eager fp32" + (", convolutions in TF32" if on_gpu else "") + ", without augmentation",
        **({"reference_expected": summary.EXPECTED} if summary.EXPECTED_ON in hardware else {}),
        "engine": dict(bench.engines),
        "hardware": hardware,
        "torch": torch.__version__,
        **({"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if on_gpu else {}),
        "gmmc": __version__,
        "commit": provenance.commit(),
        "settings": {"train": dict(preset.train), "sampler": {"steps": preset.steps}},
    }
