"""On which devices, in which precision and in how many processes a training runs.

Several processes come from `train.devices` and `train.nodes` (this one starts the others) or from torchrun.
"""

import logging
import os
import warnings
from typing import TYPE_CHECKING

from gmmc.config import TrainConfig
from gmmc.errors import InputError
from gmmc.models import pick_device
from gmmc.ranks import expect_others

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def build_fabric(cfg: TrainConfig) -> "Fabric":
    """Not launched yet: with several processes, `launch` starts them."""
    from lightning_fabric import Fabric  # takes seconds: only training pays for it

    device = pick_device(cfg.device)
    devices, nodes = _layout(cfg)
    several = devices * nodes > 1 or started_by_torchrun()
    if several:
        expect_others()
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its advice and its banners
    # Of a convolution with one input channel; a copy of a few numbers.
    warnings.filterwarnings("ignore", message="(?s)Grad strides do not match bucket view strides")
    if device.index is not None and devices > 1:
        raise InputError(f"train.device={cfg.device} is one device, got train.devices={devices}")
    _check_present(device.type, devices)
    return Fabric(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index] if device.index is not None else devices,
        num_nodes=nodes,
        strategy="ddp" if several else "auto",
        precision="bf16-mixed" if cfg.precision == "bf16" else "32-true",
    )


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def world_size(cfg: TrainConfig) -> int:
    devices, nodes = _layout(cfg)
    return devices * nodes


def _layout(cfg: TrainConfig) -> tuple[int, int]:
    """(processes per machine, machines)."""
    if not started_by_torchrun():
        return cfg.devices, cfg.nodes
    here, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    asked = cfg.devices * cfg.nodes
    if asked not in (1, world):
        raise InputError(f"torchrun started {world} processes, got train.devices × train.nodes = {asked}")
    return here, world // here


def _check_present(kind: str, devices: int) -> None:
    import torch

    if kind == "cuda" and devices > torch.cuda.device_count():
        raise InputError(f"train.devices must be at most {torch.cuda.device_count()} GPUs, got {devices}")
