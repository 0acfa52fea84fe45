"""`gmmc bench`."""

from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.text import print_line
from gmmc.cli.options import Device, Quiet

EXAMPLE = "gmmc bench --preset full --out runs/bench && gmmc report runs/bench"


def bench(
    preset: Annotated[
        str,
        typer.Option(
            help="default (WRN-28-10 and WRN-28-4, 3 minutes on an H200), full (widths 2, 4, 10 and batches "
            "64 to 512), cpu (small networks, a minute on a quiet machine) "
            "or auto: default on a GPU, else cpu."
        ),
    ] = "auto",
    out: Annotated[Path, typer.Option(help="The folder for results.json.")] = Path("runs/bench"),
    device: Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads, compared with one; default: one per core.", min=1, max=1024),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Measure the speed of sampling and training on this machine.

    Against a plain loop, written as public implementations are, in the same run; brackets hold the range. The
    matrix rate, that of one large matrix product, is about what the machine can do at best. On a CPU also
    which threads, layout and precision are best. Nothing else should be running.
    """
    from gmmc.bench.record import run_bench
    from gmmc.bench.summary import show

    show(run_bench(preset, out, device, threads))
    print()
    print_line(f"All of it: {out / 'results.json'}   to look at: gmmc report {out}")
