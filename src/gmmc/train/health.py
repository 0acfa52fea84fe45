"""Health of a training by Algorithm 1: its line of metrics, and the verdict on it.

Divergence is usually finite: energies reach 10²⁰ before any NaN. And a bound can hide it: accuracy is fine
while most chains sit at the bound and samples are ruined. So the guard looks at the energies of real images,
at how hard samples push and at the share of settled chains at the bound.
"""

import math
from collections.abc import Mapping
from typing import Any

from gmmc.config.schema import Config
from gmmc.networks.heads import HEADS
from gmmc.train.objectives import OBJECTIVES, SHAPES

SETTLED_STEPS = 50


def summary(means: dict[str, float], census: list[float], cfg: Config, beta: float) -> dict[str, float]:
    """A line of metrics from the means of the measures and a buffer's census, both of all processes."""
    line = {name: means[name] for name in ("real_energy", "accuracy", "grad_norm") if name in means}
    if "sampled_energy" not in means:
        return line
    if "contrast_energy" in means:
        line["contrast_energy"] = means["contrast_energy"]
    line["sampled_energy"] = means["sampled_energy"]
    pulled = line.get("contrast_energy", line["real_energy"])
    if anchored(cfg) and pulled > 0:
        line["force_ratio"] = force_ratio(pulled, means["pushing_energy"], beta, cfg)
    visits, chains, settled, bounded = census
    line["chain_age"] = visits / chains * cfg.sampler.steps
    if settled >= cfg.train.batch_size:  # of fewer a share says little
        line["bounded"] = bounded / settled
    return line


def force_ratio(pulled: float, pushing: float, beta: float, cfg: Config) -> float:
    """R = β√(Ē′/Ē): how hard samples push φ, relative to how hard real images pull it.

    Ē is of the images that samples are balanced against: contrast images, or real ones where there are none.
    Under a cap E′ counts up to the cap. An anchor pulls too, counted as if it were on the same images.
    """
    pull = OBJECTIVES[cfg.objective.name].pull(cfg.objective, beta)
    ratio = pushing / pulled
    return beta / pull * math.sqrt(max(ratio, 0.0)) if math.isfinite(ratio) else math.inf


def settled_after(cfg: Config) -> int:
    """Visits after which the sampler has had its chance with a chain: 50 steps, or a chain's mean life."""
    life = 1 / cfg.buffer.reinit if cfg.buffer.reinit else math.inf
    return math.ceil(min(SETTLED_STEPS / cfg.sampler.steps, life))


def anchored(cfg: Config) -> bool:
    """Whether real energies are pulled to zero; else only their difference to sampled ones has a meaning."""
    pull = OBJECTIVES[cfg.objective.name].pull(cfg.objective, 0.0)
    return HEADS[cfg.model.head].has_means and pull > 0


def bound(cfg: Config) -> float:
    """The energy at which a chain counts as bounded: the cap; without one S², far beyond all classes."""
    if SHAPES[cfg.objective.shape].caps:
        return cfg.objective.bound
    return cfg.model.scale**2 if anchored(cfg) else math.inf


def trouble(line: Mapping[str, Any], cfg: Config) -> str | None:
    """Why this is divergence, in a few words; None while all is well."""
    real, sampled = line.get("real_energy", 0.0), line.get("sampled_energy", 0.0)
    limit = cfg.guard.energy * cfg.model.scale**2
    if not anchored(cfg):
        if "sampled_energy" in line and abs(real - sampled) > limit:
            return f"real and sampled energies are {abs(real - sampled):.3g} apart, more than {limit:g}"
    elif real > limit:
        return f"the mean energy of real images is {real:.3g}, above {limit:g}"
    # Before there are settled chains most are fresh from noise, and far.
    most = cfg.guard.force * (1 if "bounded" in line else 10)
    if line.get("force_ratio", 0.0) > most:
        return (
            f"sampled images push {line['force_ratio']:.3g} times as hard as real ones pull, above {most:g}"
        )
    if line.get("bounded", 0.0) > cfg.guard.bounded:
        return f"{line['bounded']:.0%} of the chains have energies of {bound(cfg):g} and more"
    return None
