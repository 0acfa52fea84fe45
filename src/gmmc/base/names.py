"""Names that results.json, recipes and options use, and what people read for them."""

SCORES = {
    "log_density": "log p(x)",
    "span_density": "log p(x) in the span of the means",
    "residual": "−energy outside that span",
    "neighbours": "−distance to training features",
    "max_posterior": "max p(y|x)",
    "gradient_norm": "−‖∂ log p(x)/∂x‖",
    "force_size": "log density of ‖F‖",
    "denoising_error": "log density of ‖F − t‖",
    "combined": "combined p-values",
}
NOISE_SCORES = ("force_size", "denoising_error")  # those that need a model trained by denoising
# In a sentence, without the sign that makes a large score a familiar image.
SCORE_QUANTITIES = {
    "log_density": "log p(x)",
    "span_density": "log p(x) in the span of the means",
    "residual": "the energy outside the span",
    "neighbours": "the distance to training features",
    "max_posterior": "max p(y|x)",
    "gradient_norm": "the gradient norm",
    "force_size": "the density of ‖F‖",
    "denoising_error": "the density of the denoising error",
    "combined": "the combined p-values",
}
# Headings of narrow columns, in ASCII; `max_posterior` is thresholded by its log odds.
SHORT_SCORES = {
    "log_density": "log p(x)",
    "span_density": "log p(x) in span",
    "residual": "-energy outside span",
    "neighbours": "-distance",
    "max_posterior": "log odds",
    "gradient_norm": "-gradient norm",
    "force_size": "density of |F|",
    "denoising_error": "density of error",
    "combined": "sum of log p",
}

TEMPERATURES = {
    "fitted": "the fitted γ²",
    "unit": "γ = 1",
    "trained": "the γ² of training",
    "paper": "the paper's γ²",
    "given": "the given γ²",
}

PAPER_PGD, WORST_CASE = "paper_pgd", "worst_case"
AUTOATTACK, AUTOATTACK_SUBSET = "autoattack", "autoattack_parts"
AUTOATTACK_PARTS = {"apgd_ce": "APGD-CE", "apgd_t": "APGD-T", "fab_t": "FAB-T", "square": "Square"}
ATTACKS = {
    PAPER_PGD: "PGD-40 on cross-entropy, the paper’s γ²",
    "margin": "logit margin",
    "pull": "pull to each other mean",
    "temperatures": "cross-entropy, several temperatures",
    "features": "feature matching",
    "apgd_ce": "APGD on cross-entropy",
    "apgd_t": "then APGD, targeted",
    "fab_t": "then FAB, targeted",
    "square": "Square alone (black box)",
    AUTOATTACK: "AutoAttack, all parts",
    AUTOATTACK_SUBSET: "these parts, not all of AutoAttack",
    "transfer": "transfer from another model",
    "restarts": "restarts on what survived",
    WORST_CASE: "worst case of all that ran",
}
