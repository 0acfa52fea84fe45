"""What a reader of generation scores should doubt."""

import itertools

from gmmc.classifier.drawing import Drawer
from gmmc.classifier.model import Classifier
from gmmc.data.splits import Dataset
from gmmc.evaluations.buffer_images import Buffer
from gmmc.fid.features import FeatureNetwork

# FID falls with the number of images by about its dimension over that number: the usual 50,000 for Inception.
ENOUGH = 24  # images per feature
MUCH_WORSE = 1.25  # times the FID
WORSE = 1.05
CLOSER = 0.02  # share of samples; 1% is chance

Values = dict[str, float]


def doubts(
    values: Values,
    ranges: dict[str, tuple[float, float]],
    counts: dict[str, int],
    network: FeatureNetwork,
    model: Classifier,
    drawer: Drawer,
    data: Dataset,
    buffer: Buffer | None,
) -> list[str]:
    flags = []
    if network.doubt:
        flags.append(f"not comparable with published FIDs: {network.doubt}")
    if model.trained.get("data_sha256", data.fingerprint) != data.fingerprint:
        seen = len(data.train) + len(data.valid)
        flags.append(
            f"not measured by the data that the model was trained on, or by a part of them: FID and KID are "
            f"distances to these {seen:,} images, and memorisation is looked for "
            f"among {len(data.train):,} of them only"
        )
    flags += doubts_of_counts(counts, network.dim)
    flags += doubts_of_chains(values, ranges, drawer.settings.steps)
    if buffer:
        flags += doubts_of_buffer(buffer, model.trained.get("updates"))
    if drawer.precision != "fp32":
        flags.append(f"the chains were drawn in {drawer.precision}")
    return flags + doubts_of_memorisation(values, ranges, len(data.test))


def doubts_of_counts(counts: dict[str, int], dim: int) -> list[str]:
    few = {name: count for name, count in counts.items() if count <= dim}
    fewer = {name: count for name, count in counts.items() if dim < count < ENOUGH * dim and name != "test"}
    flags = []
    if few:
        flags.append(
            f"too few images for the covariance of {dim:,} features, FID is far too high: {_listed(few)}"
        )
    if fewer:
        flags.append(
            f"FID falls as images become more, compare equal numbers only (with Inception, 10,000 images are "
            f"a point or two above 50,000): {_listed(fewer)}"
        )
    return flags


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def doubts_of_chains(values: Values, ranges: dict[str, tuple[float, float]], steps: int) -> list[str]:
    """FID depends on the number of images: KID, which does not, must say the same beyond its interval."""

    def worse(one: str, other: str) -> bool:
        return ranges[f"{one}/kid"][0] > ranges[f"{other}/kid"][1]

    flags = []
    fresh, buffer = values["fresh/fid"], values.get("buffer/fid")
    if buffer is not None and fresh > MUCH_WORSE * buffer and worse("fresh", "buffer"):
        flags.append(
            f"fresh chains are much worse than the buffer (FID {fresh:.3g} against {buffer:.3g}): "
            f"perhaps {steps} steps are too few"
        )
    start = values.get("start/fid")
    if start is not None and not worse("start", "fresh"):
        flags.append(
            f"the chains do not improve on their start by KID (FID {start:.3g} before the first step, "
            f"{fresh:.3g} after {steps})"
        )
    followed = sorted(
        (int(name[len("steps_") : -len("/fid")]), value)
        for name, value in values.items()
        if name.startswith("steps_") and name.endswith("/fid")
    )
    for (before, fid), (after, later) in itertools.pairwise(followed):
        if later > WORSE * fid and worse(f"steps_{after}", f"steps_{before}"):
            flags.append(f"more steps make it worse: FID {fid:.3g} after {before}, {later:.3g} after {after}")
    return flags


def doubts_of_buffer(buffer: Buffer, updates: int | None) -> list[str]:
    flags = []
    if buffer.untouched > 0.01 * len(buffer):
        flags.append(f"buffer: {buffer.untouched:,} of {len(buffer):,} chains were never moved")
    if updates is not None and buffer.step != updates:
        flags.append(f"the buffer is that of update {buffer.step:,}, the model that of {updates:,}")
    return flags


def doubts_of_memorisation(values: Values, ranges: dict[str, tuple[float, float]], test: int) -> list[str]:
    flags = []
    if test < 100:
        flags.append(f"memorisation: 1% of {test} test images is less than one of them")
    if ranges["memorisation/closer_share"][0] > CLOSER:
        share = values["memorisation/closer_share"]
        flags.append(
            f"{share:.1%} of the samples are nearer to a training image than all but 1% of the test images: "
            "copies, or prototypes; see generation/nearest.png"
        )
    return flags
