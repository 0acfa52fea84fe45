"""95% intervals: what another draw of as many images might have given."""

import math

import numpy as np

Z = 1.959964  # of the normal law, 95%


def of_proportion(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval. A bootstrap of images that are all classified correctly would claim certainty."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = hits / count, Z * Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def of_replicates(replicates: np.ndarray) -> tuple[float, float] | None:
    """The middle 95% of bootstrap replicates; None where these are all the same and know no doubt."""
    low, high = np.quantile(replicates, [0.025, 0.975])
    return (float(low), float(high)) if low < high else None
