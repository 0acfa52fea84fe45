"""The three temperatures at which a posterior is looked at."""

from gmmc.data import Dataset
from gmmc.scores import GAMMA2_RANGE, Tempered, fit_gamma2, unit_energies

IN_WORDS = {"paper": "the paper's γ²", "unit": "γ = 1", "fitted": "the fitted γ²"}


def temperatures(network: Tempered, data: Dataset) -> dict[str, float]:
    """γ² by name: the paper's formula, γ = 1, and the least NLL on validation images, where there are any."""
    found = {} if network.paper is None else {"paper": network.paper}
    found["unit"] = 1.0
    if len(data.valid):
        found["fitted"] = fit_gamma2(network, unit_energies(network, data.valid.images), data.valid.labels)
    return found


def fitted_on(data: Dataset) -> str:
    """How the fitted one was found, for the conditions of a result."""
    if not len(data.valid):
        return "nothing: there are no validation images"
    return f"{len(data.valid)} validation images, by NLL, and one more image with every label at once"


def doubts_of_fit(found: dict[str, float]) -> list[str]:
    if "fitted" not in found:
        return ["no temperature is fitted: there are no validation images"]
    low, high = GAMMA2_RANGE
    if not 1.01 * low < found["fitted"] < 0.99 * high:
        return [f"the fit of γ² ran to the end of its range, {found['fitted']:.3g}: the logits say nothing"]
    return []
