"""How well images of other kinds are told from those the model knows (the paper's Tables 3 and 4)."""

from collections.abc import Mapping, Sequence
from typing import Any

from gmmc.base.names import NOISE_SCORES, SCORES, TEMPERATURES
from gmmc.base.tables import Line, Table
from gmmc.report import figures, published
from gmmc.report.parts import Group, Key, Panel, add_published, cell, cells, in_rows
from gmmc.report.reading import Run

INSIDE = "test images"  # as the evaluation names them beside the other sets
SETS = {
    "svhn": "SVHN",
    "interp": "Interpolated",
    "cifar100": "CIFAR-100",
    "celeba": "CelebA",
    "cifar10": "CIFAR-10",
    "fashion_mnist": "Fashion-MNIST",
    "digits": "Digits",
    "noise": "Noise",
    "constant": "Constant",
    "inverted": "Inverted",
    "rotated": "Rotated",
    "cutout": "Cut-out",
}
MEASURES = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR at 95% TPR"}
# Shown at the first of these temperatures; all other scores at the γ² of training where they have it.
CONFIDENCE = "max_posterior"
WITHOUT_TEMPERATURE = {*NOISE_SCORES, "neighbours", "combined"}
ROOMY = 6  # columns that fit without being set closer


class Places:
    """Which sets, scores and temperatures the runs have: names are {set}/{score}/{temperature}/{measure}."""

    def __init__(self, runs: Sequence[Run], name: str = "ood"):
        entries = [run.results[name] for run in runs if name in run.results]
        places = [key.rsplit("/", 3) for entry in entries for key in entry.values]
        places = [place for place in places if len(place) == 4]
        self.sets = _ordered((place[0] for place in places), SETS)
        self.scores = _ordered((place[1] for place in places), SCORES)
        self.temperatures = {
            score: _ordered((place[2] for place in places if place[1] == score), _preferred(score))
            for score in self.scores
        }
        self.measures = _ordered((place[3] for place in places), MEASURES)

    def at(self, score: str) -> str:
        """Temperature at which a score is shown first."""
        return self.temperatures[score][0]

    @property
    def others(self) -> list[str]:
        """Temperatures at which some score was measured besides its first."""
        return _ordered((t for later in self.temperatures.values() for t in later[1:]), TEMPERATURES)


def _preferred(score: str) -> dict[str, str]:
    """Temperatures in the order to show them. Results of older versions have densities at several, too."""
    trained = ("unit", "trained")
    order = ("fitted", *trained, "paper") if score == CONFIDENCE else (*trained, "fitted", "paper")
    return {name: TEMPERATURES[name] for name in order}


def _ordered(found, known: dict[str, str]) -> list[str]:
    distinct = list(dict.fromkeys(found))
    return [name for name in known if name in distinct] + [name for name in distinct if name not in known]


def out_of_distribution(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    places = Places(runs, name)
    if not places.scores:
        return []
    first = {score: places.at(score) for score in places.scores}
    groups = [Group(tables=[score_table(name, runs, places, first, "auroc")])]
    accepted = summary_table(name, runs, places, "accepted", "Share of the images that the model accepts")
    if accepted.lines:
        accepted.remark = " ".join(rule_in_words(run, runs) for run in runs if rule(run))
        groups.append(Group("Accepted, or not like the training images", tables=[accepted]))
    in_use = {str(rule(run)["score"]) for run in runs if rule(run)} & {*places.scores}
    for score in sorted(places.scores, key=lambda score: score not in in_use):
        panels = histogram_panels(name, runs, places, score)
        if panels:
            title = f"Distribution of {SCORES.get(score, score)}"
            folded = score not in (in_use or places.scores[:1])
            groups.append(Group(title, panels=panels, legend=LEGEND, text=HEIGHTS, folded=folded))
    residual = places.at("residual") if "residual" in places.scores else "unit"
    at = TEMPERATURES.get(residual, residual)
    parts = [
        summary_table(name, runs, places, key, f"Median energy {where} the span of the means, {at}")
        for key, where in (("energy_in_span", "inside"), ("energy_outside_span", "outside"))
    ]
    if any(table.lines for table in parts):
        groups.append(Group("Both parts of the energy", tables=parts, text=PARTS, folded=True))
    for t in places.others:
        later = {score: t for score, at in places.temperatures.items() if t in at[1:]}
        table = score_table(name, runs, places, later, "auroc")
        groups.append(Group(f"AUROC with {TEMPERATURES.get(t, t)}", tables=[table], folded=True))
    for measure in places.measures:
        if measure != "auroc":
            table = score_table(name, runs, places, first, measure)
            groups.append(Group(MEASURES.get(measure, measure), tables=[table], folded=True))
    return groups


PARTS = (
    "E is the sum of two parts: one inside the span of the class means, which tells the classes apart, and "
    "one outside of it, which is the same for every class."
)
HEIGHTS = "Each histogram is scaled to its own height; the bins at the ends also hold what lies beyond."
LEGEND = (
    Key("test images of the data set it was trained on", "var(--good)"),
    Key("other images", "var(--bad)"),
)


def score_table(name: str, runs: Sequence[Run], places: Places, at: Mapping[str, str], measure: str) -> Table:
    """Rows: score and model; columns: sets. Published AUROCs stand below the score they belong to.

    `at`: the scores to show, and the temperature of each.
    """
    caption = MEASURES.get(measure, measure)
    table = Table([SETS.get(s, s) for s in places.sets], caption=caption, dense=len(places.sets) > ROOMY)
    one_data_set = len({run.data for run in runs}) == 1
    width = len(places.sets)
    for score, t in at.items():
        at_t = "" if score in WITHOUT_TEMPERATURE else f", {TEMPERATURES.get(t, t)}"
        table.lines.append(Line(f"{SCORES.get(score, score)}{at_t}", kind="group"))
        entries = [run.results.get(name) for run in runs for _ in places.sets]
        found = cells(entries, [f"{s}/{score}/{t}/{measure}" for s in places.sets] * len(runs))
        table.lines += [Line(run.name, found[i * width : (i + 1) * width]) for i, run in enumerate(runs)]
        if measure == "auroc" and one_data_set:
            rows = published.find(runs[0].data, f"ood/{score}", f"peers_ood/{score}")
            add_published(table, rows, places.sets, ["auroc"] * width)
    return table


def summary_table(name: str, runs: Sequence[Run], places: Places, key: str, caption: str) -> Table:
    """A value of each set alone, the test images first; a row per run that has it."""
    sets = [INSIDE, *places.sets]
    table = Table([SETS.get(s, s) for s in sets], caption=caption, dense=len(sets) > ROOMY)
    for run in runs:
        entry = run.results.get(name)
        if entry and f"{INSIDE}/{key}" in entry.values:
            table.lines.append(Line(run.name, cells([entry] * len(sets), [f"{s}/{key}" for s in sets])))
    return table


def rule(run: Run) -> Mapping[str, Any]:
    """By which score and below which value a model abstains, as far as that is recorded."""
    found = run.results["ood"].conditions.get("abstains") if "ood" in run.results else None
    return found if isinstance(found, dict) and {"score", "tpr", "below"} <= found.keys() else {}


def rule_in_words(run: Run, runs: Sequence[Run]) -> str:
    told = rule(run)
    score = SCORES.get(str(told["score"]), str(told["score"]))
    whose = f"{run.name}: accepted" if len(runs) > 1 else "Accepted"
    return f"{whose} by {score}; the threshold accepts {told['tpr']:.0%} of the validation images."


def histogram_panels(name: str, runs: Sequence[Run], places: Places, score: str) -> list[Panel]:
    """The sets side by side, the runs below each other."""
    quantity, t = SCORES.get(score, score), places.at(score)
    rows = []
    for run in runs:
        entry, row = run.results.get(name), []
        for s in places.sets:
            curve = entry.curves.get(f"{s}/{score}/{t}") if entry else None
            if not curve:
                continue
            title, auroc = SETS.get(s, s), cell(entry, f"{s}/{score}/{t}/auroc").text
            alt = f"Histograms of {quantity} for known images and {title}, run {run.name}; AUROC {auroc}."
            detail = " · ".join(filter(None, [run.name if len(runs) > 1 else "", f"AUROC {auroc}"]))
            row.append(Panel(title, detail, figures.histograms(curve, alt, quantity)))
        rows.append(row)
    return in_rows(rows)
