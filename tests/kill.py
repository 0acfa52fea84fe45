"""Kill gmmc at random moments, run the same command again, and compare with an uninterrupted run.

python tests/kill.py                   a hundred kills
python tests/kill.py --only guard/1    one trial, at the same planned moments
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill_settings import SETTINGS, Setting, begin, names_in, prepare
from processes import DEADLINE, alive_in, children_of, started, wait_until

SIGNALS = [signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGINT]
KILLS = 5  # of one trial
LOCKS = {".lock", ".results.lock"}  # they stay
STATE = re.compile(r"step-\d{9}-rank-\d-[0-9a-f]{16}\.safetensors")
INTERRUPTED = 130  # exit status of gmmc after Ctrl-C


@dataclass(frozen=True)
class Kill:
    """A signal, to whom and when; a share is of the time that the phase took in the uninterrupted run."""

    number: signal.Signals
    target: str  # leader, child, group
    progress: int  # to wait for; 0: during start-up, or at any time where progress is not counted
    share: float
    in_write: bool  # then wait until a file is being written

    def __str__(self) -> str:
        when = f"after {self.progress} more" if self.progress else f"at {self.share:.0%} of the start"
        return f"{self.number.name} to the {self.target} {when}{', in a write' if self.in_write else ''}"


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run."""

    files: dict[str, Any]
    seconds_to_start: float
    seconds_per_step: float


@dataclass
class Trial:
    """Some kills of one command, and what was wrong afterwards."""

    setting: Setting
    number: int
    kills: list[Kill] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.setting.name}/{self.number}"


def planned(setting: Setting, number: int, seed: int, count: int = KILLS) -> list[Kill]:
    """The kills of a trial; they depend on nothing but the arguments."""
    chance = random.Random(f"{seed}/{setting.name}/{number}")
    targets = ["leader", "child", "group"] if setting.processes > 1 else ["leader"]
    return [
        Kill(
            number=chance.choice(SIGNALS),
            target=chance.choice(targets),
            progress=0 if chance.random() < 0.2 or not setting.stride else chance.randint(1, setting.stride),
            share=chance.random(),
            in_write=chance.random() < 0.3,
        )
        for _ in range(count)
    ]


class Harness:
    """A folder with models, uninterrupted runs and trials."""

    def __init__(self, place: Path):
        self.place, self.models = place, place / "models"
        self.references: dict[str, Reference] = {}
        prepare(self.models)

    def reference(self, setting: Setting) -> Reference:
        if setting.name not in self.references:
            self.references[setting.name] = self._uninterrupted(setting)
        return self.references[setting.name]

    def _uninterrupted(self, setting: Setting) -> Reference:
        out = self.place / "whole" / setting.name
        begin(setting, self.models, out)
        clock, seen = time.monotonic(), {setting.progress(out): 0.0}  # progress → when it was reached
        with self._started(setting, out) as process:

            def is_over() -> bool:
                seen.setdefault(setting.progress(out), time.monotonic() - clock)
                return process.poll() is not None

            wait_until(is_over)
            status, seconds = process.wait(DEADLINE), time.monotonic() - clock
        assert status == 0, f"the uninterrupted run ended with status {status}: {self._errors(out)}"
        first = [*sorted(seen.values()), seconds][1] if setting.stride else seconds
        return Reference(content(out), first, (seconds - first) / max(1, max(seen) - min(seen)))

    @contextmanager
    def _started(self, setting: Setting, out: Path) -> Iterator[subprocess.Popen]:
        errors = out.parent / f"{out.name}.stderr"  # not a pipe, which an orphan would keep open
        errors.parent.mkdir(parents=True, exist_ok=True)
        command = setting.command(self.models, out)
        with errors.open("w") as file, started(command, stdout=subprocess.DEVNULL, stderr=file) as process:
            yield process

    def _errors(self, out: Path) -> str:
        return (out.parent / f"{out.name}.stderr").read_text()

    def folder(self, trial: Trial) -> Path:
        return self.place / "trials" / trial.name.replace("/", "-")

    def run(self, trial: Trial, kills: list[Kill], say: Callable[[str], object] = print) -> None:
        """Kill and start again, then let the command end; what goes wrong is a problem of the trial."""
        clock = time.monotonic()
        try:
            self._run(trial, kills, say)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            trial.problems.append(str(error))
        trial.seconds = time.monotonic() - clock

    def _run(self, trial: Trial, kills: list[Kill], say: Callable[[str], object]) -> None:
        setting, reference = trial.setting, self.reference(trial.setting)
        out = self.folder(trial)
        begin(setting, self.models, out)
        for kill in kills:
            status = self._killed(setting, out, kill, reference)
            trial.problems += self._wrong_end(out, kill, status)
            if status == 0:
                break  # it was faster than the signal
            trial.kills.append(kill)
            say(f"{trial.name}: {kill}; at {setting.progress(out)}, status {status}")
        with self._started(setting, out) as process:
            status = process.wait(DEADLINE)
        errors = self._errors(out)
        if status != 0 or "Traceback" in errors:
            trial.problems.append(f"the last call ended with status {status}: {errors.strip()[-2000:]}")
        trial.problems += differences(content(out), reference.files)
        trial.problems += leftovers(out)
        if not trial.problems:
            shutil.rmtree(out)

    def _killed(self, setting: Setting, out: Path, kill: Kill, reference: Reference) -> int:
        """Start the command, kill it, wait for all its processes; return its exit status."""
        before = setting.progress(out)
        with self._started(setting, out) as process:

            def is_over() -> bool:
                return process.poll() is not None

            if kill.progress:
                wait_until(lambda: is_over() or setting.progress(out) >= before + kill.progress)
            span = 2 * reference.seconds_per_step if kill.progress else reference.seconds_to_start
            with suppress(subprocess.TimeoutExpired):
                process.wait(kill.share * span)
            if kill.in_write:
                wait_until(lambda: is_over() or is_writing(out), pause=0.0002)
            send(kill, process)
            status = process.wait(DEADLINE)
            wait_until(lambda: not alive_in(process.pid))
        return status

    def _wrong_end(self, out: Path, kill: Kill, status: int) -> list[str]:
        """Complain about an exit status that the signal does not explain, and about tracebacks."""
        allowed = {0, 1, -kill.number} if kill.target != "leader" else {0, -kill.number}
        allowed |= set() if kill.number == signal.SIGKILL else {INTERRUPTED}
        errors = self._errors(out)
        wrong = [] if status in allowed else [f"status {status} after {kill}: {errors.strip()[-2000:]}"]
        # Python itself prints one for a Ctrl-C before gmmc is imported.
        if "Traceback" in errors and status != -signal.SIGINT:
            wrong.append(f"a traceback after {kill}: {errors.strip()[-2000:]}")
        return wrong


def send(kill: Kill, process: subprocess.Popen) -> None:
    """Send the signal; a child that does not exist yet is replaced by the leader."""
    children = children_of(process.pid) if kill.target == "child" else []
    with suppress(ProcessLookupError):
        if kill.target == "group":
            os.killpg(process.pid, kill.number)
        else:
            os.kill(children[0] if children else process.pid, kill.number)


def is_writing(out: Path) -> bool:
    return any(name.startswith(".") and name.endswith(".tmp") for name in names_in(out))


def content(out: Path) -> dict[str, Any]:
    """Everything that a command left, by file name; without what depends on the clock, and without states."""
    files = [path for path in out.rglob("*") if path.is_file() and path.name not in LOCKS]
    return {str(path.relative_to(out)): _read(path) for path in sorted(files) if path.parent.name != "resume"}


def _read(path: Path) -> Any:
    if path.name == "metrics.jsonl":
        return [_without_time(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name == "results.json":
        return _without_time(json.loads(path.read_text()))
    return path.read_bytes()


def _without_time(value: Any) -> Any:
    """The same without the key "seconds", at any depth."""
    if isinstance(value, dict):
        return {key: _without_time(item) for key, item in value.items() if key != "seconds"}
    return [_without_time(item) for item in value] if isinstance(value, list) else value


def differences(files: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """Differences from an uninterrupted run."""
    lines, expected = (
        [line.get("step") for line in found.get("metrics.jsonl", [])] for found in (files, whole)
    )
    metrics = [] if lines == expected else [f"metrics.jsonl has the steps {lines}, not {expected}"]
    return metrics + [
        f"{name} {'differs' if name in whole and name in files else 'is missing or too many'}"
        for name in sorted(files.keys() | whole.keys())
        if name not in files or name not in whole or files[name] != whole[name]
    ]


def leftovers(out: Path) -> list[str]:
    """Temporary files, and files in resume/ that are no states."""
    hidden = [p for p in out.rglob(".*") if p.name not in LOCKS]
    strange = [p for p in out.rglob("resume/*") if not STATE.fullmatch(p.name) and p not in hidden]
    return [f"{path.relative_to(out)} is left over" for path in [*hidden, *strange]]


def trials(names: list[str]) -> Iterator[Trial]:
    """The named trials; without names, every setting in turn, for ever."""
    known = {setting.name: setting for setting in SETTINGS}
    for name in names:
        setting, _, number = name.partition("/")
        if setting not in known:
            raise SystemExit(f"a trial must be one of {', '.join(known)}, a slash and a number, got {name!r}")
        yield Trial(known[setting], int(number or 0))
    for number in itertools.count() if not names else ():
        yield from (Trial(setting, number) for setting in SETTINGS)


def table(done: list[Trial]) -> str:
    """One row per setting: trials, kills by kind, failures, time."""
    rows = [f"{'setting':<20} trials kills SIGKILL start-up write failed seconds"]
    for setting in SETTINGS:
        mine = [trial for trial in done if trial.setting == setting]
        if mine:
            rows.append(_row(setting.name, mine))
    return "\n".join([*rows, _row("all", done)])


def _row(name: str, done: list[Trial]) -> str:
    kills = [kill for trial in done for kill in trial.kills]
    hard = sum(kill.number == signal.SIGKILL for kill in kills)
    early, writing = sum(not kill.progress for kill in kills), sum(kill.in_write for kill in kills)
    failed = sum(bool(trial.problems) for trial in done)
    seconds = sum(trial.seconds for trial in done)
    return f"{name:<20} {len(done):6} {len(kills):5} {hard:7} {early:8} {writing:5} {failed:6} {seconds:7.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], metavar="TRIAL", help="e.g. guard/1 npz/0")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends its processes, too

    def say(line: str) -> None:
        print(line, flush=True)

    place = Path(tempfile.mkdtemp(prefix="gmmc-kill-"))
    harness, done = Harness(place), []
    for trial in trials(options.only):
        harness.run(trial, planned(trial.setting, trial.number, options.seed), say)
        done.append(trial)
        for problem in trial.problems:
            say(f"{trial.name} FAILED: {problem}")
        if not options.only and sum(len(trial.kills) for trial in done) >= options.kills:
            break
    print(table(done))
    failed = [trial.name for trial in done if trial.problems]
    if not failed:
        shutil.rmtree(place)
        return 0
    again = " ".join(f"'{name}'" for name in failed)
    print(f"files are in {place}; again: python tests/kill.py --seed {options.seed} --only {again}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
