"""Apply small faults to the source, one at a time, and list those that no test notices.

    python tests/mutants                    all of them: about an hour on two cores
    python tests/mutants -x                 all of them, each until a test fails: half of that
    python tests/mutants buffer augment     only those whose names contain one of these words
    python tests/mutants --checkout FOLDER  on another checkout's source, by its own tests

The faults are in the TOML files beside this one: a text that is found exactly once under src/, what to put in
its place, and the test files that should notice. Every trial runs in a copy of the checkout.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_COPIED = (".git", ".venv", ".stage", "__pycache__", ".*_cache", ".hypothesis")
NOT_COPIED_AT_TOP = ("runs", "dist")  # further down these are packages
LIMIT = 1800.0  # seconds of one trial; a fault that makes the tests hang is noticed
PASSED, FAILED, NOTHING_RAN = 0, 1, 5  # exit codes of pytest


class BadMutant(Exception):
    """A fault that cannot be applied, or leaves no program that runs."""


@dataclass(frozen=True)
class Mutant:
    name: str
    find: str
    replace: str
    tests: tuple[str, ...]
    subject: str  # stem of the TOML file

    def apply(self, files: dict[Path, str]) -> tuple[Path, str]:
        """Return the path of the file that holds the text, and its changed content."""
        places = [(path, count) for path, text in files.items() if (count := text.count(self.find))]
        if [count for _, count in places] != [1]:
            where = ", ".join(f"{count} in {path.name}" for path, count in places)
            raise BadMutant(f"{self.name!r}: its text must be found once under src/, got {where or 'none'}")
        path = places[0][0]
        return path, files[path].replace(self.find, self.replace)


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    seconds: float
    failures: tuple[str, ...] = ()  # tests that noticed
    broken: str = ""  # why the tests could not be run

    @property
    def killed(self) -> bool:
        return bool(self.failures)

    def __str__(self) -> str:
        first, more = self.failures[:1], len(self.failures) - 1
        by = f"{first[0]}{f' and {more} more' if more else ''}" if first else self.broken or "no test"
        word = "killed" if self.killed else "BROKEN" if self.broken else "SURVIVED"
        return f"{word:8} {self.seconds:4.0f} s  {self.mutant.name}: {by}"


def read_sources(checkout: Path) -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in sorted((checkout / "src").rglob("*.py"))}


def load(folder: Path = HERE) -> list[Mutant]:
    """Read all mutants; names are unique."""
    mutants = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            mutants.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}, subject=path.stem))
    twice = [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]
    if twice:
        raise BadMutant(f"names must be unique, got {', '.join(twice)} twice")
    changes = Counter((mutant.find, mutant.replace) for mutant in mutants)
    same = [mutant.name for mutant in mutants if changes[mutant.find, mutant.replace] > 1]
    if same:
        raise BadMutant(f"faults must differ, got the same change as {' and '.join(same)}")
    return mutants


def left_out(checkout: Path) -> Callable[[str, list[str]], set[str]]:
    """Return what `shutil.copytree` does not copy of a checkout."""
    anywhere, at_top = (shutil.ignore_patterns(*names) for names in (NOT_COPIED, NOT_COPIED_AT_TOP))

    def ignored(folder: str, names: list[str]) -> set[str]:
        return anywhere(folder, names) | (at_top(folder, names) if Path(folder) == checkout else set())

    return ignored


def test_files(names: Iterable[str], checkout: Path) -> list[str]:
    """Paths of the named test files, wherever they lie under tests/; another checkout may lack some."""
    present = {path.name: str(path.relative_to(checkout)) for path in (checkout / "tests").rglob("test_*.py")}
    return sorted(present[name] for name in set(names) if name in present)


def run_tests(checkout: Path, files: list[str], *options: str) -> tuple[str, ...]:
    """Return the tests of a checkout that fail, with further options of pytest.

    Without bytecode, whose age Python compares in whole seconds only.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [*command, "--hypothesis-seed=0", "-m", "not slow", *options, *files],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (f"no end within {LIMIT:.0f} s",)
    if done.returncode not in (PASSED, FAILED, NOTHING_RAN):
        raise BadMutant(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return tuple(re.findall(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", done.stdout, re.MULTILINE))


def try_out(mutant: Mutant, checkout: Path, *, stop_early: bool = False) -> Verdict:
    """Apply the mutant to a copy, run its tests there, and undo it."""
    sources = read_sources(checkout)
    path, changed = mutant.apply(sources)
    began = time.monotonic()
    path.write_text(changed, "utf-8")
    try:
        files = test_files(mutant.tests, checkout)
        failures, broken = run_tests(checkout, files, *(["-x"] if stop_early else [])) if files else (), ""
    except BadMutant as error:
        failures, broken = (), str(error)
    finally:
        path.write_text(sources[path], "utf-8")
    return Verdict(mutant, time.monotonic() - began, failures, broken)


def verdicts(mutants: list[Mutant], copies: list[Path], *, stop_early: bool) -> Iterator[Verdict]:
    """Try out all mutants, one at a time in each copy."""
    free: queue.Queue[Path] = queue.Queue()
    for copy in copies:
        free.put(copy)

    def trial(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            return try_out(mutant, copy, stop_early=stop_early)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        trials = [pool.submit(trial, mutant) for mutant in mutants]
        try:
            for done in as_completed(trials):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def summarize(results: list[Verdict], *, stop_early: bool) -> None:
    """Print counts by subject and by test file, and the survivors.

    Trials that stop early know the first test file to notice a fault, and not whether others would have.
    """
    print(f"\n{'subject':14} killed  of")
    for subject in sorted({result.mutant.subject for result in results}):
        mine = [result for result in results if result.mutant.subject == subject]
        print(f"{subject:14} {sum(result.killed for result in mine):6} {len(mine):3}")
    print(f"{'all':14} {sum(result.killed for result in results):6} {len(results):3}")
    noticed = [{test.split("::")[0] for test in result.failures} for result in results]
    alone = Counter(next(iter(files)) for files in noticed if len(files) == 1)
    print(f"\n{'test file':28} {'kills first' if stop_early else 'kills  alone'}")
    for file, count in Counter(file for files in noticed for file in files).most_common():
        print(f"{file:28} {count:5}{'' if stop_early else f' {alone[file]:6}'}")
    survivors = [str(result) for result in results if not result.killed]
    print("\nsurvivors: " + ("none" if not survivors else "".join(f"\n  {line}" for line in survivors)))


def check_all_apply(mutants: list[Mutant], checkout: Path) -> None:
    """Refuse faults whose text has changed, all in one message."""
    sources, complaints = read_sources(checkout), []
    for mutant in mutants:
        try:
            mutant.apply(sources)
        except BadMutant as error:
            complaints.append(str(error))
    if complaints:
        raise BadMutant("\n".join(complaints))


def select(mutants: list[Mutant], words: list[str]) -> list[Mutant]:
    if not words:
        return mutants
    picked = [mutant for mutant in mutants if any(word in mutant.name for word in words)]
    if not picked:
        raise BadMutant(f"no mutant's name contains {' or '.join(words)}")
    return picked


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/mutants", description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names; default: all mutants")
    parser.add_argument("--checkout", type=Path, default=HERE.parents[1], help="default: this one")
    parser.add_argument("-x", action="store_true", dest="stop_early", help="end a trial at its first failure")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    mutants = select(load(), options.words)
    check_all_apply(mutants, options.checkout)
    with ExitStack() as stack:
        copies = []
        for _ in range(min(options.at_once, len(mutants))):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "copy"
            copies.append(shutil.copytree(options.checkout, folder, ignore=left_out(options.checkout)))
        files = test_files({name for mutant in mutants for name in mutant.tests}, copies[0])
        print(f"{len(mutants)} mutants; first the unchanged source by {len(files)} test files", flush=True)
        failures = run_tests(copies[0], files, "-n", str(len(copies)), "--dist", "loadfile")
        if failures:
            raise BadMutant(f"the unchanged source fails {', '.join(failures)}")
        results = []
        for verdict in verdicts(mutants, copies, stop_early=options.stop_early):
            results.append(verdict)
            print(f"[{len(results):3}/{len(mutants)}] {verdict}", flush=True)
    summarize(results, stop_early=options.stop_early)
    return 0 if all(result.killed for result in results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadMutant as error:
        sys.exit(f"mutants: {error}")
