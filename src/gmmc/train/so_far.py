"""The model of a training that is not finished, to look at while it goes on or is interrupted."""

import dataclasses
import json
import shutil
from pathlib import Path

import torch

from gmmc.classifier.model import Classifier
from gmmc.data import sources
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.networks import threads
from gmmc.runs import layout, model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner
from gmmc.train.loop import check_same_data, resume


def write_model_so_far(run: str | Path, out: str | Path, data: Dataset | None = None) -> Classifier:
    """Write the newest checkpoint of the run folder `run` as a run folder of its own, with a finished model.

    The model has the averaged weights, if the recipe averages them, and is calibrated as at the end of a
    training. `gmmc evaluate OUT` and all other commands take it; `run` stays as it is, and may be in use.
    A training on several devices is looked at on one. Further averages (`train.averages`) are left out.
    `data`: of a training that was given them in memory.
    """
    folder, out = RunFolder(run, read_only=True), Path(out)
    if out.exists():
        raise InputError(f"out must not exist yet, got {out}")
    cfg = folder.recipe()
    cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, devices=1, nodes=1))
    if data is None:
        data = sources.load(cfg.data, cfg.train.seed)
    try:
        state, _ = folder.load_state()
    except FileNotFoundError:
        raise InputError(f"{folder.path} has a newer checkpoint by now; try again") from None
    if state is None:
        raise InputError(f"run must have a checkpoint in {folder.path / layout.RESUME}, got none")
    check_same_data(state.info.get("data", ""), state.info.get("held_out"), data, folder)
    with threads.using(torch.get_num_threads()):  # a resumed learner computes with its own number
        learner = Learner(cfg, data, build_fabric(cfg.train))
        resume(learner, state, folder)
        model = learner.finish()
    lines = folder.metrics()[: learner.state.lines]
    out.mkdir(parents=True)
    shutil.copyfile(folder.path / layout.CONFIG, out / layout.CONFIG)
    (out / layout.METRICS).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    model_file.save_model(out / layout.MODEL, model)
    return model
