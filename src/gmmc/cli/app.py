"""The command line: parses, then calls one function. Heavy imports wait until a command needs them."""

import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gmmc import __version__
from gmmc.base.leader import is_leader
from gmmc.base.limits import LONG_SHOWN, MESSAGE
from gmmc.base.outputs import check_within
from gmmc.base.text import cut, printable, shortened
from gmmc.cli import printing
from gmmc.cli.options import (
    OR_SHIPPED,
    Attacked,
    Attacks,
    Device,
    DrawnOut,
    Features,
    Generated,
    Label,
    Number,
    Ood,
    Opset,
    Place,
    Quiet,
    Resize,
    Run,
    Score,
    Steps,
    Surrogate,
    Threads,
    Tpr,
    complete_recipe,
    complete_run,
)
from gmmc.cli.printing import print_line
from gmmc.errors import Diverged, InputError, Interrupted, end_at_once, is_lost_process, is_out_of_memory
from gmmc.runs import results as records
from gmmc.runs import shipped as pretrained

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"gmmc {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Generative max-Mahalanobis classifiers: train, sample, evaluate, predict."""


def example(command: str) -> str:
    return f"Example: {command}"


@app.command(
    epilog=example("gmmc train recipes/digits.toml train.seed=1 generative.epochs=40 --out runs/seed1")
)
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
            "TorchScript file; default: the recipe's."
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or cuda; default: the recipe's train.device.")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model. Run the same command again to go on after an interruption."""
    from gmmc import config
    from gmmc.train.loop import train

    changes = with_option(overrides or [], "device", device)
    cfg = config.load(recipe, with_option(changes, "threads", threads))
    keys = [override.partition("=")[0].strip() for override in overrides or []]
    if features and not cfg.train.fid_every:
        raise InputError(f"--features is for train.fid_every, which is 0, got {shortened(features)}")
    out = out or Path("runs") / Path(recipe).stem
    model = train(cfg, out, features=features, changed=keys)
    if not is_leader():
        return
    fitted = f": gamma2 = {model.gamma2:.4g}, fitted on validation images" if model.reference else ""
    print_line(f"{out / 'model.safetensors'}{fitted}")
    searching = cfg.train.start not in ("", config.AUTO_START) or cfg.train.fid_every
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


@app.command(
    epilog=example(
        "gmmc evaluate runs/demo ood --ood noise --ood ~/holiday-photos   or   "
        "gmmc evaluate runs/demo robustness --attacks full --attacked 500"
    )
)
def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=f"A run folder with a finished model{OR_SHIPPED}.",
            autocompletion=complete_run,
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="accuracy, calibration, ood, latent, samples (default: these), robustness, autoattack, "
            "generation, validation (no test image is looked at).",
        ),
    ] = None,
    ood: Ood = None,
    samples: Annotated[
        int | None, typer.Option(help="samples: chains to draw; default: the recipe's.", min=1)
    ] = None,
    attacks: Attacks = None,
    attacked: Attacked = None,
    surrogate: Surrogate = None,
    features: Features = None,
    generated: Generated = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the first chain, and of the choice of images to attack.", min=0),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure a finished run on its test images.

    With `validation`, on validation images alone. Writes the numbers with their conditions to results.json,
    and pictures, in the run folder; for a shipped model, in a copy of it in runs/NAME. robustness,
    autoattack, generation and validation may take minutes, longer on a CPU; interrupted, the same command
    goes on.
    """
    from gmmc.cli.commands import evaluate_run

    changes = {"ood": tuple(ood) if ood else None, "samples": samples, "seed": seed, "attacks": attacks}
    changes |= {"attacked": attacked, "surrogate": surrogate, "features": features, "generated": generated}
    place, results = pretrained.workplace(run), records.read_results(pretrained.newest(run))
    before = records.outside_sets(results)
    for name, result in evaluate_run(run, names or [], device, threads, **changes):
        printing.print_result(name, result, place)
        lost = before - set(result.conditions.get("outside", before))
        if name == "ood" and lost:
            print_line(f"  (replaces the earlier results for {', '.join(sorted(lost))})")
    print()
    print_line(f"All of it: {place / 'results.json'}   to look at: gmmc report {place}")


@app.command(epilog=example("gmmc report cifar10   or   gmmc report runs/demo runs/other --out both.html"))
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help=f"Run folders, also of runs in progress{OR_SHIPPED}.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; default: report.html in the first run, or in runs/NAME for a shipped one."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show runs on one HTML page: numbers, figures and samples.

    Numbers come with their conditions, and with the paper's. The page is one file that needs nothing else.
    Evaluate first for anything but training curves.
    """
    from gmmc.report import write_report

    print_line(str(write_report(runs, out)))


@app.command(epilog=example("gmmc compare runs/search/base runs/search/* --out runs/search/compared"))
def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders; the first is the baseline.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for the numbers and the picture.")] = Path(
        "runs/compared"
    ),
) -> None:
    """Compare runs of a changed recipe with the first run.

    Run gmmc evaluate RUN validation for each before. Writes results.json and comparison.png.
    """
    from gmmc.report.compare.comparison import compare, show

    show(compare(runs, out))
    print()
    print_line(f"All of it: {out / 'results.json'}   to look at: gmmc report {out}")


@app.command(
    epilog=example(
        "gmmc sample cifar10 -n 10 --balanced   or   "
        "gmmc sample runs/demo -n 50000 --balanced --out drawn.npz"
    )
)
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
    from gmmc.cli.commands import draw, load_model

    if balanced and label:
        raise InputError("--balanced is for all classes and goes without --label")
    if out is None:
        place = pretrained.workplace(run)
        out = place / "samples"
        check_within(out, place, "RUN")
    model = load_model(run, device, threads)
    chosen = model.class_names if balanced else label or []
    print_line(draw(model, out, number=number, class_names=chosen, seed=seed, steps=steps))


@app.command(
    epilog=example("gmmc predict cifar10 photo.jpg   or   gmmc predict runs/demo *.png --tpr 0.99 --json")
)
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
    from gmmc.cli.commands import load_model, predict_files

    model = load_model(run, device, threads)
    rows, unread = predict_files(model, images, resize=resize, score=score, tpr=tpr)
    printing.print_predictions(rows, as_json=as_json)
    if unread:
        raise InputError("; ".join([*unread[:3], *([f"and {len(unread) - 3} more"] if unread[3:] else [])]))


@app.command(epilog=example("gmmc examples runs/demo   or   gmmc examples cifar10"))
def examples(run: Run) -> None:
    """Write images to try gmmc predict on.

    Chosen by a rule that never asks the model. PNG files in examples/ of the run: the first test image in
    stored order, the same turned by 90°, and uniform noise. For a model that ships with gmmc: images that it
    drew instead of a test image, in runs/NAME/examples.
    """
    from gmmc.cli.commands import write_examples

    written = write_examples(run)
    for path, shown in written.items():
        print_line(f"{path}: {shown.words}")
    print_line(f"Next: {shlex.join(['gmmc', 'predict', run, str(next(iter(written)).parent)])}")


@app.command(epilog=example("gmmc calibrate runs/demo   or   gmmc calibrate runs/demo --score neighbours"))
def calibrate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    score: Score = None,
    tpr: Tpr = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Fit the temperature and thresholds of a finished run again.

    Training does this at its end, on the validation images. It is needed for a model of an older gmmc, which
    fitted its thresholds at another temperature, and to change what the model abstains by (--score, --tpr).
    """
    from gmmc.cli.commands import calibrate_run

    model = calibrate_run(run, device, threads, score=score, tpr=tpr)
    assert model.reference is not None
    score, tpr = model.abstains_by, model.cfg.abstain.tpr
    print_line(
        f"{run}: fitted gamma2 = {model.reference.gamma2:.4g} on {model.reference.images} validation images; "
        f"the model abstains by {score}, where the {printing.SCORES[score]} is below "
        f"{model.reference.threshold(score, tpr):.4g} (tpr {tpr:g})"
    )
    print_line(f"Next: gmmc evaluate {run} ood   measures what share of other images it accepts now")


@app.command(epilog=example("gmmc export cifar10 cifar10.onnx   or   gmmc export runs/demo my-digits"))
def export(run: Run, place: Place, opset: Opset = None, threads: Threads = None) -> None:
    """Write a model as an ONNX graph, or for the Hugging Face Hub.

    .onnx: images in [0, 1] to logits, posterior and densities, for any number of images and without torch;
    class names, γ² and the threshold to abstain by are in its metadata. Checked with onnxruntime.

    A folder: model.safetensors, config.json and README.md, the model card with the numbers of results.json;
    gmmc.from_pretrained reads it, and so does gmmc predict.
    """
    from gmmc.cli.commands import load_model
    from gmmc.export import hub
    from gmmc.export import onnx as export

    if not export.is_graph(place):
        if opset is not None:
            raise InputError(
                f"--opset is for a file that ends in {export.ENDING}, got {shortened(str(place), LONG_SHOWN)}"
            )
        folder = hub.save_pretrained(run, place)
        print_line(f"{', '.join(hub.FILES)} in {folder}   in Python: gmmc.from_pretrained({str(folder)!r})")
        return
    written = export.to_onnx(load_model(run, "cpu", threads), place, opset=opset)
    print_line(str(written))
    for remark in written.remarks:
        print_line(f"! {remark}", file=sys.stderr)


@app.command(epilog=example("gmmc bench --preset full --out runs/bench && gmmc report runs/bench"))
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
    from gmmc.bench.summary import show
    from gmmc.cli.commands import run_bench

    show(run_bench(preset, out, device, threads))
    print()
    print_line(f"All of it: {out / 'results.json'}   to look at: gmmc report {out}")


@app.command(epilog=example("gmmc models"))
def models() -> None:
    """List the models that ship with gmmc."""
    from gmmc.cli.listing import print_models

    print_models()


@app.command(epilog=example("gmmc recipes"))
def recipes() -> None:
    """List the recipes that ship with gmmc."""
    from gmmc.cli.listing import print_recipes

    print_recipes()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Every failure a user can cause ends in one line on standard error: exit status 2, 1 or 130."""
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGINT, stop_at_once)
        let_anything_be_written(sys.stdout, sys.stderr)
    try:
        # The name is also that of the variable by which a shell asks for completions, _GMMC_COMPLETE.
        status = app(arguments or ["--help"], prog_name="gmmc", standalone_mode=False)
        print(end="", flush=True)  # unlike sys.stdout.flush(), also where it is closed: gmmc … >&-
    except InputError as error:
        fail(error, 2)
    except Diverged as error:
        fail(error, 1 if is_leader() else 0)  # of the others it would be taken for a crash
    except Interrupted as error:
        fail(error, 130 if is_leader() else 0)
    except BrokenPipeError:
        # `gmmc predict … | head`: the reader has seen enough. Python would complain again at its own exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except SystemExit as stop:  # typer makes a closed pipe a status of 1
        sys.exit(0 if isinstance(stop.__context__, BrokenPipeError) else stop.code)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        fail(reason if is_leader() else f"in a further process: {reason}", 2, always=True)
    except Exception as error:
        if is_out_of_memory(error):
            fail("not enough memory; ask for a smaller batch, buffer, network or number of images", 1)
        if is_lost_process(error):
            state = "the last saved state is intact, run the same command to go on"
            fail(f"another process of this training has ended; {state}", 1)
        if not hasattr(error, "format_message"):
            raise  # a bug of ours: the traceback is wanted
        # One of typer's usage errors: a wrong option, a missing argument.
        usage: Any = error
        command = usage.ctx.command_path if getattr(usage, "ctx", None) else "gmmc"
        fail(f"{usage.format_message()} (see {command} --help)", 2)
    sys.exit(status if isinstance(status, int) else 0)


def let_anything_be_written(*streams: object) -> None:
    """γ² on a terminal that knows ASCII only is written as \\u03b3\\xb2 instead of ending in an error."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stop_at_once(number: int, frame: object) -> NoReturn:
    """Ctrl-C where no state is to be saved; training has its own way while it updates.

    No exception: half-imported libraries turn one into pages of others.
    """
    end_at_once("interrupted", 130)


def fail(message: object, status: int, *, always: bool = False) -> NoReturn:
    if is_leader() or always:  # several processes of a training have one voice
        print_line(f"gmmc: {cut(printable(str(message)), MESSAGE)}", file=sys.stderr)
    sys.exit(status)
