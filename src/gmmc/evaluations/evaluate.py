"""Run evaluations of a model on data, one after the other, and keep their numbers and pictures."""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from gmmc import __version__, pictures
from gmmc.base.atomic import write_atomic
from gmmc.base.outputs import PNG_MARK, check_replaceable, check_within, has_mark
from gmmc.classifier.model import Classifier
from gmmc.classifier.scores import evaluating
from gmmc.config.sections import EvaluateConfig, EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations.registry import EVALUATIONS, LONG, choose
from gmmc.evaluations.result import Result, conditions
from gmmc.pixels import Shape
from gmmc.runs.folder import RunFolder
from gmmc.runs.results import check_keeps_results, listed_files


def evaluate(
    model: nn.Module,
    data: Dataset,
    names: Iterable[str] | str = (),
    cfg: EvaluateConfig | None = None,
    *,
    out: str | Path | None = None,
) -> dict[str, Result]:
    """Run the named evaluations, or all short ones that the model allows: `found["accuracy"].values["top1"]`.

    `model` is one of ours or any module of images in [0, 1] → logits. `out` is a run folder to keep results
    and pictures in, where `gmmc report` finds them, and where an interrupted evaluation goes on. `cfg` is
    [evaluate] of a recipe, or a `gmmc.config.EvaluateOptions`, which has a seed and more.
    """
    results = {}
    options = cfg if isinstance(cfg, EvaluateOptions) else EvaluateOptions.of(cfg or EvaluateConfig())
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        check_keeps_results(folder.path, "out")
    for name, result in one_by_one(model, data, names, options, folder):
        if folder is not None:
            result = keep(result, name, folder)
        results[name] = result
    return results


def keep(result: Result, name: str, folder: RunFolder) -> Result:
    """Write numbers and pictures; return what was written.

    A picture is left out, with a flag, where there is a file that gmmc did not write, or a link out of the
    folder: the numbers may have taken hours.
    """
    listed = listed_files(folder.results())  # before pictures had a mark

    def is_ours(place: Path) -> bool:
        return str(place.relative_to(folder.path)) in listed or has_mark(place, PNG_MARK)

    written, flags = {}, list(result.flags)
    for path, picture in result.pictures.items():
        place = folder.path / path
        try:
            check_within(place.parent, folder.path, "the run folder")
            check_replaceable(place, "out", is_ours)
        except InputError:
            flags.append(
                f"{path} was not written: a file that gmmc did not write, or a link, is in its place"
            )
            continue
        write_atomic(place, pictures.png(picture, {"gmmc": __version__}))
        written[path] = picture
    result = dataclasses.replace(result, pictures=written, flags=flags)
    folder.save_results({name: result.entry()})
    folder.forget(result.unfinished)
    return result


def one_by_one(
    model: nn.Module,
    data: Dataset,
    names: Iterable[str] | str,
    cfg: EvaluateOptions,
    folder: RunFolder | None = None,
) -> Iterator[tuple[str, Result]]:
    """Each evaluation as it is done. One that was asked for by name and is impossible is an error.

    Where all are meant, it is left out with the reason as its flag.
    """
    asked = [names] if isinstance(names, str) else list(names)
    chosen = choose(model, asked)
    check(model, data)
    for name in chosen:
        try:
            place = (folder,) if name in LONG else ()
            yield name, tidy(EVALUATIONS[name](model, data, cfg, *place), model, data)
        except InputError as error:
            if asked:
                raise
            yield name, tidy(Result({}, conditions(model), flags=[f"not measured: {error}"]), model, data)


def check(model: nn.Module, data: Dataset) -> None:
    """Refuse a model and data that do not belong together."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module of [0, 1] images → logits, got {type(model).__name__}"
        )
    if not isinstance(data, Dataset):
        makers = "as gmmc.data.from_arrays(images, labels) makes it"
        raise InputError(f"data must be a gmmc.data.Dataset, {makers}, got {type(data).__name__}")
    if len(data.test) == 0:
        raise InputError("an evaluation needs at least one test image, got none")
    if isinstance(model, Classifier) and (model.shape, model.class_names) != (data.shape, data.class_names):
        of_model, of_data = (describe(x.shape, x.class_names) for x in (model, data))
        raise InputError(f"the data must be like those of the training, {of_model}, got {of_data}")
    with evaluating(model) as prepared, torch.inference_mode():
        logits = model(prepared(data.test.images[:2]))
    wanted = (len(data.test.images[:2]), len(data.class_names))
    if not isinstance(logits, Tensor) or tuple(logits.shape) != wanted:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"the model must give one logit per class, {wanted} for {wanted[0]} image(s), got {got}"
        )


def describe(shape: Shape, class_names: tuple[str, ...]) -> str:
    names = ", ".join(class_names[:10]) + (", …" if len(class_names) > 10 else "")
    return f"{'×'.join(map(str, shape))} with the classes {names}"


def tidy(result: Result, model: nn.Module, data: Dataset) -> Result:
    """Add the data set to the conditions; drop non-finite values, with a flag."""
    told = {"data": data.name, **result.conditions}
    if data.notes:
        told["data_notes"] = list(data.notes)
    sound = {key: value for key, value in result.values.items() if math.isfinite(value)}
    lost = [f"{key} is not a finite number and is left out" for key in result.values.keys() - sound.keys()]
    flags = [*doubts_of_held_out(model, data), *result.flags, *sorted(lost)]
    return dataclasses.replace(result, values=sound, conditions=told, flags=flags)


def doubts_of_held_out(model: nn.Module, data: Dataset) -> list[str]:
    """Flag data whose training images are those of the model, and whose other images are not."""
    if not isinstance(model, Classifier) or "held_out_sha256" not in model.trained:  # of an older version
        return []
    same = model.trained["held_out_sha256"] == data.held_out_fingerprint
    if same or model.trained.get("data_sha256") != data.fingerprint:
        return []
    return ["validation or test images are not those that the model was trained with"]
