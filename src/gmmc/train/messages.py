"""Lines that a training prints for people."""

from collections.abc import Iterator
from typing import Any

from gmmc.classifier.model import Classifier
from gmmc.data.splits import Dataset
from gmmc.runs import shipped
from gmmc.runs.resume import State
from gmmc.train.learner import Learner

FEW_UPDATES = 300  # fewer and a small folder of photos has hardly been looked at


NAMES = {"alpha": "sampler.alpha", "beta": "train.beta", "lr": "learning rate"}


def beginning(learner: Learner) -> Iterator[str]:
    """Lines on what one may not expect of a training that begins."""
    cfg, total = learner.cfg, learner.plan.total
    if learner.transferred:
        in_python = learner.data.name == Dataset.name  # where the start is an argument
        unchecked = "; gmmc cannot check whether it has seen your test images"
        yield (
            f"beginning with the network of {cfg.train.start}, {cfg.model.backbone}, and a new last layer: "
            f"{cfg.transfer.frozen_epochs} epochs of the last layer, "
            f"{cfg.discriminative.epochs} of all layers"
            + ("" if in_python else "; train.start= begins with random weights and the recipe's network")
            + ("" if cfg.train.start in shipped.names() else unchecked)
        )
    elif learner.state.start:
        more = cfg.discriminative.epochs
        rest = f"; {more} discriminative epochs follow, discriminative.epochs=0 leaves them out"
        yield f"beginning with the weights of {cfg.train.start}{rest if more else ''}"
    yield from learner.algorithm.remarks()
    if total < FEW_UPDATES:
        yield (
            f"{len(learner.data.train)} training images in batches of {learner.batch_size} make {total} "
            "updates in all: if these are too few, raise the epochs or lower train.batch_size"
        )


def abstaining(model: Classifier) -> str:
    rule = model.abstain
    return f"score={rule.score} tpr={rule.tpr:g}"


def moved(state: State, learner: Learner) -> str:
    """What is different from the processes that wrote the state."""
    parts, process = [], learner.process
    device = state.info.get("device", process.device.type)
    if device != process.device.type:
        parts.append(f", begun on {device}")
    before = state.info.get("precision", learner.cfg.train.precision)  # older states do not say
    if before != process.precision:
        parts.append(f", now in {process.precision} instead of {before}")
    if state.info["processes"] != process.count:
        noun = "process" if process.count == 1 else "processes"
        parts.append(f", with {process.count} {noun} instead of {state.info['processes']}")
    threads = learner.cfg.train.threads
    before = state.info.get("threads", threads)
    if threads not in (0, before):
        parts.append(f", with {threads} {'thread' if threads == 1 else 'threads'} instead of {before}")
    return "".join(parts)


def describe(line: dict) -> str:
    """A metrics line for people; what matters most comes first, where a narrow terminal cuts it."""
    parts = []
    if "real_energy" in line:
        parts.append(f"real {line['real_energy']:.3g}")
    if "sampled_energy" in line:
        parts.append(f"sampled {line['sampled_energy']:.3g}")
    if "loss" in line:
        parts.append(f"loss {line['loss']:.3g}")
    if "valid_accuracy" in line:
        parts.append(f"valid {line['valid_accuracy']:.1%}")
    elif "accuracy" in line:
        parts.append(f"train {line['accuracy']:.1%}")
    if "buffer_fid" in line:
        parts.append(f"FID of the buffer {line['buffer_fid']:.1f}")
    if "force_ratio" in line:
        parts.append(f"R {line['force_ratio']:.2f}")
    if "rollbacks" in line:
        parts.append(f"rollbacks {line['rollbacks']}")
    if line.get("skipped", 0) > 0:
        parts.append(f"skipped {line['skipped']:.0%}")
    if line.get("bounded", 0) > 0.005:
        parts.append(f"bounded {line['bounded']:.0%}")
    return "  ".join(parts)


def rolled_back(learner: Learner, done: dict[str, Any]) -> str:
    """A rollback in words."""
    parts = [f"back to update {done['to']}", *learner.algorithm.describe(done)]
    parts += [f"{NAMES.get(name, name)} now × {factor:g}" for name, factor in done["lowered"].items()]
    return ", ".join(parts)
