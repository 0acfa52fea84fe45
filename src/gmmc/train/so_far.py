"""The model of a training that is not finished, to look at while it goes on or is interrupted."""

import shutil
from pathlib import Path

from gmmc.classifier.model import Classifier
from gmmc.data import sources
from gmmc.errors import InputError
from gmmc.runs import layout, model_file
from gmmc.runs.folder import RunFolder
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner
from gmmc.train.loop import check_same_data


def write_model_so_far(run: str | Path, out: str | Path) -> Classifier:
    """Write the newest checkpoint of the run folder `run` as a run folder of its own, with a finished model.

    The model has the averaged weights, if the recipe averages them, and is calibrated as at the end of a
    training. `gmmc evaluate OUT` and all other commands take it; `run` stays as it is, and may be in use.
    """
    folder, out = RunFolder(run), Path(out)
    if out.exists():
        raise InputError(f"out must not exist yet, got {out}")
    cfg = folder.recipe()
    data = sources.load(cfg.data, cfg.train.seed)
    fabric = build_fabric(cfg.train)
    state, _ = folder.load_state(0, 1)
    if state is None:
        raise InputError(f"run must have a checkpoint in {folder.path / layout.RESUME}, got none")
    check_same_data(state.info.get("data", ""), state.info.get("held_out"), data, folder)
    learner = Learner(cfg, data, fabric)
    learner.resume(state)
    model = learner.finish()
    out.mkdir(parents=True)
    for name in (layout.CONFIG, layout.METRICS):
        shutil.copyfile(folder.path / name, out / name)
    model_file.save_model(out / layout.MODEL, model)
    return model
