"""What an evaluation gives back, and the conditions under which it was measured."""

import platform
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from torch import nn

from gmmc import __version__


@dataclass(frozen=True)
class Result:
    """`values` are single numbers (proportions: fractions of 1), `curves` lists, `flags` doubts in words."""

    values: dict[str, float]
    conditions: dict[str, Any]
    curves: dict[str, list[float]] = field(default_factory=dict)
    pictures: dict[str, Image] = field(default_factory=dict)  # path in the run folder → picture
    flags: list[str] = field(default_factory=list)

    def entry(self) -> dict[str, Any]:
        """As results.json keeps it."""
        return {
            "values": self.values,
            "curves": self.curves,
            "files": sorted(self.pictures),
            "flags": self.flags,
            "conditions": self.conditions,
        }


def conditions(model: nn.Module, **settings: Any) -> dict[str, Any]:
    """What a number needs beside it to be a result."""
    parameter = next(model.parameters(), torch.empty(0))
    return {
        **settings,
        "precision": str(parameter.dtype).removeprefix("torch."),
        "hardware": _hardware(parameter.device),
        "torch": torch.__version__,
        "gmmc": __version__,
        "commit": _commit(),
    }


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        names = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        name = names[0] if names else name
    return f"{name}, {torch.get_num_threads()} threads"


def _commit() -> str:
    """The commit of the source this runs from; empty for an installed package."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if not git("ls-files", Path(__file__).name):
            return ""
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""
