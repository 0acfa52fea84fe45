"""`gmmc evaluate`: measure a finished run on its own data."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gmmc.base.inputs import kind_of
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.text import print_line, shortened
from gmmc.classifier.build import recipe_of
from gmmc.config.sections import EvaluateOptions
from gmmc.errors import InputError
from gmmc.evaluations.evaluate import at_level, keep, one_by_one
from gmmc.evaluations.registry import choose
from gmmc.evaluations.result import Result
from gmmc.runs import shipped
from gmmc.runs.finished import load_model
from gmmc.runs.folder import RunFolder
from gmmc.runs.results import check_keeps_results
from gmmc.runs.training_data import load_data

# Options of `gmmc evaluate` that only some of the evaluations look at.
OPTION_OF = {
    "ood": ("ood",),
    "samples": ("samples",),
    "attacks": ("robustness",),
    "attacked": ("robustness", "autoattack"),
    "surrogate": ("robustness",),
    "features": ("generation", "validation"),
    "generated": ("generation", "validation"),
    "likelihood_images": ("likelihood",),
}


def evaluate_run(
    run: str,
    names: Sequence[str],
    device: str,
    count: int | None = None,
    **changes: float | str | tuple[str, ...] | None,
) -> Iterator[tuple[str, Result]]:
    """Measure a finished run on its own data, one evaluation after the other.

    Each is in results.json, and its pictures in the folder, before the next begins. `changes` are settings of
    `EvaluateOptions`; None leaves one as the recipe has it, or at its default. Of a model that ships with
    gmmc the copy in runs/ is evaluated. `count`: threads, see `load_model`. Yields entries
    of results.json by their names, which have the noise level in them where one was chosen.
    """
    if not shipped.find(run).is_dir():
        models = shipped.listed("; models that ship with gmmc")
        got = f"{shortened(run, LONG_SHOWN)}, which {kind_of(Path(run))}"
        raise InputError(f"RUN must be a run folder, got {got}{models}")
    check_keeps_results(shipped.workplace(run), "RUN")
    model = load_model(run, device, count)
    given = {key: value for key, value in changes.items() if value is not None}
    cfg = EvaluateOptions.of(recipe_of(model).evaluate, **given)
    measured = at_level(model, cfg.sigma)
    chosen = choose(measured, names)  # refuse before the work what cannot be done
    for option, takers in OPTION_OF.items():
        if changes.get(option) is not None and not {*takers} & {*chosen}:
            wanted = " or ".join(f"`gmmc evaluate RUN {name}`" for name in takers)
            got = ", ".join(names) or "no name"
            raise InputError(f"--{option.replace('_', '-')} is for {wanted}, got {got}")
    if not names and not model.can_sample:
        print_line("samples is left out: this model was trained without samples", file=sys.stderr)
    data = load_data(model, run)
    folder = own_folder(run)
    if (metrics := folder.metrics()) and "seconds" in metrics[-1]:
        model.trained["seconds"] = metrics[-1]["seconds"]
    for entry, result in one_by_one(model, data, names, cfg, folder):
        yield entry, keep(result, entry, folder)


def own_folder(run: str) -> RunFolder:
    """Return the folder that keeps the results of a run; for a shipped model a copy, with a note."""
    folder = RunFolder(shipped.own_copy(run))
    if shipped.is_shipped(run):
        print_line(f"{run} is evaluated in {folder.path}", file=sys.stderr)
    return folder
