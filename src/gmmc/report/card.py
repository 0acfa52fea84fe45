"""The model card: what a model is for in the words of card.toml, with the numbers of results.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gmmc.base.names import AUTOATTACK, PAPER_PGD, SCORES, TEMPERATURES, WORST_CASE
from gmmc.base.tables import Cell, Line, Table
from gmmc.base.text import shortened, suggestion
from gmmc.errors import InputError
from gmmc.report import pictures, sections
from gmmc.report.headline import DENSITY, doubts, lines_of, measured_on
from gmmc.report.numbers import plain
from gmmc.report.ood import INSIDE, SETS, Places, rule
from gmmc.report.parts import Group, Panel, Section, per_run, value_lines
from gmmc.report.reading import Run
from gmmc.runs.layout import CARD

TITLE = "title"
HEADINGS = {
    "purpose": "What it is for",
    "not_for": "What it is not for",
    "data": "Data",
    "training": "Training",
    "limits": "Limits",
    "use": "How to use it",
    "quote": "How to quote it",
    "licence": "Licence",
}
ABOUT = "What to know before using a model: the words are those of card.toml, the numbers of results.json."

ROBUST = f"linf_8/{WORST_CASE}/accuracy"
# The worst case goes first: who quotes one number takes this one.
UNDER_ATTACK = (ROBUST, f"linf_8/{PAPER_PGD}/accuracy")
UNDER_AUTOATTACK = tuple(f"{threat}/{AUTOATTACK}/accuracy" for threat in ("linf_8", "linf_4"))
NO_ROBUSTNESS = "not measured: do not assume any"
CARRIED = {
    "fitted/gamma2": "γ² fitted on validation images: the temperature of its confidences",
    "paper/gamma2": "γ² by the paper’s formula",
}
# Unselected samples, the first there is; the whole picture stands in the section of its evaluation.
SAMPLES = {
    "samples/by_class.png": "samples",
    "samples/unconditional.png": "samples",
    "generation/fresh.png": "generation",
    "validation/fresh.png": "validation",
}
PICTURE_BYTES = 120_000

Words = Sequence[tuple[str, str | list[str]]]  # heading, and a paragraph or points


@dataclass(frozen=True)
class Card(Group):
    """A group of the page that begins with prose."""

    words: Words = ()
    see: Sequence[tuple[str, str]] = ()  # key and title of the sections that tell more


def words(run: Run) -> Words:
    """What card.toml says, under headings and in their order; refused if a reader could not be shown it."""
    told = run.card or {}
    for key, text in told.items():
        _check(key, text, str(run.path / CARD))
    return [(heading, told[key]) for key, heading in HEADINGS.items() if key in told]


def _check(key: str, text: object, file: str) -> None:
    known = [TITLE, *HEADINGS]
    if key not in known:
        raise InputError(f"unknown key {shortened(key)} in {file}; {suggestion(key, known)}")
    points = text if isinstance(text, list) and key != TITLE else [text]
    if not points or not all(isinstance(point, str) and point.strip() for point in points):
        rule = "text" if key == TITLE else "text or a list of texts"
        raise InputError(f"{key} in {file} must be {rule}, none of it empty, got {shortened(text)}")


def section(said: Mapping[str, Words], runs: Sequence[Run], picture_bytes: int) -> Section:
    """The cards one below the other; `said`: the words of each run that has a card, by its name."""
    most = min(picture_bytes, PICTURE_BYTES)
    groups = [card(run, said[run.name], runs, most) for run in runs if run.name in said]
    return Section("card", "Model card", ABOUT, groups=groups)


def card(run: Run, prose: Words, runs: Sequence[Run], most: int) -> Card:
    title = ": ".join(filter(None, [per_run(run, runs), (run.card or {}).get(TITLE, "")]))
    more = [(name, sections.KNOWN[name][0]) for name in sections.ORDER if name in run.results]
    return Card(title, [numbers(run)], samples(run, most), words=prose, see=more)


# --- numbers --------------------------------------------------------------------------------------


def numbers(run: Run) -> Table:
    """A line per number, under what must not be left out when it is quoted."""
    table = Table([run.name])
    for name, title, keys in (
        ("accuracy", f"Classification{of_test_images('accuracy', run)}", ["top1"]),
        ("calibration", f"Calibration{of_test_images('calibration', run)}", ["fitted/ece"]),
    ):
        table.lines += group(name, title, run, keys)
    table.lines += other_images(run)
    table.lines += group("generation", f"Generated images{chains(run)}", run, ["fresh/fid", "fresh/kid"])
    table.lines += robustness(run)
    carried = [*value_lines([run.results.get("calibration")], CARRIED), *threshold(run)]
    table.lines += [Line("What the model carries", kind="group"), *carried] if carried else []
    return table


def group(name: str, title: str, run: Run, keys: Sequence[str]) -> list[Line]:
    lines = chosen(name, run, keys)
    return [Line(title, kind="group"), *lines, *doubts(name, [run])] if lines else []


def other_images(run: Run) -> list[Line]:
    """AUROCs by log p(x) and by the score that the model abstains by, and the share of each set accepted."""
    places, entry, told = Places([run]), run.results.get("ood"), rule(run)
    lines = []
    for score in dict.fromkeys((DENSITY, str(told.get("score", DENSITY)))):
        if score in places.scores:
            t = places.at(score)
            title = f"Other images: AUROC of {SCORES.get(score, score)}, {TEMPERATURES.get(t, t)}"
            labels = {f"{s}/{score}/{t}/auroc": SETS.get(s, s) for s in places.sets}
            lines += [Line(title, kind="group"), *value_lines([entry], labels)]
    accepted = {f"{s}/accepted": f"{SETS.get(s, s)}: accepted" for s in (INSIDE, *places.sets)}
    shares = value_lines([entry], accepted) if told else []
    if shares:
        score = SCORES.get(str(told["score"]), str(told["score"]))
        lines += [Line(f"Share of images that it accepts, by {score}", kind="group"), *shares]
    return [*lines, *doubts("ood", [run])] if lines else []


def threshold(run: Run) -> list[Line]:
    """Where it begins to abstain, as far as that is recorded."""
    told = rule(run)
    if not told:
        return []
    score = SCORES.get(str(told["score"]), str(told["score"]))
    label = f"{score} below which it abstains: {told['tpr']:.0%} of the validation images are above"
    return [Line(label, [Cell(plain(told["below"]))])]


def chosen(name: str, run: Run, keys: Sequence[str]) -> list[Line]:
    """Lines of the table of all runs, with its labels."""
    labels = {wanted.value: wanted.label for wanted in lines_of(name, [run]) if wanted.value}
    return value_lines([run.results.get(name)], {key: labels[key] for key in keys})


def robustness(run: Run) -> list[Line]:
    """The worst case beside the paper's attack, which must not be quoted alone; AutoAttack; or no claim."""
    worst, paper = (chosen("robustness", run, [key]) for key in UNDER_ATTACK)
    standard = chosen("autoattack", run, UNDER_AUTOATTACK)
    lines = under(f"Accuracy under attack{measured_on('robustness', [run])}", "robustness", worst, paper, run)
    lines += under(f"AutoAttack{measured_on('autoattack', [run])}", "autoattack", standard, [], run)
    return lines or [Line("Accuracy under attack", kind="group"), Line(NO_ROBUSTNESS, kind="flag")]


def under(title: str, name: str, quoted: list[Line], others: list[Line], run: Run) -> list[Line]:
    """A group whose first lines are the ones to quote; none without these."""
    if not quoted:
        return []
    strong = [replace(line, strong=True) for line in quoted]
    return [Line(title, kind="group"), *strong, *others, *doubts(name, [run])]


def of_test_images(name: str, run: Run) -> str:
    count = run.results[name].conditions.get("images") if name in run.results else None
    return f" ({plain(count)} test images)" if isinstance(count, int) else ""


def chains(run: Run) -> str:
    """The conditions without which a FID means nothing, as far as they are recorded."""
    told = run.results["generation"].conditions if "generation" in run.results else {}
    images = told.get("images")
    count = images.get("fresh") if isinstance(images, dict) else None
    parts = [
        f"{plain(count)} images" if isinstance(count, int) else "",
        f"chains of {plain(told['steps'])} steps" if isinstance(told.get("steps"), int) else "",
        f"start: {told['start']}" if told.get("start") else "",
        f"features: {str(told['features']).split(', ')[0]}" if told.get("features") else "",
    ]
    known = "; ".join(filter(None, parts))
    return f" ({known})" if known else ""


# --- picture --------------------------------------------------------------------------------------


def samples(run: Run, most: int) -> list[Panel]:
    """One picture of unselected samples, small; one that is gone is told in its own section."""
    for file, name in SAMPLES.items():
        if name in run.results and file in run.results[name].files:
            shown = pictures.panel(run, file, most, several=False)
            return [replace(shown, alt=f"On the model card: {shown.alt}")] if shown.picture else []
    return []
