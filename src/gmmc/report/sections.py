"""Results → sections of the page, one per evaluation. What is not known by name is shown as it is."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gmmc.base.names import TEMPERATURES
from gmmc.base.tables import MISSING, Cell, Line, Table
from gmmc.report import figures, pictures, published, speed
from gmmc.report.compare.section import comparison
from gmmc.report.conditions import conditions
from gmmc.report.denoising import denoising, likelihood
from gmmc.report.generation import basis, generation, metric_cell
from gmmc.report.ood import out_of_distribution
from gmmc.report.parts import (
    Group,
    Key,
    Panel,
    Section,
    add_published,
    cell,
    cells,
    flags,
    having,
    in_rows,
    per_run,
)
from gmmc.report.reading import Entry, Run
from gmmc.report.robustness import autoattack, robustness
from gmmc.runs.results import evaluation_of

LABELS = {
    "top1": "accuracy",
    "nll": "NLL",
    "brier": "Brier score",
    "paper/nll": "NLL at the paper’s γ²",
    "paper/brier": "Brier score at the paper’s γ²",
    "errors": "wrong images",
    "svc_agreement": "samples an independent SVC recognises",
    "svc_test_accuracy": "accuracy of that SVC on real test images",
    "diversity": "variety of samples, real images = 1",
    "silhouette": "silhouette",
    "knn_accuracy": "accuracy of nearest neighbours among features",
    "between_within": "spread between / within classes",
    "mean_cosine": "mean cosine of two class means",
    "max_cosine": "largest cosine of two class means",
    "simplex_cosine": "cosine of two corners of a simplex",
}


def build(name: str, runs: Sequence[Run], picture_bytes: int) -> Section:
    """The section of one evaluation, for all runs side by side."""
    evaluation, sigma = evaluation_of(name)
    title, text, builder = KNOWN.get(evaluation, (label(name), "", generic))
    if sigma and evaluation in KNOWN:
        title += f" at σ = {sigma}"
    groups = builder(name, runs, picture_bytes)
    # A name of the future may be any text, which no link can be trusted with.
    key = name if name in KNOWN else f"evaluation-{names(runs).index(name) + 1}"
    return Section(key, title, text, flags(name, runs), groups, conditions(name, runs))


def label(name: str) -> str:
    return LABELS.get(name, name.replace("_", " ").replace("/", " / "))


def value_table(name: str, runs: Sequence[Run]) -> Table:
    """A line per value, a column per run."""
    keys = dict.fromkeys(key for _, entry in having(name, runs) for key in entry.values)
    table = Table([run.name for run in runs])
    entries = [run.results.get(name) for run in runs]
    table.lines = [Line(label(key), cells(entries, [key] * len(runs))) for key in keys]
    return table


def class_names(entry: Entry, count: int) -> list[str]:
    """Older results name no classes: then their numbers."""
    names = entry.curves.get("class_names") or range(count)
    return [str(name) for name in names]


# --- accuracy -------------------------------------------------------------------------------------


def accuracy(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    bars, maps = [], []
    for run, entry in having(name, runs):
        shares, counts = entry.curves.get("top1_per_class"), entry.curves.get("confusion")
        if shares and len(shares) <= figures.LEGEND_CLASSES:
            svg = figures.per_class(
                shares, class_names(entry, len(shares)), f"Test accuracy of each class, run {run.name}."
            )
            bars.append(Panel("Accuracy by class", per_run(run, runs), svg))
        if counts:
            alt = f"Confusion of true and named classes on the test images, run {run.name}."
            svg = figures.confusion(counts, class_names(entry, len(counts)), alt)
            told = (
                "shade: share of the true class"
                if len(counts) > figures.LEGEND_CLASSES
                else "number of test images"
            )
            detail = ", ".join(filter(None, [per_run(run, runs), told]))
            maps.append(Panel("Confusion", detail, svg, wide=len(counts) > len(figures.CLASS_COLOURS)))
    # Of one run side by side, of several each kind in rows of its own.
    panels = in_rows([bars, maps]) if len(runs) > 1 else bars + maps
    return [Group(tables=[value_table(name, runs)]), Group(panels=panels, broad=True)]


# --- calibration ----------------------------------------------------------------------------------

CALIBRATION = {
    "gamma2": "γ²",
    "ece": "ECE",
    "ece_if_perfect": "ECE if perfect",
    "adaptive_ece": "adaptive ECE",
    "nll": "NLL",
    "brier": "Brier",
    "saturated": "saturated",
}


def calibration(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    found = having(name, runs)
    known = {key.split("/")[0] for _, entry in found for key in entry.values if "/" in key}
    temperatures = [t for t in TEMPERATURES if t in known] + sorted(known - TEMPERATURES.keys())
    table = Table(list(CALIBRATION.values()))
    columns = {key: calibration_column(name, runs, temperatures, key) for key in CALIBRATION}
    for t in temperatures:
        table.lines.append(Line(TEMPERATURES.get(t, t), kind="group"))
        table.lines += [
            Line(run.name, [columns[key][t, i] for key in CALIBRATION]) for i, run in enumerate(runs)
        ]
    if len({run.data for run in runs}) == 1:
        add_published(table, published.find(runs[0].data, "calibration"), list(CALIBRATION))
    panels = in_rows(
        [reliability_panel(run, entry, t, runs) for t in temperatures if t in entry.curves]
        for run, entry in found
    )
    legend = [
        Key("accuracy of the images with that confidence", "var(--accent)"),
        Key("pale: not sure enough", "color-mix(in srgb, var(--accent) 45%, transparent)"),
        Key("too sure", "color-mix(in srgb, var(--bad) 45%, transparent)"),
        Key("share of the images", "var(--soft)"),
    ]
    return [Group(tables=[table]), Group(panels=panels, legend=legend if panels else [])]


def calibration_column(
    name: str, runs: Sequence[Run], temperatures: Sequence[str], key: str
) -> dict[tuple[str, int], Cell]:
    """The cells of a value by temperature and number of the run."""
    places = [(t, i) for t in temperatures for i in range(len(runs))]
    entries = [runs[i].results.get(name) for _, i in places]
    column = cells(entries, [f"{t}/{key}" for t, _ in places])
    if key == "ece_if_perfect":
        column = [
            with_range(found, entry, f"{t}/ece_if_perfect_95")
            for found, entry, (t, _) in zip(column, entries, places, strict=True)
        ]
    return dict(zip(places, column, strict=True))


def with_range(found: Cell, entry: Entry | None, name: str) -> Cell:
    """The mean of what chance alone gives, and below it how far chance goes."""
    most = cell(entry, name).text
    if most == MISSING:
        return found
    return replace(found, below=f"≤ {most} in 19 of 20", below_is="what chance alone gives")


def reliability_panel(run: Run, entry: Entry, t: str, runs: Sequence[Run]) -> Panel:
    title = TEMPERATURES.get(t, t)
    ece = cell(entry, f"{t}/ece").text
    alt = f"Reliability diagram with {title}, run {run.name}: accuracy against confidence, ECE {ece}."
    title = title[0].upper() + title[1:] if title.startswith("the ") else title
    return Panel(
        title,
        " · ".join(filter(None, [per_run(run, runs), f"ECE {ece}"])),
        figures.reliability(entry.curves[t], alt),
    )


# --- features, samples, the rest ------------------------------------------------------------------


def latent(name: str, runs: Sequence[Run], _: int) -> list[Group]:
    """Maps of the same classes share a legend."""
    by_classes: dict[tuple[str, ...], list[Panel]] = {}
    for run, entry in having(name, runs):
        points = entry.curves.get("tsne")
        if not points:
            continue
        names = class_names(entry, 1 + max(points["label"], default=-1))
        alt = f"Map of the features (t-SNE) of {len(points['x'])} test images by class, run {run.name}."
        panel = Panel("t-SNE of the features", per_run(run, runs), figures.scatter(points, names, alt))
        by_classes.setdefault(tuple(names), []).append(panel)
    maps = [
        Group(panels=panels, legend=class_legend(names), broad=True) for names, panels in by_classes.items()
    ]
    return [Group(tables=[value_table(name, runs)]), *maps]


def class_legend(names: Sequence[str]) -> list[Key]:
    if len(names) > figures.LEGEND_CLASSES:
        return []
    looks = map(figures.class_look, range(len(names)))
    return [Key(text, look.colour, glyph=look.glyph) for text, look in zip(names, looks, strict=True)]


def samples(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    bars = []
    for run, entry in having(name, runs):
        shares = entry.curves.get("svc_agreement_per_class")
        if shares and len(shares) <= figures.LEGEND_CLASSES:
            names = class_names(run.results.get("accuracy", entry), len(shares))
            alt = f"Share of the samples of each class that the SVC recognises, run {run.name}."
            bars.append(
                Panel("Recognised by class", per_run(run, runs), figures.per_class(shares, names, alt))
            )
    return [
        Group(tables=[value_table(name, runs)], panels=bars, broad=True),
        Group(panels=pictures.panels(name, runs, picture_bytes), broad=True),
    ]


VALIDATION = {
    "top1": "accuracy on validation images",
    "fresh/fid": "FID of fresh chains, none left out",
    "fresh/kid": "KID ×1000, likewise",
    "buffer/fid": "FID of the replay buffer",
    "buffer/kid": "KID ×1000, likewise",
}


def validation(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    entries = [run.results.get(name) for run in runs]
    table = Table([run.name for run in runs], caption=basis(name, runs))
    for key in dict.fromkeys(key for _, entry in having(name, runs) for key in entry.values):
        protocol, _, metric = key.rpartition("/")
        if metric == "kid":
            found = [metric_cell(entry, protocol, metric, table) if entry else Cell() for entry in entries]
        else:
            found = cells(entries, [key] * len(runs))
        table.lines.append(Line(VALIDATION.get(key, label(key)), found))
    return [Group(tables=[table], panels=pictures.panels(name, runs, picture_bytes), broad=True)]


def generic(name: str, runs: Sequence[Run], picture_bytes: int) -> list[Group]:
    """An evaluation this version has no page for: its values and pictures, and the names of its curves."""
    panels = pictures.panels(name, runs, picture_bytes)
    curves = dict.fromkeys(key for _, entry in having(name, runs) for key in entry.curves)
    text = f"In results.json there are also the curves {', '.join(curves)}." if curves else ""
    table = value_table(name, runs)
    return [Group(tables=[table] if table.lines else [], panels=panels, text=text, broad=True)]


Builder = Callable[[str, Sequence[Run], int], list[Group]]
KNOWN: dict[str, tuple[str, str, Builder]] = {
    "accuracy": (
        "Accuracy",
        "How often, and how confidently, the right class is named on test images.",
        accuracy,
    ),
    "calibration": (
        "Calibration",
        "Of images that get a confidence of 80%, 80% should be right. γ² is a temperature: it changes how "
        "sure the model claims to be, and with equal priors no decision. “If perfect” is the ECE that a "
        "perfectly calibrated model with the same confidences would show, on average, on so few images.",
        calibration,
    ),
    "ood": (
        "Other images",
        "Images unlike the training images should get a lower score. AUROC is the chance that an image "
        "like them scores higher than one that is not; 0.5 is a coin.",
        out_of_distribution,
    ),
    "robustness": (
        "Robustness",
        "Accuracy on test images that were changed within ε, in pixels from 0 to 1, to be named wrongly. "
        "Each attack shows only that images can be broken, never that they cannot: the number to quote is "
        "the worst case of all that ran, image by image, with its preset: quick has no FAB-T and a short "
        "Square. AutoAttack, restarts and transfer run at a few ε only; elsewhere the worst case may be a "
        "little lower still. Small print is the 95% interval.",
        robustness,
    ),
    "autoattack": (
        "AutoAttack",
        "Accuracy under the four standard parts of AutoAttack and nothing else: the attack that others "
        "quote. Targeted APGD and FAB attack what the parts before them left, Square all images. Small print "
        "is the 95% interval.",
        autoattack,
    ),
    "latent": (
        "Features",
        "How the classes lie in the space of features. A max-Mahalanobis head pulls them to the corners of "
        "a simplex.",
        latent,
    ),
    "samples": (
        "Samples",
        "Drawn from noise by the finished model, and judged by a classifier that never saw it.",
        samples,
    ),
    "generation": (
        "Generation",
        "How like real images the generated ones are, in the features of a network that never saw the model. "
        "FID and KID: the lower the better. Precision and density: how many samples look real; recall and "
        "coverage: how much of what is real the samples show. A FID means little without its protocol.",
        generation,
    ),
    "denoising": (
        "Denoising",
        "Noise of each size σ, in units of pixels in [−1, 1], is added to test images. The loss is that of "
        "training; F = 0 is the best linear denoiser of images with the variance σ_d². A calibrated denoiser "
        "has the slope 1; below 1 it adds more detail than the image supports. Accuracy is that of the most "
        "probable class of the noisy image.",
        denoising,
    ),
    "likelihood": (
        "Likelihood",
        "−log₂ p(x) of test images per number, by the probability flow: the lower the better. For "
        "8-bit images this is an upper bound on the code length; uncompressed, they have 8 bits per number.",
        likelihood,
    ),
    "validation": (
        "Validation",
        "What recipes are chosen by: accuracy on validation images, which training did not see, and how like "
        "the training images the generated ones are; no test image was looked at. Choosing makes such "
        "numbers look better than they are: quote those of test images.",
        validation,
    ),
    "comparison": (
        "Comparison",
        "What each change brought, against the baseline. Accuracy is that on validation images; E is the "
        "energy of real and of sampled images, R how hard samples push relative to the pull of real images, "
        "bounded the share of chains at the bound, all three over the last epoch. A difference within what "
        "chance alone gives is none.",
        comparison,
    ),
    "bench": (
        "Speed",
        "gmmc and a plain loop, written as public implementations are, in one run on one machine. Small "
        "print below a time is the range of its blocks of calls, not a 95% interval. TFLOP/s count the "
        "multiplications and additions of the convolutions; the matrix rate is that of one large product.",
        speed.bench,
    ),
}
ORDER = list(KNOWN)


def names(runs: Sequence[Run]) -> list[str]:
    """The evaluations of all runs, known ones first, each before the same at noise levels of choice."""
    found = dict.fromkeys(name for run in runs for name in run.results)
    known = [name for name in found if evaluation_of(name)[0] in ORDER]
    known.sort(key=lambda name: (ORDER.index(evaluation_of(name)[0]), name not in ORDER))
    return known + [name for name in found if name not in known]
