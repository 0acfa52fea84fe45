"""The temperatures at which a posterior is measured: fitted, of training, the paper's, and given."""

from gmmc.classifier.scores import GAMMA2_RANGE, Tempered, fit_gamma2, unit_energies
from gmmc.data.splits import Dataset


def temperatures(network: Tempered, data: Dataset) -> dict[str, float]:
    """γ² by name: least NLL on validation images; that of training; the paper's formula; one given to `at`.

    That of training is 1, named "unit", or of a noise-conditional model "trained", σ/σ_d.

    The fitted γ² of a calibrated model is its own; for other networks it is fitted here.
    """
    fitted = network.fitted
    if fitted is None and len(data.valid):
        fitted = fit_gamma2(network, unit_energies(network, data.valid.images), data.valid.labels)
    found = {"fitted": fitted, network.density_name: network.density_gamma2, "paper": network.paper}
    if used(network) == "given":
        found["given"] = network.gamma2
    return {name: gamma2 for name, gamma2 in found.items() if gamma2 is not None}


def used(network: Tempered) -> str:
    """Name of the temperature of the logits that users get."""
    named = {
        "fitted": network.fitted,
        "paper": network.paper,
        network.density_name: network.density_gamma2,
    }
    return next((name for name, gamma2 in named.items() if gamma2 == network.gamma2), "given")


def fitted_on(network: Tempered, data: Dataset) -> str:
    """How the fitted γ² was found, for the conditions of a result."""
    if network.fitted is not None:
        return "calibration images of the model"
    if len(data.valid):
        return f"{len(data.valid)} validation images, by NLL, and one more image with every label at once"
    return "nothing: there are no validation images"


def doubts_of_fit(found: dict[str, float]) -> list[str]:
    if "fitted" not in found:
        return ["no temperature is fitted: there are no validation images"]
    low, high = GAMMA2_RANGE
    if not 1.01 * low < found["fitted"] < 0.99 * high:
        return [f"the fit of γ² ran to the end of its range, {found['fitted']:.3g}: the logits say nothing"]
    return []
