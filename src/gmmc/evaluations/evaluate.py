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
from gmmc.classifier.predictor import NoiseLevel
from gmmc.classifier.scores import evaluating
from gmmc.config.sections import EvaluateConfig, EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations.registry import EVALUATIONS, LONG, NEED_NOISE, NEED_SAMPLES, choose
from gmmc.evaluations.result import Result, classifier_of, conditions
from gmmc.pixels import Shape
from gmmc.runs.folder import RunFolder
from gmmc.runs.results import check_keeps_results, entry_name, evaluation_of, listed_files

LOWEST_SIGMA = 1e-3  # as of denoising.class_sigma


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

    A model at a noise level of choice, `model.at_noise(0.25)`, is one of ours without samples. The run folder
    keeps its results as "accuracy@0.25", beside those of the model itself.
    """
    results = {}
    options = cfg if isinstance(cfg, EvaluateOptions) else EvaluateOptions.of(cfg or EvaluateConfig())
    folder = None if out is None else RunFolder(out)
    if folder is not None:
        check_keeps_results(folder.path, "out")
    for entry, result in one_by_one(model, data, names, options, folder):
        if folder is not None:
            result = keep(result, entry, folder)
        results[evaluation_of(entry)[0]] = result
    return results


def keep(result: Result, entry: str, folder: RunFolder) -> Result:
    """Write numbers and pictures as this entry of results.json; return what was written.

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
    folder.save_results({entry: result.entry()})
    folder.forget(result.unfinished)
    return result


def one_by_one(
    model: nn.Module,
    data: Dataset,
    names: Iterable[str] | str,
    cfg: EvaluateOptions,
    folder: RunFolder | None = None,
) -> Iterator[tuple[str, Result]]:
    """Each evaluation as it is done, by the name of its entry in results.json.

    One that was asked for by name and is impossible is an error. Where all are meant, it is left out with the
    reason as its flag.
    """
    model = at_level(model, cfg.sigma)
    asked = [names] if isinstance(names, str) else list(names)
    chosen = choose(model, asked)
    check(model, data)
    for name in chosen:
        try:
            place = (folder,) if name in LONG else ()
            result = EVALUATIONS[name](model, data, cfg, *place)
        except InputError as error:
            if asked:
                raise
            result = Result({}, conditions(model), flags=[f"not measured: {error}"])
        yield entry_of(name, model), tidy(result, name, model, data)


def at_level(model: nn.Module, sigma: float) -> nn.Module:
    """The model at the noise level of the option `sigma`; 0 leaves it as it is."""
    if not sigma:
        return model
    if sigma < LOWEST_SIGMA:
        raise InputError(f"sigma must be 0 or at least {LOWEST_SIGMA:g}, got {sigma:g}")
    if not isinstance(model, Classifier):
        raise InputError(f"sigma must be 0 for a model that is no gmmc.Classifier, got {sigma:g}")
    return model.at_noise(sigma)


def entry_of(name: str, model: nn.Module) -> str:
    """Name of the entry in results.json: at a noise level of choice with that level."""
    return entry_name(name, model.level if isinstance(model, NoiseLevel) else None)


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
    ours = classifier_of(model)
    if ours is not None and (ours.shape, ours.class_names) != (data.shape, data.class_names):
        of_model, of_data = (describe(x.shape, x.class_names) for x in (ours, data))
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


def tidy(result: Result, name: str, model: nn.Module, data: Dataset) -> Result:
    """Add data set and noise level to the conditions; drop non-finite values, with a flag.

    Pictures at a noise level of choice have a folder of their own.
    """
    told = {"data": data.name, **level_of(name, model), **result.conditions}
    if data.notes:
        told["data_notes"] = list(data.notes)
    sound = {key: value for key, value in result.values.items() if math.isfinite(value)}
    lost = [f"{key} is not a finite number and is left out" for key in result.values.keys() - sound.keys()]
    flags = [*doubts_of_held_out(model, data), *uncalibrated(name, model), *result.flags, *sorted(lost)]
    entry = entry_of(name, model)
    pictures = {path.replace(f"{name}/", f"{entry}/", 1): drawn for path, drawn in result.pictures.items()}
    return dataclasses.replace(result, values=sound, conditions=told, flags=flags, pictures=pictures)


def uncalibrated(name: str, model: nn.Module) -> list[str]:
    """Flag probabilities at a noise level of choice, for which no temperature was fitted."""
    if name != "accuracy" or not isinstance(model, NoiseLevel):
        return []
    return [f"NLL and Brier score at σ = {model.level:g} are at the γ² of training; `calibration` fits one"]


def level_of(name: str, model: nn.Module) -> dict[str, float]:
    """σ of the predictions of a noise-conditional model; nothing for one of samples or all levels."""
    ours = classifier_of(model)
    if ours is None or ours.denoising is None or name in NEED_SAMPLES | NEED_NOISE:
        return {}
    return {"sigma": model.level if isinstance(model, NoiseLevel) else ours.denoising.class_sigma}


def doubts_of_held_out(model: nn.Module, data: Dataset) -> list[str]:
    """Flag data whose training images are those of the model, and whose other images are not."""
    ours = classifier_of(model)
    if ours is None or "held_out_sha256" not in ours.trained:  # of an older version
        return []
    same = ours.trained["held_out_sha256"] == data.held_out_fingerprint
    if same or ours.trained.get("data_sha256") != data.fingerprint:
        return []
    return ["validation or test images are not those that the model was trained with"]
