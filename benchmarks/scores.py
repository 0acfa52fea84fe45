"""By which score GMMCClassifier tells rows of unseen classes from its own, on the tables of tables.py.

    python benchmarks/scores.py --out results/scores.json     # some minutes on one core

Tasks and strangers are those of the novelty in tables.py. Every score is of the same fitted model.
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
from gmmc.classifier.scores import feature_scores, features

SCORES = ("log_density", "span_density", "residual", "neighbours", "max_posterior")


def measure(name: str) -> dict[str, Any]:
    """Mean AUROC over the tasks for each score, and the median share of the energy outside the span."""
    found: dict[str, list[float]] = {score: [] for score in SCORES}
    shares, defaults = [], []
    for task in novelty_tasks(TABLES[name]()):
        estimator = GMMCClassifier(random_state=SEED).fit(task.learn, task.y)
        model = estimator.model_
        network = model.tempered()
        inside, outside = (  # not by `answer`, which takes images in [0, 1] only: strangers may lie beyond
            feature_scores(network, features(network, estimator.to_unit(rows)), estimator.gamma2_)
            for rows in (task.unseen, task.strangers)
        )
        for score in SCORES:
            found[score].append(auroc(inside[score].numpy(), outside[score].numpy()))
        outer, inner = (-inside[score].median().item() for score in ("residual", "span_density"))
        shares.append(outer / (outer + inner))
        defaults.append(model.abstains_by)
    means = {score: float(np.mean(values)) for score, values in found.items()}
    return {"auroc": means, "share_outside_span": float(np.median(shares)), "default": defaults[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/scores.json"), help="the JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    with Progress("measuring", len(TABLES)) as bar:
        for name in TABLES:
            found[name] = measure(name)
            bar.update(len(found), name)
    conditions = {
        "protocol": " ".join(str(__doc__).split("\n\n")[2].split()),
        "seed": SEED,
        "hardware": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    text = json.dumps({"tables": found, "conditions": conditions}, indent=1, ensure_ascii=False)
    write_atomic(arguments.out, f"{text}\n".encode())
    for name, entry in found.items():
        print(
            f"{name:14s}", {key: round(value, 3) for key, value in entry["auroc"].items()}, entry["default"]
        )


if __name__ == "__main__":
    main()
