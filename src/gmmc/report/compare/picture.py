"""The picture of a comparison: FID and accuracy against the seconds of training, a line per run."""

import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from gmmc import __version__
from gmmc.report.canvas import INK, RULE, SOFT, STYLE, margins
from gmmc.report.compare.rows import Row
from gmmc.report.figures import CLASS_COLOURS

# On a page of its own the picture cannot ask for colours: those of the light page, on white.
LIGHT = {INK: "#1b1d22", SOFT: "#646a76", RULE: "#e4e1da"}
DPI = 144  # two pixels for one of the page
WIDTH, HEIGHT = 860, 330  # of a panel
LABELS, CHARACTER = 15, 6.4  # pixels from one label to the next, and of a letter
LOGARITHMIC = 3  # the largest FID, in the smallest, from which decades are drawn
FID_TICKS = [digit * 10**power for power in range(-1, 4) for digit in (1, 1.5, 2, 3, 4, 5, 7)]


@dataclass(frozen=True)
class Line:
    """One run in one panel; `end`, a larger mark, is of the finished model."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    end: tuple[float, float] | None
    colour: str
    width: float
    style: str

    @property
    def last(self) -> tuple[float, float]:
        return self.end or (self.x[-1], self.y[-1])

    @property
    def baseline(self) -> bool:
        return self.colour == LIGHT[INK]


def draw(rows: Sequence[Row]) -> bytes | None:
    """A PNG; nothing where there is nothing to see yet."""
    fids, accuracies = fid_lines(rows), accuracy_lines(rows)
    panels: list[tuple[list[Line], Callable[[Axes, Sequence[Line]], None]]] = []
    if fids:
        panels.append((fids, lambda axes, lines: paint_fid(axes, lines, fid_label(rows))))
    if accuracies:
        panels.append((accuracies, paint_accuracy))
    if not panels:
        return None
    with (
        matplotlib.rc_context({key: LIGHT.get(value, value) for key, value in STYLE.items()}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        height = HEIGHT * len(panels) + 40
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        margins(figure, left=64, right=48 + CHARACTER * max(len(row.name) for row in rows), top=26, bottom=48)
        figure.subplots_adjust(hspace=0.16)
        all_axes = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
        for axes, (lines, paint) in zip(all_axes, panels, strict=True):
            plot(axes, lines, marks=lines is fids)
            paint(axes, lines)
        all_axes[-1].set_xlim(left=0)
        all_axes[-1].set_xlabel(f"{unit(rows)} of training")
        all_axes[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        for axes, (lines, _) in zip(all_axes, panels, strict=True):
            label(axes, lines)
        file = io.BytesIO()
        figure.savefig(
            file, format="png", dpi=DPI, facecolor="white", metadata={"Software": None, "gmmc": __version__}
        )
    return file.getvalue()


# --- what is drawn --------------------------------------------------------------------------------


def fid_lines(rows: Sequence[Row]) -> list[Line]:
    lines = []
    for i, row in enumerate(rows):
        end = None
        if {"seconds", "fresh_fid"} <= row.values.keys():
            end = row.values["seconds"], row.values["fresh_fid"]
        x, y = row.curves.get("fid_seconds", []), row.curves.get("buffer_fid", [])
        if x or end:
            lines.append(Line(row.name, x, y, end, *look(i)))
    return lines


def accuracy_lines(rows: Sequence[Row]) -> list[Line]:
    return [
        Line(row.name, row.curves["seconds"], row.curves["valid_accuracy"], None, *look(i))
        for i, row in enumerate(rows)
        if "valid_accuracy" in row.curves
    ]


def look(i: int) -> tuple[str, float, str]:
    """Colour, width and style: the baseline dark and thick, the second ten dashed."""
    if i == 0:
        return LIGHT[INK], 2.8, "-"
    return CLASS_COLOURS[(i - 1) % len(CLASS_COLOURS)], 1.6, "-" if i <= len(CLASS_COLOURS) else "--"


def unit(rows: Sequence[Row]) -> str:
    """A CPU is told with its threads."""
    told = [str(row.conditions["hardware"]) for row in rows if row.conditions.get("hardware")]
    return "seconds" if not told or any("thread" in hardware for hardware in told) else "GPU-seconds"


def fid_label(rows: Sequence[Row]) -> str:
    """How many images each FID is of, where that is the same for all."""
    told = []
    if watched := {row.fid_images for row in rows if "buffer_fid" in row.curves}:
        count = f"{watched.pop():,} " if len(watched) == 1 else ""
        told.append(f"lines: {count}buffer images")
    if drawn := {row.conditions.get("generated") for row in rows if "fresh_fid" in row.values}:
        known = drawn.pop() if len(drawn) == 1 else None
        count = f"{known:,} " if isinstance(known, int) else ""
        told.append(f"large marks: {count}fresh chains of the finished model")
    return "; ".join(told)


# --- how ------------------------------------------------------------------------------------------


def plot(axes: Axes, lines: Sequence[Line], *, marks: bool) -> None:
    for line in lines:
        order = 3 if line.baseline else 2  # above all
        drawn = axes.plot(line.x, line.y, line.style, color=line.colour, linewidth=line.width, zorder=order)
        if marks:
            drawn[0].set(marker="o", markersize=1.5 * line.width)
        if line.end:
            axes.plot(
                *line.end, "D", color=line.colour, markersize=8, markeredgecolor="white", zorder=order + 2
            )
    axes.grid(False, axis="x")
    axes.spines["left"].set_visible(False)


def heading(axes: Axes, text: str, small: str = "") -> None:
    """Above the axis, where it can be read without turning the head."""
    points = "offset points"
    words = axes.annotate(
        text, (0, 1), (-40, 8), "axes fraction", points, color=LIGHT[INK], weight="bold", va="bottom"
    )
    if small:
        axes.annotate(small, (1, 0), (8, 0), words, points, color=LIGHT[SOFT], va="bottom")


def paint_fid(axes: Axes, lines: Sequence[Line], small: str) -> None:
    heading(axes, "FID to the training images, lower is better", small)
    known = [y for line in lines for y in (*line.y, line.last[1]) if y > 0]
    if known and max(known) > LOGARITHMIC * min(known):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(FID_TICKS))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.93 * min(known), 1.07 * max(known))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def paint_accuracy(axes: Axes, lines: Sequence[Line]) -> None:
    """What the runs end with decides the range: how they began would leave no room for the differences."""
    heading(axes, "Accuracy on validation images, higher is better")
    ends = [line.y[-1] for line in lines]
    best = max(y for line in lines for y in line.y)
    span = max(2 * (best - min(ends)), 0.02)
    axes.set_ylim(max(best - span, 0), best + 0.05 * span)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g}%"))


def label(axes: Axes, lines: Sequence[Line]) -> None:
    """The names at the right, each as near to the end of its line as the others leave room."""
    height = axes.bbox.height / axes.figure.dpi * 72  # pyright: ignore[reportAttributeAccessIssue]
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform(line.last) for line in lines]
    wanted = [min(max(y, 0), 1) * height for _, y in ends]
    for line, (x, y), at in zip(lines, ends, spread(wanted, LABELS, height), strict=True):
        inside = min(max(y, 0), 1)
        axes.annotate(
            line.name,
            (min(x, 1), inside),
            (1.035, at / height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=LIGHT[INK],
            weight="bold" if line.baseline else "normal",
            fontsize=10,
            parse_math=False,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": LIGHT[SOFT],  # and dotted: not to be taken for a curve
                "linestyle": ":",
                "linewidth": 0.9,
                "shrinkA": 2,
                "shrinkB": 5,
                "relpos": (0, 0.5),
            },
        )


def spread(wanted: Sequence[float], gap: float, height: float) -> list[float]:
    """Places at least `gap` apart, in the order of those wanted, near them and within 0..height."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    gap = min(gap, height / max(len(wanted) - 1, 1))
    sorted_up = [wanted[i] for i in order]
    up = _pushed(sorted_up, gap)
    down = [-place for place in reversed(_pushed([-place for place in reversed(sorted_up)], gap))]
    middle = [(a + b) / 2 for a, b in zip(up, down, strict=True)]  # as far apart as both are
    room = [i * gap for i in range(len(order))]  # below, or above, those at the edges
    places = [
        min(max(place, below), height - above)
        for place, below, above in zip(middle, room, reversed(room), strict=True)
    ]
    return [place for _, place in sorted(zip(order, places, strict=True))]


def _pushed(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, each moved up until it is clear of the one before."""
    clear = list(places)
    for i in range(1, len(clear)):
        clear[i] = max(clear[i], clear[i - 1] + gap)
    return clear
