"""Where a number comes from: the code and the machine."""

import functools
import platform
import subprocess
from pathlib import Path

import torch


@functools.cache
def commit() -> str:
    """The commit of the source this runs from, marked where it was changed since; empty when installed."""
    package = Path(__file__).parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "__init__.py"):
            return ""
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = models[0].split(":", 1)[1].strip() if models else name
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def precision(parameter: torch.Tensor) -> str:
    name = str(parameter.dtype).removeprefix("torch.")
    rounded = parameter.device.type == "cuda" and torch.backends.cudnn.allow_tf32 and name == "float32"
    return f"{name}, convolutions in TF32" if rounded else name
