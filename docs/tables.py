"""Draw the pictures of docs/tables.md: learned densities, and samples. A minute on a CPU."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits, load_iris, make_moons

from gmmc import GMMCClassifier, pictures

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from tables import penguins  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLOURS = np.array(["#d55e00", "#0072b2", "#009e73"])  # told apart by the colour-blind
POINTS = 200  # a side of the map
DEEPEST = 12.0  # of log p(x) below the highest, that the map shows


def examples() -> dict[str, tuple[np.ndarray, np.ndarray, tuple[str, str]]]:
    iris, (birds, species) = load_iris(), penguins()
    moons, halves = make_moons(1000, noise=0.1, random_state=0)
    return {
        "Two moons": (moons, halves, ("", "")),
        "Iris": (iris.data[:, 2:], iris.target_names[iris.target], ("petal length, cm", "petal width, cm")),
        "Penguins": (birds[:, :2], species, ("bill length, mm", "bill depth, mm")),
    }


def draw_density(axes, model: GMMCClassifier, x: np.ndarray) -> None:
    """log p(x) as shades, and the line below which the model abstains."""
    low, high = x.min(0), x.max(0)
    room = 0.35 * (high - low)
    sides = [np.linspace(*ends, POINTS) for ends in zip(low - room, high + room, strict=True)]
    across, up = np.meshgrid(*sides)
    found = model.score_samples(np.c_[across.ravel(), up.ravel()]).reshape(across.shape)
    shown = np.maximum(found - found.max(), -DEEPEST)
    axes.contourf(across, up, shown, levels=24, cmap="Greys", vmax=10)
    axes.contour(across, up, found, levels=[model.threshold_], colors="k", linewidths=1, linestyles="--")


def main() -> None:
    torch.set_num_threads(1)
    figure, panels = plt.subplots(2, 3, figsize=(11, 6.6), sharex="col", sharey="col")
    for column, (title, (x, y, names)) in enumerate(examples().items()):
        model = GMMCClassifier(random_state=0, device="cpu").fit(x, y)
        drawn, classes = model.sample(len(x))
        for axes, rows, labels in zip(panels[:, column], (x, drawn), (y, classes), strict=True):
            draw_density(axes, model, x)
            positions = np.searchsorted(model.classes_, labels)
            axes.scatter(*rows.T, c=COLOURS[positions], s=7, linewidths=0)
        panels[0, column].set_title(f"{title}: {len(x)} rows")
        panels[1, column].set_title(f"{len(x)} samples", fontsize=10)
        panels[1, column].set_xlabel(names[0])
        for axes in panels[:, column]:
            axes.set_ylabel(names[1])
        kept = [f"{model.accepts(rows).mean():.1%}" for rows in (x, drawn)]
        print(f"{title}: accepts {kept[0]} of the rows it learned from, {kept[1]} of the samples")
    figure.tight_layout(w_pad=2)
    figure.savefig(IMAGES / "tables.png", dpi=100)

    digits = load_digits()
    model = GMMCClassifier(random_state=0, device="cpu").fit(digits.images, digits.target)
    drawn, _ = model.sample(100, labels=np.repeat(np.arange(10), 10))
    grid = pictures.grid(torch.from_numpy(drawn / 16).float().unsqueeze(1), columns=10)
    (IMAGES / "tables-digits.png").write_bytes(pictures.png(grid))


if __name__ == "__main__":
    main()
