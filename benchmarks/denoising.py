"""Denoising training beside Algorithm 1, at equal training time on one CPU thread: two moons and digits.

    python benchmarks/denoising.py --out results/denoising-cpu.json     # --only moons: three minutes

A recipe trained by denoising runs at its own length. The recipe trained by Algorithm 1 then gets so many
epochs, the same factor in both of its phases, that it takes as many seconds of CPU time. Two short pilots
give its seconds per epoch; the seconds that both took in the end are recorded. CPU time is that of one
thread; other work on the machine changes it less than the time of the clock. Two moons: 1,000 rows of
`make_moons`, of which gmmc holds out a fifth, and 5,000 fresh rows to test, for three seeds. log p(x) is
what `score_samples` returns (Algorithm 1: at γ = 1; denoising: at its `class_sigma`), minus the logarithm
of its integral over a grid that is three times as wide as the box of the columns. It is in nats per row,
in the units of the rows. References see the same rows: a kernel density estimate (KDE) whose bandwidth is
chosen by five-fold cross-validation on the training rows, and the true density of two moons. An SVC
trained on the training rows assigns classes to 1,000 samples, and to the test rows. Samples are also
scored by the true log p(x|y) of their class: below that of test rows they lie off the moons, above it they
are too much alike. The energy distance between samples and test rows is 0 for equal distributions. Digits:
test accuracy, 1,000 samples of the evaluation `samples`, and their FID in features of a small CNN, which is
not Inception. Their training seeds are 1 to 3 and their sampling seeds begin at 10,000 times those, since
digits-denoising was chosen with training seed 0 and sampling seeds 0 to 499: one sampling seed gives similar
images after other training seeds. The 359 test images are the same. No sample is left out of a number or a
picture.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity
from sklearn.svm import SVC

import gmmc
from gmmc import GMMCClassifier, pictures
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.config import recipes
from gmmc.config.sections import EvaluateOptions
from gmmc.data import sources as data_sources
from gmmc.evaluations.result import Result
from gmmc.train.loop import train

RECIPES = {
    "denoising": {"moons": "vectors-denoising", "digits": "digits-denoising"},
    "Algorithm 1": {"moons": "vectors", "digits": "digits"},
}
PILOTS = (0.1, 0.3)  # of the recipe's epochs
LEAST_SHARE = 0.01
PHASES = ("discriminative", "generative")
SAMPLES = 1000
IMAGES = Path(__file__).parents[1] / "docs" / "images"

# Two moons
NOISES = (0.1, 0.2)
SEEDS = (0, 1, 2)
TEST_SEED = 10_000  # added to the seed of the training rows
ROWS, TEST_ROWS = 1000, 5000
LEAST_UPDATES = 500  # of a phase, the estimator's default
WIDER = 3.0  # half the side of the grid, relative to that of the box of the columns
POINTS = 601  # a side of the grid
ARC_POINTS = 500  # of a moon, for the true density
BANDWIDTHS = np.geomspace(0.02, 0.3, 16)
AT_ONCE = 20_000  # rows whose true density is computed at once

DIGITS_SEEDS = (1, 2, 3)  # the recipe was chosen with 0
SAMPLING_SEED = 10_000  # times the seed of the training: of its first sample

# Picture of the moons
COLOURS = np.array(["#d55e00", "#0072b2"])  # distinct to the colour-blind
DEEPEST = 12.0  # of log p(x) below the highest, that the map shows
MAP_POINTS = 200


# --- equal time ---


class Seconds(NamedTuple):
    cpu: float
    wall: float


class Trained(NamedTuple):
    model: Any
    seconds: Seconds
    share: float  # of the recipe's epochs


def timed(fit: Callable[[float], Any], share: float) -> Trained:
    """Train with that share of the recipe's epochs, and measure the time."""
    cpu, wall = time.process_time(), time.monotonic()
    model = fit(share)
    return Trained(model, Seconds(time.process_time() - cpu, time.monotonic() - wall), share)


def share_for(seconds: float, fit: Callable[[float], Any]) -> float:
    """Share of the recipe's epochs that takes so many CPU seconds, by a line through two pilots."""
    slope, fixed = np.polyfit(PILOTS, [timed(fit, share).seconds.cpu for share in PILOTS], 1)
    return max(float((seconds - fixed) / slope), LEAST_SHARE)


def shortened(recipe: str, share: float) -> dict[str, int]:
    """Settings with that share of the recipe's epochs; a shorter phase also warms up for a shorter time."""
    cfg, changes = recipes.load(recipe), {}
    for name in PHASES:
        phase = getattr(cfg, name)
        if phase.epochs:
            changes[f"{name}.epochs"] = max(1, round(share * phase.epochs))
            changes[f"{name}.warmup"] = round(min(1, share) * phase.warmup)
    return changes


def trained_alike(fits: dict[str, Callable[[float], Any]], scale: float) -> dict[str, Trained]:
    """By denoising at the recipe's length, and by Algorithm 1 in as much time."""
    first = timed(fits["denoising"], scale)
    share = share_for(first.seconds.cpu, fits["Algorithm 1"])
    return {"denoising": first, "Algorithm 1": timed(fits["Algorithm 1"], share)}


# --- two moons ---


class Moons(NamedTuple):
    noise: float
    seed: int
    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @classmethod
    def of(cls, noise: float, seed: int) -> "Moons":
        x, y = map(np.asarray, make_moons(ROWS, noise=noise, random_state=seed))
        test_x, test_y = map(np.asarray, make_moons(TEST_ROWS, noise=noise, random_state=TEST_SEED + seed))
        return cls(noise, seed, x, y, test_x, test_y)


def true_log_density(x: np.ndarray, noise: float) -> np.ndarray:
    """log p(x|y) of both classes, (N, 2): points of an arc, equally likely, plus normal noise."""
    angles = (np.arange(ARC_POINTS) + 0.5) / ARC_POINTS * np.pi
    outer = np.c_[np.cos(angles), np.sin(angles)]
    inner = np.c_[1 - np.cos(angles), 0.5 - np.sin(angles)]
    parts = [
        np.stack(
            [logsumexp(-cdist(rows, arc, "sqeuclidean") / (2 * noise**2), 1) for arc in (outer, inner)], 1
        )
        for rows in np.array_split(x, -(-len(x) // AT_ONCE))
    ]
    return np.concatenate(parts) - np.log(ARC_POINTS) - np.log(2 * np.pi * noise**2)


def true_marginal(x: np.ndarray, noise: float) -> np.ndarray:
    """log p(x)."""
    return logsumexp(true_log_density(x, noise), 1) - np.log(2)


class Density(NamedTuple):
    log_integral: float
    outside: float  # share of the mass outside of the box of the columns


def integrated(model: GMMCClassifier) -> Density:
    """Integral of exp(score_samples) over a wide grid, in the units of the rows."""
    centre, half = (model.high_ + model.low_) / 2, (model.high_ - model.low_) / 2
    sides = np.linspace(-WIDER, WIDER, POINTS)
    across, up = (axis.ravel() for axis in np.meshgrid(sides, sides))
    scores = model.score_samples(np.c_[across, up] * half + centre)
    total = float(logsumexp(scores))
    outside = (np.abs(across) > 1) | (np.abs(up) > 1)
    cell = (sides[1] - sides[0]) ** 2 * half.prod()
    return Density(total + float(np.log(cell)), float(np.exp(scores[outside] - total).sum()))


def energy_distance(first: np.ndarray, second: np.ndarray) -> float:
    """2·E‖X − Y‖ − E‖X − X′‖ − E‖Y − Y′‖."""

    def within(rows: np.ndarray) -> float:
        return cdist(rows, rows).sum() / (len(rows) * (len(rows) - 1))

    return float(2 * cdist(first, second).mean() - within(first) - within(second))


def scores_of_samples(x: np.ndarray, y: np.ndarray, judge: SVC, rows: Moons) -> dict[str, float]:
    of_class = true_log_density(x, rows.noise)[np.arange(len(y)), y]
    return {
        "svc_agreement": float((judge.predict(x) == y).mean()),
        "true_log_density": float(of_class.mean()),
        "energy_distance": energy_distance(x, rows.test_x),
    }


def fit_moons(recipe: str, rows: Moons) -> Callable[[float], GMMCClassifier]:
    def fit(share: float) -> GMMCClassifier:
        model = GMMCClassifier(
            recipe,
            settings=shortened(recipe, share),
            min_updates=round(share * LEAST_UPDATES),
            random_state=rows.seed,
            device="cpu",
        )
        return model.fit(rows.x, rows.y)

    return fit


def measure_moons(trained: Trained, rows: Moons, judge: SVC) -> dict[str, Any]:
    model = trained.model
    begin = time.process_time()
    x, y = model.sample(SAMPLES, labels=np.arange(SAMPLES) % 2, random_state=rows.seed)
    sampling = time.process_time() - begin
    density = integrated(model)
    return {
        "accuracy": float(model.score(rows.test_x, rows.test_y)),
        "log_density": float(model.score_samples(rows.test_x).mean() - density.log_integral),
        "mass_outside": density.outside,
        **scores_of_samples(x, y, judge, rows),
        "cpu_seconds": trained.seconds.cpu,
        "wall_seconds": trained.seconds.wall,
        "sampling_cpu_seconds": sampling,
        "share_of_epochs": trained.share,
        "updates": model.model_.trained["updates"],
        "rollbacks": model.model_.trained["rollbacks"],
    }


def references(rows: Moons, judge: SVC) -> dict[str, dict[str, float]]:
    kde = GridSearchCV(KernelDensity(), {"bandwidth": BANDWIDTHS}).fit(rows.x).best_estimator_
    real = scores_of_samples(rows.x[:SAMPLES], rows.y[:SAMPLES], judge, rows)
    of_test = true_log_density(rows.test_x, rows.noise)[np.arange(TEST_ROWS), rows.test_y]
    return {
        "KDE": {"log_density": float(kde.score_samples(rows.test_x).mean()), "bandwidth": kde.bandwidth},
        "true density": {"log_density": float(true_marginal(rows.test_x, rows.noise).mean())},
        "SVC": {"accuracy": float(judge.score(rows.test_x, rows.test_y))},
        "test rows": {"true_log_density": float(of_test.mean())},
        "training rows": {"energy_distance": real["energy_distance"]},
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and range over the seeds."""
    values = {name: [float(run[name]) for run in runs] for name in runs[0] if name != "seed"}
    return {
        name: {"mean": float(np.mean(seeds)), "min": min(seeds), "max": max(seeds)}
        for name, seeds in values.items()
    }


def moons(scale: float, picture: Path) -> dict[str, Any]:
    runs: dict[float, dict[str, list[dict[str, Any]]]] = {noise: {} for noise in NOISES}
    shown: dict[float, tuple[Moons, dict[str, GMMCClassifier]]] = {}
    with Progress("two moons", len(NOISES) * len(SEEDS)) as bar:
        for i, (noise, seed) in enumerate((noise, seed) for noise in NOISES for seed in SEEDS):
            rows = Moons.of(noise, seed)
            judge = SVC().fit(rows.x, rows.y)
            fits = {name: fit_moons(by_data["moons"], rows) for name, by_data in RECIPES.items()}
            models = trained_alike(fits, scale)
            measured = {name: measure_moons(trained, rows, judge) for name, trained in models.items()}
            for name, values in (measured | references(rows, judge)).items():
                runs[noise].setdefault(name, []).append({"seed": seed, **values})
            shown.setdefault(noise, (rows, {name: trained.model for name, trained in models.items()}))
            bar.update(i + 1, f"noise {noise:g}, seed {seed}")
    draw_moons(shown, picture)
    return {
        f"noise {noise:g}": {
            name: {"summary": summary(by_seed), "seeds": by_seed} for name, by_seed in methods.items()
        }
        for noise, methods in runs.items()
    }


def draw_moons(shown: dict[float, tuple[Moons, dict[str, GMMCClassifier]]], path: Path) -> None:
    """Log densities as shades, with training rows and samples of the first seed; a line per noise."""
    figure, panels = plt.subplots(len(shown), 1 + len(RECIPES), figsize=(11, 6.4), sharex="row", sharey="row")
    for number, (rows, models) in enumerate(shown.values()):
        line = panels[number]
        low, high = rows.x.min(0), rows.x.max(0)
        room = 0.25 * (high - low)
        sides = [np.linspace(*ends, MAP_POINTS) for ends in zip(low - room, high + room, strict=True)]
        across, up = np.meshgrid(*sides)
        points = np.c_[across.ravel(), up.ravel()]
        entries = [("true density, training rows", true_marginal(points, rows.noise), rows.x, rows.y)]
        for name, model in models.items():
            drawn = model.sample(SAMPLES, labels=np.arange(SAMPLES) % 2, random_state=rows.seed)
            entries.append((f"{name}, samples", model.score_samples(points), *drawn))
        for axes, (title, density, x, y) in zip(line, entries, strict=True):
            depth = np.maximum(density - density.max(), -DEEPEST).reshape(across.shape)
            axes.contourf(across, up, depth, levels=np.linspace(-DEEPEST, 0, 25), cmap="Greys", vmax=10)
            axes.scatter(*x.T, c=COLOURS[y], s=5, linewidths=0)
            axes.set(xlim=sides[0][[0, -1]], ylim=sides[1][[0, -1]])
            if number == 0:
                axes.set_title(title, fontsize=11)
        line[0].set_ylabel(f"noise {rows.noise:g}")
    figure.tight_layout(w_pad=1.5)
    figure.savefig(path, dpi=100)
    plt.close(figure)


# --- digits ---


def digits(scale: float, picture: Path) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in RECIPES}
    shown: dict[str, Image.Image] = {}
    with Progress("digits", len(DIGITS_SEEDS)) as bar:
        for i, seed in enumerate(DIGITS_SEEDS):
            for name, (trained, results) in digits_of(seed, scale).items():
                runs[name].append({"seed": seed, **digits_values(trained, results)})
                shown.setdefault(name, results["samples"].pictures["samples/by_class.png"])
            bar.update(i + 1, f"seed {seed}")
    write_atomic(picture, pictures.png(side_by_side(shown)))
    return {name: {"summary": summary(by_seed), "seeds": by_seed} for name, by_seed in runs.items()}


def digits_of(seed: int, scale: float) -> dict[str, tuple[Trained, dict[str, Result]]]:
    with tempfile.TemporaryDirectory() as work:
        fits = {
            name: fit_digits(by_data["digits"], seed, Path(work) / name) for name, by_data in RECIPES.items()
        }
        models = trained_alike(fits, scale)
    return {
        name: (one, evaluate_digits(one.model, RECIPES[name]["digits"], seed)) for name, one in models.items()
    }


def digits_values(trained: Trained, results: dict[str, Result]) -> dict[str, float]:
    samples, generation = results["samples"], results["generation"]
    return {
        "accuracy": results["accuracy"].values["top1"],
        "svc_agreement": samples.values["svc_agreement"],
        "svc_test_accuracy": samples.values["svc_test_accuracy"],
        "diversity": samples.values["diversity"],
        "fid": generation.values["fresh/fid"],
        "fid_of_test_images": generation.values["test/fid"],
        "steps": samples.conditions["steps"],
        "cpu_seconds": trained.seconds.cpu,
        "wall_seconds": trained.seconds.wall,
        "share_of_epochs": trained.share,
        "updates": trained.model.trained["updates"],
        "rollbacks": trained.model.trained["rollbacks"],
    }


def fit_digits(recipe: str, seed: int, folder: Path) -> Callable[[float], Any]:
    def fit(share: float) -> Any:
        alike = {"train.threads": 1, "train.device": "cpu", "train.seed": seed}
        cfg = recipes.load(recipe, shortened(recipe, share) | alike)
        return train(cfg, folder / f"{share:g}", data_sources.load(cfg.data, seed), silent=True)

    return fit


def evaluate_digits(model: gmmc.Classifier, recipe: str, seed: int) -> dict[str, Result]:
    cfg = recipes.load(recipe)
    options = EvaluateOptions.of(
        cfg.evaluate, samples=SAMPLES, generated=SAMPLES, generated_by_steps=0, seed=SAMPLING_SEED * seed
    )
    return gmmc.evaluate(
        model, data_sources.load(cfg.data, seed), ["accuracy", "samples", "generation"], options
    )


def side_by_side(images: dict[str, Image.Image]) -> Image.Image:
    """Pictures with their names above them."""
    title, gap = 28, 16
    width = sum(image.width for image in images.values()) + gap * (len(images) - 1)
    canvas = Image.new("RGB", (width, title + max(image.height for image in images.values())), "white")
    draw, left = ImageDraw.Draw(canvas), 0
    for name, image in images.items():
        draw.text((left + image.width / 2, title / 2), name, "black", ImageFont.load_default(18), anchor="mm")
        canvas.paste(image, (left, title))
        left += image.width + gap
    return canvas


# --- the command ---

PARTS: dict[str, Callable[[float, Path], dict[str, Any]]] = {"moons": moons, "digits": digits}


def conditions(part: str, scale: float) -> dict[str, Any]:
    values: dict[str, Any] = {
        "protocol": " ".join(str(__doc__).split("\n\n")[2].split()),
        "recipes": {name: by_data[part] for name, by_data in RECIPES.items()},
        "pilots": PILOTS,
        "samples": SAMPLES,
        "hardware": provenance.hardware(torch.device("cpu")),
        "torch": torch.__version__,
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    if part == "moons":
        values |= {"rows": ROWS, "test_rows": TEST_ROWS, "seeds": SEEDS, "test_seeds": f"{TEST_SEED} + seed"}
        values |= {"grid": f"{POINTS}×{POINTS}, {WIDER:g} times the box of the columns"}
    else:
        values |= {"seeds": DIGITS_SEEDS, "sampling_seeds": f"{SAMPLING_SEED} · seed and {SAMPLES - 1} more"}
    return values if scale == 1 else values | {"share_of_epochs": scale}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/denoising.json"), help="the JSON file to write"
    )
    parser.add_argument("--only", choices=PARTS, help="by default both; the file keeps the other part")
    parser.add_argument("--images", type=Path, help="folder for the pictures; default: docs/images")
    parser.add_argument("--share", type=float, default=1.0, help="of denoising's epochs, to try it out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images = arguments.images or IMAGES
    for part in [arguments.only] if arguments.only else PARTS:
        measured = PARTS[part](arguments.share, images / f"denoising-{part}.png")
        stored = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        stored[part] = {"values": measured, "conditions": conditions(part, arguments.share)}
        text = json.dumps(stored, indent=1, ensure_ascii=False)
        write_atomic(arguments.out, f"{text}\n".encode())
        show(part, measured)


def show(part: str, measured: dict[str, Any]) -> None:
    if part == "digits":
        measured = {"digits": measured}
    for title, by_name in measured.items():
        for name, entry in by_name.items():
            numbers = {
                key: round(value["mean"] if isinstance(value, dict) else value, 4)
                for key, value in entry["summary"].items()
                if isinstance(value, dict | float | int)
            }
            print(f"{title:10s} {name:14s}", numbers)


if __name__ == "__main__":
    main()
