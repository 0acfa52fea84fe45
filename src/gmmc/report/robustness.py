"""Accuracy under attack: by the paper's protocol, by better attacks, and in the worst case of them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from gmmc.base.names import AUTOATTACK, PAPER_PGD, WORST_CASE
from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report import pictures, published
from gmmc.report.attacks import (
    NORMS,
    PLACE,
    UNITS,
    attacks_of,
    by_family,
    epsilons_of,
    is_shorter_or_longer,
    worst_case,
)
from gmmc.report.canvas import INK, PAINT, WARM, draw, margins
from gmmc.report.figures import CLASS_MARKS, Look, Series, against, series_legend
from gmmc.report.numbers import common_digits
from gmmc.report.parts import (
    NOT_OURS,
    Group,
    Key,
    Panel,
    add_published,
    cell,
    cells,
    having,
    per_run,
    value_lines,
)
from gmmc.report.reading import Entry, Run

HEADLINE = {
    "clean": "no attack",
    "linf_8/paper_pgd/accuracy": "PGD-40, L∞ 8/255: the paper’s protocol",
    "linf_8/worst_case/accuracy": "{worst_case}, L∞ 8/255",
    "l2_0.5/worst_case/accuracy": "{worst_case}, L2 0.5",
    "zero_gradient_share": "images with a gradient of exactly zero (cross-entropy, the paper’s γ²)",
}


def robustness(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    carlini_wagner = distances(name, runs)
    return [
        Group(tables=[summary(name, runs)]),
        curves(name, runs),
        *attack_groups(name, runs),
        *([Group("Carlini–Wagner attack", [carlini_wagner])] if carlini_wagner.lines else []),
        Group(panels=steps(name, runs), broad=True),
        Group(panels=pictures.panels(name, runs, picture_bytes), broad=True),
    ]


def autoattack(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    return attack_groups(name, runs)


def summary(name: str, runs: Sequence[Run]) -> Table:
    """What to remember, and the values that have no place in the other tables."""
    keys = dict.fromkeys(key for _, entry in having(name, runs) for key in entry.values)
    other = {
        key: key.replace("_", " ").replace("/", " / ")
        for key in keys
        if key not in HEADLINE and not PLACE.fullmatch(key) and not key.startswith("cw/")
    }
    words = worst_case([entry for _, entry in having(name, runs)])
    quoted = {key: label.format(worst_case=words) for key, label in HEADLINE.items()}
    lines = value_lines([run.results.get(name) for run in runs], quoted | other)
    worst = [label for key, label in quoted.items() if WORST_CASE in key]
    return Table([run.name for run in runs], [replace(line, strong=line.label in worst) for line in lines])


# --- attacks --------------------------------------------------------------------------------------


def attack_groups(name: str, runs: Sequence[Run]) -> list[Group]:
    """Of each run, a table per norm."""
    found = [
        (run, [attack_table(run, entry, norm) for norm in NORMS if attacks_of(entry, norm)])
        for run, entry in having(name, runs)
    ]
    return [Group(per_run(run, runs), tables) for run, tables in found if tables]


def attack_table(run: Run, entry: Entry, norm: str) -> Table:
    """A line per attack, a column per ε; published lines stand below the family they belong to."""
    threats = [f"{norm}_{epsilon}" for epsilon in epsilons_of(entry, norm)]
    columns = [f"{epsilon}{UNITS[norm]}" for epsilon in epsilons_of(entry, norm)]
    attacks = attacks_of(entry, norm)
    quoted = WORST_CASE if WORST_CASE in attacks else AUTOATTACK
    # The clean accuracy says how many digits so many images support; rates near 0 or 1 would ask for more.
    digits = common_digits([(entry.values.get("clean"), entry.intervals.get("clean"))])
    table = Table(["clean", *columns], caption=f"Accuracy under {NORMS[norm]} attacks by ε", dense=True)
    for family, members in by_family(attacks):
        table.lines.append(Line(family.title, kind="group"))
        for attack, text in members.items():
            # Without an attack all are the same: it is told where others print it too.
            clean = (
                cell(entry, "clean", digits) if attack in (PAPER_PGD, WORST_CASE, AUTOATTACK) else Cell("")
            )
            accuracies = [cell(entry, f"{t}/{attack}/accuracy", digits) for t in threats]
            table.lines.append(Line(text, [clean, *accuracies], strong=attack == quoted))
        numbers = dict(family.numbers)
        keys = [numbers.get(t, "") for t in threats]
        rows = [row for row in published.find(run.data, *family.tables) if row.numbers.keys() & set(keys)]
        add_published(table, rows, ["clean", *keys], ["accuracy"] * (1 + len(keys)))
    return table


# --- figures --------------------------------------------------------------------------------------


def curves(name: str, runs: Sequence[Run]) -> Group:
    """A figure per run; where all have the same attacks, one legend."""
    found = [(run, entry) for run, entry in having(name, runs) if attacks_of(entry, "linf")]
    legends = [legend(run, entry) for run, entry in found]
    shared = len(legends) > 1 and all(keys == legends[0] for keys in legends)
    panels = [
        Panel(
            "Accuracy against ε",
            per_run(run, runs),
            against_epsilon(run, entry, width=560 if len(found) == 1 else 440),
            wide=len(found) == 1,
            legend=() if shared else keys,
        )
        for (run, entry), keys in zip(found, legends, strict=True)
    ]
    return Group(panels=panels, legend=legends[0] if shared else (), broad=True)


def known(entry: Entry, key: str) -> float | None:
    value = entry.values.get(key)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def curve(entry: Entry, attack: str) -> tuple[list[int], list[float]]:
    """Places on the axis, where 0 is no attack and each ε is one further, and the accuracies there."""
    keys = ["clean", *(f"linf_{epsilon}/{attack}/accuracy" for epsilon in epsilons_of(entry, "linf"))]
    points = [(x, y) for x, key in enumerate(keys) if (y := known(entry, key)) is not None]
    if len(points) > 1 and points[1][0] > 1:
        points = points[1:]  # a line from no attack to a far ε would tell of those between
    return [x for x, _ in points], [y for _, y in points]


def band(entry: Entry) -> tuple[list[int], list[float], list[float]]:
    """Likewise the interval of the worst case."""
    keys = ["clean", *(f"linf_{epsilon}/{WORST_CASE}/accuracy" for epsilon in epsilons_of(entry, "linf"))]
    ends = [(x, entry.intervals.get(key)) for x, key in enumerate(keys) if known(entry, key) is not None]
    whole = [(x, *pair) for x, pair in ends if pair and None not in pair]
    return [x for x, _, _ in whole], [low for _, low, _ in whole], [high for _, _, high in whole]


def printed_by_the_paper(run: Run, entry: Entry) -> list[tuple[int, float]]:
    """GMMC (Gen) of its table, at our places on the axis."""
    rows = [row for row in published.find(run.data, "pgd") if row.model == "GMMC (Gen)"]
    keys = ["clean", *(f"linf_{epsilon}_255" for epsilon in epsilons_of(entry, "linf"))]
    return [(x, float(row.numbers[key])) for row in rows for x, key in enumerate(keys) if key in row.numbers]


def looks(entry: Entry) -> dict[str, tuple[str, Look]]:
    """Name and look of each curve: the family gives the colour, the place in it the mark."""
    attacks = [
        a for a in attacks_of(entry, "linf") if not is_shorter_or_longer(a) and any(curve(entry, a)[0])
    ]
    shown = {}
    for family, members in by_family(attacks):
        for i, (attack, text) in enumerate(members.items()):
            mark, glyph = CLASS_MARKS[i % len(CLASS_MARKS)]
            shown[attack] = (text, Look(family.colour, mark, glyph))
    return shown


def legend(run: Run, entry: Entry) -> list[Key]:
    """The worst case first."""
    keys = []
    for attack, (text, look) in looks(entry).items():
        if attack == WORST_CASE:
            keys.insert(0, Key(f"{text}, with its 95% interval", "var(--ink)"))
        elif attack == PAPER_PGD:
            keys.append(Key(f"paper’s protocol: {text}", PAINT[look.colour], stroke="dashed"))
        else:
            keys.append(Key(text, PAINT[look.colour], glyph=look.glyph))
    if printed_by_the_paper(run, entry):
        keys.append(Key(f"GMMC (Gen), PGD-40: {NOT_OURS}", PAINT[WARM], glyph="○"))
    return keys


def against_epsilon(run: Run, entry: Entry, width: int) -> Markup:
    """A curve per attack; each ε is as far from the next, as if on a logarithmic axis that has a 0."""

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        margins(figure, left=52, right=16)
        ticks = ["0", *epsilons_of(entry, "linf")]
        x, low, high = band(entry)
        axes.fill_between(x, low, high, color=INK, alpha=0.14, linewidth=0)
        for attack, (_, look) in looks(entry).items():
            draw_curve(axes, entry, attack, look)
        for place, share in printed_by_the_paper(run, entry):
            axes.plot(place, share, "o", markersize=7, markerfacecolor="none", markeredgecolor=WARM, zorder=4)
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set(xlim=(-0.15, len(ticks) - 0.85), ylim=(-0.015, 1.015), yticks=[0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlabel("ε in 255ths (L∞); 0: no attack")
        axes.set_ylabel("accuracy")
        axes.grid(False, axis="x")
        axes.spines["left"].set_visible(False)

    alt = f"Accuracy under each attack against ε, the worst case of all and its interval, run {run.name}."
    return draw(paint, alt, width=width, height=320)


def draw_curve(axes: Axes, entry: Entry, attack: str, look: Look) -> None:
    x, y = curve(entry, attack)
    if attack == WORST_CASE:
        axes.plot(x, y, color=look.colour, linewidth=2.8, zorder=5)
    elif attack == PAPER_PGD:
        axes.plot(x, y, color=look.colour, linewidth=2.2, linestyle=(0, (3.5, 2)), zorder=3)
    else:
        axes.plot(x, y, color=look.colour, linewidth=1, marker=look.mark, markersize=4.5, alpha=0.75)


def steps(name: str, runs: Sequence[Run]) -> list[Panel]:
    lines = []
    for run, entry in having(name, runs):
        told = entry.curves.get("steps") or {"steps": [], "accuracy": []}
        points = [(n, y) for n, y in zip(told["steps"], told["accuracy"], strict=True) if y is not None]
        lines += [Series(run.name, [n for n, _ in points], [y for _, y in points])] if points else []
    if not lines:
        return []
    alt = f"Accuracy against the number of PGD steps, run {', '.join(line.label for line in lines)}."
    svg = against(lines, alt, x="PGD steps", y="accuracy", share=True)
    detail = "L∞ 8/255, the paper’s protocol; more steps should never raise it"
    shown = series_legend(lines) if len(runs) > 1 else []
    return [Panel("Accuracy against PGD steps", detail, svg, legend=shown)]


# --- Carlini and Wagner ---------------------------------------------------------------------------

MODES = {"untargeted": "l2_untargeted_100", "targeted": "l2_targeted_1000"}  # as others printed them
QUANTITIES = {
    "images": "images",
    "success_rate": "success rate",
    "l2_mean": "mean L2",
    "l2_median": "median L2",
}


def distances(name: str, runs: Sequence[Run]) -> Table:
    """How often the attack succeeds, and how far it must go then."""
    keys = [key.split("/") for _, entry in having(name, runs) for key in entry.values]
    found = dict.fromkeys(parts[1] for parts in keys if parts[0] == "cw" and len(parts) == 3)
    modes = [mode for mode in MODES if mode in found] + [mode for mode in found if mode not in MODES]
    data = {run.data for run in runs}
    rows = published.find(data.pop(), "carlini_wagner") if len(data) == 1 else []
    told = [quantity for quantity in QUANTITIES if any(parts[-1] == quantity for parts in keys)]
    table = Table(
        [QUANTITIES[quantity] for quantity in told],
        caption="L2 in pixels from 0 to 1, of the successful attacks",
    )
    for mode in modes:
        table.lines.append(Line(mode.capitalize(), kind="group"))
        columns = [
            cells([run.results.get(name) for run in runs], [f"cw/{mode}/{quantity}"] * len(runs))
            for quantity in told
        ]
        lines = [Line(run.name, [column[i] for column in columns]) for i, run in enumerate(runs)]
        table.lines += [line for line in lines if any(c.text != MISSING for c in line.cells)]
        add_published(
            table, rows, [MODES.get(mode, "") if quantity == "l2_mean" else "" for quantity in told]
        )
    if modes and rows:
        table.remark = (
            "Published: 100 iterations untargeted, 1,000 targeted; the paper prints one norm and does not "
            "say whether it is a mean."
        )
    return table
