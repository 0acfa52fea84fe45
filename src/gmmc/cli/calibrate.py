"""`gmmc calibrate`."""

from typing import Annotated

import typer

from gmmc.base import names
from gmmc.base.text import print_line
from gmmc.cli.options import Device, Quiet, Score, Threads, Tpr

EXAMPLE = "gmmc calibrate runs/demo   or   gmmc calibrate runs/demo --score neighbours"


def calibrate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    score: Score = None,
    tpr: Tpr = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Fit the temperature and thresholds of a finished run again.

    Training does this at its end, on the validation images. It is needed for a model of an older gmmc, which
    fitted its thresholds at another temperature, and to change what the model abstains by (--score, --tpr).
    """
    from gmmc.evaluations.recalibrate import calibrate_run

    model = calibrate_run(run, device, threads, score=score, tpr=tpr)
    assert model.reference is not None
    score, tpr = model.abstains_by, model.abstain.tpr
    count = model.reference.images(score)
    print_line(
        f"{run}: fitted gamma2 = {model.reference.gamma2:.4g}; by {count} validation images "
        f"the model abstains by {score}, where the {names.SHORT_SCORES[score]} is below "
        f"{model.reference.threshold(score, tpr):.4g} (tpr {tpr:g})"
    )
    print_line(f"Next: gmmc evaluate {run} ood   measures what share of other images it accepts now")
