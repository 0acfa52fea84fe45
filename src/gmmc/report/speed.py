"""The section of `gmmc bench`: ours against a plain loop, and how near to what the machine can do."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from gmmc.base.tables import Cell, Line, Table
from gmmc.report.canvas import ACCENT, INK, draw, margins
from gmmc.report.figures import Series, against, series_legend, tick_label
from gmmc.report.numbers import percent, plain
from gmmc.report.parts import Group, Panel
from gmmc.report.reading import Entry, Run

PHASES = {
    "sampling": "one sampling step",
    "generative": "one generative iteration",
    "discriminative": "one discriminative iteration",
}
COLUMNS = {
    "ours_ms": "gmmc, ms",
    "reference_ms": "plain loop, ms",
    "ratio": "times faster",
    "tflops": "TFLOP/s",
    "share_of_matmul": "of the matrix rate",
    "memory_gb": "memory, GB",
    "epoch_seconds": "CIFAR-10 epoch, s",
}
NAME = 32  # characters of the name beside a bar


def bench(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    found = [(run, run.results[name]) for run in runs if name in run.results]
    several = len(runs) > 1
    groups = []
    for run, entry in found:
        title = run.name if several else ""
        groups.append(Group(title, [times(entry)], panels(run, entry), broad=True))
        ways = variants(entry)
        groups += [Group(tables=[ways])] if ways.lines else []
    return groups


def iterations(runs: Sequence[Run]) -> list[str]:
    """The places network/batch/phase whose speed is a headline: whole generative iterations."""
    keys = dict.fromkeys(key for run in runs if "bench" in run.results for key in run.results["bench"].values)
    return [key.removesuffix("/ratio") for key in keys if key.endswith("/generative/ratio")]


def described(place: str) -> str:
    network, batch, phase = place.split("/")
    return f"{network_name(network)}, batch {batch}: {PHASES.get(phase, phase)}"


def network_name(network: str) -> str:
    return network.replace("wrn-", "WRN-")


def places(entry: Entry) -> list[tuple[str, str, str]]:
    """(network, batch, phase), in the order of their measurement."""
    keys = [key.split("/") for key in entry.values if key.count("/") == 3]
    return list(dict.fromkeys((network, batch, phase) for network, batch, phase, _ in keys))


# --- tables ---------------------------------------------------------------------------------------


def times(entry: Entry) -> Table:
    """Under each phase a line per network and batch; a column that no machine filled is left out."""
    known = {key.rpartition("/")[2] for key in entry.values}
    columns = [key for key in COLUMNS if key in known]
    headings = [COLUMNS[key] for key in columns]
    table = Table(headings, corner="network, batch", remark=matrix_rate(entry))
    measured = places(entry)
    for phase in dict.fromkeys(phase for *_, phase in measured):
        title = PHASES.get(phase, phase)
        table.lines.append(Line(title[0].upper() + title[1:], kind="group"))
        table.lines += [
            Line(
                f"{network_name(network)}, {batch}",
                [number(entry, f"{network}/{batch}/{phase}/{key}") for key in columns],
            )
            for network, batch, its_phase in measured
            if its_phase == phase
        ]
    return table


def number(entry: Entry, key: str) -> Cell:
    if key not in entry.values:
        return Cell()
    if key.endswith("/share_of_matmul"):
        return Cell(percent(entry.values[key], 1))
    low, high = entry.intervals.get(key, (None, None))
    between = "" if low is None else f"{three_digits(low)}–{three_digits(high)}"
    times = "×" if key.endswith("/ratio") else ""
    return Cell(three_digits(entry.values[key]) + times, between, "range of the blocks of calls")


def three_digits(value: float) -> str:
    """As many as a clock is good for: 0.0312, 3.90, 241, 1 247."""
    return plain(round(value)) if value >= 100 else f"{value:#.3g}"


def matrix_rate(entry: Entry) -> str:
    rate = entry.values.get("matmul_tflops")
    if rate is None:
        return ""
    how = entry.conditions.get("matrix_product")
    return f"The matrix rate is {three_digits(rate)} TFLOP/s{f' ({how})' if how else ''}."


def variants(entry: Entry) -> Table:
    """One plain sampling step in the ways that a CPU can run it, fastest first."""
    table = Table(["layout", "precision", "threads", "ms"])
    for name, rows in entry.curves.get("variants", {}).items():
        network, batch = name.split("/")
        title = f"One plain sampling step of {network_name(network)}, batch {batch}, fastest way first"
        table.lines.append(Line(title, kind="group"))
        table.lines += [Line("compiled" if row["compiled"] else "eager", way(row)) for row in rows]
    return table


def way(row: dict[str, Any]) -> list[Cell]:
    layout = "channels last" if row["channels_last"] else "channels first"
    precision = "bf16 autocast" if row["bf16"] else "fp32"
    return [Cell(layout), Cell(precision), Cell(str(row["threads"])), Cell(three_digits(row["ms"]))]


# --- figures --------------------------------------------------------------------------------------


def panels(run: Run, entry: Entry) -> list[Panel]:
    built = []
    measured = [(place, entry.values.get(f"{'/'.join(place)}/ratio")) for place in places(entry)]
    ratios = [
        (f"{network_name(network)}, {batch}, {phase}", ratio)
        for (network, batch, phase), ratio in measured
        if ratio is not None
    ]
    if ratios:
        alt = f"How many times faster than the plain loop, by network, batch and phase, run {run.name}."
        built.append(Panel("Times faster than the plain loop", "", speedups(ratios, alt)))
    shares = [line for line in by_network(entry, "sampling/share_of_matmul") if len(line.x) > 1]
    if shares:
        alt = f"Share of the matrix rate that sampling reaches, against the batch, run {run.name}."
        svg = against(shares, alt, x="batch", y="of the matrix rate", share=True)
        built.append(Panel("Sampling: share of the matrix rate", "", svg, legend=series_legend(shares)))
    lengths = [
        Series(network_name(name).replace("/", ", batch "), curve["tau"], curve["ms"])
        for name, curve in entry.curves.get("tau", {}).items()
    ]
    if lengths:
        alt = f"Time of a chain against its number of steps, run {run.name}."
        svg = against(lengths, alt, x="sampler steps τ", y="ms")
        built.append(Panel("Time of τ sampler steps", "", svg, legend=series_legend(lengths)))
    return built


def by_network(entry: Entry, quantity: str) -> list[Series]:
    points: dict[str, list[tuple[int, float]]] = {}
    for key, value in entry.values.items():
        if key.endswith(f"/{quantity}"):
            network, batch, *_ = key.split("/")
            points.setdefault(network, []).append((int(batch), float(value)))
    return [Series(network_name(n), *zip(*sorted(found), strict=True)) for n, found in points.items()]


def speedups(ratios: Sequence[tuple[str, float]], label: str) -> Markup:
    """Bars from 0; the line is the plain loop."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=190, right=52, bottom=10, top=4)
        values = [ratio for _, ratio in ratios]
        axes.barh(range(len(ratios)), values, height=0.62, color=ACCENT)
        axes.axvline(1, color=INK, linewidth=1, linestyle=(0, (3, 3)), alpha=0.7)
        for i, ratio in enumerate(values):
            axes.annotate(
                f"{ratio:.2f}×",
                (ratio, i),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=11,
            )
        axes.set_yticks(range(len(ratios)), [tick_label(name, NAME) for name, _ in ratios], color=INK)
        axes.set(xlim=(0, 1.05 * max(1, *values)), ylim=(len(ratios) - 0.4, -0.6))
        axes.grid(False)
        axes.xaxis.set_major_locator(NullLocator())
        for spine in axes.spines.values():
            spine.set_visible(False)

    return draw(paint, label, width=480, height=24 * len(ratios) + 16)
