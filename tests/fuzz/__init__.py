"""Fuzzing: hostile input for every surface of gmmc, in cases that are named `surface/seed`.

A case is a function of its name. `python -m fuzz` runs thousands, each in a process of its own with bounded
memory and time. `tests/test_fuzz.py` runs the first cases of each surface in one process.
"""
