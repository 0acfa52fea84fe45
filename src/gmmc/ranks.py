"""Which of several processes this is, known before they are connected."""

import os

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


def is_leader() -> bool:
    """Whether this process is the one that writes and speaks."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)
