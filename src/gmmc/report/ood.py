"""How well images of other kinds are told from those the model knows (the paper's Tables 3 and 4)."""

from collections.abc import Sequence

from gmmc.report import figures, published
from gmmc.report.parts import Group, Key, Line, Panel, Table, cell, cells, in_rows
from gmmc.report.reading import Run

SCORES = {"log_density": "log p(x)", "max_posterior": "max p(y|x)", "gradient_norm": "−‖∂ log p(x)/∂x‖"}
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
TEMPERATURES = {
    "fitted": "fitted γ²",
    "unit": "γ = 1",
    "paper": "the paper’s γ²",
}  # the first there is goes first


class Places:
    """Which sets, scores and temperatures the runs have: names are {set}/{score}/{temperature}/{measure}."""

    def __init__(self, runs: Sequence[Run]):
        entries = [run.results["ood"] for run in runs if "ood" in run.results]
        places = [key.rsplit("/", 3) for entry in entries for key in entry.values]
        places = [place for place in places if len(place) == 4]
        self.sets = _ordered((place[0] for place in places), SETS)
        self.scores = _ordered((place[1] for place in places), SCORES)
        self.temperatures = _ordered((place[2] for place in places), TEMPERATURES)
        self.measures = _ordered((place[3] for place in places), MEASURES)


def _ordered(found, known: dict[str, str]) -> list[str]:
    distinct = list(dict.fromkeys(found))
    return [name for name in known if name in distinct] + [name for name in distinct if name not in known]


def out_of_distribution(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    places = Places(runs)
    if not places.temperatures:
        return []
    first, *others = places.temperatures
    groups = [Group(tables=[score_table(name, runs, places, first, "auroc")])]
    for i, score in enumerate(places.scores):
        panels = histogram_panels(name, runs, places, score, first)
        if panels:
            title = f"Distribution of {SCORES.get(score, score)}"
            groups.append(Group(title, panels=panels, legend=LEGEND, text=HEIGHTS, folded=i > 0))
    for t in others:
        table = score_table(name, runs, places, t, "auroc")
        groups.append(Group(f"AUROC with {TEMPERATURES.get(t, t)}", tables=[table], folded=True))
    for measure in places.measures:
        if measure != "auroc":
            table = score_table(name, runs, places, first, measure)
            title = f"{MEASURES.get(measure, measure)} with {TEMPERATURES.get(first, first)}"
            groups.append(Group(title, tables=[table], folded=True))
    return groups


HEIGHTS = "Each histogram is scaled to its own height; the bins at the ends also hold what lies beyond."
LEGEND = (
    Key("test images of the data set it was trained on", "var(--good)"),
    Key("other images", "var(--bad)"),
)


def score_table(name: str, runs: Sequence[Run], places: Places, t: str, measure: str) -> Table:
    """Rows: score and model; columns: sets. Published AUROCs stand below the score they belong to."""
    caption = f"{MEASURES.get(measure, measure)}, {TEMPERATURES.get(t, t)}"
    table = Table([SETS.get(s, s) for s in places.sets], caption=caption)
    one_data_set = len({run.data for run in runs}) == 1
    width = len(places.sets)
    for score in places.scores:
        table.lines.append(Line(SCORES.get(score, score), kind="group"))
        entries = [run.results.get(name) for run in runs for _ in places.sets]
        found = cells(entries, [f"{s}/{score}/{t}/{measure}" for s in places.sets] * len(runs))
        table.lines += [Line(run.name, found[i * width : (i + 1) * width]) for i, run in enumerate(runs)]
        if measure == "auroc" and one_data_set:
            rows = published.find(runs[0].data, f"ood/{score}", f"peers_ood/{score}")
            table.add_published(rows, places.sets, ["auroc"] * width)
    return table


def histogram_panels(name: str, runs: Sequence[Run], places: Places, score: str, t: str) -> list[Panel]:
    """The sets side by side, the runs below each other."""
    quantity = SCORES.get(score, score)
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
