"""On which devices, in which precision and in how many processes a training runs.

Several processes come from `train.devices` and `train.nodes` (this one starts the others) or from torchrun.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmmc.base.leader import PARENT, expect_others, started_by_torchrun
from gmmc.classifier.model import pick_device
from gmmc.config.sections import TrainConfig
from gmmc.errors import InputError, end_at_once
from gmmc.sampling.engine import resolve_precision

if TYPE_CHECKING:
    from lightning_fabric import Fabric

GRACE = 5.0  # seconds in which the loss of a process may reach the training as an error of its own


def build_fabric(cfg: TrainConfig) -> "Fabric":
    """Not launched yet: with several processes, `start_others` starts them."""
    from lightning_fabric import Fabric  # takes seconds: only training pays for it

    device = pick_device(cfg.device)
    devices, nodes = _layout(cfg)
    several = devices * nodes > 1 or started_by_torchrun()
    if several:
        expect_others()
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of the processes to come: no stack traces
    if nodes > 1 and not started_by_torchrun():
        _check_meeting_point()
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


def start_others(fabric: "Fabric") -> None:
    """Start the further processes of this machine, unless torchrun or a scheduler does.

    Fabric would do it, too, but it kills this process without a word when one of them is lost, and it does
    not end them when this one is killed.
    """
    strategy: Any = fabric.strategy
    environment = strategy.cluster_environment
    if environment.creates_processes_externally:
        return
    # With LOCAL_RANK in the environment, Fabric starts no processes.
    os.environ |= {
        "MASTER_ADDR": environment.main_address,
        "MASTER_PORT": str(environment.main_port),
        "NODE_RANK": str(environment.node_rank()),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(fabric.world_size),
    }
    ours = os.environ | {PARENT: str(os.getpid())}
    others = [
        subprocess.Popen(_own_command(), env=ours | {"LOCAL_RANK": str(rank)})
        for rank in range(1, strategy.num_processes)
    ]
    threading.Thread(target=_end_with, args=[others], daemon=True).start()


def _own_command() -> list[str]:
    """The command that this process was started with."""
    import __main__

    if __main__.__spec__ is None:
        return [sys.executable, str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
    return [sys.executable, "-m", __main__.__spec__.name, *sys.argv[1:]]


def _end_with(others: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End this process when one of the others fails: it may be waiting for it, and would do so for ever."""
    while not any(process.poll() for process in others):
        if all(process.returncode == 0 for process in others):
            return
        time.sleep(0.5)
    time.sleep(GRACE)
    if not threading.main_thread().is_alive():  # this process is ending with a line of its own
        return
    rank, status = next((rank, p.returncode) for rank, p in enumerate(others, 1) if p.returncode)
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    state = "the last saved state is intact, run the same command to go on"
    end_at_once(f"process {rank} of this training {how}; {state}", 1)


def disconnect() -> None:
    """Leave the process group, before Python ends.

    A thread of gloo may hold the last reference to a tensor: released after Python's end, it aborts this
    process. Fabric leaves the group for NCCL only.
    """
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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
