"""How well noisy images are denoised and classified at each noise level, and the bits of clean ones."""

from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from gmmc.base.tables import Cell, Line, Table
from gmmc.report import figures
from gmmc.report.canvas import ACCENT, INK, PAINT, RUNS, SOFT, draw, margins
from gmmc.report.numbers import plain
from gmmc.report.parts import Group, Key, Panel, cells, having, per_run, value_lines
from gmmc.report.reading import Entry, Run

MEASURES = {"loss": "loss", "zero_loss": "loss of F = 0", "slope": "slope", "top1": "accuracy"}
BITS = {
    "bits_per_dim": "bits per dimension",
    "standard_error": "standard error over images",
    "bits_half_steps": "bits per dimension with half as many steps",
}
PREFIX = "sigma_"  # values are named sigma_{σ}/{measure}


def denoising(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    table = Table(list(MEASURES.values()))
    for run, entry in having(name, runs):
        if len(runs) > 1:
            table.lines.append(Line(run.name, kind="group"))
        places = dict.fromkeys(key.rpartition("/")[0] for key in entry.values if key.startswith(PREFIX))
        columns = [cells([entry] * len(places), [f"{place}/{key}" for place in places]) for key in MEASURES]
        table.lines += [
            Line(f"σ = {place.removeprefix(PREFIX)}", list(row))
            for place, row in zip(places, zip(*columns, strict=True), strict=True)
        ]
    curves = [(run, entry) for run, entry in having(name, runs) if entry.curves.get("sigma")]
    return [Group(tables=[table]), Group(panels=panels(curves))]


def panels(found: Sequence[tuple[Run, Entry]]) -> list[Panel]:
    """Loss, slope and accuracy over σ, all runs in one figure each."""
    if not found:
        return []
    names = ", ".join(run.name for run, _ in found)
    of_runs = [Key(run.name, PAINT[RUNS[i % len(RUNS)]]) for i, (run, _) in enumerate(found)]
    lines = of_runs if len(found) > 1 else [Key("model", of_runs[0].colour)]
    zero = Key("F = 0", PAINT[SOFT] if len(found) > 1 else of_runs[0].colour, "dashed")
    runs = of_runs if len(found) > 1 else []
    loss = over_noise(found, ("loss", "zero_loss"), f"Loss over the noise level, run {names}.")
    slope = over_noise(found, ("slope",), f"Slope over the noise level, run {names}.", level=1.0)
    top1 = over_noise(found, ("top1",), f"Accuracy over the noise level, run {names}.", share=True)
    return [
        Panel("Loss", "", loss, legend=[*lines, zero]),
        Panel("Slope", "1: calibrated", slope, legend=runs),
        Panel("Accuracy", "of noisy images", top1, legend=runs),
    ]


def over_noise(
    found: Sequence[tuple[Run, Entry]],
    measures: Sequence[str],
    label: str,
    *,
    level: float | None = None,
    share: bool = False,
) -> Markup:
    """A line per run over ln σ, from 0 up, and a dashed one for the second measure; `level`: one to reach."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=46)
        for i, (_, entry) in enumerate(found):
            for key, style in zip(measures, ("-", (0, (3.5, 2))), strict=False):
                values = [float("nan") if y is None else y for y in entry.curves[key]]
                colour, mark = RUNS[i % len(RUNS)], "o" if style == "-" else ""
                axes.plot(
                    entry.curves["sigma"], values, color=colour, linestyle=style, marker=mark, markersize=4
                )
        if level is not None:
            axes.axhline(level, color=INK, linewidth=1, linestyle=(0, (3, 3)), alpha=0.7)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        most = max((y for _, entry in found for key in measures for y in entry.curves[key] if y), default=1)
        axes.set_ylim(0, 1.03 if share else 1.08 * max(most, level or 0))
        if share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        axes.set_xlabel("σ")
        axes.grid(False, axis="x")
        axes.spines["left"].set_visible(False)

    return draw(paint, label, width=270, height=220)


def likelihood(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    entries = [run.results.get(name) for run in runs]
    keys = dict.fromkeys(key for _, entry in having(name, runs) for key in entry.values)
    labels = BITS | {key: key.replace("_", " ") for key in keys if key not in BITS}
    table = Table([run.name for run in runs], value_lines(entries, labels))
    lowest = [entry.conditions.get("sigma_min") if entry else None for entry in entries]
    told = [
        f"{run.name} {sigma:g}" if len(runs) > 1 else f"{sigma:g}"
        for run, sigma in zip(runs, lowest, strict=True)
        if isinstance(sigma, float)
    ]
    table.remark = f"Density of images with noise σ₀: {', '.join(told)}." if told else ""
    shown = [
        Panel(
            "Bits per dimension",
            " · ".join(filter(None, [per_run(run, runs), "test images"])),
            figures.histograms(
                entry.curves["histogram"],
                f"Histogram of the bits per dimension of test images, run {run.name}.",
                "bits per dimension",
                (("images", ACCENT),),
            ),
        )
        for run, entry in having(name, runs)
        if entry.curves.get("histogram")
    ]
    return [Group(tables=[table], panels=shown), *by_class(name, runs)]


def by_class(name: str, runs: Sequence[Run]) -> list[Group]:
    """Bits of each class, a column per run, where all runs have the same few classes."""
    found = having(name, runs)
    classes = {tuple(map(str, entry.curves.get("class_names", ()))) for _, entry in found}
    names = classes.pop() if len(classes) == 1 else ()
    if not 0 < len(names) <= figures.LEGEND_CLASSES:
        return []
    table = Table([run.name for run, _ in found])
    for i, text in enumerate(names):
        bits = [entry.curves["bits_per_class"][i] for _, entry in found]
        table.lines.append(Line(text, [Cell() if value is None else Cell(plain(value)) for value in bits]))
    return [Group("Bits per dimension by class", tables=[table], folded=True)]
