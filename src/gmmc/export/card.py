"""The model card as the Hub wants it: README.md, facts for machines first, then words, numbers, doubts."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gmmc.base.tables import MISSING, Cell, Line, Table, as_markdown
from gmmc.base.text import printable, shortened
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.data.named import NAMED
from gmmc.errors import InputError
from gmmc.pixels import is_vector
from gmmc.report import card, sections
from gmmc.report.conditions import conditions
from gmmc.report.headline import GROUPS
from gmmc.report.numbers import plain
from gmmc.report.ood import SETS
from gmmc.report.parts import flags
from gmmc.report.reading import Entry, Run, read_runs
from gmmc.runs.layout import RESULTS

LIBRARY = "gmmc"
TAGS = ("energy-based-model", "generative-classifier", "out-of-distribution-detection")
UNKNOWN_LICENCE = "unknown"  # as the Hub calls it
LICENCES = (
    "mit",
    "apache-2.0",
    "bsd-3-clause",
    "gpl-3.0",
    "cc0-1.0",
    "cc-by-4.0",
    "cc-by-sa-4.0",
    "cc-by-nc-4.0",
)
# Of test images and under one protocol; a FID without its conditions would be compared with others'.
INDEXED = {
    ("accuracy", "top1"): ("accuracy", "test accuracy"),
    ("calibration", "fitted/ece"): ("ece", "ECE with γ² fitted on validation images"),
}
NOTHING = "No measurements came with this model: nothing is known of its accuracy, calibration or robustness."
TRAINING = "training: "


def read(folder: Path | None, place: Path, cfg: Config, results: Mapping[str, Any] | None) -> Run:
    """What is known of a run; `results` go before those of its folder."""
    if folder:
        (run,) = read_runs([folder])
    else:
        run = Run(place, place.resolve().name, dataclasses.asdict(cfg), [], {}, "finished")
    if results is None:
        return run
    try:
        entries = {name: Entry(**_as_kept(found)) for name, found in results.items()}
    except (AttributeError, TypeError):
        raise InputError("results must be what gmmc.evaluate gives, or what results.json holds") from None
    return dataclasses.replace(run, results=entries)


def _as_kept(found: Any) -> dict[str, Any]:
    """An entry as results.json has it, of one or of a result."""
    return found.entry() if hasattr(found, "entry") else found


def render(run: Run, model: Classifier, name: str, licence: str | None) -> str:
    """The whole file; `name` is that of the folder."""
    name = printable(name)
    words = card.words(run)
    title = (run.card or {}).get(card.TITLE) or name
    parts = [f"# {escaped(title)}", about(model)]
    parts += [f"## {heading}\n\n{prose(text)}" for heading, text in words]
    parts += ["## Numbers", checked_numbers(run) if run.results else NOTHING]
    parts += ["## How to load it", loading(model, name)]
    return f"---\n{front_matter(run, model, name, licence)}\n---\n\n" + "\n\n".join(parts) + "\n"


def prose(text: str | list[str]) -> str:
    """Paragraphs or points of card.toml, which is plain text, as on the page of the report."""
    if isinstance(text, str):
        return "\n".join(map(escaped, text.split("\n")))
    return points(text)


def points(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escaped(line)}" for line in lines)


def about(model: Classifier) -> str:
    """One paragraph of facts, which need no measuring."""
    count = plain(sum(parameter.numel() for parameter in model.parameters()))
    channels, height, width = model.shape
    colours = {1: "grey images", 3: "colour images"}.get(channels, f"images of {channels} channels")
    inputs = f"vectors of {channels} numbers" if is_vector(model.shape) else f"{colours} of {height}×{width}"
    classes = f"{len(model.class_names)} classes ({', '.join(map(escaped, model.class_names))})"
    network = recipe_of(model).model
    fitted = f"{plain(model.reference.gamma2)}, fitted on validation images; " if model.reference else ""
    return (
        f"A classifier made with gmmc: `{network.backbone}` with the head `{network.head}`, "
        f"{count} parameters, {inputs}, {classes}. γ²: {fitted}{plain(model.head.gamma2.item())} as trained."
    )


# --- for machines ---------------------------------------------------------------------------------


def front_matter(run: Run, model: Classifier, name: str, licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    task = "image-classification" if max(model.shape[1:]) > 1 else "tabular-classification"
    known = NAMED.get(run.data)
    measured = [
        EvalResult(
            task_type=task,
            dataset_type=known.repo if known else printable(run.data),
            dataset_name=SETS.get(run.data, printable(run.data)),
            dataset_split="test",
            metric_type=kind,
            metric_name=label,
            metric_value=run.results[evaluation].values[key],
        )
        for (evaluation, key), (kind, label) in INDEXED.items()
        if evaluation in run.results and key in run.results[evaluation].values
    ]
    data = ModelCardData(
        license=licence or licence_of(run),
        library_name=LIBRARY,
        tags=[LIBRARY, *TAGS],
        pipeline_tag=task,
        datasets=[known.repo] if known else None,
        metrics=[result.metric_type for result in measured] or None,
        model_name=name,
        eval_results=measured or None,
    )
    return data.to_yaml()


def licence_of(run: Run) -> str:
    """ "MIT for code and weights." → mit."""
    first = str((run.card or {}).get("licence", "")).lower().split()[:1]
    return first[0].rstrip(".,;:") if first and first[0].rstrip(".,;:") in LICENCES else UNKNOWN_LICENCE


# --- for people -----------------------------------------------------------------------------------


def checked_numbers(run: Run) -> str:
    try:
        return numbers(run)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {shortened(str(error))}"
        raise InputError(f"{run.path / RESULTS} cannot be shown on a card ({why}); evaluate again") from None


def numbers(run: Run) -> str:
    """A table with 95% intervals, the doubts, and to unfold the conditions."""
    lines = [with_interval(line) for line in [*card.numbers(run).lines, *others(run)] if is_shown(line)]
    doubts = [f"{sections.KNOWN[name][0]}: {flag}" for name in known(run) for _, flag in flags(name, [run])]
    parts = [as_markdown(Table(["measured", "95% interval"], lines), escaped)]
    parts += ["What the evaluations themselves doubt:", points(doubts)] if doubts else []
    told = points(told_conditions(run))
    parts.append(f"<details><summary>Conditions</summary>\n\n{told}\n\n</details>")
    return "\n\n".join(parts)


def known(run: Run) -> list[str]:
    return [name for name in sections.KNOWN if name in run.results]


def others(run: Run) -> Iterator[Line]:
    """What the card of the report leaves to other sections."""
    for name in ("samples", "latent"):
        if lines := card.chosen(name, run, [wanted.value for wanted in GROUPS[name][1]]):
            yield Line(GROUPS[name][0], kind="group")
            yield from lines


def is_shown(line: Line) -> bool:
    """Doubts stand below the table; that robustness was not measured does not."""
    return line.kind != "flag" or line.label == card.NO_ROBUSTNESS


def with_interval(line: Line) -> Line:
    """The first value of a line, and its interval in a column of its own."""
    return replace(
        line, cells=[Cell(line.cells[0].text), Cell(line.cells[0].below or MISSING)] if line.cells else ()
    )


def told_conditions(run: Run) -> Iterator[str]:
    """A line per evaluation; of the training, which all tell alike, the last."""
    training: dict[str, str] = {}
    for name in known(run):
        for _, facts, _ in conditions(name, [run]):
            training |= {key: text for key, text in facts.items() if key.startswith(TRAINING)}
            hidden = training.keys() | {"checks"}  # those that were raised are among the doubts
            own = {key: text for key, text in facts.items() if key not in hidden}
            yield f"{sections.KNOWN[name][0]}: {listed(own)}"
    if training:
        own = {key.removeprefix(TRAINING): text for key, text in training.items()}
        yield f"Training: {listed(own)}"


def listed(facts: Mapping[str, str]) -> str:
    return "; ".join(f"{key} {text}" for key, text in facts.items() if text != MISSING)


def loading(model: Classifier, name: str) -> str:
    numbers = model.shape[0]
    vectors = f"rows of {numbers} numbers, mapped into [0, 1], as (N, {numbers}, 1, 1)"
    taken = vectors if is_vector(model.shape) else "uint8 or [0, 1]"
    quoted = json.dumps(name, ensure_ascii=False)
    calibrated = ", calibrated" if model.reference else ", not calibrated"
    lines = [
        "import gmmc",
        "",
        f"model = gmmc.from_pretrained({quoted})  # a folder, or user/{name} on the Hub",
        f"model.predict_proba(images)  # p(y|x){calibrated}; images: {taken}",
    ]
    if model.reference:
        lines.append("model.answer(images)  # class, calibrated confidence, and whether it should abstain")
    if model.can_sample:
        lines.append("model.sample(10, seed=0)  # images in [0, 1]")
    return "```python\n" + "\n".join(lines) + "\n```"


def escaped(text: str) -> str:
    """Text on one line that Markdown and HTML show as it is, also in a cell of a table."""
    line = printable(" ".join(text.splitlines())).strip()
    line = re.sub(r"[\\`*_\[\]|~$]", r"\\\g<0>", line)
    line = re.sub(r"^[#>+=-]", r"\\\g<0>", line)  # else a heading, a quotation, a list or a rule
    return line.replace("&", "&amp;").replace("<", "&lt;")
