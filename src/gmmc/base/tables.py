"""Tables: one model, rendered as text and Markdown here and as HTML by the template of the report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gmmc.base.text import printable

MISSING = "–"


@dataclass(frozen=True)
class Cell:
    text: str = MISSING
    below: str = ""  # in small print
    below_is: str = "95% interval"
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
    see: tuple[str, str] | None = None  # key and title of the section with the details
    strong: bool = False  # the one to remember


@dataclass
class Table:
    columns: Sequence[str]
    lines: list[Line] = field(default_factory=list)
    corner: str = ""
    caption: str = ""
    published_columns: int = 0  # so many at the right are not ours
    notes: list[str] = field(default_factory=list)
    remark: str = ""  # below the table
    dense: bool = False  # many columns, set closer

    @classmethod
    def of(cls, header: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
        """Return a table of plain rows; the first column holds their labels."""
        lines = [Line(label, [Cell(text) for text in texts]) for label, *texts in rows]
        return cls(list(header[1:]), lines, corner=header[0])

    def note(self, text: str) -> int:
        """The number of a foot note; the same text has one number."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1


def as_text(table: Table, *, words: int = 1, indent: str = "") -> str:
    """Aligned columns: the first `words` of them to the left, numbers to the right."""
    rows = [[table.corner, *table.columns], *(_texts(line, table) for line in table.lines)]
    rows = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [
        [
            f"{cell:<{width}}" if i < words else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join((indent + "  ".join(row)).rstrip() for row in aligned)


def as_markdown(table: Table, escape: Callable[[str], str] = str) -> str:
    """A GitHub table. Headings and the line to remember are bold."""
    rows = [[table.corner, *table.columns], ["---"] * (1 + len(table.columns))]
    for line in table.lines:
        label, *texts = map(escape, _texts(line, table))
        rows.append([f"**{label}**" if line.strong or line.kind in ("group", "not-ours") else label, *texts])
    return "\n".join("|" + "".join(f" {text} |" if text else " |" for text in row) for row in rows)


def _texts(line: Line, table: Table) -> list[str]:
    """The label and the cells of a line; a heading has empty ones."""
    return [line.label, *(cell.text for cell in line.cells), *[""] * (len(table.columns) - len(line.cells))]


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, indent: str = ""
) -> None:
    """Print plain rows as text."""
    print(as_text(Table.of(header, rows), words=words, indent=indent))
