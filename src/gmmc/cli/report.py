"""`gmmc report`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.text import print_line
from gmmc.cli.options import OR_SHIPPED, Quiet, complete_run
from gmmc.runs.layout import RESULTS

EXAMPLE = "gmmc report cifar10   or   gmmc report runs/search/base runs/search/*"


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help=f"Run folders, also of runs in progress{OR_SHIPPED}. The first is the baseline.",
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

    Several runs are compared with the first after gmmc evaluate RUN validation for each: what each changed,
    and what it brought. The table is printed; its numbers (results.json) and picture (comparison.png) go to
    the folder comparison beside the page.
    """
    from gmmc.report.compare.comparison import show
    from gmmc.report.page import write_report

    report = write_report(runs, out)
    for note in report.notes:
        print_line(f"! {note}", file=sys.stderr)
    if report.comparison:
        show(report.comparison)
        print()
        print_line(f"All of the comparison: {report.folder / RESULTS}")
    print_line(str(report.page))
