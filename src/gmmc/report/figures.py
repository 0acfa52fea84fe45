"""The figures of the report, each small: the page sets them side by side or below each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from gmmc.base.text import cut, printable
from gmmc.report.canvas import ACCENT, BAD, GOOD, INK, PAINT, RULE, RUNS, SOFT, draw, margins
from gmmc.report.numbers import percent
from gmmc.report.parts import Key, Stroke

# linear: from 0; energy: logarithmic where it spans decades, and it may be negative
Scale = Literal["linear", "percent", "energy"]
LINE_STYLES: dict[Stroke, Any] = {"solid": "-", "dashed": (0, (3.5, 2)), "dotted": (0, (1, 1.6))}
CURVE_POINTS = 1200  # of a longer curve, the extremes of each stretch are drawn
LEGEND_CLASSES = 20
# Told apart with all common kinds of colour vision (Petroff 2021), and on white as on black.
CLASS_COLOURS = (
    "#3f90da #ffa90e #bd1f01 #94a4a2 #832db6 #a96b59 #e76300 #b9ac70 #717581 #92dadd".split()  # noqa: SIM905
)
CLASS_MARKS = ("o●", "s■", "^▲", "D◆", "v▼")


@dataclass(frozen=True)
class Curve:
    """A line over the updates; None breaks it."""

    steps: list[int]
    values: list[float | None]
    colour: str
    stroke: Stroke = "solid"


def over_updates(
    curves: Sequence[Curve], label: str, *, scale: Scale = "linear", rollbacks: Sequence[int] = ()
) -> Markup:
    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=58, top=20)  # above the axis there may stand a power of ten
        for step in rollbacks:
            axes.axvline(step, color=BAD, linewidth=1, linestyle=(0, (2, 2)))
        for curve in curves:
            axes.plot(*_thinned(curve), color=curve.colour, linestyle=LINE_STYLES[curve.stroke])
        if scale == "percent":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        elif scale == "energy" and spans_decades([value for curve in curves for value in curve.values]):
            # Energies of a softmax head are negative, and a run that was rescued has some of 10²⁰.
            axes.set_yscale("symlog", linthresh=1) if negative(curves) else axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif scale == "linear":
            axes.set_ylim(bottom=0)
        axes.set_xlabel("update")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}".replace(",", "\u202f")))
        axes.grid(False, axis="x")
        axes.spines["left"].set_visible(False)

    return draw(paint, label, width=440, height=250)


def spans_decades(values: Sequence[float | None]) -> bool:
    """Whether a linear axis would hide most of them."""
    known = [value for value in values if value is not None]
    if not known:
        return False
    if min(known) > 0:
        return max(known) / min(known) > 100
    sizes = sorted(map(abs, known))  # some cross zero: what is small there is not far away
    return sizes[-1] > 100 * max(1, sizes[len(sizes) // 2])


def negative(curves: Sequence[Curve]) -> bool:
    return any(value is not None and value <= 0 for curve in curves for value in curve.values)


def _thinned(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    steps = np.asarray(curve.steps, dtype=float)
    values = np.array([np.nan if value is None else value for value in curve.values], dtype=float)
    if len(values) <= CURVE_POINTS:
        return steps, values
    kept = np.isnan(values)
    for stretch in np.array_split(np.arange(len(values)), CURVE_POINTS // 2):
        known = stretch[~np.isnan(values[stretch])]
        if len(known):
            kept[[known[values[known].argmin()], known[values[known].argmax()]]] = True
    return steps[kept], values[kept]


# --- over a setting -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """A line with a mark at each measurement."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def series_legend(series: Sequence[Series]) -> list[Key]:
    return [Key(line.label, PAINT[RUNS[i % len(RUNS)]]) for i, line in enumerate(series)]


def against(series: Sequence[Series], label: str, *, x: str, y: str, share: bool = False) -> Markup:
    """Lines with a mark at each measurement, from 0 up; doublings are equally far apart."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=62, right=20)
        for i, line in enumerate(series):
            axes.plot(line.x, line.y, color=RUNS[i % len(RUNS)], marker="o", markersize=5)
        ticks = sorted({point for line in series for point in line.x})
        if share:
            axes.set_xscale("log", base=2)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
            axes.axhline(1, color=RULE, linewidth=1)
        else:
            axes.set_xlim(0, 1.05 * max(ticks))
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        highest = max(point for line in series for point in line.y)
        axes.set_ylim(0, 1.03 * max(1, highest) if share else 1.08 * highest or 1)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(False, axis="x")
        axes.spines["left"].set_visible(False)

    return draw(paint, label, width=380, height=250)


# --- classification -------------------------------------------------------------------------------


def per_class(shares: Sequence[float | None], names: Sequence[str], label: str) -> Markup:
    """Accuracy of each class as bars, in the order of the classes, so that runs compare."""
    known = [(share, name) for share, name in zip(shares, names, strict=True) if share is not None]

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=_text_width([name for _, name in known]), right=64, bottom=10)
        axes.barh(range(len(known)), [share for share, _ in known], height=0.62, color=ACCENT)
        axes.barh(range(len(known)), [1] * len(known), height=0.62, color=RULE, zorder=0.5)
        for i, (share, _) in enumerate(known):
            beside: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points"}
            axes.annotate(
                percent(share, 1), (1, i), va="center", fontsize=11, annotation_clip=False, **beside
            )
        axes.set_yticks(range(len(known)), [tick_label(name) for _, name in known], color=INK)
        axes.set(xlim=(0, 1), ylim=(len(known) - 0.4, -0.6))
        _bare(axes)

    return draw(paint, label, width=440, height=24 * len(known) + 24)


def confusion(counts: Sequence[Sequence[int]], names: Sequence[str], label: str) -> Markup:
    """Rows: the true class; shade: the share of its row. With few classes also the counts."""
    table = np.asarray(counts, dtype=float)
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    classes, small = len(table), len(table) <= LEGEND_CLASSES
    side = 34 * classes if small else 480

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        left = _text_width(names) + 22 if small else 40
        margins(figure, left=left, bottom=_text_width(names, slanted=True) + 24 if small else 40)
        if small:
            _numbered_cells(axes, table, shares)
            ticks = [tick_label(name) for name in names]
            slant: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
            axes.set_xticks(range(classes), ticks, color=INK, **(slant if max(map(len, ticks)) > 3 else {}))
            axes.set_yticks(range(classes), ticks, color=INK)
        else:
            shade = np.zeros((classes, classes, 4))
            shade[..., :3], shade[..., 3] = (0.30, 0.42, 0.86), np.sqrt(shares)  # few errors must still show
            axes.imshow(shade, interpolation="nearest", rasterized=True)
        axes.set(xlim=(-0.5, classes - 0.5), ylim=(classes - 0.5, -0.5))
        axes.set_xlabel("named class")
        axes.set_ylabel("true class", labelpad=8)
        _bare(axes, ticks=True)

    width = side + (_text_width(names) + 34 if small else 52)
    height = side + (_text_width(names, slanted=True) + 34 if small else 50)
    return draw(paint, label, width=width, height=height)


def _numbered_cells(axes: Axes, table: np.ndarray, shares: np.ndarray) -> None:
    classes = len(table)
    for i in range(classes):
        for j in range(classes):
            if not table[i, j]:
                continue
            strength = 0.08 + 0.5 * math.sqrt(shares[i, j])  # never so dark that the number is lost
            colour = ACCENT if i == j else BAD
            axes.bar(j, 0.94, 0.94, bottom=i - 0.47, color=colour, alpha=strength)
            axes.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", fontsize=10.5)


# --- calibration and other images -----------------------------------------------------------------


def reliability(curve: dict[str, Any], label: str) -> Markup:
    """Accuracy against confidence, and how often each confidence was given (as the paper's Fig. 4)."""
    bins = len(curve["count"])
    counts = np.asarray(curve["count"], dtype=float)
    filled = [i for i in range(bins) if curve["accuracy"][i] is not None]
    accuracy = np.array([curve["accuracy"][i] for i in filled], dtype=float)
    confidence = np.array([curve["confidence"][i] for i in filled], dtype=float)
    centre = (np.array(filled) + 0.5) / bins

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        margins(figure, left=56, right=20)
        figure.subplots_adjust(hspace=0.12)
        solid = np.minimum(accuracy, confidence)
        above.bar(centre, solid, 0.9 / bins, color=ACCENT)
        above.bar(centre, accuracy - solid, 0.9 / bins, bottom=solid, color=ACCENT, alpha=0.45)
        above.bar(centre, confidence - solid, 0.9 / bins, bottom=solid, color=BAD, alpha=0.45)
        above.plot([0, 1], [0, 1], color=INK, linewidth=1, linestyle=(0, (3, 3)), alpha=0.7)
        above.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1], ylabel="accuracy")
        below.bar((np.arange(bins) + 0.5) / bins, counts / max(counts.sum(), 1), 0.9 / bins, color=SOFT)
        below.set(ylim=(0, 1), yticks=[1], xticks=[0, 0.5, 1], ylabel="images")
        below.set_xlabel("confidence")
        for axes in (above, below):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.grid(False, axis="x")
            axes.spines["left"].set_visible(False)
        below.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        figure.align_ylabels()

    return draw(paint, label, width=270, height=310)


KNOWN_AND_OTHER = (("outside", BAD), ("inside", GOOD))


def histograms(
    curve: dict[str, Any],
    label: str,
    quantity: str,
    parts: Sequence[tuple[str, str]] = KNOWN_AND_OTHER,
) -> Markup:
    """A quantity over kinds of images (key of the curve, colour), each kind with its own height."""
    edges = np.asarray(curve["edges"], dtype=float)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=12, top=6)
        for key, colour in parts:
            # One narrow peak would flatten all the rest: what is compared is where they lie.
            counts = np.asarray(curve[key], dtype=float)
            height = counts / (counts.max(initial=0) or 1)
            axes.stairs(height, edges, fill=True, color=colour, alpha=0.32)
            axes.stairs(height, edges, color=colour, linewidth=1.4)
        axes.set(xlim=(edges[0], edges[-1]), yticks=[])
        axes.set_ylim(0, 1.05)
        axes.set_xlabel(quantity)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.grid(False)
        axes.spines["left"].set_visible(False)

    return draw(paint, label, width=250, height=165)


# --- features -------------------------------------------------------------------------------------


def scatter(curve: dict[str, Any], names: Sequence[str], label: str) -> Markup:
    """The map of features, coloured by class; points are pixels, the rest is drawn."""
    x, y, labels = (np.asarray(curve[key]) for key in ("x", "y", "label"))
    classes = max(len(names), int(labels.max(initial=0)) + 1)
    size = min(max(26_000 / max(len(x), 1), 8), 28)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=4, right=4, top=4, bottom=4)
        for i in range(classes):
            chosen = labels == i
            look = class_look(i)
            dots = axes.scatter(x[chosen], y[chosen], s=size, c=look.colour, marker=look.mark, linewidths=0)
            dots.set(alpha=0.8, rasterized=True)
        axes.set_aspect("equal", adjustable="datalim")
        axes.xaxis.set_major_locator(NullLocator())
        axes.yaxis.set_major_locator(NullLocator())
        _bare(axes)

    return draw(paint, label, width=480, height=400)


@dataclass(frozen=True)
class Look:
    colour: str
    mark: str
    glyph: str


def class_look(index: int) -> Look:
    """Colour and mark of a class; the marks help where the colours are alike."""
    mark, glyph = CLASS_MARKS[(index + index // len(CLASS_MARKS)) % len(CLASS_MARKS)]
    return Look(CLASS_COLOURS[index % len(CLASS_COLOURS)], mark, glyph)


# --- shared ---------------------------------------------------------------------------------------


def tick_label(name: str, most: int = 16) -> str:
    # A dollar would start matplotlib's mathematics.
    return cut(printable(name), most).replace("$", r"\$")


def _text_width(names: Sequence[str], *, slanted: bool = False) -> int:
    longest = max((min(len(name), 16) for name in names), default=0)
    return round(6.4 * longest * (0.72 if slanted else 1)) + 18


def _bare(axes: Axes, *, ticks: bool = False) -> None:
    """No frame and no grid."""
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if not ticks:
        axes.xaxis.set_major_locator(NullLocator())
