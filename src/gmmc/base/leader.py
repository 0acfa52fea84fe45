"""Which of several processes this is, known before they are connected."""

import os
import threading
import time

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
PARENT = "GMMC_PARENT"  # in the environment of a process that a training starts: the id of the starter
_several = False  # a rank in the environment of a single process says nothing: it may be an array of jobs


def expect_others() -> None:
    """This training has several processes."""
    global _several
    _several = True


def is_leader() -> bool:
    """Whether this process is the one that writes and speaks."""
    several = _several or started_by_torchrun()
    return not several or all(os.environ.get(name, "0") == "0" for name in RANKS)


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def end_with_parent() -> None:
    """End this process as soon as the training that started it is gone.

    Called before anything heavy is imported: the starter may be killed at any moment, also before this one.
    """
    parent = os.environ.pop(PARENT, None)  # not for processes that this one starts

    def watch() -> None:
        while str(os.getppid()) == parent:
            time.sleep(0.5)
        os._exit(1)

    if parent is None:
        return
    if str(os.getppid()) != parent:
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()
