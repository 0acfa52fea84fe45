"""How like real images the generated ones are, by protocol; and whether they are copies."""

import math
import re
from collections.abc import Sequence

from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report import figures, pictures, published
from gmmc.report.canvas import ACCENT, SOFT
from gmmc.report.conditions import in_words
from gmmc.report.figures import Series, against, series_legend
from gmmc.report.numbers import plain, score
from gmmc.report.parts import Group, Key, Panel, add_published, cell, having, per_run, value_lines
from gmmc.report.reading import Entry, Run

PROTOCOLS = {
    "fresh": "fresh chains, none left out",
    "start": "where the fresh chains start, after 0 steps",
    "buffer": "replay buffer as it is",
    "paper": "paper’s protocol: the most confident 90% of the relabelled buffer, against train + test",
    "test": "real test images, which a perfect generator would equal",
}
METRICS = {
    "fid": "FID",
    "kid": "KID ×1000",
    "precision": "precision",
    "recall": "recall",
    "density": "density",
    "coverage": "coverage",
    "inception_score": "IS",
}
MEMORISATION = {
    "memorisation/closer_share": "samples nearer to a training image than all but 1% of test images are "
    "(1% by chance)",
    "memorisation/sample_distance": "a sample’s distance to its nearest training image, median",
    "memorisation/test_distance": "a test image’s, median",
}
SELECTED = (
    "Most published FIDs of energy-based models are of selected images of a replay buffer: they compare "
    "with the paper’s protocol, not with fresh chains."
)
NEAREST = (
    "How far the nearest training image is in feature space, for samples and for test images, which are no "
    "copies. Copies would lie further left. Each histogram is scaled to its own height."
)


def generation(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    memorised = Table([run.name for run in runs], memorisation_lines(name, runs))
    distributions = histograms(name, runs)
    groups = [Group(tables=[protocol_table(name, runs)]), Group(panels=by_steps(name, runs), broad=True)]
    if memorised.lines or distributions:
        shown = LEGEND if distributions else ()
        text = NEAREST if distributions else ""
        tables = [memorised] if memorised.lines else []
        groups.append(Group("Memorisation", tables, distributions, shown, text))
    return [*groups, Group(panels=pictures.panels(name, runs, picture_bytes), broad=True)]


# --- scores by protocol ---------------------------------------------------------------------------


def protocols_of(name: str, runs: Sequence[Run]) -> list[str]:
    """Those that are known, those of the future, and chains of so many steps."""
    keys = [key.rpartition("/") for _, entry in having(name, runs) for key in entry.values]
    found = list(dict.fromkeys(protocol for protocol, _, metric in keys if protocol and metric in METRICS))
    by_length = sorted((p for p in found if steps_of(p)), key=steps_of)
    other = [p for p in found if p not in PROTOCOLS and p not in by_length]
    return [p for p in PROTOCOLS if p in found] + other + by_length


def steps_of(protocol: str) -> int:
    """How long its chains are, where that is what makes it a protocol; else 0."""
    told = re.fullmatch(r"steps_(\d+)", protocol)
    return int(told[1]) if told else 0


def described(protocol: str) -> str:
    steps = steps_of(protocol)
    return f"fresh chains of {plain(steps)} steps" if steps else PROTOCOLS.get(protocol, protocol)


def protocol_table(name: str, runs: Sequence[Run]) -> Table:
    """A line per protocol; of several runs a group per protocol, in which they compare."""
    table = Table(["images", *METRICS.values()], caption=basis(name, runs), dense=True)
    for protocol in protocols_of(name, runs):
        if len(runs) > 1:
            table.lines.append(Line(described(protocol), kind="group"))
        table.lines += [
            Line(run.name if len(runs) > 1 else described(protocol), scores(entry, protocol, table))
            for run, entry in having(name, runs)
            if any(f"{protocol}/{metric}" in entry.values for metric in METRICS)
        ]
    data = {run.data for run in runs}
    rows = published.find(data.pop(), "hybrid") if len(data) == 1 else []
    metrics = [metric if metric in ("fid", "inception_score") else "" for metric in METRICS]
    add_published(table, rows, ["", *metrics])
    table.remark = SELECTED if rows else ""
    return table


def basis(name: str, runs: Sequence[Run]) -> str:
    """What the numbers rest on, told once where it is the same for all runs."""
    told: dict[str, list[str]] = {}
    for run, entry in having(name, runs):
        facts = {"Features": entry.conditions.get("features"), "reference": entry.conditions.get("reference")}
        words = "; ".join(f"{key}: {in_words(fact)}" for key, fact in facts.items() if fact)
        told.setdefault(words, []).append(run.name)
    if len(told) == 1:
        return next(iter(told))
    return " · ".join(f"{', '.join(names)} – {words or 'not told'}" for words, names in told.items())


def scores(entry: Entry, protocol: str, table: Table) -> list[Cell]:
    images = entry.conditions.get("images")
    count = images.get(protocol) if isinstance(images, dict) else None
    return [Cell(in_words(count)), *(metric_cell(entry, protocol, metric, table) for metric in METRICS)]


def metric_cell(entry: Entry, protocol: str, metric: str, table: Table) -> Cell:
    key = f"{protocol}/{metric}"
    value, interval = entry.values.get(key), entry.intervals.get(key)
    if metric == "kid" and isinstance(value, (int, float)) and math.isfinite(value):
        ends = [score(1000 * end) for end in interval or () if end is not None]
        return Cell(score(1000 * value), " to ".join(ends))  # an end may be negative: no dash between
    if metric == "inception_score" and value is None and not steps_of(protocol) and protocol != "start":
        why = entry.conditions.get("inception_score")
        return Cell(note=table.note(f"Inception Score: {in_words(why)}")) if why else Cell()
    return cell(entry, key)


def by_steps(name: str, runs: Sequence[Run]) -> list[Panel]:
    lines = []
    for run, entry in having(name, runs):
        told = entry.curves.get("steps") or {"steps": [], "fid": []}
        points = [(n, y) for n, y in zip(told["steps"], told["fid"], strict=True) if y is not None]
        lines += [Series(run.name, [n for n, _ in points], [y for _, y in points])] if points else []
    if not lines:
        return []
    alt = f"FID of fresh chains against their number of steps, run {', '.join(line.label for line in lines)}."
    shown = series_legend(lines) if len(runs) > 1 else []
    svg = against(lines, alt, x="chain steps", y="FID")
    return [Panel("FID against chain steps", "fresh chains, fewer images", svg, legend=shown)]


# --- memorisation ---------------------------------------------------------------------------------

LEGEND = (Key("samples", "var(--accent)"), Key("test images", "var(--soft)"))


def memorisation_lines(name: str, runs: Sequence[Run]) -> list[Line]:
    """Its values, and those that have no place in the table of protocols."""
    keys = dict.fromkeys(key for _, entry in having(name, runs) for key in entry.values)
    placed = {f"{protocol}/{metric}" for protocol in protocols_of(name, runs) for metric in METRICS}
    other = {
        key: key.replace("_", " ").replace("/", " / ")
        for key in keys
        if key not in placed and key not in MEMORISATION
    }
    return value_lines([run.results.get(name) for run in runs], MEMORISATION | other)


def histograms(name: str, runs: Sequence[Run]) -> list[Panel]:
    panels = []
    for run, entry in having(name, runs):
        curve = entry.curves.get("nearest")
        if curve:
            share = cell(entry, "memorisation/closer_share").text
            alt = f"Distances to the nearest training image, of samples and of test images, run {run.name}."
            svg = figures.histograms(
                curve, alt, "distance to the nearest training image", (("test", SOFT), ("samples", ACCENT))
            )
            told = (
                f"{share} of the samples are nearer than 99% of the test images" if share != MISSING else ""
            )
            panels.append(Panel("Distances", " · ".join(filter(None, [per_run(run, runs), told])), svg))
    return panels
