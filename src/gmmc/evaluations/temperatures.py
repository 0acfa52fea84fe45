"""The three temperatures at which a posterior is looked at."""

from gmmc.data import Dataset
from gmmc.scores import Tempered, fit_gamma2, raw_of

IN_WORDS = {"paper": "the paper's γ²", "unit": "γ = 1", "fitted": "the fitted γ²"}


def temperatures(network: Tempered, data: Dataset) -> dict[str, float]:
    """γ² by name: the paper's formula, γ = 1, and the least NLL on validation images, where there are any."""
    found = {} if network.paper is None else {"paper": network.paper}
    found["unit"] = 1.0
    if len(data.valid):
        found["fitted"] = fit_gamma2(network, raw_of(network, data.valid.images), data.valid.labels)
    return found
