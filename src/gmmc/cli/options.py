"""Arguments and options that several commands take, or that are long to tell."""

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

# Of `gmmc evaluate`.
Ood = Annotated[
    list[str] | None,
    typer.Option(
        help="ood: a set of other images: noise, constant, interp, inverted, rotated, cutout, a named set, a "
        "folder or a parquet file; repeat for several. Default: the recipe's."
    ),
]
Attacks = Annotated[
    str | None,
    typer.Option(help="robustness: quick (100 images) or full (1,000 images, all of AutoAttack)."),
]
Attacked = Annotated[
    int | None,
    typer.Option(help="robustness, autoattack: test images to attack; default: the preset's, 256.", min=1),
]
Surrogate = Annotated[
    str | None, typer.Option(help="robustness: a run whose adversarial images are tried too.")
]
Features = Annotated[
    str | None,
    typer.Option(
        help="generation, validation: inception, small (a CNN trained here) or a TorchScript file; "
        "default: inception for colour images from 32 pixels, else small."
    ),
]
Generated = Annotated[
    int | None,
    typer.Option(help="generation, validation: fresh chains for FID; default: the recipe's.", min=2),
]

# Of `gmmc sample`.
Number = Annotated[int, typer.Option("--number", "-n", help="How many images.", min=1, max=10_000_000)]
Label = Annotated[
    list[str] | None,
    typer.Option(help="A class, by name or index; repeat for several. Default: drawn from the priors."),
]
Steps = Annotated[
    int | None, typer.Option(help="Sampler steps; default: the model's own.", min=1, max=1_000_000)
]
DrawnOut = Annotated[
    Path | None,
    typer.Option(
        help="A folder, or a file that ends in .npz or .parquet; default: samples/ in the run, or in "
        "runs/NAME for a shipped model."
    ),
]

# Of `gmmc predict`.
Resize = Annotated[
    bool | None,
    typer.Option(
        "--resize/--no-resize",
        help="Crop and resize images of another size, or refuse them. Default: as was done with the "
        "training images (data.size); with a model that ships with gmmc, resize.",
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

# Of `gmmc export`.
Place = Annotated[
    Path, typer.Argument(metavar="PLACE", help="A file that ends in .onnx, or a folder to write.")
]
Opset = Annotated[
    int | None, typer.Option(help="Of the .onnx file, for a runtime that needs another than 20.")
]
