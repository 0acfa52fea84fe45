"""`gmmc calibrate`: fit the temperature and thresholds of a finished run again."""

import dataclasses
from pathlib import Path

from gmmc.base.inputs import kind_of
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.progress import Progress
from gmmc.base.text import shortened
from gmmc.classifier.model import Classifier
from gmmc.errors import InputError
from gmmc.evaluations.evaluate import doubts_of_held_out
from gmmc.runs import folder, layout, shipped
from gmmc.runs.finished import load_model
from gmmc.runs.results import check_keeps_results
from gmmc.runs.training_data import load_data


def calibrate_run(
    run: str, device: str, count: int | None = None, *, score: str | None, tpr: float | None
) -> Classifier:
    """Fit γ² and thresholds of a finished run on its validation images again, and store them in its model.

    `score` and `tpr` replace those of the recipe's [abstain]. `count`: threads, see `load_model`.
    """
    if run in shipped.names():
        raise InputError(
            f"{run} ships with gmmc and stays as it is; gmmc predict {run} takes --score and --tpr for a call"
        )
    if not (Path(run) / layout.CONFIG).is_file():
        there = "which has none" if Path(run).is_dir() else f"which {kind_of(Path(run))}"
        raise InputError(
            f"RUN must be a run folder with a {layout.CONFIG}, got {shortened(run, LONG_SHOWN)}, {there}"
        )
    check_keeps_results(Path(run), "RUN")
    folder.RunFolder(run).recipe()  # a damaged one is refused before the work
    model = load_model(run, device, count)
    changes = {key: value for key, value in (("score", score), ("tpr", tpr)) if value is not None}
    model.abstain = dataclasses.replace(model.abstain, **changes)
    data = load_data(model, run)
    if not len(data.valid):
        raise InputError(f"{run} has no validation images to calibrate by (data.valid)")
    for warning in doubts_of_held_out(model, data):
        raise InputError(f"{run}: {warning}; in Python, model.calibrate(images, labels) takes any images")
    with Progress("calibrating", model.looks * len(data.valid)) as bar:
        try:
            model.keep_neighbours(data.train.images, data.train.labels)
        except InputError as error:
            bar.say(f"no score by neighbours: {error}")
        model.calibrate(data.valid.images, data.valid.labels, on_progress=bar.update)
    folder.RunFolder(run).replace_model(model)
    return model
