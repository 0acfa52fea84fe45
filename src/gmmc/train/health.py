"""Is this training well? What the updates did, in numbers, and the verdict on them.

Divergence is usually finite: energies reach 10²⁰ before any NaN. And a bound can hide it: accuracy is fine
while most chains sit at the bound and samples are ruined. So the guard looks at the energies of real images,
at how hard samples push, at the share of settled chains at the bound, and at non-finite values. All is summed
on the device and read once per line.
"""

import math
from typing import Any

import torch
from torch import Tensor

from gmmc.config.schema import Config

SETTLED_STEPS = 50


class Meter:
    """Sums over the updates since the last line, kept on the device: nothing waits for them."""

    def __init__(self, device: torch.device):
        self.sums = torch.zeros(10, dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(
        self,
        real: Tensor,
        contrast: Tensor | None,
        sampled: Tensor | None,
        correct: Tensor,
        grad_norm: Tensor,
        *,
        limit: float,
    ) -> None:
        """`limit`: beyond it a sampled image pushes no harder."""
        zero = self.sums.new_zeros(())
        self.sums += torch.stack(
            [
                real.double().sum(),
                correct.double().sum(),
                zero + len(real),
                zero if sampled is None else sampled.double().sum(),
                zero if sampled is None else sampled.double().clamp(max=limit).sum(),
                zero if sampled is None else zero + len(sampled),
                grad_norm.double(),
                zero + 1,
                zero if contrast is None else contrast.double().sum(),
                zero if contrast is None else zero + len(contrast),
            ]
        )

    def restore(self, sums: Tensor) -> None:
        """Older states hold the first 8 sums, without those of contrast images."""
        self.reset()
        self.sums[: len(sums)] = sums

    def reset(self) -> None:
        self.sums.zero_()


def summary(sums: list[float], census: list[float], cfg: Config, beta: float) -> dict[str, float]:
    """The means behind a Meter's sums and a buffer's census, both of all processes; for metrics.jsonl."""
    real, correct, count, sampled, pushing, sampled_count, grad_norm, updates, contrast, contrast_count = sums
    line: dict[str, float] = {}
    if count:
        line |= {"real_energy": real / count, "accuracy": correct / count, "grad_norm": grad_norm / updates}
    if not sampled_count:
        return line
    if contrast_count:
        line["contrast_energy"] = contrast / contrast_count
    line["sampled_energy"] = sampled / sampled_count
    pulled = line.get("contrast_energy", line["real_energy"])
    if anchored(cfg) and pulled > 0:
        line["force_ratio"] = force_ratio(pulled, pushing / sampled_count, beta, cfg)
    visits, chains, settled, bounded = census
    line["chain_age"] = visits / chains * cfg.sampler.steps
    if settled >= cfg.train.batch_size:  # of fewer a share says little
        line["bounded"] = bounded / settled
    return line


def force_ratio(pulled: float, pushing: float, beta: float, cfg: Config) -> float:
    """R = β√(Ē′/Ē): how hard samples push φ, relative to how hard real images pull it.

    Ē is of the images that samples are balanced against: contrast images, or real ones where there are none.
    Under a cap E′ counts up to the cap. The balanced objective weighs both with β, and its anchor pulls too,
    counted as if it were on the same images.
    """
    pull = beta + cfg.objective.anchor if cfg.objective.name == "balanced" else 1.0
    ratio = pushing / pulled
    return beta / pull * math.sqrt(max(ratio, 0.0)) if math.isfinite(ratio) else math.inf


def settled_after(cfg: Config) -> int:
    """Visits after which the sampler has had its chance with a chain: 50 steps, or a chain's mean life."""
    life = 1 / cfg.buffer.reinit if cfg.buffer.reinit else math.inf
    return math.ceil(min(SETTLED_STEPS / cfg.sampler.steps, life))


def anchored(cfg: Config) -> bool:
    """Whether real energies are pulled to zero; else only their difference to sampled ones has a meaning."""
    if cfg.model.head == "linear":
        return False
    return cfg.objective.name != "balanced" or cfg.objective.anchor > 0


def bound(cfg: Config) -> float:
    """The energy at which a chain counts as bounded: the cap; without one S², far beyond all classes."""
    if cfg.objective.shape == "cap":
        return cfg.objective.bound
    return cfg.model.scale**2 if anchored(cfg) else math.inf


def trouble(line: dict[str, Any], cfg: Config) -> str | None:
    """Why this is divergence, in a few words; None while all is well."""
    watched = ("real_energy", "contrast_energy", "sampled_energy", "grad_norm", "weight_norm")
    broken = [name for name in watched if not math.isfinite(line.get(name, 0.0))]
    if broken:
        return f"{broken[0].replace('_', ' ')} is not finite"
    if not cfg.guard.on:
        return None
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
