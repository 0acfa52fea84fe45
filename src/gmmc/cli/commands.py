"""What the commands do with a trained model and files. The command line parses and prints; this works."""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gmmc import bench, evaluations
from gmmc import data as data_sources
from gmmc import generate as drawing
from gmmc.base.inputs import kind_of
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.outputs import check_within, check_writable
from gmmc.base.progress import Progress
from gmmc.base.text import cut, shortened
from gmmc.classifier.image_files import check_images, read_pictures
from gmmc.classifier.model import Classifier, pick_device
from gmmc.cli.printing import print_line
from gmmc.data import Dataset
from gmmc.data.files import read_image
from gmmc.errors import InputError
from gmmc.evaluations import Result
from gmmc.generate import examples
from gmmc.networks import threads
from gmmc.runs import folder as runs
from gmmc.runs import results as records
from gmmc.runs import shipped as pretrained
from gmmc.runs.results import check_keeps_results

# Options of `gmmc evaluate` that only some of the evaluations look at.
OPTION_OF = {
    "ood": ("ood",),
    "samples": ("samples",),
    "attacks": ("robustness",),
    "attacked": ("robustness", "autoattack"),
    "surrogate": ("robustness",),
    "features": ("generation", "validation"),
    "generated": ("generation", "validation"),
}


def evaluate_run(
    run: str,
    names: Sequence[str],
    device: str,
    count: int | None = None,
    **changes: int | str | tuple[str, ...] | None,
) -> Iterator[tuple[str, Result]]:
    """Measure a finished run on its own data, one evaluation after the other.

    Each is in results.json, and its pictures in the folder, before the next begins. `changes` are settings of
    [evaluate] that differ from the recipe; None leaves one as it is. Of a model that ships with gmmc the copy
    in runs/ is evaluated. `count`: threads, see `load_model`.
    """
    if not pretrained.find(run).is_dir():
        shipped = pretrained.listed("; models that ship with gmmc")
        got = f"{shortened(run, LONG_SHOWN)}, which {kind_of(Path(run))}"
        raise InputError(f"RUN must be a run folder, got {got}{shipped}")
    check_keeps_results(pretrained.workplace(run), "RUN")
    model = load_model(run, device, count)
    evaluations.choose(model, names)  # refuse before the work what cannot be done
    for option, takers in OPTION_OF.items():
        if changes.get(option) is not None and not {*takers} & {*(names or evaluations.choose(model, []))}:
            wanted = " or ".join(f"`gmmc evaluate RUN {name}`" for name in takers)
            raise InputError(f"--{option} is for {wanted}, got {', '.join(names) or 'no name'}")
    cfg = dataclasses.replace(model.cfg.evaluate, **{k: v for k, v in changes.items() if v is not None})
    if not names and not model.can_sample:
        print_line("samples is left out: this model was trained without samples", file=sys.stderr)
    data = load_data(model, run)
    folder = own_folder(run)
    if (metrics := folder.metrics()) and "seconds" in metrics[-1]:
        model.trained["seconds"] = metrics[-1]["seconds"]
    for name, result in evaluations.one_by_one(model, data, names, cfg, folder):
        yield name, evaluations.keep(result, name, folder)


def calibrate_run(
    run: str, device: str, count: int | None = None, *, score: str | None, tpr: float | None
) -> Classifier:
    """Fit γ² and thresholds of a finished run on its validation images again, and store them in its model.

    `score` and `tpr` replace those of the recipe's [abstain]. `count`: threads, see `load_model`.
    """
    if run in pretrained.names():
        raise InputError(
            f"{run} ships with gmmc and stays as it is; gmmc predict {run} takes --score and --tpr for a call"
        )
    if not (Path(run) / runs.CONFIG).is_file():
        there = "which has none" if Path(run).is_dir() else f"which {kind_of(Path(run))}"
        raise InputError(
            f"RUN must be a run folder with a {runs.CONFIG}, got {shortened(run, LONG_SHOWN)}, {there}"
        )
    check_keeps_results(Path(run), "RUN")
    runs.RunFolder(run).recipe()  # a damaged one is refused before the work
    model = load_model(run, device, count)
    changes = {key: value for key, value in (("score", score), ("tpr", tpr)) if value is not None}
    model.cfg = dataclasses.replace(model.cfg, abstain=dataclasses.replace(model.cfg.abstain, **changes))
    data = load_data(model, run)
    if not len(data.valid):
        raise InputError(f"{run} has no validation images to calibrate by (data.valid)")
    for warning in evaluations.doubts_of_held_out(model, data):
        raise InputError(f"{run}: {warning}; in Python, model.calibrate(images, labels) takes any images")
    with Progress("calibrating", 2 * len(data.valid)) as bar:
        try:
            model.keep_neighbours(data.train.images, data.train.labels)
        except InputError as error:
            bar.say(f"no score by neighbours: {error}")
        model.calibrate(data.valid.images, data.valid.labels, on_progress=bar.update)
    runs.RunFolder(run).replace_model(model)
    return model


def own_folder(run: str) -> runs.RunFolder:
    """Where results of a run are kept; of a shipped model in a copy, and people are told."""
    folder = runs.RunFolder(pretrained.own_copy(run))
    if pretrained.is_shipped(run):
        print_line(f"{run} is evaluated in {folder.path}", file=sys.stderr)
    return folder


def load_data(model: Classifier, run: str) -> Dataset:
    """The data that a run was trained on."""
    out = str(pretrained.workplace(run))
    python = f"in Python, gmmc.evaluate(gmmc.load({run!r}), data, out={out!r}) takes any data"
    if model.cfg.data.name == Dataset.name:
        raise InputError(f"{run} was trained on arrays, which are not on disk; {python}")
    data = data_sources.load(model.cfg.data, model.cfg.train.seed)
    if data.fingerprint != model.trained.get("data_sha256"):
        raise InputError(
            f"{run} was not trained on the {model.cfg.data.name} that data.name gives now; {python}"
        )
    return data


def load_model(run: str, device: str, count: int | None = None) -> Classifier:
    """The model of a run on a device, in a process that then computes with `count` threads.

    None: as many as its recipe sets or its size suggests.
    """
    model = runs.load(run, device)
    torch.set_num_threads(count or threads.choose(model.cfg, model.shape, model.device))
    return model


def draw(
    model: Classifier, out: Path, *, number: int, class_names: Sequence[str], seed: int, steps: int | None
) -> str:
    """`number` fresh images in a folder or a file, as the name of `out` says; gives a line about them.

    With class names, the images go through them in turn; without, classes are drawn from the priors.
    """
    check_images(model)
    model.check_can_sample()
    in_file = is_image_file(out)
    if class_names:
        chosen = torch.tensor([class_index(model, name) for name in class_names])
        labels = chosen[torch.arange(number) % len(chosen)]
    else:
        labels = model.sample_labels(number, seed)
    check_writable(out.parent if in_file else out, "--out")
    to_place = drawing.to_file if in_file else drawing.to_folder
    with Progress("sampling", number) as bar:
        there = to_place(model, labels, seed, out, steps=steps, on_progress=bar.update)
    before = f", {'all' if there == number else there} of them drawn before" if there else ""
    line = f"{number} images in {out}{before}"
    if in_file:
        return line
    others = len(list(out.glob("*_seed*.png"))) - number
    if others > 0:
        line += f" (and {others} others of earlier draws)"
    shown = "all at once" if number <= drawing.IN_GRID else f"the first {drawing.IN_GRID}"
    return f"{line}; {shown}: {out / 'grid.png'}"


def write_examples(run: str) -> dict[Path, examples.Example]:
    """Write images to try `gmmc predict` on; see `examples` for the rule that chooses them."""
    model = load_model(run, "cpu")
    check_images(model)
    place = pretrained.workplace(run)
    folder = place / "examples"
    check_within(folder, place, "RUN")
    check_writable(folder, "RUN")
    drawn = {path.stem: read_image(path, model.shape) for path in pretrained.drawn_images(run)}
    own = examples.drawn(drawn) if drawn else [examples.held_out(load_data(model, run))]
    return examples.write(examples.with_others(own), folder)


def is_image_file(out: Path) -> bool:
    """Whether images go into one file. Numbers after a dot are no ending: a folder may be called v1.2."""
    ending = out.suffix.lower()
    if out.is_dir() or not ending[1:2].isalpha():
        return False
    if ending not in drawing.FILES:
        endings = " or ".join(drawing.FILES)
        raise InputError(
            f"--out must be a folder or a file that ends in {endings}, got {shortened(str(out), LONG_SHOWN)}"
        )
    return True


def predict_files(
    model: Classifier,
    paths: Sequence[str | Path],
    *,
    resize: bool | None = None,
    score: str | None = None,
    tpr: float | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
    """What the model says of each image file that can be read, and a line about each that cannot.

    Folders stand for all image files in them. Standard error reports how many images were converted.
    `answer` is the class, None where the model abstains; `class` is the nearest in any case. A model without
    scores of validation images never abstains, and its confidence is not calibrated.
    """
    check_images(model)
    unread: list[str] = []
    images, read = read_pictures(paths, model, resize=resize, unread=unread)
    if not read:
        return [], unread
    if model.reference is None and score is None and tpr is None:
        confidence, labels = model.predict_proba(images).max(-1)
        names = [model.class_names[y] for y in labels]
        facts = [{"confidence": p, "calibrated": False, "in_distribution": None} for p in confidence.tolist()]
    else:
        answer = model.answer(images, score=score, tpr=tpr)
        names = answer.names
        facts = [
            {
                "confidence": answer.confidence[i].item(),
                "calibrated": True,
                "in_distribution": answer.accepted[i].item(),
                "score": answer.score,
                "value": answer.values[i].item(),
                "threshold": answer.threshold,
                "percentile": answer.percentile[i].item(),
                "validation_images": model.reference.images if model.reference else 0,
            }
            for i in range(len(images))
        ]
    rows = [
        {
            "image": str(path),
            "answer": None if fact["in_distribution"] is False else name,
            "class": name,
            **fact,
        }
        for path, name, fact in zip(read, names, facts, strict=True)
    ]
    return rows, unread


def run_bench(preset: str, out: Path, device: str, count: int | None = None) -> Result:
    """Measure speed on this machine. All that is known so far is in results.json after every part.

    Unless there is a complete measurement already: that is replaced only by another. `count`: the most
    threads that are tried; None: as many as torch has.
    """
    if out == Path():
        raise InputError("--out must be a folder of its own, got the current one")
    place = pick_device("cpu" if preset == "cpu" and device == "auto" else device)
    chosen = bench.choose_preset(preset, place.type)
    check_keeps_results(out, "--out")
    result = None
    with threads.using(count or torch.get_num_threads()):
        for result in bench.run_bench(chosen, place):
            keep_bench(out, result)
    assert result is not None  # there is always the matrix product
    return result


def keep_bench(out: Path, result: Result) -> None:
    def changed(results: dict[str, Any]) -> dict[str, Any]:
        complete_before = "bench" in results and not is_incomplete(results["bench"].get("flags", []))
        if complete_before and is_incomplete(result.flags):
            return results
        return results | {"bench": result.entry()}

    records.change_results(out, changed)


def is_incomplete(flags: Sequence[Any]) -> bool:
    return any(str(flag).startswith("incomplete") for flag in flags)


def class_index(model: Classifier, name: str) -> int:
    """Find a class by its name, by its name in another case, or by its index."""
    names = model.class_names
    if name in names:
        return names.index(name)
    alike = [index for index, known in enumerate(names) if known.casefold() == name.casefold()]
    if len(alike) > 1:
        either = cut(" or ".join(names[index] for index in alike), LONG_SHOWN)
        raise InputError(f"--label must name one class, got {shortened(name)}, which may be {either}")
    if alike:
        return alike[0]
    if name in map(str, range(len(names))):
        return int(name)
    allowed = cut(", ".join(names), LONG_SHOWN)
    rule = f"--label must be one of {allowed}, or an index up to {len(names) - 1}"
    raise InputError(f"{rule}, got {shortened(name)}")
