"""Results as tables of Markdown."""

import json
from pathlib import Path
from typing import Any

from gmmc.base.tables import Table, as_markdown

ROOT = Path(__file__).parents[1]


def results(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    return as_markdown(Table.of(header, rows)) + "\n"
