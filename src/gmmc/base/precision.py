"""Enough digits, where a number is to be compared with others."""

import functools
import os
import signal
import subprocess
import sys
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


@functools.cache
def cpu_traps_bf16() -> bool:
    """Whether a bf16 product ends the process on this CPU; a process of its own tries one.

    Some virtual machines report AMX, which oneDNN then uses, but trap its instructions. Nothing is tried
    where ONEDNN_MAX_CPU_ISA limits oneDNN.
    """
    if "ONEDNN_MAX_CPU_ISA" in os.environ or not torch.cpu._is_amx_tile_supported():
        return False
    product = "import torch; torch.nn.functional.linear(*torch.ones(2, 64, 64, dtype=torch.bfloat16))"
    # -P: no torch.py of the current folder
    tried = subprocess.run([sys.executable, "-P", "-c", product], capture_output=True)
    return tried.returncode == -signal.SIGILL


def full_precision(x: Tensor) -> Tensor:
    """Half-precision squares lose a tenth of a small energy; float64 is kept (gradient checks, vectors)."""
    return x if x.dtype == torch.float64 else x.float()
