"""What the page is made of. Sections fill these; the template lays them out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from markupsafe import Markup

from gmmc.report.numbers import MISSING, printed, shown, shown_interval
from gmmc.report.published import Row as PublishedRow
from gmmc.report.reading import Entry, Run

NOT_OURS = "published, not measured by us"


@dataclass(frozen=True)
class Cell:
    text: str = MISSING
    below: str = ""  # its 95% interval
    source: str = ""  # of a published number
    note: int = 0  # number of the foot note with the source


@dataclass(frozen=True)
class Line:
    """A line of a table: numbers of ours or of others, or a heading or a warning across all columns."""

    label: str
    cells: Sequence[Cell] = ()
    kind: Literal["ours", "published", "group", "not-ours", "flag"] = "ours"
    note: int = 0
    source: str = ""


@dataclass
class Table:
    columns: Sequence[str]
    lines: list[Line] = field(default_factory=list)
    corner: str = ""
    caption: str = ""
    published_columns: int = 0  # so many at the right are not ours
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> int:
        """The number of a foot note; the same text has one number."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1

    def add_published(
        self, rows: Iterable[PublishedRow], keys: Sequence[str], kinds: Sequence[str] = ()
    ) -> None:
        """Lines of others below ours, under a heading that says so. `kinds`: how each number is written."""
        chosen = [row for row in rows if any(key in row.numbers for key in keys)]
        if chosen:
            self.lines.append(Line(NOT_OURS, kind="not-ours"))
        for row in chosen:
            numbers = [row.numbers.get(key) for key in keys]
            cells = [Cell(printed(kind, n)) for kind, n in zip(kinds or keys, numbers, strict=True)]
            self.lines.append(Line(row.model, cells, "published", self.note(row.citation), row.citation))


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    label: str
    colour: str  # in CSS
    dashed: bool = False
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
    key: str
    title: str
    text: str = ""
    flags: Sequence[tuple[str, str]] = ()  # (run, doubt)
    groups: Sequence[Group] = ()
    conditions: Sequence[tuple[str, dict[str, str], dict[str, str]]] = ()  # (run, facts, settings)


def cell(entry: Entry | None, name: str) -> Cell:
    """A value of an evaluation, or a dash where there is none."""
    if entry is None or name not in entry.values:
        return Cell()
    interval = entry.intervals.get(name)
    return Cell(shown(name, entry.values[name], interval), shown_interval(name, interval))


def flags(name: str, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The doubts of an evaluation; with one run its name goes without saying."""
    several = len(runs) > 1
    return [
        (run.name if several else "", str(flag))
        for run in runs
        if name in run.results
        for flag in run.results[name].flags
    ]


def conditions(name: str, runs: Sequence[Run]) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Under which conditions each run was measured: the facts, and apart from them the settings."""
    told = []
    for run in runs:
        if name in run.results and run.results[name].conditions:
            facts = dict(run.results[name].conditions)
            settings = facts.pop("settings", {})
            told.append((run.name, flat(facts), flat(settings) if isinstance(settings, dict) else {}))
    return told


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as one: {"train": {"seed": 0}} → {"train.seed": "0"}."""
    lines: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            lines |= flat(value, f"{prefix}{key}.")
        else:
            lines[f"{prefix}{key}"] = MISSING if value in (None, "") else str(value)
    return lines
