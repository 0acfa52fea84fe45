"""Which of several processes this is, known before they are connected."""

import os

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
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
