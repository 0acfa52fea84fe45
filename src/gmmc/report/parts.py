"""What the page is made of. Sections fill these; the template lays them out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from markupsafe import Markup

from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report.numbers import common_digits, printed, shown, shown_interval
from gmmc.report.published import Row as PublishedRow
from gmmc.report.reading import Entry, Run

NOT_OURS = "published, not measured by us"


def add_published(
    table: Table, rows: Iterable[PublishedRow], keys: Sequence[str], kinds: Sequence[str] = ()
) -> None:
    """Add lines of others below ours, under a heading. `kinds`: how each number is written."""
    chosen = [row for row in rows if any(key in row.numbers for key in keys)]
    if chosen:
        table.lines.append(Line(NOT_OURS, kind="not-ours"))
    for row in chosen:
        numbers = [row.numbers.get(key) for key in keys]
        cells = [Cell(printed(kind, n)) for kind, n in zip(kinds or keys, numbers, strict=True)]
        table.lines.append(Line(row.model, cells, "published", table.note(row.citation), row.citation))


Stroke = Literal["solid", "dashed", "dotted"]


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    label: str
    colour: str  # in CSS
    stroke: Stroke = "solid"
    glyph: str = ""  # instead of a line


@dataclass(frozen=True)
class Panel:
    """A figure or a picture under its own small heading."""

    title: str
    detail: str = ""
    svg: Markup | None = None
    picture: str = ""  # a data: URL
    alt: str = ""
    missing: str = ""  # why there is nothing to see
    wide: bool = False
    first: bool = False  # begins a row
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class Group:
    """Tables and panels that belong together, open or to unfold."""

    title: str = ""
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    legend: Sequence[Key] = ()
    text: str = ""
    folded: bool = False
    broad: bool = False  # panels that need room


@dataclass(frozen=True)
class Section:
    key: str  # its place in the page, to link to
    title: str
    text: str = ""
    flags: Sequence[tuple[str, str]] = ()  # (runs, doubt)
    groups: Sequence[Group] = ()
    conditions: Sequence[tuple[str, dict[str, str], dict[str, str]]] = ()  # (run, facts, settings)


def cell(entry: Entry | None, name: str, digits: int | None = None) -> Cell:
    """A value of an evaluation, or a dash where there is none."""
    if entry is None or name not in entry.values:
        return Cell()
    interval = entry.intervals.get(name)
    return Cell(shown(name, entry.values[name], interval, digits), shown_interval(name, interval, digits))


def cells(entries: Sequence[Entry | None], names: Sequence[str]) -> list[Cell]:
    """Values that a reader compares: percentages have the same number of digits."""
    places = list(zip(entries, names, strict=True))
    digits = common_digits(
        [(entry.values.get(name), entry.intervals.get(name)) for entry, name in places if entry]
    )
    return [cell(entry, name, digits) for entry, name in places]


def value_lines(entries: Sequence[Entry | None], labels: Mapping[str, str]) -> list[Line]:
    """A line per value, a column per run; what no run has is left out."""
    lines = [Line(text, cells(entries, [key] * len(entries))) for key, text in labels.items()]
    return [line for line in lines if any(found.text != MISSING for found in line.cells)]


def having(name: str, runs: Sequence[Run]) -> list[tuple[Run, Entry]]:
    return [(run, run.results[name]) for run in runs if name in run.results]


def per_run(run: Run, runs: Sequence[Run]) -> str:
    return run.name if len(runs) > 1 else ""


def flags(name: str, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The doubts of an evaluation, each once with the runs it concerns; one run goes without its name."""
    concerned: dict[str, list[str]] = {}
    for run in runs:
        for flag in dict.fromkeys(map(str, run.results[name].flags)) if name in run.results else ():
            concerned.setdefault(flag, []).append(run.name)
    return [(", ".join(names) if len(runs) > 1 else "", flag) for flag, names in concerned.items()]


def in_rows(groups: Iterable[Sequence[Panel]]) -> list[Panel]:
    """Panels one after the other; each group of several begins its own row."""
    filled = [list(group) for group in groups if group]
    return [
        replace(panel, first=len(filled) > 1 and i == 0) for group in filled for i, panel in enumerate(group)
    ]
