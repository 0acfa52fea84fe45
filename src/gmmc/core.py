"""The mathematics of the paper as pure functions of tensors.

Training, sampler, densities and metrics use the *unit energy* ½‖φ(x) − μ_y‖² (γ = 1). γ² enters only where a
class probability is wanted: logits and posterior.
"""

import torch
from torch import Tensor

from gmmc.base.precision import full_precision
from gmmc.errors import InputError


def simplex_means(
    num_classes: int, dim: int, scale: float = 10.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The pre-designed means μ of Algorithm 2, one row per class, computed in float64.

    ‖μ_y‖ = scale and all pairs are equiangular: ⟨μ_i, μ_j⟩ = −scale²/(C−1). The paper fills row i
    coordinate by coordinate; coordinate j is the same for every row i > j, so a column is filled at once.
    """
    if num_classes < 2:
        raise InputError(f"equiangular means need num_classes >= 2, got num_classes={num_classes}")
    if dim < num_classes - 1:
        raise InputError(f"{num_classes} equiangular means need dim >= {num_classes - 1}, got dim={dim}")
    if not 0 < scale < float("inf"):
        raise InputError(f"the norm of the means must be positive and finite, got scale={scale}")

    others = num_classes - 1
    means = torch.zeros(num_classes, dim, dtype=torch.float64)
    if means.is_meta:  # only the shape is asked for, and the loop takes minutes for 100,000 classes
        return means.to(dtype)
    for j in range(others):
        means[j, j] = (1 - means[j] @ means[j]).sqrt()
        means[j + 1 :, j] = -(1 + means[j + 1 :] @ means[j] * others) / (means[j, j] * others)
    return (scale * means).to(dtype)


def unit_energy(features: Tensor, target: Tensor) -> Tensor:
    """½‖φ − z‖² per sample, by the direct difference in float32 or better (Eq. 8 with γ = 1).

    Features beyond those of the target count as if it were 0 there.
    """
    difference = full_precision(features)[..., : target.shape[-1]] - full_precision(target)
    energy = 0.5 * difference.square().sum(-1)
    return energy if features.shape[-1] == target.shape[-1] else energy + rest_energy(features, target)


def rest_energy(features: Tensor, target: Tensor) -> Tensor:
    """½‖φ_rest‖² per sample: the class-free energy of the features beyond those of the target."""
    return 0.5 * full_precision(features)[..., target.shape[-1] :].square().sum(-1)


def unit_energies(features: Tensor, means: Tensor) -> Tensor:
    """½‖φ − μ_y‖² for every class: (B, d) and (C, d) give (B, C)."""
    energies = unit_energy(features[..., : means.shape[-1]].unsqueeze(-2), means)
    if features.shape[-1] == means.shape[-1]:
        return energies
    return energies + rest_energy(features, means).unsqueeze(-1)


def span_basis(means: Tensor) -> Tensor:
    """Orthonormal rows that span the differences of the means, (r, d) with r ≤ C − 1, in float64."""
    differences = means.double() - means.double().mean(0)
    _, sizes, directions = torch.linalg.svd(differences, full_matrices=False)
    return directions[sizes > 1e-6 * sizes[0]]


def split_energies(features: Tensor, means: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """½‖φ − μ_y‖² as the sum of a part inside the span of the means, (B, C), and the rest, (B,).

    The rest is the same for every class, so it does not affect p(y|x). Features beyond those of the means
    have mean 0.
    """
    features, basis, dim = full_precision(features), basis.to(means), means.shape[-1]
    centred = features[..., :dim] - means.mean(0)
    inside = centred @ basis.T
    rest = 0.5 * (centred - inside @ basis).square().sum(-1)
    if features.shape[-1] > dim:
        rest = rest + rest_energy(features, means)
    return unit_energies(inside, (means - means.mean(0)) @ basis.T), rest


def mahalanobis_logits(unit_energies: Tensor, gamma2: Tensor | float, priors: Tensor) -> Tensor:
    """logit_y = −‖φ − μ_y‖²/2γ² + log(C·π_y), so that E(x, y) = −logit_y  (Eq. 4).

    With the paper's uniform priors the last term is zero.
    """
    return -unit_energies / gamma2 + (priors * priors.numel()).log()


def energy(logits: Tensor, labels: Tensor) -> Tensor:
    """E(x, y) = −logit_y  (Eq. 4)."""
    return -logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def log_density(logits: Tensor) -> Tensor:
    """log p(x) + constant = −E(x) = logsumexp_y logit_y, never log(exp(·)); of the logits at γ = 1."""
    return logits.logsumexp(-1)


def guided_energy(logits: Tensor, labels: Tensor, gamma2: Tensor, guidance: Tensor) -> Tensor:
    """γ²·[E(x, y) − w·log p(y|x)]; of w = −1 that is γ²·E(x), without the class.

    As E(x) = E(x, y) + log p(y|x), it is −γ²·[(1 + w)·logit_y − w·logsumexp logit].
    """
    joint = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return -gamma2 * ((1 + guidance) * joint - guidance * log_density(logits))


def log_posterior(logits: Tensor) -> Tensor:
    """log p(y|x)  (Eq. 11)."""
    return logits.log_softmax(-1)


def log_odds(logits: Tensor) -> Tensor:
    """log p/(1 − p) of the most probable class: it orders images as max p(y|x) does and never saturates."""
    if logits.shape[-1] < 2:
        raise InputError(f"a posterior needs at least 2 classes, got {logits.shape[-1]}")
    first = logits.max(-1)
    others = logits.scatter(-1, first.indices.unsqueeze(-1), float("-inf"))
    return first.values - others.logsumexp(-1)


def estimate_gamma2(true_class_energies: Tensor, dim: int) -> float:
    """γ² = (1/dN) Σ_i ‖φ(x_i) − μ_{y_i}‖², from the unit energies ½‖φ(x_i) − μ_{y_i}‖²."""
    if true_class_energies.numel() == 0:
        raise InputError("gamma2 needs at least one energy, got none")
    return 2 * true_class_energies.double().mean().item() / dim


def labels_at(quantiles: Tensor, priors: Tensor) -> Tensor:
    """The class in which each quantile in [0, 1) falls: uniform quantiles give y′ ~ π."""
    edges = priors.double().cumsum(0)
    return torch.bucketize(quantiles.double(), edges[:-1], right=True)
