"""By which score GMMCClassifier tells rows of unseen classes from its own, on the tables of tables.py.

    python benchmarks/scores.py --out results/scores.json     # some minutes on one core

Tasks and strangers are those of the novelty in tables.py. Every score is of the same fitted model; one is
trained by Langevin chains (recipe vectors), one by denoising (vectors-denoising).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tables import SEED, TABLES, auroc, novelty_tasks

import gmmc
from gmmc import GMMCClassifier
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.classifier.evidence import gather, scores_of

RECIPES = {"tables": "vectors", "by_denoising": "vectors-denoising"}  # place in the results: recipe


def measure(name: str, recipe: str) -> dict[str, Any]:
    """Mean AUROC over the tasks for each score, and the median share of the energy outside the span."""
    found: dict[str, list[float]] = {}
    shares, defaults = [], []
    for task in novelty_tasks(TABLES[name]()):
        estimator = GMMCClassifier(recipe=recipe, random_state=SEED).fit(task.learn, task.y)
        model = estimator.model_
        network = model.tempered()
        inside, outside = (  # not by `answer`, which takes images in [0, 1] only: strangers may lie beyond
            scores_of(network, gather(network, estimator.to_unit(rows)), estimator.gamma2_)
            for rows in (task.unseen, task.strangers)
        )
        for score in inside:
            measured = auroc(inside[score].numpy(), outside[score].numpy())
            found.setdefault(score, []).append(measured)
        outer, inner = (-inside[score].median().item() for score in ("residual", "span_density"))
        shares.append(outer / (outer + inner))
        defaults.append(estimator.abstains_by_)
    means = {score: float(np.mean(values)) for score, values in found.items()}
    return {"auroc": means, "share_outside_span": float(np.median(shares)), "default": defaults[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/scores.json"), help="the JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {place: {} for place in RECIPES}
    with Progress("measuring", len(RECIPES) * len(TABLES)) as bar:
        for i, (place, recipe) in enumerate(RECIPES.items()):
            for j, name in enumerate(TABLES):
                found[place][name] = measure(name, recipe)
                bar.update(i * len(TABLES) + j + 1, f"{recipe}, {name}")
    conditions = {
        "protocol": " ".join(str(__doc__).split("\n\n")[2].split()),
        "seed": SEED,
        "hardware": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    text = json.dumps({**found, "conditions": conditions}, indent=1, ensure_ascii=False)
    write_atomic(arguments.out, f"{text}\n".encode())
    for place, tables in found.items():
        for name, entry in tables.items():
            scores = {score: round(value, 3) for score, value in entry["auroc"].items()}
            print(f"{RECIPES[place]:18s} {name:14s}", scores, entry["default"])


if __name__ == "__main__":
    main()
