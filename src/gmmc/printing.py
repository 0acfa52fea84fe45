"""What the commands print on standard output."""

import sys
import textwrap
from pathlib import Path
from typing import Any


def print_predictions(rows: list[dict[str, Any]]) -> None:
    """An answer per row; the class of an image that is not accepted is only a guess."""
    header = ["image", "answer", "confidence"]
    if rows and rows[0]["in_distribution"] is not None:
        header += [rows[0]["score"].replace("_", " "), "accepted from", "above"]
    lines = []
    for row in rows:
        unlike = row["in_distribution"] is False
        answer = f"not like the training images (nearest: {row['class']})" if unlike else row["class"]
        line = [row["image"], answer, f"{row['confidence']:.4f}"]
        if row["in_distribution"] is not None:
            above = f"{row['percentile']:.1%} of validation"
            line += [f"{row['value']:.4g}", f"{row['threshold']:.4g}", above]
        lines.append(line)
    print_table(header, lines, words=2)
    if rows and rows[0]["in_distribution"] is None:
        reason = "it keeps no scores of validation images, and its confidence is not calibrated"
        print(f"this model never abstains: {reason}", file=sys.stderr)


def print_result(name: str, result: Any, folder: Path) -> None:
    """Single values in lines, those that are named by their place in a table."""
    print(f"\n{name}")
    for key, value in result.values.items():
        if "/" not in key:
            print(f"  {key:<20} {value:.4g}{interval(result.intervals.get(key))}")
    places: dict[str, dict[str, str]] = {}
    for key, value in result.values.items():
        row, slash, column = key.rpartition("/")
        if slash:
            places.setdefault(row, {})[column] = f"{value:.4g}"  # the intervals would make it too wide
    if places:
        columns = list(next(iter(places.values())))
        rows = [[*row.split("/"), *(cells[column] for column in columns)] for row, cells in places.items()]
        words = len(rows[0]) - len(columns)
        print_table([*[""] * words, *columns], rows, words=words, indent="  ")
    for flag in result.flags:
        print(f"  ! {flag}")
    for path in result.pictures:
        print(f"  picture: {folder / path}")
    told = {key: value for key, value in result.conditions.items() if key not in ("trained", "settings")}
    conditions = ", ".join(f"{key} {value}" for key, value in told.items())
    print(textwrap.fill(f"({conditions})", width=100, initial_indent="  ", subsequent_indent="   "))


def interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" [{ends[0]:.3g}, {ends[1]:.3g}]"


def print_table(header: list[str], rows: list[list[str]], *, words: int, indent: str = "") -> None:
    """The first columns, words, to the left; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        cells = [
            f"{cell:<{width}}" if i < words else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print((indent + "  ".join(cells)).rstrip())
