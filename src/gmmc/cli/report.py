"""`gmmc report`."""

from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.text import print_line
from gmmc.cli.options import OR_SHIPPED, Quiet, complete_run

EXAMPLE = "gmmc report cifar10   or   gmmc report runs/demo runs/other --out both.html"


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help=f"Run folders, also of runs in progress{OR_SHIPPED}.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; default: report.html in the first run, or in runs/NAME for a shipped one."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show runs on one HTML page: numbers, figures and samples.

    Numbers come with their conditions, and with the paper's. The page is one file that needs nothing else.
    Evaluate first for anything but training curves.
    """
    from gmmc.report.page import write_report

    print_line(str(write_report(runs, out)))
