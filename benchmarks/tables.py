"""GMMCClassifier beside scikit-learn's LDA, QDA and logistic regression on six small tables.

    python benchmarks/tables.py --out results/tables.json     # about a quarter of an hour on one core

All with their defaults (QDA with a ridge), on standardised columns. GMMC's defaults were chosen on other
sets of two columns and with an eye on its accuracy on parts of the digits and of breast cancer. Classes:
five folds, every row named by a model that did not see it. Novelty: of three and more classes each is left
out once, and its rows are to be told from unseen rows of the others; of two classes, points drawn uniformly
from the box of the training rows are the strangers. GMMC, LDA and QDA tell them by log p(x), logistic
regression by max p(y|x).
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn import datasets
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.preprocessing import StandardScaler

import gmmc
from gmmc import GMMCClassifier
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.intervals import of_proportion
from gmmc.base.progress import Progress
from gmmc.evaluations.calibration import (
    BINS,
    calibration_error,
    equal_bins,
    errors_if_perfect,
    reliability,
)

FOLDS = 5
SEED = 0
RIDGE = 1e-3  # of QDA: digits have pixels that never vary


class Table(NamedTuple):
    x: np.ndarray
    y: np.ndarray


def penguins() -> Table:
    path = Path(__file__).parent / "penguins.csv"
    numbers = np.loadtxt(path, delimiter=",", skiprows=2, usecols=range(1, 5))
    return Table(numbers, np.loadtxt(path, delimiter=",", skiprows=2, usecols=0, dtype=str))


TABLES: dict[str, Callable[[], Table]] = {
    "Iris": lambda: Table(*datasets.load_iris(return_X_y=True)),
    "Wine": lambda: Table(*datasets.load_wine(return_X_y=True)),
    "Penguins": penguins,
    "Breast cancer": lambda: Table(*datasets.load_breast_cancer(return_X_y=True)),
    "Two moons": lambda: Table(*datasets.make_moons(1000, noise=0.2, random_state=SEED)),
    "Digits": lambda: Table(*datasets.load_digits(return_X_y=True)),
}


# --- the methods, and how familiar a row looks to each ---


class Method(NamedTuple):
    make: Callable[[], Any]
    familiarity: Callable[[Any, np.ndarray], np.ndarray]


def gaussian_log_density(model: Any, x: np.ndarray) -> np.ndarray:
    """log Σ_y π_y N(x; μ_y, Σ_y), as LDA and QDA assume it."""
    covariances = model.covariance_
    if isinstance(model, LinearDiscriminantAnalysis):
        covariances = [covariances] * len(model.means_)
    ridge = RIDGE * np.eye(x.shape[1])
    parts = [
        np.log(prior) + multivariate_normal(mean, covariance + ridge).logpdf(x)
        for prior, mean, covariance in zip(model.priors_, model.means_, covariances, strict=True)
    ]
    return logsumexp(parts, axis=0)


def confidence(model: Any, x: np.ndarray) -> np.ndarray:
    return model.predict_proba(x).max(1)


def quadratic() -> QuadraticDiscriminantAnalysis:
    return QuadraticDiscriminantAnalysis(store_covariance=True, reg_param=RIDGE)


METHODS: dict[str, Method] = {
    "GMMC": Method(lambda: GMMCClassifier(random_state=SEED, device="cpu"), GMMCClassifier.score_samples),
    "GMMC, β = 0": Method(
        lambda: GMMCClassifier(beta=0, random_state=SEED, device="cpu"), GMMCClassifier.score_samples
    ),
    "LDA": Method(lambda: LinearDiscriminantAnalysis(store_covariance=True), gaussian_log_density),
    "QDA": Method(quadratic, gaussian_log_density),
    "logistic regression": Method(lambda: LogisticRegression(max_iter=1000), confidence),
    "the same, calibrated": Method(
        lambda: CalibratedClassifierCV(LogisticRegression(max_iter=1000)), confidence
    ),
}


# --- measuring ---


def classification(method: Method, table: Table) -> dict[str, Any]:
    """Of all rows together, each named by the model of another fold."""
    posterior = np.zeros((len(table.y), len(np.unique(table.y))))
    seconds = []
    for learn, unseen in StratifiedKFold(FOLDS, shuffle=True, random_state=SEED).split(*table):
        scaler = StandardScaler().fit(table.x[learn])
        begin = time.monotonic()
        model = method.make().fit(scaler.transform(table.x[learn]), table.y[learn])
        seconds.append(time.monotonic() - begin)
        posterior[unseen] = model.predict_proba(scaler.transform(table.x[unseen]))
    names = np.unique(table.y)
    correct = names[posterior.argmax(1)] == table.y
    sure = torch.from_numpy(posterior.max(1))
    ece = calibration_error(*reliability(sure, torch.from_numpy(correct).double(), equal_bins(sure)))
    return {
        "accuracy": float(correct.mean()),
        "accuracy_interval": of_proportion(int(correct.sum()), len(correct)),
        "log_loss": log_loss(table.y, posterior, labels=names),
        "ece": ece,
        "ece_by_chance": float(errors_if_perfect(sure, SEED).mean()),
        "seconds": float(np.median(seconds)),
    }


def novelty(method: Method, table: Table) -> dict[str, Any]:
    """AUROC of unseen rows against strangers; the mean over the classes left out."""
    found = {}
    for task in novelty_tasks(table):
        model = method.make().fit(task.learn, task.y)
        found[task.name] = auroc(*(method.familiarity(model, rows) for rows in (task.unseen, task.strangers)))
    return {"novelty_auroc": float(np.mean(list(found.values()))), "novelty_by_class": found}


class NoveltyTask(NamedTuple):
    name: str  # the class left out, or "uniform"
    learn: np.ndarray
    y: np.ndarray
    unseen: np.ndarray
    strangers: np.ndarray


def novelty_tasks(table: Table) -> Iterator[NoveltyTask]:
    """Each class left out once; of two classes, one task with uniform strangers. Columns are standardised."""
    names = np.unique(table.y)
    source = np.random.default_rng(SEED)
    for name in names if len(names) > 2 else ["uniform"]:
        inside = table.y != name if len(names) > 2 else np.full(len(table.y), True)
        learn, unseen, y, _ = train_test_split(
            table.x[inside], table.y[inside], test_size=1 / FOLDS, random_state=SEED, stratify=table.y[inside]
        )
        strangers = table.x[~inside]
        if len(names) == 2:
            strangers = source.uniform(learn.min(0), learn.max(0), unseen.shape)
        scaler = StandardScaler().fit(learn)
        yield NoveltyTask(
            str(name), scaler.transform(learn), y, scaler.transform(unseen), scaler.transform(strangers)
        )


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    return float(roc_auc_score(truth, np.concatenate([inside, outside])))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tables.json"), help="the JSON file to write")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="by default all")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with Progress("measuring", len(arguments.tables) * len(METHODS)) as bar:
        for name in arguments.tables:
            table = TABLES[name]()
            rows, columns = table.x.shape
            classes = len(np.unique(table.y))
            found[name] = {"rows": rows, "columns": columns, "classes": classes, "methods": {}}
            found[name]["strangers"] = "each class once" if classes > 2 else "uniform in the box"
            for title, method in METHODS.items():
                found[name]["methods"][title] = {**classification(method, table), **novelty(method, table)}
                bar.update(sum(len(entry["methods"]) for entry in found.values()), f"{name}: {title}")
    conditions = {
        "protocol": " ".join(str(__doc__).split("\n\n")[2].split()),
        "folds": FOLDS,
        "seed": SEED,
        "ridge": RIDGE,
        "ece": f"{BINS} equal bins of the confidence",
        "hardware": provenance.hardware(torch.device("cpu")),
        "gmmc": gmmc.__version__,
        "commit": provenance.commit(),
    }
    text = json.dumps({"tables": found, "conditions": conditions}, indent=1, ensure_ascii=False)
    write_atomic(arguments.out, f"{text}\n".encode())
    for name, entry in found.items():
        for title, numbers in entry["methods"].items():
            told = {key: round(value, 4) for key, value in numbers.items() if isinstance(value, float)}
            print(f"{name:14s} {title:32s}", told)


if __name__ == "__main__":
    main()
