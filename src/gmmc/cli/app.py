"""The command line: parses, then calls one function. A command's module is imported when it is called."""

import io
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from gmmc import __version__
from gmmc.base.leader import is_leader
from gmmc.base.limits import MESSAGE
from gmmc.base.text import cut, print_line, printable
from gmmc.errors import Diverged, InputError, Interrupted, end_at_once, is_lost_process, is_out_of_memory

COMMANDS = (
    "train",
    "evaluate",
    "report",
    "compare",
    "sample",
    "predict",
    "examples",
    "calibrate",
    "export",
    "bench",
    "models",
    "recipes",
)
DEPRECATED = {"compare"}  # still called, but not listed


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"gmmc {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Generative max-Mahalanobis classifiers: train, sample, evaluate, predict."""


def new_app(command: str = "") -> typer.Typer:
    """Return the program with this command alone, or with all commands for --help and unknown names."""
    app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})
    app.callback()(options)
    for name in (command,) if command in COMMANDS else COMMANDS:
        module = import_module(f"gmmc.cli.{name}")
        register = app.command(epilog=f"Example: {module.EXAMPLE}", hidden=name in DEPRECATED)
        register(getattr(module, name))
    return app


def main(arguments: list[str] | None = None) -> NoReturn:
    """Every failure a user can cause ends in one line on standard error: exit status 2, 1 or 130."""
    if arguments is None:
        arguments = sys.argv[1:]
        signal.signal(signal.SIGINT, stop_at_once)
        let_anything_be_written(sys.stdout, sys.stderr)
    try:
        # The name is also that of the variable by which a shell asks for completions, _GMMC_COMPLETE.
        status = new_app(next(iter(arguments), ""))(
            arguments or ["--help"], prog_name="gmmc", standalone_mode=False
        )
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
