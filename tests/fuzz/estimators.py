"""Inputs and parameters of the scikit-learn estimator."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzz.material import SETTINGS, Material
from fuzz.mutating import NUMBERS, odd_value
from fuzz.recipes import draw_setting
from gmmc.estimator.classifier import GMMCClassifier

DTYPES = ["f8", "f4", "f2", "i8", "u1", "i1", "?", "c16", "U3", "O", "M8[s]", "u8"]
METHODS = [
    "predict",
    "predict_proba",
    "score_samples",
    "accepts",
    "decision_function",
    "predict_or_abstain",
    "to_unit",
]
SHAPES = [(24, 3)] * 8 + [
    (24,),
    (24, 0),
    (0, 3),
    (1, 3),
    (24, 2),
    (24, 4, 4),
    (24, 4, 4, 3),
    (24, 1, 8, 8),
    (2, 2, 2, 2, 2),
    (),
]
PARAMETERS = {
    "beta": [0, 0.5, 1e6, -1],
    "min_updates": [0, 5, -1, 1.5],
    "tpr": [0.5, 0.99, 0, 1, 2],
    "random_state": [0, 1, -1],
}
PARAMETERS |= {
    "image_shape": [(3, 1), (1, 1, 3), (3, 1, 1), (1, 3), (0, 3), "ab"],
    "recipe": ["auto", "vectors", "images", "none"],
}


def command(draw: random.Random, folder: Path, given: Material) -> tuple[Callable[[], object], Any]:
    """Fit on odd rows, or ask a fitted estimator about odd rows."""
    source = np.random.default_rng(draw.randrange(2**32))
    kind = draw.randrange(10)
    rows = array(draw, source)
    if kind < 4:
        fitted = given.estimator()
        method = draw.choice(METHODS)
        return lambda: check_finite(getattr(fitted, method)(rows), method), None
    if kind == 4:
        fitted, asked = (
            given.estimator(),
            [draw.choice([None, 0, 1, 3, 2, -1, 1.5, "a", [0, 1], [5], []]) for _ in range(2)],
        )
        return lambda: check_finite(fitted.sample(*asked)[0], "sample"), None
    labels = targets(draw, source)
    if kind == 5:
        fitted, classes = given.estimator(), draw.choice([None, [0, 1], [0, 1, 2], "ab", [1]])
        return lambda: ask(fitted.partial_fit(rows, labels, classes=classes), rows), None
    changes = parameters(draw) if kind < 8 else {}
    if kind > 6 and draw.random() < 0.7:
        rows = source.normal(size=(24, 3))
    fresh = GMMCClassifier(
        **{"min_updates": 0, "settings": SETTINGS, "random_state": 0, "device": "cpu", **changes}
    )
    return lambda: ask(fresh.fit(rows, labels), rows), None


def ask(fitted: GMMCClassifier, rows: Any) -> None:
    check_finite(fitted.predict_proba(rows), "predict_proba")
    check_finite(fitted.score_samples(rows), "score_samples")


def check_finite(answer: Any, method: str) -> None:
    """An answer is finite, and a posterior sums to 1."""
    numbers = np.asarray(answer)
    if numbers.dtype.kind in "fc":
        assert np.isfinite(numbers).all(), method
    if method == "predict_proba":
        assert np.allclose(numbers.sum(1), 1), method
    assert not isinstance(answer, torch.Tensor) or method == "to_unit"


def array(draw: random.Random, source: np.random.Generator) -> Any:
    """Draw rows, mostly of the right shape, with odd values, types or containers."""
    shape = draw.choice(SHAPES)
    rows = source.normal(size=shape) * draw.choice([1, 1, 1, 1e-30, 1e30, 1e300, 0])
    kind = draw.randrange(10)
    if kind < 2 and rows.size:
        rows.reshape(-1)[draw.randrange(rows.size)] = float(draw.choice([*NUMBERS, 1e308, -1e308]))
    elif kind == 2:
        with np.errstate(all="ignore"):
            rows = np.abs(rows % 200).astype(draw.choice(DTYPES))
    elif kind == 3:
        return draw.choice(
            [
                rows.tolist(),
                [[1, 2], [3]],
                [],
                None,
                "abc",
                {"a": 1},
                [[1.0, 2.0, 3.0], [None] * 3],
                3,
                [[]],
                object(),
            ]
        )
    elif kind == 4:
        return torch.from_numpy(np.asarray(rows))
    elif kind == 5 and rows.ndim == 2:
        return np.asfortranarray(rows)[::-1, ::-1]
    return rows


def targets(draw: random.Random, source: np.random.Generator) -> Any:
    """Draw labels, mostly of two or three classes."""
    whole = source.integers(0, draw.choice([2, 2, 3, 24, 1]), 24)
    kind = draw.randrange(12)
    if kind < 6:
        return whole
    if kind == 6:
        return np.array(["a", "b\nc", "", "é", "\0x"] * 5)[:24][whole % 5]
    if kind == 7:
        return whole.astype(draw.choice(["f8", "?", "O", "u1", "i8"])) + draw.choice([0, 0.5])
    if kind == 8:
        return whole[: draw.choice([0, 1, 23])]
    if kind == 9:
        return draw.choice(
            [None, "abc", 3, [[0, 1]] * 24, [None] * 24, ["a", 1] * 12, [float("nan")] * 24, whole[:, None]]
        )
    if kind == 10:
        return whole * draw.choice([10**18, -1, -(10**18)])
    return np.array([(-1.0) ** i * 1e300 for i in range(24)])


def parameters(draw: random.Random) -> dict[str, Any]:
    """Draw one or two parameters; a recipe's setting among them."""
    changes: dict[str, Any] = {}
    for _ in range(draw.choice([1, 1, 2])):
        name = draw.choice([*PARAMETERS, "settings", "device"])
        if name == "settings":
            key, value = draw_setting(draw)
            changes[name] = {**SETTINGS, key: value} if draw.random() < 0.9 else odd_value(draw)
        elif name == "device":
            changes[name] = draw.choice(["cpu", "tpu", "", None, 3])
        else:
            changes[name] = draw.choice(
                [*PARAMETERS[name], odd_value(draw)] if draw.random() < 0.3 else PARAMETERS[name]
            )
    return changes
