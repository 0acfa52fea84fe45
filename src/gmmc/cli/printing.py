"""What the commands print on standard output."""

import json
import math
import sys
import textwrap
from pathlib import Path
from typing import Any

from gmmc.base.names import AUTOATTACK, PAPER_PGD, SHORT_SCORES, WORST_CASE
from gmmc.base.tables import MISSING, print_table
from gmmc.base.text import print_line, printable

LONG = {"trained", "settings", "attacks", "checks"}  # conditions that only results.json tells
FEW = 100  # validation images below which a bound is a rough one


def print_predictions(rows: list[dict[str, Any]], *, as_json: bool = False) -> None:
    """An answer per row; the class of an image that is not accepted is only a guess."""
    if as_json:
        for row in rows:
            print(json.dumps(_finite(row)))  # in ASCII: valid whatever the encoding of standard output
    if as_json or not rows:
        return
    first = rows[0]
    header = ["image", "answer", "confidence"]
    if first["in_distribution"] is not None:
        header += [SHORT_SCORES[first["score"]], "accepted from", "above"]
    lines = []
    for row in rows:
        answer = row["answer"]
        if answer is None:
            answer = f"not like the training images (nearest: {row['class']})"
        line = [row["image"], answer, f"{row['confidence']:.4f}"]
        if row["in_distribution"] is not None:
            above = f"{row['percentile']:.0f}% of validation"
            line += [f"{row['value']:.4g}", f"{row['threshold']:.4g}", above]
        lines.append(line)
    print_table(header, lines, words=2)
    if first["in_distribution"] is None:
        reason = "it keeps no scores of validation images, and its confidence is not calibrated"
        print(f"! this model never abstains: {reason}", file=sys.stderr)
    elif first["validation_images"] < FEW:
        count = first["validation_images"]
        print(f"! the bound rests on {count} validation images: read it as a rough one", file=sys.stderr)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for what is not a finite number: null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def print_result(name: str, result: Any, folder: Path) -> None:
    """Single values in lines; those that are named by their place in a table, of the first temperature."""
    print()
    print_line(name)
    for key, value in result.values.items():
        if "/" not in key:
            print_line(f"  {key:<20} {value:.4g}{interval(result.intervals.get(key))}")
    print_places(result)
    for flag in result.flags:
        print_line(f"  ! {flag}")
    for check, found in result.conditions.get("checks", {}).items():
        if found == "fine":
            print_line(f"  fine: {check}")
    for path in result.pictures:
        print_line(f"  picture: {folder / path}")
    told = {key: in_words(value) for key, value in result.conditions.items() if key not in LONG}
    told["commit"] = told.get("commit", "")[:10]
    conditions = printable("; ".join(f"{key} {value}" for key, value in told.items() if value))
    print(textwrap.fill(f"({conditions})", width=100, initial_indent="  ", subsequent_indent="   "))


def print_places(result: Any) -> None:
    """A table for places of the same columns; of set/score/temperature, one temperature per score."""
    tables: dict[tuple[int, str], dict[str, dict[str, str]]] = {}
    attacks: dict[str, dict[str, str]] = {}
    has_worst_case = any(f"/{WORST_CASE}/" in key for key in result.values)
    quoted = WORST_CASE if has_worst_case else AUTOATTACK
    for key, value in result.values.items():
        row, slash, column = key.rpartition("/")
        if slash and column == "accuracy":
            threat, attack = row.split("/")
            attacks.setdefault(attack, {})[threat] = f"{value:.1%}"
            if attack == quoted and key in result.intervals:
                low, high = result.intervals[key]
                attacks.setdefault("  95% interval", {})[threat] = f"{100 * low:.0f}–{100 * high:.0f}%"
        elif slash:
            depth, first = row.count("/"), next(iter(_columns(result.values, row)))
            cell = f"{value:.4g}{interval(result.intervals.get(key))}"
            tables.setdefault((depth, first), {}).setdefault(row, {})[column] = cell
    if attacks:
        order = sorted(
            attacks,
            key=lambda attack: (attack == "  95% interval", attack == quoted, attack != PAPER_PGD),
        )
        threats = dict.fromkeys(key.split("/")[0] for key in result.values if key.endswith("/accuracy"))
        print_cells({attack: attacks[attack] for attack in order}, list(threats))
    for (depth, _), places in tables.items():
        if depth == 2:
            firsts: dict[str, str] = {}
            for row in places:
                firsts.setdefault(row.rpartition("/")[0], row)
            places = {row: places[row] for row in firsts.values()}
            print("  each score at its first temperature; the others are in results.json")
        print_cells(places)


def _columns(values: dict[str, float], row: str) -> list[str]:
    return [key.rpartition("/")[2] for key in values if key.rpartition("/")[0] == row]


def print_cells(places: dict[str, dict[str, str]], columns: list[str] | None = None) -> None:
    """Rows by place and columns by name; a dash where there is nothing."""
    columns = columns or list(dict.fromkeys(column for cells in places.values() for column in cells))
    rows = [
        [*row.split("/"), *(cells.get(column, MISSING) for column in columns)]
        for row, cells in places.items()
    ]
    words = len(rows[0]) - len(columns)
    print_table([*[""] * words, *columns], rows, words=words, indent="  ")


def in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(in_words, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def interval(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f" [{ends[0]:.3g}, {ends[1]:.3g}]"
