"""Enough digits, where a number is to be compared with others."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and products without TF32, and of the algorithms those that repeat themselves."""
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = False, False, True, False
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before


def full_precision(x: Tensor) -> Tensor:
    """Half-precision squares lose a tenth of a small energy; float64 is kept (gradient checks, vectors)."""
    return x if x.dtype == torch.float64 else x.float()
