"""Evidence about images, computed once for all scores: features, gradient norms, sizes at noise levels."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gmmc.base.names import NOISE_SCORES
from gmmc.base.seeds import generator
from gmmc.classifier.abstention import LEAST, Reference
from gmmc.classifier.noise_sizes import Gaussian, size_scores
from gmmc.classifier.scores import (
    SCORES,
    OnProgress,
    Tempered,
    blocks,
    check_finite,
    evaluating,
    feature_energies,
    feature_scores,
    features,
    fit_gamma2,
    gradient_norms,
)

COMBINED, GRADIENT = "combined", "gradient_norm"
# Images at once for sizes at noise levels. An image takes a second on a CPU: small blocks report progress.
AT_ONCE = {"cpu": 8, "cuda": 256}
FOLDS = 20  # of reference images, for their combined scores


@dataclass(frozen=True)
class Evidence:
    """A row per image; None where no score asks for it, or the network has no noise levels."""

    features: Tensor
    gradient_norms: Tensor | None = None
    noise_sizes: Tensor | None = None


def passes(network: Tempered, scores: Collection[str] = SCORES) -> int:
    """Number of times that `gather` looks at each image."""
    return 1 + len(_passes(network, scores))


def gather(
    network: Tempered, images: Tensor, scores: Collection[str] = SCORES, on_progress: OnProgress | None = None
) -> Evidence:
    """Compute what these scores follow from; `on_progress` gets the number of images done in all passes."""
    found = Evidence(features(network, images, on_progress))
    for i, (name, measure) in enumerate(_passes(network, scores).items()):
        before = (i + 1) * len(images)
        report = on_progress and (lambda done, before=before: on_progress(before + done))
        numbers = measure(network, images, report)
        check_finite(numbers)
        found = replace(found, **{name: numbers})
    return found


def _passes(network: Tempered, scores: Collection[str]) -> dict[str, Callable[..., Tensor]]:
    """The functions that these scores need besides the features, by what they measure."""
    needed = {*scores}
    if COMBINED in needed:
        needed |= joined(network).keys()
    found: dict[str, Callable[..., Tensor]] = {}
    if GRADIENT in needed:
        found["gradient_norms"] = gradient_norms
    has_density = network.reference is None or network.reference.sizes is not None
    if network.noise_sizes is not None and needed & {*NOISE_SCORES} and has_density:
        found["noise_sizes"] = noise_sizes
    return found


def joined(network: Tempered) -> dict[str, float]:
    """Weights of the scores in the combined one; none without what it needs of validation images."""
    reference = network.reference
    if reference is None or (network.noise_sizes is not None and reference.sizes is None):
        return {}
    return reference.joined


def noise_sizes(network: Tempered, images: Tensor, on_progress: OnProgress | None = None) -> Tensor:
    """Sizes of F and denoising errors at several noise levels, see `noise_sizes.noise_sizes`."""
    assert network.noise_sizes is not None
    with evaluating(network.module) as prepared, torch.inference_mode(False), torch.enable_grad():
        parts = blocks(network.module, images, on_progress, AT_ONCE)
        found = [network.noise_sizes(prepared(part.clone())) for part in parts]
    return torch.cat(found).detach().double().cpu()


def scores_of(
    network: Tempered, evidence: Evidence, gamma2: float, names: Sequence[str] = SCORES
) -> dict[str, Tensor]:
    """The scores that the evidence allows, (N,) each on the CPU; γ² is that of the confidence.

    gradient_norm is negated. force_size and denoising_error are log densities, and combined joins p-values;
    all three need the network's scores of validation images.
    """
    reference, wanted = network.reference, {*names}
    if COMBINED in wanted:
        wanted |= joined(network).keys()
    scores = feature_scores(network, evidence.features, gamma2, [*wanted])
    if evidence.gradient_norms is not None:
        scores[GRADIENT] = evidence.gradient_norms
    if reference is not None:
        if evidence.noise_sizes is not None and reference.sizes is not None:
            scores |= size_scores(reference.sizes, evidence.noise_sizes)
        if joined(network) and joined(network).keys() <= scores.keys():
            confidence = feature_scores(network, evidence.features, reference.gamma2, ["max_posterior"])
            scores[COMBINED] = reference.combined(scores | confidence)
    return {name: scores[name] for name in SCORES if name in names and name in scores}


def fit_reference(network: Tempered, evidence: Evidence, labels: Tensor) -> Reference:
    """Temperature, densities and reference scores from the evidence about validation images.

    The density of sizes at noise levels is fitted on one half of the images. Reference scores that depend on
    it, and those of the combination, are of the other half. With fewer than `LEAST` images in a half there is
    neither.
    """
    gamma2 = fit_gamma2(network, feature_energies(network, evidence.features), labels)
    scores = scores_of(replace(network, reference=None), evidence, gamma2)
    if evidence.noise_sizes is None:
        combined = held_out_combined(gamma2, scores, None) if len(labels) > 1 else {}
        return Reference.of(gamma2, scores | combined)
    if len(labels) < 2 * LEAST:
        return Reference.of(gamma2, scores)
    fitted, other = torch.randperm(len(labels), generator=generator(0, "halves")).tensor_split(2)
    density = Gaussian.of(evidence.noise_sizes[fitted])
    sizes = size_scores(density, evidence.noise_sizes[other])
    half = {name: values[other] for name, values in scores.items()} | sizes
    return Reference.of(gamma2, scores | sizes | held_out_combined(gamma2, half, density), density)


def held_out_combined(
    gamma2: float, scores: dict[str, Tensor], density: Gaussian | None
) -> dict[str, Tensor]:
    """Combined scores of reference images, each by p-values among the images of the other folds.

    Among images that include itself, an image would seem more familiar than a new one.
    """
    count = len(next(iter(scores.values())))
    combined = torch.empty(count, dtype=torch.float64)
    for fold in torch.arange(count).tensor_split(min(count, FOLDS)):
        others = torch.ones(count, dtype=torch.bool)
        others[fold] = False
        reference = Reference.of(gamma2, {name: values[others] for name, values in scores.items()}, density)
        combined[fold] = reference.combined({name: values[fold] for name, values in scores.items()})
    return {COMBINED: combined}
