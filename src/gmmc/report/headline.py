"""The table at the top: all runs side by side, and what others published beside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gmmc.base.names import AUTOATTACK, PAPER_PGD, SCORES, TEMPERATURES, WORST_CASE
from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report import published, sections, speed
from gmmc.report.attacks import worst_case
from gmmc.report.numbers import duration, plain, printed
from gmmc.report.ood import SETS, Places, rule
from gmmc.report.parts import NOT_OURS, Group, Section, add_published, cells, flags, having
from gmmc.report.reading import Run

PUBLISHED_MODELS = ("GMMC (Gen)", "GMMC (Dis)", "JEM", "Softmax")  # those with a number in several tables
PUBLISHED_BACKBONE = "wrn-28-10"
OTHER_NETWORKS = (
    "The published models are other networks, mostly larger ones that were trained longer: those called GMMC "
    "are a WRN-28-10 after 150 epochs."
)
COMPARABLE = (
    "FID and Inception Score of ours are by the paper’s protocol, which selects images as most published "
    "ones do; those of fresh chains stand under Generation."
)


@dataclass(frozen=True)
class Wanted:
    """A line of the table: a value of ours, and where others have printed the like."""

    label: str
    value: str
    number: str = ""
    tables: tuple[str, ...] = ()


DENSITY = "log_density"  # the score whose AUROCs others have published, too
ACCURACY_TABLES = ("hybrid", "accuracy")
KINDS = {"ood/log_density": "auroc", "pgd": "accuracy"}  # how numbers are written whose names do not tell
GROUPS: dict[str, tuple[str, tuple[Wanted, ...]]] = {
    "accuracy": (
        "Classification",
        (Wanted("test accuracy", "top1", "top1", ACCURACY_TABLES),),
    ),
    "calibration": (
        "Calibration",
        (
            Wanted("ECE with γ² fitted on validation images", "fitted/ece"),
            Wanted("NLL with γ² fitted on validation images", "fitted/nll"),
            Wanted("Brier score with γ² fitted on validation images", "fitted/brier"),
            # Beside none of ours: the paper does not say at which temperature it measured.
            Wanted("ECE with a γ² that was not stated", "", "ece", ("calibration",)),
            Wanted("ECE with γ = 1", "unit/ece"),
            Wanted("ECE with the paper’s γ²", "paper/ece"),
        ),
    ),
    "ood": ("Other images (AUROC of log p(x){temperature})", ()),  # a line per set, see `lines_of`
    "robustness": (
        "Accuracy under attack",
        (
            Wanted(
                "PGD-40, L∞ 8/255: the paper’s protocol",
                f"linf_8/{PAPER_PGD}/accuracy",
                "linf_8_255",
                ("pgd",),
            ),
            Wanted("{worst_case}, L∞ 8/255", f"linf_8/{WORST_CASE}/accuracy"),
            Wanted("{worst_case}, L2 0.5", f"l2_0.5/{WORST_CASE}/accuracy"),
        ),
    ),
    "autoattack": (
        "AutoAttack",
        (
            Wanted("AutoAttack, L∞ 4/255 (four parts)", f"linf_4/{AUTOATTACK}/accuracy"),
            Wanted("AutoAttack, L∞ 8/255 (four parts)", f"linf_8/{AUTOATTACK}/accuracy"),
        ),
    ),
    "samples": (
        "Samples",
        (
            Wanted("recognised by an independent SVC", "svc_agreement"),
            Wanted("variety, real images = 1", "diversity"),
        ),
    ),
    "generation": (
        "Generation",
        (
            Wanted("FID of fresh chains, none left out", "fresh/fid"),
            Wanted("KID of the same", "fresh/kid"),
            Wanted("FID of their start, before any step", "start/fid"),
            Wanted("FID of the replay buffer as it is", "buffer/fid"),
            # What others print is mostly of selected images too.
            Wanted("FID by the paper’s protocol", "paper/fid", "fid", ("hybrid",)),
            Wanted("Inception Score, likewise", "paper/inception_score", "inception_score", ("hybrid",)),
        ),
    ),
    "likelihood": ("Likelihood", (Wanted("bits per dimension, the lower the better", "bits_per_dim"),)),
    "bench": ("Speed, as a multiple of a plain loop’s on the same machine", ()),  # likewise per network
    "latent": ("Features", (Wanted("accuracy of nearest neighbours", "knn_accuracy"),)),
}


def headline(runs: Sequence[Run]) -> Section:
    others = published_rows(runs)
    models = [m for m in PUBLISHED_MODELS if any(row.model == m for row in others)]
    table = Table([run.name for run in runs] + models, published_columns=len(models))
    if models and any(backbone(run) != PUBLISHED_BACKBONE for run in runs):
        table.remark = OTHER_NETWORKS
    places = Places(runs)
    at = f", {TEMPERATURES.get(places.at(DENSITY), places.at(DENSITY))}" if DENSITY in places.scores else ""
    for name, (title, _) in GROUPS.items():
        if any(name in run.results for run in runs):
            shown = title.format(temperature=at) + measured_on(name, runs)
            table.lines += group_lines(name, shown, runs, models, others, table)
        if name == "ood":
            table.lines += abstaining_lines(runs, places, len(models))
    table.lines += training_lines(runs, len(models))
    groups = [Group(tables=[table]), *literature(runs)]
    return Section("headline", "At a glance", small_print(runs), groups=groups)


def measured_on(name: str, runs: Sequence[Run]) -> str:
    """What a number must not be quoted without, where it is the same for all runs."""
    condition = {"robustness": "images", "autoattack": "images", "generation": "features"}.get(name, "")
    told = {str(run.results[name].conditions.get(condition, "")) for run in runs if name in run.results}
    known = told.pop().split(", ")[0] if len(told) == 1 else ""
    return f" ({known})" if known else ""


def small_print(runs: Sequence[Run]) -> str:
    """What it is; of a benchmark no 95% interval."""
    ranges = {(name, key) for run in runs for name, entry in run.results.items() for key in entry.intervals}
    told = []
    if any(name != "bench" for name, _ in ranges):
        told.append("Small print below a number is its 95% interval.")
    if any(name == "bench" and key.endswith("/ratio") for name, key in ranges):
        told.append("Small print below a speed is the range of its blocks of calls.")
    return " ".join(told)


def published_rows(runs: Sequence[Run]) -> list[published.Row]:
    """Of the data set of the runs, if it is one, and only for what was evaluated."""
    measured = {name for run in runs for name in run.results}
    wanted = {
        (table, w.number)
        for name in GROUPS
        if name in measured
        for w in lines_of(name, runs)
        for table in w.tables
    }
    rows = published.find(common_data(runs), *sorted({table for table, _ in wanted}))
    return [row for row in rows if any((row.table, number) in wanted for number in row.numbers)]


def common_data(runs: Sequence[Run]) -> str:
    data = {run.data for run in runs}
    return data.pop() if len(data) == 1 else ""


def lines_of(name: str, runs: Sequence[Run]) -> Sequence[Wanted]:
    if name == "bench":
        return [Wanted(speed.described(place), f"{place}/ratio") for place in speed.iterations(runs)]
    if name == "robustness":
        words = worst_case([entry for _, entry in having(name, runs)])
        return [replace(wanted, label=wanted.label.format(worst_case=words)) for wanted in GROUPS[name][1]]
    if name != "ood":
        return GROUPS[name][1]
    places = Places(runs)
    if DENSITY not in places.scores:
        return ()
    place = f"{DENSITY}/{places.at(DENSITY)}/auroc"
    return [Wanted(SETS.get(s, s), f"{s}/{place}", s, (f"ood/{DENSITY}",)) for s in places.sets]


def group_lines(
    name: str,
    title: str,
    runs: Sequence[Run],
    models: Sequence[str],
    others: Sequence[published.Row],
    table: Table,
) -> list[Line]:
    """The lines of one evaluation under its title, and its doubts right below."""
    lines = [Line(title, kind="group")]
    for wanted in lines_of(name, runs):
        entries = [run.results.get(name) for run in runs]
        if name == "bench":
            ours = [speed.number(entry, wanted.value) if entry else Cell() for entry in entries]
        else:
            ours = cells(entries, [wanted.value] * len(runs))
        theirs = [published_cell(model, wanted, others, table) for model in models]
        if any(c.text != MISSING for c in (*ours, *theirs)):
            lines.append(Line(wanted.label, [*ours, *theirs]))
    lines += doubts(name, runs)
    return lines if len(lines) > 1 else []


def abstaining_lines(runs: Sequence[Run], places: Places, others: int) -> list[Line]:
    """AUROC of the scores that the runs abstain by, where they are others than log p(x)."""
    entries = [run.results.get("ood") for run in runs]
    chosen = dict.fromkeys(str(rule(run)["score"]) for run in runs if rule(run))
    lines = []
    for score in (score for score in chosen if score != DENSITY and score in places.scores):
        for s in places.sets:
            ours = cells(entries, [f"{s}/{score}/{places.at(score)}/auroc"] * len(runs))
            label = f"{SETS.get(s, s)}, {SCORES.get(score, score)}"
            lines.append(Line(label, [*ours, *[Cell("")] * others]))
    return [Line("Other images (AUROC of the score to abstain by)", kind="group"), *lines] if lines else []


def doubts(name: str, runs: Sequence[Run]) -> list[Line]:
    """One doubt in its own words; of several how many they are, and where they stand."""
    told = flags(name, runs)
    if len(told) > 1:
        return [Line(f"{len(told)} doubts", kind="flag", see=(name, sections.KNOWN[name][0]))]
    return [Line(": ".join(filter(None, pair)), kind="flag") for pair in told]


def published_cell(model: str, wanted: Wanted, others: Sequence[published.Row], table: Table) -> Cell:
    for row in others:
        if row.model == model and row.table in wanted.tables and wanted.number in row.numbers:
            kind = KINDS.get(row.table, wanted.number)
            text = printed(kind, row.numbers[wanted.number])
            return Cell(text, source=f"{NOT_OURS}: {row.citation}", note=table.note(row.citation))
    return Cell()


# --- training -------------------------------------------------------------------------------------


def training_lines(runs: Sequence[Run], others: int) -> list[Line]:
    if all(run.state == "measured" for run in runs):
        return []
    facts = data_facts(runs) | {
        "state": [Cell(run.state) for run in runs],
        "time": [Cell(duration(last(run, "seconds"))) for run in runs],
        "updates": [Cell(whole(last(run, "step"))) for run in runs],
        "rollbacks": [Cell(whole(last(run, "rollbacks", 0 if run.metrics else None))) for run in runs],
        "parameters": [Cell(whole(run.trained.get("parameters"))) for run in runs],
        "backbone": [Cell(backbone(run)) for run in runs],
    }
    lines = [Line(label, cells + [Cell("")] * others) for label, cells in facts.items()]
    return [
        Line("Training", kind="group"),
        *(line for line in lines if any(c.text not in ("", MISSING) for c in line.cells)),
    ]


def data_facts(runs: Sequence[Run]) -> dict[str, list[Cell]]:
    """What makes runs hard to compare goes first; where all have the same data, the title says which."""
    if common_data(runs):
        return {}
    accuracies = [run.results.get("accuracy") for run in runs]
    return {
        "data": [Cell(SETS.get(run.data, run.data)) for run in runs],
        "test images": [Cell(whole(entry and entry.conditions.get("images"))) for entry in accuracies],
    }


def backbone(run: Run) -> str:
    return str(run.config.get("model", {}).get("backbone", MISSING))


def last(run: Run, key: str, otherwise: Any = None) -> Any:
    """As metrics.jsonl ends; where there is none, as the evaluations remember it."""
    if run.metrics:
        return run.metrics[-1].get(key, otherwise)
    return run.trained.get("updates" if key == "step" else key, otherwise)


def whole(number: Any) -> str:
    return plain(number) if isinstance(number, int) else MISSING


# --- others ---------------------------------------------------------------------------------------


def literature(runs: Sequence[Run]) -> list[Group]:
    """Accuracy and samples of the paper's models, and to unfold those of its peers."""
    data = common_data(runs)
    generated = any("generation" in run.results for run in runs)
    if not generated and not any("accuracy" in run.results for run in runs):
        return []  # nothing to compare with yet
    groups, word = [], SETS.get(data, data)
    for title, folded, tables in (
        (f"Models published on {word}", False, ACCURACY_TABLES),
        (f"Later and neighbouring models on {word}", True, ("peers",)),
    ):
        rows = published.find(data, *tables)
        keys = [k for k in ("top1", "inception_score", "fid") if any(k in row.numbers for row in rows)]
        names = {"top1": "accuracy", "inception_score": "Inception Score", "fid": "FID"}
        table = Table([names[key] for key in keys])
        places = {
            "top1": ("accuracy", "top1"),
            **{k: ("generation", f"paper/{k}") for k in keys if k != "top1"},
        }
        columns = [
            cells([run.results.get(places[k][0]) for run in runs], [places[k][1]] * len(runs)) for k in keys
        ]
        table.lines = [Line(run.name, [column[i] for column in columns]) for i, run in enumerate(runs)]
        add_published(table, rows, keys)
        table.remark = COMPARABLE if generated and "fid" in keys else ""
        if rows:
            groups.append(Group(title, tables=[table], folded=folded))
    return groups
