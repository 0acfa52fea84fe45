"""`gmmc compare`, deprecated: `gmmc report RUN…` compares runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.text import print_line

EXAMPLE = "gmmc compare runs/search/base runs/search/* --out runs/search/compared"


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; the first is the baseline.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for the numbers and the picture.")] = Path(
        "runs/compared"
    ),
) -> None:
    """Compare runs of a changed recipe with the first run. Deprecated: use gmmc report RUN... instead.

    Run gmmc evaluate RUN validation for each before. Writes results.json and comparison.png.
    """
    from gmmc.report.compare.comparison import compare, show

    show(compare(runs, out))
    print()
    print_line(f"All of it: {out / 'results.json'}   to look at: gmmc report {out}")
    print_line("! gmmc compare is deprecated; use gmmc report RUN... instead", file=sys.stderr)
