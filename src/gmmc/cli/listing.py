"""List what ships with gmmc, for `gmmc models` and `gmmc recipes`. Needs no torch."""

from pathlib import Path
from typing import Any

from gmmc.base.inputs import read_bytes
from gmmc.base.tables import print_table
from gmmc.base.text import print_line
from gmmc.config import recipes
from gmmc.runs import layout, shipped
from gmmc.runs.results import read_results

# Parts of the line about a model: words, evaluation, key in its values, format.
NUMBERS = (
    ("test accuracy", "accuracy", "top1", ".1%"),
    ("ECE", "calibration", "fitted/ece", ".1%"),
    ("FID", "generation", "fresh/fid", ".1f"),
)


def print_models() -> None:
    """Print name, purpose, size and main results of each shipped model."""
    for name in shipped.names():
        folder = shipped.SHIPPED / name
        indent = " " * (len(name) + 2)
        size = (folder / layout.MODEL).stat().st_size / 1e6
        print_line(f"{name}  {title(folder)}")
        print_line(f"{indent}{size:.1f} MB; {numbers(read_results(folder))}")
        print_line(f"{indent}gmmc predict {name} photo.jpg   all results: gmmc report {name}")


def title(folder: Path) -> str:
    """Title of the model card; the name of the data set where there is none."""
    card = folder / layout.CARD
    told = recipes.read_toml(card) if card.is_file() else {}
    return str(told.get("title") or recipes.read_toml(folder / layout.CONFIG)["data"]["name"])


def numbers(results: dict[str, Any]) -> str:
    """One line of results; without those that were not measured."""
    found = [
        f"{words} {results[evaluation]['values'][key]:{form}}"
        for words, evaluation, key, form in NUMBERS
        if key in results.get(evaluation, {}).get("values", {})
    ]
    return ", ".join(found) or "not evaluated"


def print_recipes() -> None:
    """Print the name and the first line of each shipped recipe."""
    rows = [[name, headline(file)] for name, file in recipes.shipped_recipes().items()]
    print_table(["recipe", "what it trains"], rows, words=2)
    print()
    print_line("Train one: gmmc train digits   with changes: gmmc train digits train.seed=1")


def headline(recipe: Path) -> str:
    """First comment line of a recipe; empty where it has none."""
    first, *_ = read_bytes(recipe).decode().split("\n", 1)
    return first.removeprefix("#").strip() if first.startswith("#") else ""
