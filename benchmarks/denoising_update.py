"""Where the work of one update by denoising goes: arithmetic, memory traffic, operations, and time.

    python benchmarks/denoising_update.py cifar10 --out results/denoising-update.json
    python benchmarks/denoising_update.py cifar10 --batch 32 train.engine=plain     # overrides of the recipe

On images of noise. Counted without a GPU too, by one plain update, per denoised image: floating-point
operations (a multiplication with an addition is 2), bytes that operations read and write in fp32 if each runs
alone, and how many operations there are. Compiled code fuses them, so its traffic is lower. On a GPU, traffic
over bandwidth and arithmetic over the rate of its matrix units are two lower bounds of the time.

The file keeps an entry for each set of overrides. Time: the median over updates on this device, with a wait
for it around each part. Parts then do not overlap, so that their sum is a little more than an update takes.
"""

import argparse
import functools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import gmmc
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.bench.measure import synchronise
from gmmc.bench.ours import noise_images
from gmmc.config import recipes
from gmmc.train.distributed import build_fabric
from gmmc.train.learner import Learner

SHAPE = (3, 32, 32)
WARM_UP, UPDATES = 8, 20
WHOLE, REST = "whole update", "rest"


class Counter(TorchDispatchMode):
    """Counts operations, their arithmetic, and the bytes of their inputs and outputs; views move none."""

    def __init__(self):
        super().__init__()
        self.counts = {"flop": 0.0, "bytes": 0.0, "operations": 0.0}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.counts["operations"] += 1
            tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
            self.counts["bytes"] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            if flops := flop_registry.get(func._overloadpacket):
                self.counts["flop"] += flops(*args, **(kwargs or {}), out_val=found)
        return found


class Parts:
    """Measures of named parts of an update; what is in none of them is the rest."""

    def __init__(self, measured: Callable[[Callable[[], Any]], tuple[Any, dict[str, float]]]):
        self.measured = measured
        self.found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def watch(self, owner: Any, method: str, part: str) -> None:
        plain = getattr(owner, method)

        @functools.wraps(plain)
        def watched(*args: Any, **kwargs: Any) -> Any:
            result, numbers = self.measured(lambda: plain(*args, **kwargs))
            for name, number in numbers.items():
                self.found[part][name] += number
            return result

        setattr(owner, method, watched)

    def of_update(self, update: Callable[[], Any]) -> dict[str, dict[str, float]]:
        """Numbers of one update, by part."""
        self.found.clear()
        _, whole = self.measured(update)
        found = {part: dict(numbers) for part, numbers in self.found.items()}
        rest = {name: whole[name] - sum(part[name] for part in found.values()) for name in whole}
        return {**found, REST: rest}


def watch_parts(learner: Learner, parts: Parts) -> None:
    algorithm, updater = learner.algorithm, learner.updater
    parts.watch(learner.batches, "at", "class images: augmentation")
    parts.watch(algorithm, "noisy", "noisy images: augmentation and noise")
    parts.watch(algorithm, "residual", "gradient in the images")
    parts.watch(algorithm, "sides", "two sides of each image")
    parts.watch(algorithm, "class_images", "class images: noise")
    parts.watch(updater, "_replayed" if updater.engine.graph else "_backward", "gradient in the weights")
    parts.watch(updater.optimizer, "step", "optimiser")
    if learner.average:
        parts.watch(learner.average, "update", "average")


def counted(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    with Counter() as counter:
        result = call()
    return result, counter.counts


def timed(device: torch.device, call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    synchronise(device)
    start = time.perf_counter()
    result = call()
    synchronise(device)
    return result, {"seconds": time.perf_counter() - start}


def new_learner(name: str, changes: list[str]) -> Learner:
    # So long that compiling pays, so slow that noise leads nowhere.
    cfg = recipes.load(name, [*changes, "generative.epochs=1000", "generative.lr=1e-9"])
    return Learner(cfg, noise_images(4 * cfg.train.batch_size, SHAPE), build_fabric(cfg.train))


def counts(name: str, changes: list[str], images: int) -> dict[str, dict[str, float]]:
    """Per denoised image, on the CPU by the plain engine; counts per image do not depend on their number."""
    share = recipes.load(name, changes)
    class_images = max(
        1, (share.denoising.class_images or share.train.batch_size) * images // share.train.batch_size
    )
    few = (f"train.batch_size={images}", f"denoising.class_images={class_images}")
    plain = ("train.device=cpu", "train.engine=plain", "train.precision=fp32")
    learner = new_learner(name, [*changes, *few, *plain])
    learner.update()  # the optimiser's slots
    parts = Parts(counted)
    watch_parts(learner, parts)
    found = parts.of_update(learner.update)
    per_update = ("optimiser", "average", REST)  # these do not grow with the batch
    for part, numbers in found.items():
        divisor = share.train.batch_size if part in per_update else images
        for each in ("flop", "bytes"):
            numbers[each] /= divisor
    return found


def times(name: str, changes: list[str], updates: int) -> tuple[dict[str, float], Learner]:
    """Median seconds of each part of an update."""
    learner = new_learner(name, changes)
    device = learner.process.device
    whole = []
    for i in range(WARM_UP + updates):
        _, found = timed(device, learner.update)
        whole += [found["seconds"]] if i >= WARM_UP else []
    parts = Parts(functools.partial(timed, device))
    watch_parts(learner, parts)
    rows = [parts.of_update(learner.update) for _ in range(updates)]
    medians = {part: statistics.median(row[part]["seconds"] for row in rows) for part in rows[0]}
    return {WHOLE: statistics.median(whole), **medians}, learner


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="a recipe by denoising of 32×32 colour images, such as cifar10")
    parser.add_argument("changes", nargs="*", help="overrides of the recipe, key=value")
    parser.add_argument("--batch", type=int, help="images per update, for the times; default the recipe's")
    parser.add_argument("--updates", type=int, default=UPDATES, help="timed; 0: count only")
    parser.add_argument("--out", type=Path, help="the JSON file to write")
    arguments = parser.parse_args()
    counted_parts = counts(arguments.recipe, arguments.changes, images=8)
    changes = list(arguments.changes)
    if arguments.batch:
        cfg = recipes.load(arguments.recipe, changes)
        count = max(
            1, (cfg.denoising.class_images or cfg.train.batch_size) * arguments.batch // cfg.train.batch_size
        )
        changes += [f"train.batch_size={arguments.batch}", f"denoising.class_images={count}"]
    entry: dict[str, Any] = {
        "counts": counted_parts,
        "backbone": recipes.load(arguments.recipe, changes).model.backbone,
        "conditions": {"torch": torch.__version__, "gmmc": gmmc.__version__, "commit": provenance.commit()},
    }
    seconds: dict[str, float] = {}
    if arguments.updates:
        seconds, learner = times(arguments.recipe, changes, arguments.updates)
        entry |= {"seconds": seconds, "batch": learner.batch_size, "engine": learner.algorithm.how}
        entry["conditions"]["hardware"] = provenance.hardware(learner.process.device)
        whole = seconds[WHOLE]
        rate = learner.batch_size / whole
        print(
            f"an update of {learner.batch_size} images: {1000 * whole:.1f} ms, {rate:,.0f} images per second"
        )
    print(f"{'per denoised image':40s} {'GFLOP':>8s} {'MB':>8s} {'operations':>10s}  share of time")
    total = sum(seconds.values()) - seconds.get(WHOLE, 0.0)
    for part, numbers in counted_parts.items():
        share = f"{seconds[part] / total:14.1%}" if seconds else ""
        print(
            f"{part:40s} {numbers['flop'] / 1e9:8.3f} {numbers['bytes'] / 1e6:8.3f} "
            f"{numbers['operations']:10.0f} {share}"
        )
    if arguments.out:
        known = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        content = known | {" ".join([arguments.recipe, *arguments.changes]): entry}
        write_atomic(arguments.out, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())


if __name__ == "__main__":
    main()
