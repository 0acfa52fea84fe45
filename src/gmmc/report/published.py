"""Numbers that others printed, each with its source; never measured by us."""

import functools
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().with_name("published.toml")
# What a row says about itself; its other keys are numbers.
WORDS = {"model": str, "printed": str, "source": str, "note": str, "second_hand": bool}
# Numbers with these names may be anything; all others are proportions.
UNBOUNDED = {
    "inception_score",
    "fid",
    "epochs",
    "l2_untargeted_100",
    "l2_targeted_1000",
    "steps",
    "buffer",
    "real_20",
    "real_50",
    "real_100",
    "sampled_20",
    "sampled_50",
    "sampled_100",
    "train_hours",
    "minutes_per_epoch",
    "gpu_days",
}


@dataclass(frozen=True)
class Row:
    """A model in one of the published tables. Numbers are decimals: they keep their printed digits."""

    table: str
    data: str
    model: str
    source: str
    numbers: dict[str, Decimal]
    printed: str = ""  # the model's name in that table, where it differs
    note: str = ""
    second_hand: bool = False

    @property
    def citation(self) -> str:
        """The source with all that a reader should know about it."""
        name = f"there “{self.printed}”" if self.printed else ""
        return "; ".join(filter(None, [self.source, name, "second-hand" * self.second_hand, self.note]))


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows of published.toml."""
    return parse(FILE.read_text(encoding="utf-8"))


def find(data: str, *tables: str) -> list[Row]:
    """The rows of these tables, in the order of their names here, for models trained on the data set."""
    return [row for table in tables for row in rows() if (row.table, row.data) == (table, data)]


def parse(text: str) -> tuple[Row, ...]:
    """The rows of a file in this layout; a row that breaks a rule is a ValueError that names it."""
    tables = tomllib.loads(text, parse_float=Decimal)["table"]
    return tuple(_row(table, entry) for table in tables for entry in table["rows"])


def _row(table: dict[str, Any], entry: dict[str, Any]) -> Row:
    place = f"published.toml, table {table['name']!r} of {table['data']!r}, row {entry.get('model')!r}"
    words = {"source": table.get("source", ""), **{k: v for k, v in entry.items() if k in WORDS}}
    numbers = {k: v for k, v in entry.items() if k not in WORDS}
    for key, word in words.items():
        if type(word) is not WORDS[key] or not word:
            raise ValueError(f"{place}: {key} must be {WORDS[key].__name__} and not empty, got {word!r}")
    if "model" not in words or not numbers:
        raise ValueError(f"{place}: a row needs a model and at least one number")
    for key, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, Decimal)):
            raise ValueError(f"{place}: {key} must be a number, got {number!r}")
        if not Decimal(number).is_finite():
            raise ValueError(f"{place}: {key} must be a finite number, got {number}")
        if key not in UNBOUNDED and not 0 <= number <= 1:
            raise ValueError(f"{place}: {key} must be a fraction of 1, got {number}")
    return Row(table["name"], table["data"], numbers={k: Decimal(v) for k, v in numbers.items()}, **words)
