"""Timings → the values, curves and warnings of a benchmark, and its printed table. No clock, no device."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean
from typing import Any

from gmmc.base.tables import MISSING, print_table
from gmmc.base.text import print_line
from gmmc.bench.cells import SAMPLING, Cell
from gmmc.bench.measure import Timing, flops
from gmmc.config.sections import ModelConfig
from gmmc.evaluations.result import Result
from gmmc.networks.threads import multiply_adds

OURS, REFERENCE = "ours", "reference"
CIFAR10 = 50_000  # training images of an epoch
# Milliseconds of a generative iteration of the authors' public code, unchanged, 20 steps, NVIDIA H200.
EXPECTED_ON = "H200"
EXPECTED = {"wrn-28-10/64": 241.8, "wrn-28-10/128": 442.4, "wrn-28-4/64": 144.2, "wrn-28-4/128": 144.1}
TOLERANCE = 0.15
RISE = 0.03  # of the time per image from one batch size to the next
WIDE = 0.30  # of the slowest block of calls from the fastest
BEND = 0.10  # of the time per step from one length of the sampler to another


@dataclass(frozen=True)
class Measured:
    """One call of one side: seconds, and gigabytes where the device tells."""

    cell: Cell
    phase: str
    side: str
    timing: Timing
    memory: float | None = None

    @property
    def place(self) -> str:
        return f"{self.cell.name}/{self.phase}"


def tabulate(
    found: Sequence[Measured], rates: Sequence[float], steps: int
) -> tuple[dict[str, float], dict[str, tuple[float, float]]]:
    """(values, ranges of the blocks), by network/batch/phase/quantity.

    `rates`: TFLOP/s of the matrix product each time it was measured.
    """
    values: dict[str, float] = {}
    ranges: dict[str, tuple[float, float]] = {}
    if rates:
        values["matmul_tflops"], ranges["matmul_tflops"] = mean(rates), (min(rates), max(rates))
    for place in dict.fromkeys(m.place for m in found):
        sides = {m.side: m for m in found if m.place == place}
        for side, m in sides.items():
            values[f"{place}/{side}_ms"] = 1000 * m.timing.median
            ranges[f"{place}/{side}_ms"] = (1000 * m.timing.low, 1000 * m.timing.high)
        if len(sides) == 2:
            ours, other = sides[OURS].timing, sides[REFERENCE].timing
            values[f"{place}/ratio"] = other.median / ours.median
            ranges[f"{place}/ratio"] = (other.low / ours.high, other.high / ours.low)
        if OURS in sides:
            of_ours = arithmetic(sides[OURS], rates, steps)
            values |= {f"{place}/{name}": value for name, value in of_ours.items()}
        for side, m in sides.items():
            if m.memory is not None:
                values[f"{place}/{'' if side == OURS else 'reference_'}memory_gb"] = m.memory
    return values, ranges


def arithmetic(m: Measured, rates: Sequence[float], steps: int) -> dict[str, float]:
    """How fast that is, and how long an epoch of CIFAR-10 takes."""
    work = flops(
        m.phase, multiply_adds(ModelConfig(backbone=m.cell.network), m.cell.shape), m.cell.batch, steps
    )
    found = {"tflops": work / m.timing.median / 1e12}
    if rates:
        found["share_of_matmul"] = found["tflops"] / mean(rates)
    if m.phase != SAMPLING and m.cell.shape == Cell.shape:
        found["epoch_seconds"] = CIFAR10 / m.cell.batch * m.timing.median
    return found


def per_image(found: Iterable[Measured]) -> dict[str, dict[str, list[float]]]:
    """Milliseconds per image of ours against the batch, for networks measured at several."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for m in found:
        if m.side == OURS:
            point = (m.cell.batch, 1000 * m.timing.median / m.cell.batch)
            curves.setdefault(f"{m.cell.network}/{m.phase}", []).append(point)
    several = {name: sorted(points) for name, points in curves.items() if len(points) > 1}
    return {
        name: {"batch": [b for b, _ in points], "ms": [ms for _, ms in points]}
        for name, points in several.items()
    }


# --- doubts ---------------------------------------------------------------------------------------


def void_reference(values: dict[str, float], hardware: str) -> dict[str, str]:
    """Where it is known how long the public code takes, the reference has to take about as long.

    Gives what is wrong with which cell.
    """
    if EXPECTED_ON not in hardware:
        return {}
    doubts = {}
    for cell, expected in EXPECTED.items():
        took = values.get(f"{cell}/generative/reference_ms")
        if took is not None and abs(took / expected - 1) > TOLERANCE:
            doubts[cell] = (
                f"void: a generative iteration of {cell} takes the reference {took:.1f} ms, the public code "
                f"{expected} ms; more than {TOLERANCE:.0%} apart, a ratio would say nothing"
            )
    return doubts


def rising(curves: dict[str, dict[str, list[float]]]) -> list[str]:
    """A larger batch must not make an image dearer."""
    doubts = []
    for name, curve in curves.items():
        for (small, before), (large, after) in pairwise(zip(curve["batch"], curve["ms"], strict=True)):
            if after > (1 + RISE) * before:
                rise = f"rises by {after / before - 1:.0%} from batch {small:g} to {large:g}"
                doubts.append(f"{name}: the time per image {rise}")
    return doubts


def bent(cell: str, taus: Sequence[float], milliseconds: Sequence[float]) -> list[str]:
    """Twice the steps must take twice the time."""
    each = [ms / tau for tau, ms in zip(taus, milliseconds, strict=True)]
    if max(each) <= (1 + BEND) * min(each):
        return []
    told = ", ".join(f"{ms:.3g} ms at τ = {tau:g}" for tau, ms in zip(taus, each, strict=True))
    return [f"{cell}: the sampler is not linear in τ within {BEND:.0%}; a step takes {told}"]


def unsteady(ranges: dict[str, tuple[float, float]]) -> list[str]:
    """What takes now this long and now that long was not alone on the machine."""
    times = {place: span for place, span in ranges.items() if not place.endswith("/ratio")}
    wide = [place for place, (low, high) in times.items() if high > (1 + WIDE) * low]
    if not wide:
        return []
    among = f"{len(wide)} of {len(times)} times ({', '.join(wide)})"
    return [
        f"unsteady: blocks of calls differ by more than {WIDE:.0%} in {among}; is something else running?"
    ]


def show(result: Result) -> None:
    """The tables on standard output, below what they are to be doubted for."""
    for flag in result.flags:
        print_line(f"! {flag}")
    print_table(*table(result.values, result.intervals), words=3)
    for name, rows in result.curves.get("variants", {}).items():
        print()
        print_line(f"{name}: one plain sampling step, fastest first")
        print_table(*variant_table(rows), words=3, indent="  ")


def table(
    values: dict[str, float], ranges: dict[str, tuple[float, float]]
) -> tuple[list[str], list[list[str]]]:
    """(header, rows) for people: a row per network, batch and phase."""
    columns = {
        "ours_ms": "ours, ms",
        "reference_ms": "plain loop, ms",
        "ratio": "times faster",
        "tflops": "TFLOP/s",
        "share_of_matmul": "of the matrix rate",
        "memory_gb": "GB",
        "epoch_seconds": "epoch, s",
    }
    places = dict.fromkeys(key.rpartition("/")[0] for key in values if key.count("/") == 3)
    rows = []
    for place in places:
        told = [_told(column, values.get(f"{place}/{column}")) for column in columns]
        if f"{place}/ratio" in ranges:
            low, high = ranges[f"{place}/ratio"]
            told[list(columns).index("ratio")] += f" [{low:.2g}, {high:.2g}]"
        rows.append([*place.split("/"), *told])
    return ["network", "batch", "phase", *columns.values()], rows


def _told(column: str, number: float | None) -> str:
    if number is None:
        return MISSING
    if column == "share_of_matmul":
        return f"{number:.0%}"
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def variant_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["", "layout", "precision", "threads", "ms"]
    return header, [
        [
            "compiled" if row["compiled"] else "eager",
            "channels last" if row["channels_last"] else "channels first",
            "bf16 autocast" if row["bf16"] else "fp32",
            str(row["threads"]),
            f"{row['ms']:.3g}",
        ]
        for row in rows
    ]
