"""Run many cases, each in a process of its own, and print a table: `python -m fuzz --help`."""

import argparse
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from fuzz.cases import SURFACES, make
from fuzz.checking import BYTES, SECONDS, Case, Outcome, check
from fuzz.material import Material, build

MODULES = "modules.json"
POLL = 0.01  # seconds from one look at a child to the next
TITLES = "exit 0", "exit 1", "exit 2", "slowest", "largest", "failed"
EVERY = 10.0  # seconds from one line of progress to the next


def main() -> int:
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="gmmc-fuzz-"))
    try:
        if wait(start(lambda: prepare(root))) != 0:  # in a child: a parent without threads forks safely
            raise SystemExit("the material could not be made")
        preload(root)
        outcomes = list(run_all(options.names, Material(root), options.jobs, keep=options.keep))
    finally:
        if not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    failed = [outcome for outcome in outcomes if outcome.failure]
    print_table(outcomes)
    for outcome in failed:
        print(f"FAILED {outcome.name}: {outcome.failure}")
    if options.keep:
        print(f"the files are in {root}")
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"surfaces ({', '.join(SURFACES)}) or cases (models/17); default: all"
    )
    parser.add_argument("-n", "--number", type=int, default=1000, help="cases of each surface")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--keep", action="store_true", help="keep the files of the cases")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.number)
    names = options.names or list(SURFACES)
    options.names = [
        case for name in names for case in ([name] if "/" in name else [f"{name}/{n}" for n in seeds])
    ]
    return options


def prepare(root: Path) -> int:
    """Build the material, use it once, and list the modules that this imports."""
    given, used = build(root), root / "used"
    commands = ["report", "RUN"], ["compare", "RUN", "RUN", "--out", "out"], ["evaluate", "RUN", "accuracy"]
    for number, arguments in enumerate(commands):
        folder = used / str(number)
        folder.mkdir(parents=True)
        run = str(given.run(folder))
        outcome = check(Case("", folder, [run if word == "RUN" else word for word in arguments]))
        if outcome.failure or outcome.status:
            raise SystemExit(f"{arguments}: {outcome.failure}\n{outcome.errors}")
    (root / MODULES).write_text(json.dumps(list(sys.modules)))
    return 0


def preload(root: Path) -> None:
    """Import what the cases will need, so that each process need not."""
    Image.init()
    for name in json.loads((root / MODULES).read_text()):
        with suppress(Exception):  # modules that were made at run time
            importlib.import_module(name)


# --- processes ------------------------------------------------------------------------------------


@dataclass
class Child:
    name: str
    folder: Path
    process: int
    begin: float
    peak: int = 0
    killed: str = ""


def run_all(names: list[str], given: Material, jobs: int, *, keep: bool) -> Iterator[Outcome]:
    """Yield the outcome of each case as it ends."""
    left, children, done, failed, shown = list(reversed(names)), [], 0, 0, time.monotonic()
    while left or children:
        while left and len(children) < jobs:
            children.append(start_case(left.pop(), given))
        time.sleep(POLL)
        for child in list(children):
            outcome = look(child)
            if outcome:
                children.remove(child)
                done, failed = done + 1, failed + bool(outcome.failure)
                if not (outcome.failure or keep):
                    shutil.rmtree(child.folder, ignore_errors=True)  # a thousand cases take 300 MB
                if outcome.failure:
                    print(f"{outcome.name}: {outcome.failure}", flush=True)
                yield outcome
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            print(f"{done} of {len(names)} cases, {failed} failed", file=sys.stderr, flush=True)


def start_case(name: str, given: Material) -> Child:
    folder = given.root / "cases" / name.replace("/", "-")

    def work() -> int:
        outcome = check(make(name, folder, given))
        folder.with_suffix(".json").write_text(json.dumps(asdict(outcome)))
        return 0

    return Child(name, folder, start(work), time.monotonic())


def start(work: Callable[[], int]) -> int:
    """Fork a child that does the work and ends without the clean-up of its parent."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def look(child: Child) -> Outcome | None:
    """Return the outcome of a child that has ended; kill one that takes too much memory or time."""
    seconds = time.monotonic() - child.begin
    child.peak = max(child.peak, peak_memory(child.process))
    if child.peak > BYTES:
        child.killed = f"it took more than {BYTES / 1e9:g} GB"
    elif seconds > SECONDS:
        child.killed = f"it took more than {SECONDS} s"
    if child.killed:
        os.kill(child.process, 9)
    ended, status = os.waitpid(child.process, 0 if child.killed else os.WNOHANG)
    if not ended:
        return None
    file = child.folder.with_suffix(".json")
    found = (
        json.loads(file.read_text()) if file.exists() else {"name": child.name, "status": -1, "failure": ""}
    )
    if child.killed or not file.exists():
        found["failure"] = child.killed or f"the process ended with {os.waitstatus_to_exitcode(status)}"
    return Outcome(**found | {"seconds": seconds, "peak": child.peak})


def peak_memory(process: int) -> int:
    """Return the largest resident memory of a process so far, in bytes; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


# --- table ----------------------------------------------------------------------------------------


def print_table(outcomes: list[Outcome]) -> None:
    """Print a line per surface."""
    print(f"{'surface':<12}{'cases':>7}", *(f"{title:>9}" for title in TITLES))
    for surface in SURFACES:
        rows = [outcome for outcome in outcomes if outcome.name.startswith(f"{surface}/")]
        if rows:
            ends = [sum(row.status == status for row in rows) for status in (0, 1, 2)]
            slowest, largest = max(row.seconds for row in rows), max(row.peak for row in rows)
            failed = sum(bool(row.failure) for row in rows)
            cells = *ends, f"{slowest:.1f} s", f"{largest / 1e6:.0f} MB", failed
            print(f"{surface:<12}{len(rows):>7}", *(f"{cell:>9}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
