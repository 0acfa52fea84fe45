"""How the training went, from metrics.jsonl; also while it still runs."""

from collections.abc import Sequence
from typing import Any

from gmmc.report import figures
from gmmc.report.canvas import ACCENT, GOOD, PAINT, RUNS, WARM
from gmmc.report.figures import Curve, Scale
from gmmc.report.numbers import duration, plain
from gmmc.report.parts import Group, Key, Panel, Section, Stroke
from gmmc.report.reading import Run

# title, the keys drawn solid, dashed and dotted with what they are, the scale
PANELS: tuple[tuple[str, tuple[tuple[str, str], ...], Scale], ...] = (
    (
        "Energy",
        (
            ("real_energy", "real images"),
            ("sampled_energy", "sampled images"),
            ("contrast_energy", "contrast images"),
        ),
        "energy",
    ),
    ("Loss", (("loss", "denoising, ‖F − t‖²/n"), ("class_loss", "cross-entropy of class images")), "linear"),
    ("Accuracy", (("valid_accuracy", "validation images"), ("accuracy", "training batches")), "percent"),
    ("Force ratio R", (("force_ratio", "push of samples / pull of real images"),), "linear"),
    ("Skipped updates", (("skipped", "share that the guard skipped"),), "percent"),
    ("Learning rate", (("lr", "learning rate"),), "linear"),
    ("β", (("beta", "weight of sampled energies, or of the denoising loss"),), "linear"),
)
LOOKS: tuple[tuple[str, Stroke], ...] = ((ACCENT, "solid"), (WARM, "dashed"), (GOOD, "dotted"))
BEYOND_AXES = 1e100  # matplotlib overflows where the margin of a logarithmic axis is no number


def status(run: Run) -> str:
    """Where the training stands, in a sentence."""
    if not run.metrics:
        early = {
            "in progress": "in progress: no line of metrics yet",
            "stopped": "stopped before any metrics",
            "measured": "measured; no training of this folder is recorded",
        }
        return early.get(run.state, run.state)
    line = run.metrics[-1]
    where = f"update {plain(int(line['step']))}"
    after = f" after {duration(line['seconds'])}" if "seconds" in line else ""
    words = {
        "finished": f"finished at {where}{after}",
        "diverged": f"stopped by the guard at {where}{after}",
        "in progress": f"in progress: last seen at {where}{after}",
        "stopped": f"stopped at {where}{after}",
        "measured": f"measured at {where}{after}",
    }
    return words[run.state]


def training(runs: Sequence[Run]) -> Section:
    events = [
        (run.name if len(runs) > 1 else "", told(line))
        for run in runs
        for line in run.metrics
        if "event" in line
    ]
    panels = [panel for title, keys, scale in PANELS if (panel := curve_panel(title, keys, scale, runs))]
    legend = []
    if len(runs) > 1:
        legend = [Key(run.name, PAINT[RUNS[i % len(RUNS)]]) for i, run in enumerate(runs) if run.metrics]
    if any("event" in line for run in runs for line in run.metrics):
        legend.append(Key("the guard stepped in", "var(--bad)", stroke="dashed"))
    empty = [run.name for run in runs if not run.metrics]
    missing = f"No metrics yet: {', '.join(empty)}." if empty else ""
    text = " ".join(filter(None, [explained(runs) if panels else "", missing]))
    return Section("training", "Training", text, events, [Group(panels=panels, legend=legend, broad=True)])


def explained(runs: Sequence[Run]) -> str:
    """What the curves are; of R also where the guard stops it, as the recipes say."""
    text = "Energies, accuracy and settings over the updates of the training"
    if not any("force_ratio" in line for run in runs for line in run.metrics):
        return f"{text}."
    guards = [run.config.get("guard", {}) for run in runs]
    limits = dict.fromkeys(
        guard["force"] for guard in guards if guard.get("on") and isinstance(guard.get("force"), int | float)
    )
    trips = (
        f", and the guard trips at {' or '.join(map(plain, limits))} once chains have settled"
        if limits
        else ""
    )
    return f"{text}; R, the force ratio, is how hard samples push relative to the pull of real images{trips}."


def told(line: dict[str, Any]) -> str:
    where, reason = f"update {plain(int(line['step']))}", line.get("reason", "no reason is recorded")
    if line["event"] == "rollback" and "to" in line:
        return f"rolled back at {where} to update {plain(int(line['to']))}: {reason}"
    return f"{line['event']} at {where}: {reason}"


def curve_panel(
    title: str, keys: Sequence[tuple[str, str]], scale: Scale, runs: Sequence[Run]
) -> Panel | None:
    curves, legend = [], {}
    for i, run in enumerate(runs):
        for (key, meaning), (colour, stroke) in zip(keys, LOOKS, strict=False):
            curve = over_run(run, key, RUNS[i % len(RUNS)] if len(runs) > 1 else colour, stroke)
            if any(value is not None for value in curve.values):
                curves.append(curve)
                shade = "currentColor" if len(runs) > 1 else PAINT[curve.colour]
                legend[meaning] = Key(meaning, shade, stroke)
    if not curves:
        return None
    rollbacks = [int(line["step"]) for run in runs for line in run.metrics if "event" in line]
    names = ", ".join(run.name for run in runs)
    alt = f"{title} over the updates of training ({' and '.join(legend)}), run {names}."
    svg = figures.over_updates(curves, alt, scale=scale, rollbacks=rollbacks)
    return Panel(title, svg=svg, legend=list(legend.values()))


def over_run(run: Run, key: str, colour: str, stroke: Stroke) -> Curve:
    """The values of a key; it breaks where training went back, and leaves out what no axis can show."""
    steps: list[int] = []
    values: list[float | None] = []
    for line in run.metrics:
        value = line.get(key)
        if isinstance(value, (int, float)) and abs(value) < BEYOND_AXES:  # which is false of NaN
            steps.append(int(line["step"]))
            values.append(float(value))
        if "event" in line:
            steps.append(int(line["step"]))
            values.append(None)
    return Curve(steps, values, colour, stroke)
