"""`gmmc bench`: measure, and keep what is known so far in results.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gmmc.bench.cells import choose_preset
from gmmc.bench.run import measure_all
from gmmc.classifier.model import pick_device
from gmmc.errors import InputError
from gmmc.evaluations.result import Result
from gmmc.networks import threads
from gmmc.runs.results import change_results, check_keeps_results


def run_bench(preset: str, out: Path, device: str, count: int | None = None) -> Result:
    """Measure speed on this machine. All that is known so far is in results.json after every part.

    Unless there is a complete measurement already: that is replaced only by another. `count`: the most
    threads that are tried; None: as many as torch has.
    """
    if out == Path():
        raise InputError("--out must be a folder of its own, got the current one")
    place = pick_device("cpu" if preset == "cpu" and device == "auto" else device)
    chosen = choose_preset(preset, place.type)
    check_keeps_results(out, "--out")
    result = None
    with threads.using(count or torch.get_num_threads()):
        for result in measure_all(chosen, place):
            keep_bench(out, result)
    assert result is not None  # there is always the matrix product
    return result


def keep_bench(out: Path, result: Result) -> None:
    def changed(results: dict[str, Any]) -> dict[str, Any]:
        complete_before = "bench" in results and not is_incomplete(results["bench"].get("flags", []))
        if complete_before and is_incomplete(result.flags):
            return results
        return results | {"bench": result.entry()}

    change_results(out, changed)


def is_incomplete(flags: Sequence[Any]) -> bool:
    return any(str(flag).startswith("incomplete") for flag in flags)
