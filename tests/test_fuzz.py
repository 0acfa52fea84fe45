"""The first cases of each fuzzer, in one process; `make fuzz` runs thousands. And a checker that can fail."""

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fuzz import __main__ as processes
from fuzz import checking
from fuzz.cases import SURFACES, make
from fuzz.checking import Case, check, is_refusal
from fuzz.material import Material, build, recipe
from fuzz.recipes import HINTS, KEYS
from gmmc.base.tensorfile import pack, unpack
from gmmc.base.text import printable
from gmmc.cli import app
from gmmc.config import recipes
from gmmc.errors import InputError
from gmmc.runs.layout import METRICS, MODEL

# A report of a run takes a second, so there are fewer cases of records.
NUMBERS = dict.fromkeys(SURFACES, 46) | {"records": 24}
SHARE = 0.1  # of the cases that must at least be accepted, and refused


@pytest.fixture(scope="module")
def material(run, tmp_path_factory) -> Material:
    return build(tmp_path_factory.mktemp("material"), run)


@pytest.fixture(scope="module")
def estimator(material):
    return material.estimator()


@pytest.mark.parametrize("surface", SURFACES)
def test_hostile_input_is_used_or_refused_in_one_line(surface, material, tmp_path):
    outcomes = [
        check(make(name, tmp_path / name, material))
        for name in (f"{surface}/{seed}" for seed in range(NUMBERS[surface]))
    ]
    failed = [f"{outcome.name}: {outcome.failure}" for outcome in outcomes if outcome.failure]
    assert not failed, "rerun one with: make fuzz CASES=surface/seed\n" + "\n".join(failed)
    ends = Counter(outcome.status for outcome in outcomes)
    assert min(ends[0], ends[2]) >= SHARE * NUMBERS[surface], ends


@pytest.fixture(scope="module")
def material_of_another_day(run, tmp_path_factory) -> Material:
    """From the same training at another commit, on a slower machine."""
    slower = shutil.copytree(run, tmp_path_factory.mktemp("slower") / "run")
    lines = [json.loads(line) for line in (slower / METRICS).read_text().splitlines()]
    (slower / METRICS).write_text("".join(f"{json.dumps(line | {'seconds': 1234.5})}\n" for line in lines))
    tensors, info, _ = unpack(slower / MODEL)
    info["trained"]["commit"] = "f" * 40
    (slower / MODEL).write_bytes(pack(tensors, info)[0])
    return build(tmp_path_factory.mktemp("material"), slower)


@pytest.mark.parametrize("surface", SURFACES)
def test_a_case_follows_from_its_name(surface, material, material_of_another_day, tmp_path):
    """Also the content of its files, but for the place of its folder."""

    def content(folder: Path) -> dict[Path, bytes]:
        files = (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 2**24)
        return {
            path.relative_to(folder): path.read_bytes().replace(bytes(folder), b"folder") for path in files
        }

    first, second = (
        make(f"{surface}/7", tmp_path / place, origin)
        for place, origin in (("a", material), ("b", material_of_another_day))
    )
    assert checking.listing(first.folder).keys() == checking.listing(second.folder).keys()
    assert content(first.folder) == content(second.folder)
    if isinstance(first.call, list) and isinstance(second.call, list):
        renamed = [word.replace(str(second.folder), str(first.folder)) for word in second.call]
        assert renamed == first.call


# --- values ---------------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES |= st.lists(VALUES, max_size=3) | st.dictionaries(st.text(), VALUES, max_size=2)


@settings(max_examples=150)
@given(key=st.sampled_from(sorted(KEYS)), value=VALUES)
@example(key="data.name", value="\x7f")
@example(key="data.name", value="\u2028\\\x00")
def test_any_value_of_any_setting_is_kept_or_refused(key, value):
    section, _, name = key.partition(".")
    tree, refusal = recipe("photos"), ""
    tree.setdefault(section, {})[name] = value
    try:
        cfg = recipes.from_dict(tree)
        assert recipes.from_text(recipes.to_toml(cfg)) == cfg
    except InputError as error:
        refusal = str(error)
    assert printable(refusal) == refusal
    assert not refusal or any(named in refusal for named in HINTS)  # a section of the recipe


ROWS = arrays(np.float64, st.tuples(st.integers(1, 4), st.just(3)), elements=st.floats())


@settings(max_examples=50)
@given(rows=ROWS)
@example(rows=np.full((1, 3), 1e308))
@example(rows=np.full((1, 3), -1e200))
def test_any_row_has_a_finite_answer_or_is_refused(estimator, rows):
    for method in ("predict_proba", "score_samples", "decision_function"):
        refusal, answer = None, np.zeros(())
        try:
            answer = getattr(estimator, method)(rows)
        except ValueError as error:
            refusal = error
        assert np.isfinite(answer).all()
        assert refusal is None or is_refusal(refusal)


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "limit", "failure"),
    [
        ("import time; time.sleep(60)", {"SECONDS": 0.1}, "more than 0.1 s"),
        ("import time; x = bytearray(10**8); time.sleep(60)", {"BYTES": 10**8}, "more than 0.1 GB"),
        ("import os; os.abort()", {}, "ended with -6"),
    ],
)
def test_a_process_that_takes_too_much_or_crashes_has_failed(tmp_path, monkeypatch, code, limit, failure):
    for name, value in limit.items():
        monkeypatch.setattr(processes, name, value)
    started = subprocess.Popen([sys.executable, "-c", code])
    child = processes.Child("broken/0", tmp_path / "case", started.pid, time.monotonic())
    while not (outcome := processes.look(child)):
        time.sleep(0.01)
    started.wait()
    assert failure in outcome.failure
    assert outcome.status == -1


# --- the checker ----------------------------------------------------------------------------------


def refuse(message: str = "--out must be new") -> None:
    raise InputError(message)


def print_first(folder: Path) -> None:
    print("half a line of advice", file=sys.stderr)
    refuse()


def write_first(folder: Path) -> None:
    (folder / "left").write_text("over")
    refuse()


def change_first(folder: Path) -> None:
    (folder / "input").write_text("other")
    refuse()


def remove_first(folder: Path) -> None:
    (folder / "input").unlink()
    refuse()


def print_from_c(folder: Path) -> None:
    os.write(2, b"TIFFReadDirectory: Warning, a tag is unknown\n")


def exhaust(folder: Path) -> None:
    raise MemoryError


def warn(folder: Path) -> None:
    warnings.warn("overflow", RuntimeWarning, stacklevel=1)


BROKEN = {
    "ZeroDivisionError": lambda folder: 1 / 0,
    "another line on standard error": print_first,
    "wrote left": write_first,
    "changed input": change_first,
    "removed input": remove_first,
    "exit status 3": lambda folder: exit(3),
    "a library printed": print_from_c,
    "RuntimeWarning: overflow": warn,
    "more memory than there is": exhaust,
    "standard error must end": lambda folder: exit(2),
    "implausible success": lambda folder: print("p = nan"),
    "a success printed an error": lambda folder: app.print_line("gmmc: oh", file=sys.stderr),
}


def verify(output: str) -> None:
    assert "nan" not in output


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Let `gmmc` do something else, and check that."""
    (tmp_path / "input").write_text("as it was")

    def checked(work):
        monkeypatch.setattr(app, "new_app", lambda _: lambda *_, **__: work(tmp_path))
        return check(Case("broken/0", tmp_path, ["predict"], verify))

    return checked


@pytest.mark.parametrize("failure", BROKEN)
def test_the_checker_reports_a_broken_command(broken, failure):
    assert failure in broken(BROKEN[failure]).failure


def test_the_checker_passes_a_refusal_and_a_success(broken):
    refused, done = broken(lambda folder: refuse()), broken(lambda folder: print("p = 1"))
    assert (refused.status, refused.failure) == (2, "")
    assert (done.status, done.failure) == (0, "")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (InputError("X must be finite"), True),
        (TypeError("only integer scalar arrays can be converted"), False),
        (InputError("X must be finite\nor not"), False),
        (ValueError(""), False),
        (KeyError("X"), False),
        (AssertionError("not finite"), False),
    ],
)
def test_the_checker_judges_errors_of_python_calls(tmp_path, error, passes):
    def call() -> None:
        raise error

    assert (not check(Case("broken/0", tmp_path, call)).failure) == passes
