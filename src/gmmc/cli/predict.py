"""`gmmc predict`."""

from typing import Annotated

import typer

from gmmc.cli import printing
from gmmc.cli.options import Device, Run, Score, Threads, Tpr
from gmmc.errors import InputError

EXAMPLE = "gmmc predict cifar10 photo.jpg   or   gmmc predict runs/demo *.png --tpr 0.99 --json"

Resize = Annotated[
    bool | None,
    typer.Option(
        "--resize/--no-resize",
        help="Crop and resize images of another size, or refuse them. Default: as was done with the "
        "training images (data.size); with a model that ships with gmmc, resize.",
    ),
]


def predict(
    run: Run,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Image files, or folders with image files in them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per image.")] = False,
    resize: Resize = None,
    score: Score = None,
    tpr: Tpr = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Classify images; abstain from those unlike the training.

    Prints the class and p(y|x), calibrated on validation images. An image whose score is below that of nearly
    all validation images (all but 5%, or 1 - tpr) is answered with "not like the training images".
    """
    from gmmc.classifier.predict_files import predict_files
    from gmmc.runs.finished import load_model

    model = load_model(run, device, threads)
    rows, unread = predict_files(model, images, resize=resize, score=score, tpr=tpr)
    printing.print_predictions(rows, as_json=as_json)
    if unread:
        raise InputError("; ".join([*unread[:3], *([f"and {len(unread) - 3} more"] if unread[3:] else [])]))
