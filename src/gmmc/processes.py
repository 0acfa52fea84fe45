"""On which devices, in which precision and in how many processes a training runs.

Several processes come from `train.devices` and `train.nodes` (this one starts the others) or from torchrun.
"""

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from gmmc.config import TrainConfig
from gmmc.engine import resolve_precision
from gmmc.errors import InputError
from gmmc.models import pick_device
from gmmc.ranks import expect_others, started_by_torchrun

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
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the processes to come: no stack traces
    if nodes > 1 and not started_by_torchrun():
        _check_meeting_point()
    if several and os.environ.get("LOCAL_RANK", "0") != "0" and not started_by_torchrun():
        end_with(os.getppid())
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # its advice and its banners
    if device.index is not None and devices > 1:
        raise InputError(f"train.device={cfg.device} is one device, got train.devices={devices}")
    _check_present(device.type, devices)
    return Fabric(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index] if device.index is not None else devices,
        num_nodes=nodes,
        strategy="ddp" if several else "auto",
        precision="bf16-mixed" if resolve_precision(cfg.precision, device) == "bf16" else "32-true",
    )


def end_with(parent: int) -> None:
    """Do not outlive the process that started this one, not even while waiting for it to connect."""

    def watch():
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def _check_meeting_point() -> None:
    """Machines must know each other."""
    if "SLURM_NTASKS" in os.environ:
        return
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        rule = (
            "train.nodes above 1 needs NODE_RANK, MASTER_ADDR and MASTER_PORT in each machine's environment"
        )
        raise InputError(f"{rule}, got no {', '.join(missing)}")


def _check_present(kind: str, devices: int) -> None:
    import torch

    if kind == "cuda" and devices > torch.cuda.device_count():
        raise InputError(f"train.devices must be at most {torch.cuda.device_count()} GPUs, got {devices}")
