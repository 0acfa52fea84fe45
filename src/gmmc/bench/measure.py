"""How long a call takes on a device, and how much arithmetic that is."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gmmc.sampling.engine import resolve_precision

BLOCKS = 5
FEW_BLOCKS = 3  # of calls that take long on a CPU


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the median over blocks of calls, and their range."""

    median: float
    low: float
    high: float

    def per(self, parts: int) -> "Timing":
        """Of one of the equal parts that a call consists of."""
        return Timing(self.median / parts, self.low / parts, self.high / parts)


def time_calls(
    call: Callable[[], object], device: torch.device, *, warmup: int, seconds: float, blocks: int = BLOCKS
) -> Timing:
    """After the warm-up, `blocks` blocks of calls that take about `seconds` together.

    The device is waited for only between blocks, so that calls may overlap as they do in use.
    """
    for _ in range(warmup):
        call()
    once = _block(call, 1, device)
    if device.type == "cpu" and once * blocks > 2 * seconds:
        blocks = min(blocks, FEW_BLOCKS)
    calls = max(1, round(seconds / blocks / max(once, 1e-7)))
    found = [_block(call, calls, device) / calls for _ in range(blocks)]
    return Timing(statistics.median(found), min(found), max(found))


def _block(call: Callable[[], object], calls: int, device: torch.device) -> float:
    synchronise(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronise(device)
    return time.perf_counter() - start


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- memory ---------------------------------------------------------------------------------------


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float | None:
    """Gigabytes (10⁹ bytes) taken at once since the peak was forgotten; of a GPU only.

    Taken, not filled: what a CUDA graph keeps for itself counts too.
    """
    return torch.cuda.max_memory_reserved(device) / 1e9 if device.type == "cuda" else None


# --- arithmetic -----------------------------------------------------------------------------------


def matmul_rate(device: torch.device, size: int, *, seconds: float) -> float:
    """TFLOP/s of a large matrix product, in bf16 where that is built in. What the device can do at best."""
    dtype = torch.bfloat16 if resolve_precision("auto", device) == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    timing = time_calls(lambda: a @ b, device, warmup=3, seconds=seconds)
    return 2 * size**3 / timing.median / 1e12


def flops(phase: str, macs: int, batch: int, steps: int) -> float:
    """Of one sampling step, or of one iteration with `steps` of them.

    A multiplication with an addition is 2. A step goes forward and back to the image, 2 + 2; an update also
    back to the weights, 2 + 2 + 2, and a generative one does so for real and for sampled images.
    """
    per_mac = {"sampling": 4, "generative": 4 * steps + 2 * 6, "discriminative": 6}
    return float(per_mac[phase] * macs * batch)
