"""`gmmc export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.limits import LONG_SHOWN
from gmmc.base.text import print_line, shortened
from gmmc.cli.options import Run, Threads
from gmmc.errors import InputError

EXAMPLE = "gmmc export cifar10 cifar10.onnx   or   gmmc export runs/demo my-digits"

Place = Annotated[
    Path, typer.Argument(metavar="PLACE", help="A file that ends in .onnx, or a folder to write.")
]
Opset = Annotated[
    int | None, typer.Option(help="Of the .onnx file, for a runtime that needs another than 20.")
]


def export(run: Run, place: Place, opset: Opset = None, threads: Threads = None) -> None:
    """Write a model as an ONNX graph, or for the Hugging Face Hub.

    .onnx: images in [0, 1] to logits, posterior and densities, for any number of images and without torch;
    class names, γ² and the threshold to abstain by are in its metadata. Checked with onnxruntime.

    A folder: model.safetensors, config.json and README.md, the model card with the numbers of results.json;
    gmmc.from_pretrained reads it, and so does gmmc predict.
    """
    from gmmc.export import hub, onnx
    from gmmc.runs.finished import load_model

    if not onnx.is_graph(place):
        if opset is not None:
            raise InputError(
                f"--opset is for a file that ends in {onnx.ENDING}, got {shortened(str(place), LONG_SHOWN)}"
            )
        folder = hub.save_pretrained(run, place)
        print_line(f"{', '.join(hub.FILES)} in {folder}   in Python: gmmc.from_pretrained({str(folder)!r})")
        return
    written = onnx.to_onnx(load_model(run, "cpu", threads), place, opset=opset)
    print_line(str(written))
    for remark in written.remarks:
        print_line(f"! {remark}", file=sys.stderr)
