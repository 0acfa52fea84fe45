"""`gmmc train`."""

from pathlib import Path
from typing import Annotated

import typer

from gmmc.base.leader import is_leader
from gmmc.base.text import print_line, shortened
from gmmc.cli.options import Quiet, Threads, complete_recipe
from gmmc.errors import InputError

EXAMPLE = "gmmc train recipes/digits.toml train.seed=1 generative.epochs=40 --out runs/seed1"


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A TOML file, or the name of a shipped recipe: see gmmc recipes.",
            autocompletion=complete_recipe,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe, e.g. train.beta=0."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run folder; default: runs/ and the recipe's name.")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Feature network of the FID while training (train.fid_every): inception, small or a "
            "TorchScript file; default: as in gmmc evaluate."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or cuda; default: the recipe's train.device.")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model. Run the same command again to go on after an interruption."""
    from gmmc.config import recipes, schema
    from gmmc.train.loop import train

    changes = with_option(overrides or [], "device", device)
    cfg = recipes.load(recipe, with_option(changes, "threads", threads))
    keys = [override.partition("=")[0].strip() for override in overrides or []]
    if features and not cfg.train.fid_every:
        raise InputError(f"--features is for train.fid_every, which is 0, got {shortened(features)}")
    out = out or Path("runs") / Path(recipe).stem
    model = train(cfg, out, features=features, changed=keys)
    if not is_leader():
        return
    fitted = f": gamma2 = {model.gamma2:.4g}, fitted on validation images" if model.reference else ""
    print_line(f"{out / 'model.safetensors'}{fitted}")
    searching = cfg.train.start not in ("", schema.AUTO_START) or cfg.train.fid_every
    chosen = f"{out} validation" if searching else out
    print_line(f"Next: gmmc evaluate {chosen}" + (f"   or   gmmc sample {out}" if cfg.samples else ""))


def with_option(overrides: list[str], name: str, value: str | int | None) -> list[str]:
    """Add an option to the changes of the recipe: --device is train.device."""
    if value is None:
        return overrides
    for override in overrides:
        if override.partition("=")[0].strip() == f"train.{name}":
            got = f"--{name} {shortened(value)} and {shortened(override)}"
            raise InputError(f"--{name} and train.{name} are the same setting; give one of them, got {got}")
    return [*overrides, f"train.{name}={value}"]
