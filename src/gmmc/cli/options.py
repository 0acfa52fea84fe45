"""Arguments and options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

from gmmc.base import progress
from gmmc.base.names import SCORES
from gmmc.runs import shipped
from gmmc.runs.layout import CONFIG


def complete_run(incomplete: str) -> list[str]:
    """Shipped models and run folders in runs/, for a shell; it completes other paths itself."""
    places = sorted(str(file.parent) for file in Path("runs").glob(f"*/{CONFIG}"))
    return [name for name in [*shipped.names(), *places] if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Shipped recipes, for a shell; it completes other paths itself."""
    from gmmc.config.recipes import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(incomplete)]


OR_SHIPPED = shipped.listed(", or a model that ships with gmmc")
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help=f"A run folder or a model.safetensors file{OR_SHIPPED}.",
        autocompletion=complete_run,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help="CPU threads; default: the recipe's train.threads, or if that is 0, one for a small network and "
        "one per core for others.",
        min=1,
        max=1024,
    ),
]


def show_no_progress(quiet: bool) -> bool:
    progress.set_quiet(quiet)
    return quiet


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", help="Show no progress. Results, warnings and errors stay.", callback=show_no_progress
    ),
]


Score = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(SCORES)} or auto; default: the model's own."),
]
Tpr = Annotated[
    float | None,
    typer.Option(help="Share of images like the training images to accept; default: the model's own."),
]
