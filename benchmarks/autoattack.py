"""Whether gmmc's AutoAttack breaks the images that its authors' code breaks, and how long both take.

    python benchmarks/autoattack.py cifar10 --out results/autoattack.json    # some 7 minutes on an H200

Each part attacks all correctly classified images at the fitted temperature, with the standard settings. The
reference is PyPI's pyautoattack 0.2.0. Square is a random search: two runs of it differ in some images, too.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyautoattack
import torch
from torch import Tensor

import gmmc
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.base.text import printable
from gmmc.evaluations.attack_run import choose_images
from gmmc.evaluations.attacks.autoattack import PARTS, QUERIES, TARGETS, AutoAttackPart, Part
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.attacks.threats import Threat

THREATS = Threat.linf(4), Threat.linf(8), Threat("l2", 0.5)
SEED = 0

Attack = Callable[[Tensor, Tensor], Tensor]


def ours(part: Part, target: Target, threat: Threat, classes: int, queries: int) -> Attack:
    attack = AutoAttackPart(part, classes, queries)
    source = torch.Generator().manual_seed(SEED)
    return lambda x, y: attack.attempt(target, x, y, threat, 0, source)


def theirs(part: Part, target: Target, threat: Threat, classes: int, queries: int) -> Attack:
    def attack(x: Tensor, y: Tensor) -> Tensor:
        reference = pyautoattack.AutoAttack(
            lambda points: target(points).float(),
            norm={"linf": "Linf", "l2": "L2"}[threat.norm],
            eps=threat.eps,
            seed=SEED,
            device=x.device,
        )
        reference.attacks_to_run = [part]
        goals = min(TARGETS, classes - 1)
        reference.apgd_targeted.n_target_classes = reference.fab.n_target_classes = goals
        reference.square.n_queries = queries
        return threat.project(reference.run_standard_evaluation(x, y, batch_size=len(x))[0], x)

    return attack


def measure(attack: Attack, target: Target, threat: Threat, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
    """(whether each image is broken, seconds)."""
    pairs = list(zip(x.split(target.batch), y.split(target.batch), strict=True))
    began = time.perf_counter()
    moved = torch.cat([attack(*pair).detach() for pair in pairs])
    if x.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    assert threat.allows(moved, x).all()
    named = [target.names(m, y) for m, y in zip(moved.split(64), y.split(64), strict=True)]
    return ~torch.cat(named), seconds


def compare(part: Part, target: Target, threat: Threat, x: Tensor, y: Tensor, queries: int) -> dict[str, Any]:
    classes = target(x[:1]).shape[1]
    found = [
        measure(make(part, target, threat, classes, queries), target, threat, x, y) for make in (ours, theirs)
    ]
    (own, own_seconds), (reference, reference_seconds) = found
    return {
        "threat": threat.name,
        "part": part,
        "broken": own.float().mean().item(),
        "broken_by_reference": reference.float().mean().item(),
        "only_ours": int((own & ~reference).sum()),
        "only_reference": int((reference & ~own).sum()),
        "seconds": round(own_seconds, 2),
        "seconds_of_reference": round(reference_seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a run, a model file or a shipped model")
    parser.add_argument("--images", type=int, default=128, help="test images, right or wrong")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of Square")
    parser.add_argument("--out", type=Path, default=Path("runs/autoattack.json"), help="the file to write")
    options = parser.parse_args()
    model = gmmc.load(options.model, "auto")
    data = gmmc.data.load(model.cfg.data, model.cfg.train.seed)
    chosen = choose_images(data.test, options.images, SEED)
    target = Target(model.at("fitted"))
    with target.exposed() as prepared:
        x, y = prepared(chosen.images), chosen.labels.to(target.device)
        right = torch.cat([target.names(*pair) for pair in zip(x.split(64), y.split(64), strict=True)])
        x, y = x[right], y[right]
        conditions = {
            "model": printable(Path(options.model).name),
            "images": len(chosen.images),
            "attacked": len(x),
            "queries": options.queries,
            "reference": "pyautoattack 0.2.0",
            "seed": SEED,
            "hardware": provenance.hardware(target.device),
            "torch": torch.__version__,
            "gmmc": gmmc.__version__,
            "commit": provenance.commit(),
        }
        rows = []
        for threat in THREATS:
            for part in PARTS:
                rows.append(compare(part, target, threat, x, y, options.queries))
                text = json.dumps({"parts": rows, "conditions": conditions}, indent=1, ensure_ascii=False)
                write_atomic(options.out, f"{text}\n".encode())  # after each part: it takes minutes
                print(*rows[-1].values(), sep="  ", flush=True)


if __name__ == "__main__":
    main()
