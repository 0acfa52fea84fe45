"""Randomness as a function of names: what is drawn at step 512 does not depend on what was drawn before it.

So a resumed run needs no saved generator states, and cannot drift from an uninterrupted one.
"""

import hashlib

import torch


def derived_seed(*key: int | str) -> int:
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # torch takes a signed 64-bit seed


def generator(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator for one purpose, e.g. generator(seed, 'chains', step)."""
    return torch.Generator(device).manual_seed(derived_seed(*key))
