"""Arguments and options that several commands take, or that are long to tell."""

from typing import Annotated

import typer

from gmmc import pretrained

OR_SHIPPED = pretrained.listed(", or a model that ships with gmmc")
Run = Annotated[
    str, typer.Argument(metavar="RUN", help=f"A run folder or a model.safetensors file{OR_SHIPPED}.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

# Of the long evaluations.
Attacks = Annotated[
    str | None,
    typer.Option(help="robustness: quick (100 images) or full (1,000 images, all of AutoAttack)."),
]
Attacked = Annotated[
    int | None, typer.Option(help="robustness: test images to attack; default: the preset's.", min=1)
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
