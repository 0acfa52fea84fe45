"""Conditions of scores of generated images: protocols, chains, features, reference."""

from typing import Any

from gmmc.classifier.drawing import Drawer
from gmmc.classifier.model import Classifier
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.evaluations.buffer_images import KEPT, Buffer
from gmmc.evaluations.result import conditions
from gmmc.fid.features import FeatureNetwork
from gmmc.fid.similarity import DENSITY_NEIGHBOURS, KID_SIZE, KID_SUBSETS, PRECISION_NEIGHBOURS

OVERLAP_IMAGES = 10_000  # of each set: time grows with their square
KID_PROTOCOL = f"{KID_SUBSETS} subsets of at most {KID_SIZE:,} images"

SELECTION = {
    "fresh": "none: fresh chains",
    "start": "none: the images that the fresh chains start from, after 0 steps",
    "buffer": "none: the replay buffer as training left it",
    "paper": f"of the buffer, the most confident {KEPT:.0%} of each class that the model predicts",
    "test": "none: real test images",
}


def told(
    model: Classifier,
    drawer: Drawer,
    data: Dataset,
    cfg: EvaluateOptions,
    network: FeatureNetwork,
    counts: dict[str, int],
    buffer: Buffer | None,
) -> dict[str, Any]:
    reference = reference_of(data)
    if buffer:
        reference += f"; paper: with the {len(data.test):,} test images too"
    followed = {name: SELECTION["fresh"] for name in counts if name.startswith("steps_")}
    protocol = {
        "images": counts,
        "reference": reference,
        **told_of_features(network),
        "selection": {name: SELECTION[name] for name in SELECTION if name in counts} | followed,
        **told_of_chains(drawer, cfg),
        "kid": KID_PROTOCOL,
        "overlap": f"{PRECISION_NEIGHBOURS} neighbours (precision, recall), {DENSITY_NEIGHBOURS} (density, "
        f"coverage), at most {OVERLAP_IMAGES:,} images of each set",
        "intervals": "95%; KID: jackknife; shares: Wilson; none for FID and density",
        "seed": cfg.seed,
    }
    if not network.classes:
        protocol["inception_score"] = (
            "not measured: this feature network has no class head; the official one (--features) has"
        )
    if buffer:
        protocol["buffer"] = {"chains": len(buffer), "never_moved": buffer.untouched, "step": buffer.step}
    return conditions(model, **protocol)


def reference_of(data: Dataset) -> str:
    return f"{len(data.train) + len(data.valid):,} training and validation images"


def told_of_features(network: FeatureNetwork) -> dict[str, Any]:
    return {"features": network.name, "features_precision": "float32 without TF32", "pixels": "uint8"}


def told_of_chains(drawer: Drawer, cfg: EvaluateOptions) -> dict[str, Any]:
    return {
        "steps": drawer.settings.steps,
        "seeds": f"{cfg.seed}..{cfg.seed + cfg.generated - 1}",
        "start": f"{drawer.initial.name}, not the buffer",
        "labels": f"0..{drawer.classes - 1} in turn",
        **sampler_conditions(drawer),
    }


def sampler_conditions(drawer: Drawer) -> dict[str, Any]:
    """The sampler, its precision and the settings that matter most."""
    settings = drawer.sampler_settings()
    values = {"sampler": settings.pop("name"), "sampler_precision": drawer.precision}
    if "sigma_data" in settings:
        return values | settings
    return values | {"alpha": settings["alpha"], "max_step": settings["max_step"] or "no limit"}
