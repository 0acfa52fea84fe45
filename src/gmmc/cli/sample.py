"""`gmmc sample`."""

from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.outputs import check_within
from gmmc.base.text import print_line
from gmmc.cli.options import Device, Quiet, Run, Threads
from gmmc.errors import InputError
from gmmc.runs import shipped

EXAMPLE = (
    "gmmc sample cifar10 -n 10 --balanced   or   gmmc sample runs/demo -n 50000 --balanced --out drawn.npz"
)

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


def sample(
    run: Run,
    number: Number = 100,
    label: Label = None,
    balanced: Annotated[
        bool, typer.Option("--balanced", help="All classes in turn: as many of each, as FID is measured.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the first image; the next has seed + 1.", min=0, max=2**62)
    ] = 0,
    steps: Steps = None,
    guidance: Annotated[
        float | None,
        typer.Option(
            help="How much more the class counts, after training by denoising; default: the model's own.",
            min=0,
            max=100,
        ),
    ] = None,
    out: DrawnOut = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Draw images from noise. Run the same command again to go on after an interruption.

    A folder: one PNG each, named by class and seed, and the first 100 in grid.png with their classes. Images
    that are there already are kept if they are of the same model and settings, else replaced.

    .npz: arr_0, the images as uint8 (N, H, W, C), where FID tools expect them; labels, seeds, class_names.

    .parquet: image, label and seed as on the Hugging Face Hub, with class names; gmmc train reads it, too.
    """
    from gmmc.classifier.drawing import with_guidance
    from gmmc.generate.draw import draw
    from gmmc.runs.finished import load_model

    if balanced and label:
        raise InputError("--balanced is for all classes and goes without --label")
    if out is None:
        place = shipped.workplace(run)
        out = place / "samples"
        check_within(out, place, "RUN")
    model = load_model(run, device, threads)
    if guidance is not None:
        model.drawing = with_guidance(model.drawing, guidance)
    chosen = model.class_names if balanced else label or []
    print_line(draw(model, out, number=number, class_names=chosen, seed=seed, steps=steps))
