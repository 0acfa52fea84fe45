"""Are the samples what they claim to be, and are they different from each other?

A judge that never saw the model, a support vector machine trained on the real images, says which class each
sample shows. Diversity is the mean distance between samples of a class, relative to real images of it.
"""

import math

import numpy as np
import torch
from PIL.Image import Image
from sklearn.svm import SVC
from torch import Tensor

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.drawing import Drawer
from gmmc.classifier.model import Classifier
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations.generation_conditions import sampler_conditions
from gmmc.evaluations.result import Result, conditions
from gmmc.noise import levels
from gmmc.pictures import GRID_COLUMNS, grid
from gmmc.pixels import as_unit, to_uint8
from gmmc.sampling.samplers import SAMPLERS

# An SVM's time grows with the pixels and with the square of the images.
JUDGE_IMAGES, JUDGE_PIXELS = 10_000, 10_000_000
FILM_CHAINS = 10
FILM_FRAMES = 9  # noise levels


def evaluate(model: Classifier, data: Dataset, cfg: EvaluateOptions) -> Result:
    classes = len(data.class_names)
    if cfg.samples < 2 * classes:
        raise InputError(f"samples must be at least 2 per class, {2 * classes}, got {cfg.samples}")
    labels = torch.arange(cfg.samples) % classes
    drawer = model.drawer()
    with Progress("sampling", cfg.samples) as bar:
        images = drawer.sample(cfg.samples, labels, cfg.seed, on_progress=bar.update).cpu()
    generated = LabelledImages(to_uint8(images), labels)

    real = judge_images(data.train, classes, cfg.seed)
    with Progress("asking the judge", 2) as bar:
        judge = SVC().fit(pixel_vectors(real), real.labels.numpy())
        bar.update(1)
        verdicts = torch.from_numpy(judge.predict(pixel_vectors(generated)))
        bar.update(2)
    agrees = verdicts == labels
    judged = torch.from_numpy(judge.predict(pixel_vectors(data.test))) == data.test.labels
    values = {
        "svc_agreement": agrees.double().mean().item(),
        "svc_test_accuracy": judged.double().mean().item(),
        "diversity": diversity(generated, real, classes),
    }
    return Result(
        values=values,
        intervals={
            "svc_agreement": intervals.of_proportion(int(agrees.sum()), cfg.samples),
            "svc_test_accuracy": intervals.of_proportion(int(judged.sum()), len(judged)),
        },
        curves={
            "svc_agreement_per_class": [agrees[labels == y].double().mean().item() for y in range(classes)]
        },
        pictures=draw_pictures(model, drawer, images, labels, cfg.seed),
        flags=doubts(values),
        conditions=conditions(
            model,
            samples=cfg.samples,
            selection="none",
            start=f"{model.start.name}, not the buffer",
            seeds=f"{cfg.seed}..{cfg.seed + cfg.samples - 1}",
            steps=drawer.settings.steps,
            **sampler_conditions(drawer),
            judge=f"SVC (RBF) on {len(real)} real training images, pixels",
        ),
    )


def draw_pictures(
    model: Classifier, drawer: Drawer, images: Tensor, labels: Tensor, seed: int
) -> dict[str, Image]:
    """Class by class, unsorted and by distance to the class centre; classes as they come; chains at work."""
    names, classes = model.class_names, len(model.class_names)
    columns = min(GRID_COLUMNS, len(images) // classes)
    energies = model.energy(images, labels).cpu()
    frames = film_frames(drawer)
    shown = torch.arange(min(classes, FILM_CHAINS))
    count = GRID_COLUMNS**2
    with Progress("sampling pictures", count + len(shown)) as bar:
        drawn = drawer.sample(count, seed=seed, on_progress=bar.update).cpu()
        film = drawer.film(
            shown, seed, frames=list(frames), on_progress=lambda done: bar.update(count + done)
        )
        bar.update(count + len(shown))
    shown_names = [names[y] for y in shown]
    return {
        "samples/by_class.png": grid(by_class(images, classes, columns), columns, names),
        "samples/unconditional.png": grid(drawn, GRID_COLUMNS),
        "samples/nearest.png": grid(lowest(images, energies, labels, columns), columns, names),
        "samples/farthest.png": grid(lowest(images, -energies, labels, columns), columns, names),
        "samples/film.png": grid(
            film.cpu().transpose(0, 1).flatten(0, 1), len(frames), shown_names, list(frames.values())
        ),
    }


def doubts(values: dict[str, float]) -> list[str]:
    flags = []
    if values["svc_test_accuracy"] < 0.9:
        flags.append("the judge itself is weak on real test images: read svc_agreement with care")
    if values["diversity"] < 0.5:
        flags.append("samples of a class are much more alike than real images: prototypes")
    return flags


def pixel_vectors(data: LabelledImages) -> np.ndarray:
    return as_unit(data.images).flatten(1).numpy()


def judge_images(train: LabelledImages, classes: int, seed: int) -> LabelledImages:
    """As many of each class as time allows, drawn at random."""
    pixels = train.images[0].numel()
    count = min(JUDGE_IMAGES, max(20 * classes, JUDGE_PIXELS // pixels)) // classes
    order = torch.randperm(len(train), generator=generator(seed, "judge"))
    chosen = [order[train.labels[order] == y][:count] for y in range(classes)]
    return train[torch.cat(chosen)]


def diversity(generated: LabelledImages, real: LabelledImages, classes: int) -> float:
    """The distance of two samples of a class relative to that of real images; NaN where there are no two."""
    pairs = [
        (within_distance(generated, y), within_distance(real, y))
        for y in range(classes)
        if (real.labels == y).sum() > 1
    ]
    ours, theirs = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
    return ours / theirs if theirs else math.nan


def within_distance(data: LabelledImages, label: int) -> float:
    """Mean Euclidean distance of two images of a class, pixels in [0, 1]."""
    return torch.pdist(torch.from_numpy(pixel_vectors(data[data.labels == label]))).mean().item()


def by_class(images: Tensor, classes: int, count: int) -> Tensor:
    """The first `count` of each class, class by class; labels run 0, 1, …, C−1, 0, 1, …"""
    return images[: count * classes].unflatten(0, (count, classes)).transpose(0, 1).flatten(0, 1)


def lowest(images: Tensor, energies: Tensor, labels: Tensor, count: int) -> Tensor:
    """The `count` images of least energy of each class, class by class; labels are 0..C−1."""
    chosen = [
        (labels == y).nonzero().flatten()[energies[labels == y].argsort()[:count]] for y in labels.unique()
    ]
    return images[torch.cat(chosen)]


def film_frames(drawer: Drawer) -> dict[int, str]:
    """Steps of chains to show, with a title each.

    The numbers of steps 0, 1, 2, 5, 10, … and the last one; of a noise-conditional sampler evenly spaced
    steps with the noise levels of the estimates they show, and the image.
    """
    steps, cfg = drawer.settings.steps, drawer.settings.sampler
    if not SAMPLERS[cfg.name].noise_conditional:
        marks = [m * 10**power for power in range(len(str(steps))) for m in (1, 2, 5)]
        return {step: str(step) for step in (0, *(mark for mark in marks if mark < steps), steps)}
    sigmas = levels(steps, cfg.sigma_min, cfg.sigma_max, cfg.rho)
    chosen = dict.fromkeys(i * steps // FILM_FRAMES for i in range(FILM_FRAMES))
    return {step: f"{sigmas[step]:.2g}" for step in chosen} | {steps: "image"}
