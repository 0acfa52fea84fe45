"""Training: the loop, Algorithm 1, and what keeps a training healthy, resumable and distributed."""

from gmmc.train.loop import train

__all__ = ["train"]
