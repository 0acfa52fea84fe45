"""How the classes lie in feature space: a map (Fig. 1) and figures of how well they are apart."""

import numpy as np
import torch
from torch import Tensor, nn

from gmmc.base import intervals
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.scores import batched, check_finite, tempered
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations.result import Result, classifier_of, conditions

IMAGES = 2000  # on the map, at most
NEIGHBOURS = 10


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateOptions) -> Result:
    chosen = torch.randperm(len(data.test), generator=generator(cfg.seed, "latent"))[:IMAGES].sort().values
    some = data.test[chosen]
    if len(some) < NEIGHBOURS + 1 or len(some.labels.unique()) < 2:
        raise InputError(f"a map of features needs {NEIGHBOURS + 1} test images of two classes or more")
    network = tempered(model)
    with Progress("features", len(some)) as bar:
        features = batched(model, network.features, some.images, bar.update).cpu().double()
    check_finite(features)
    features = network.class_features(features)
    told = conditions(
        model,
        split="test",
        images=len(some),
        features="φ(x)" if classifier_of(model) else "logits",
        map=f"t-SNE, perplexity {perplexity(len(some)):.3g}",
        seed=cfg.seed,
    )
    if (features == features[0]).all():
        return Result({}, told, flags=["all test images have the same features: there is nothing to map"])
    values = separability(features, some.labels)
    hits = round(values["knn_accuracy"] * len(some))
    return Result(
        values=values,
        intervals={"knn_accuracy": intervals.of_proportion(hits, len(some))},
        curves={
            "tsne": {**tsne_map(features, cfg.seed), "label": some.labels.tolist()},
            "class_names": list(data.class_names),
        },
        conditions=told,
    )


def perplexity(images: int) -> float:
    return min(30.0, (images - 1) / 3)


def tsne_map(features: Tensor, seed: int) -> dict[str, list[float]]:
    from sklearn.manifold import TSNE

    with Progress("t-SNE", 1) as bar:
        seed = seed % 2**32  # all that scikit-learn takes
        places = TSNE(perplexity=perplexity(len(features)), init="pca", random_state=seed).fit_transform(
            features.numpy()
        )
        bar.update(1)
    x, y = np.asarray(places, dtype=float).round(3).T
    return {"x": x.tolist(), "y": y.tolist()}


def separability(features: Tensor, labels: Tensor) -> dict[str, float]:
    """Without a model's own boundaries: how close images are to those of their class, and to others."""
    from sklearn.metrics import silhouette_score
    from sklearn.neighbors import NearestNeighbors

    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(features.numpy())
    nearest = torch.from_numpy(neighbours.kneighbors(return_distance=False))  # an image is not its own
    votes = labels[nearest].mode(1).values
    classes, counts = labels.unique(return_counts=True)
    means = torch.stack([features[labels == y].mean(0) for y in classes])
    within = sum(
        (features[labels == y] - mean).square().sum() for y, mean in zip(classes, means, strict=True)
    )
    centred = means - features.mean(0)
    between = (counts[:, None] * centred.square()).sum()
    cosines = torch.nn.functional.cosine_similarity(centred[:, None], centred[None], dim=-1)
    pairs = cosines[~torch.eye(len(classes), dtype=torch.bool)]
    several = len(classes) < len(labels)  # some class has two images: else nothing is within a class
    return {
        **({"silhouette": float(silhouette_score(features.numpy(), labels.numpy()))} if several else {}),
        "knn_accuracy": (votes == labels).double().mean().item(),
        "between_within": (between / within).item(),
        "mean_cosine": pairs.mean().item(),
        "max_cosine": pairs.max().item(),
        "simplex_cosine": -1 / (len(classes) - 1),  # what equiangular means have
    }
