"""Is a model right as often as it says it is? Expected calibration error (Eq. 12) at three temperatures."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc import core
from gmmc.base.names import TEMPERATURES
from gmmc.base.progress import Progress
from gmmc.base.seeds import generator
from gmmc.classifier.scores import logits_at, tempered, unit_energies
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations.result import Result, conditions
from gmmc.evaluations.temperatures import doubts_of_fit, fitted_on, temperatures, used

BINS = 20  # the paper's M
SIMULATIONS = 200
SATURATED = 0.25  # share of confidences that are exactly 1 from which the posterior says nothing


def evaluate(model: nn.Module, data: Dataset, cfg: EvaluateOptions) -> Result:
    network, labels = tempered(model), data.test.labels
    with Progress("calibration", len(labels)) as bar:
        energies = unit_energies(network, data.test.images, bar.update)
    found = temperatures(network, data)
    values, curves = {}, {}
    for name, gamma2 in found.items():
        logits = logits_at(network, energies, gamma2)
        measured, curves[name] = measure(logits, labels, cfg.seed)
        values |= {f"{name}/{key}": value for key, value in {"gamma2": gamma2, **measured}.items()}
    shown = used(network)
    return Result(
        values=values,
        curves=curves,
        flags=[*doubts_of_fit(found), *doubts(TEMPERATURES[shown], values[f"{shown}/saturated"])],
        conditions=conditions(
            model,
            split="test",
            images=len(labels),
            bins=f"{BINS} of equal width, the last one closed",
            default_temperature=TEMPERATURES[shown],
            fitted_on=fitted_on(network, data),
        ),
    )


def measure(logits: Tensor, labels: Tensor, seed: int) -> tuple[dict[str, float], dict[str, list]]:
    """The numbers of one temperature, and its reliability curve."""
    posterior = core.log_posterior(logits).exp()
    confidence, predicted = posterior.max(-1)
    correct = (predicted == labels).double()
    curve = reliability(confidence, correct, equal_bins(confidence))
    chance = errors_if_perfect(confidence, seed)
    values = {
        "ece": calibration_error(*curve),
        "ece_if_perfect": chance.mean().item(),
        "ece_if_perfect_95": chance.quantile(0.95).item(),
        "adaptive_ece": calibration_error(*reliability(confidence, correct, equal_shares(logits))),
        "nll": F.cross_entropy(logits, labels).item(),
        "brier": brier(posterior, labels),
        "saturated": (confidence.float() == 1).double().mean().item(),
    }
    sums, hits, counts = curve
    share = [None if n == 0 else n for n in counts.tolist()]
    return values, {
        "confidence": [n and total / n for total, n in zip(sums.tolist(), share, strict=True)],
        "accuracy": [n and total / n for total, n in zip(hits.tolist(), share, strict=True)],
        "count": [int(n) for n in counts.tolist()],
    }


def equal_bins(confidence: Tensor) -> Tensor:
    """The bin of each confidence: [0, 1/M), [1/M, 2/M), …, and the last one closed at 1."""
    return (confidence * BINS).long().clamp(max=BINS - 1)


def equal_shares(logits: Tensor) -> Tensor:
    """A bin for each twentieth of the images by confidence, or rather by log odds: these do not tie at 1.

    Images that tie all the same are in one bin; else the order of the data would decide.
    """
    odds = core.log_odds(logits)
    return torch.searchsorted(odds.sort().values, odds) * BINS // len(odds)


def reliability(confidence: Tensor, correct: Tensor, bins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per bin: the sum of confidences, the number of correct predictions, the number of images."""
    return (
        torch.bincount(bins, confidence, minlength=BINS),
        torch.bincount(bins, correct, minlength=BINS),
        torch.bincount(bins, minlength=BINS),
    )


def calibration_error(confidence: Tensor, correct: Tensor, count: Tensor) -> float:
    """ECE = Σ_m |B_m|/n · |acc(B_m) − conf(B_m)|  (Eq. 12), from the sums over each bin."""
    return ((correct - confidence).abs().sum() / count.sum()).item()


def errors_if_perfect(confidence: Tensor, seed: int) -> Tensor:
    """ECEs of a model that is right exactly as often as it says: chance alone on so few images."""
    source, bins = generator(seed, "perfect calibration"), equal_bins(confidence)
    sums, _, count = reliability(confidence, confidence, bins)
    errors = []
    for _ in range(SIMULATIONS):
        lucky = (torch.rand(len(confidence), generator=source, dtype=torch.float64) < confidence).double()
        errors.append(calibration_error(sums, torch.bincount(bins, lucky, minlength=BINS), count))
    return torch.tensor(errors, dtype=torch.float64)


def brier(posterior: Tensor, labels: Tensor) -> float:
    """Mean squared distance of p(·|x) from the truth."""
    truth = F.one_hot(labels, posterior.shape[-1])
    return (posterior - truth).square().sum(-1).mean().item()


def doubts(temperature: str, saturated: float) -> list[str]:
    if saturated < SATURATED:
        return []
    return [
        f"saturated with {temperature}: {saturated:.0%} of the confidences are exactly 1 in single "
        "precision, and say nothing about which of these images are wrong"
    ]
