"""Names and values of others on a terminal, on a model card and in figures: shown, never acted on."""

import dataclasses
import io
import json
import os
import re
import shutil
import unicodedata

import numpy as np
import pytest
import yaml
from PIL import Image

import gmmc
from conftest import make_model
from gmmc import pictures
from gmmc.base.limits import MESSAGE
from gmmc.base.progress import Progress
from gmmc.base.tensorfile import Damaged
from gmmc.base.text import printable
from gmmc.cli import app, printing
from gmmc.errors import InputError
from gmmc.evaluations.result import Result
from gmmc.export import card
from gmmc.report import figures, speed
from gmmc.report.compare import comparison
from gmmc.runs import results
from gmmc.runs.folder import RunFolder
from gmmc.sampling import engine
from gmmc.train import loop
from processes import finished, gmmc_command, shown_on_terminal
from report_runs import accuracy_entry, make_run, page_of

EVIL = "a\x1b[2J\x9b31m\u202eb\nc"  # clears the screen, colours it, turns the text round, starts a line
SHOWN = r"a\x1b[2J\x9b31m\u202eb\nc"


def is_safe(text: str) -> bool:
    return not any(
        unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in text if character != "\n"
    )


def command(*arguments, capsys):
    """(exit status, standard output, standard error), in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


# --- standard output --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evil_run(run, tmp_path_factory):
    """A run in a folder with such a name. Class names of that kind do not load."""
    return shutil.copytree(run, tmp_path_factory.mktemp("evil") / EVIL.replace("/", ""))


def test_predictions(evil_run, tmp_path, capsys):
    Image.new("L", (8, 8)).save(tmp_path / f"{EVIL}.png")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    files = [tmp_path / f"{EVIL}.png", tmp_path / "good.png"]
    status, out, err = command("predict", evil_run, *files, capsys=capsys)
    assert (status, len(out.splitlines())) == (0, 3)
    assert is_safe(out + err)
    assert f"{SHOWN}.png" in out
    status, out, _ = command("predict", evil_run, *files, "--json", capsys=capsys)
    assert status == 0
    assert out.isascii()
    assert is_safe(out)
    assert json.loads(out.splitlines()[0])["image"] == str(files[0])


def test_columns_of_predictions_are_aligned(capsys):
    facts = {"confidence": 1.0, "in_distribution": None}
    rows = [{"image": name, "answer": EVIL, "class": EVIL, **facts} for name in (EVIL, "good.png")]
    printing.print_predictions(rows)
    header, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line[header.index("answer") :].startswith(f"{SHOWN}  ") for line in lines)


def test_predictions_that_are_no_numbers_are_valid_json(capsys):
    printing.print_predictions([{"image": "a", "confidence": float("nan")}], as_json=True)
    assert json.loads(capsys.readouterr().out) == {"image": "a", "confidence": None}


def test_results(tmp_path, capsys):
    result = Result(
        values={EVIL: 0.5, f"{EVIL}/score/unit/auroc": 0.5, f"{EVIL}/accepted": 0.5},
        flags=[EVIL],
        conditions={EVIL: EVIL, "checks": {EVIL: "fine"}},
    )
    printing.print_result(EVIL, dataclasses.replace(result, pictures={EVIL: b""}), tmp_path)
    out = capsys.readouterr().out
    assert is_safe(out)
    assert out.count(SHOWN) >= 8


def test_comparisons(capsys):
    entry = {"changes": [EVIL], "seed": 0, "state": "finished but not evaluated"}
    comparison.show(
        {
            "values": {},
            "flags": [EVIL],
            "conditions": {"runs": {EVIL: entry}, "baseline": "", "noise": EVIL},
        }
    )
    out = capsys.readouterr().out
    assert is_safe(out)
    assert out.count(SHOWN) >= 4


def test_a_finished_training(evil_run, capsys):
    recipe = evil_run / "config.toml"
    status, out, err = command("train", recipe, "--out", evil_run, capsys=capsys)
    assert status == 0
    assert is_safe(out + err)
    assert f"{SHOWN} is already trained" in out
    assert f"Next: gmmc evaluate {evil_run.parent}/{SHOWN}" in out


# --- standard error ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", EVIL],
        ["train", "digits", EVIL],
        ["train", "digits", f"{EVIL}.{EVIL}=1"],
        ["train", "digits", f"train.{EVIL}=1"],
        ["train", "digits", f"data.name={EVIL}"],
        ["train", "digits", f"--{EVIL}"],
        ["evaluate", EVIL],
        ["predict", EVIL, "image.png"],
        ["report", EVIL],
        ["sample", "cifar10", "-n", EVIL],
        [EVIL],
    ],
    ids=lambda arguments: " ".join(arguments).replace(EVIL, "EVIL"),
)
def test_errors(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, out, err = command(*arguments, capsys=capsys)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert is_safe(err)


def test_errors_of_the_system(monkeypatch, run, capsys):
    def full(*_, **__):
        raise OSError(28, "No space left on device", EVIL)

    monkeypatch.setattr("gmmc.generate.draw.draw", full)
    status, _, err = command("sample", run, capsys=capsys)
    assert (status, err) == (2, f"gmmc: {SHOWN}: No space left on device\n")


def test_a_message_is_of_bounded_length(monkeypatch, run, capsys):
    def long(*_, **__):
        raise InputError("\x1b" * 300_000)

    monkeypatch.setattr("gmmc.generate.draw.draw", long)
    status, _, err = command("sample", run, capsys=capsys)
    assert status == 2
    assert len(err) <= len("gmmc: \n") + MESSAGE


def test_progress_in_lines(capsys):
    with Progress(EVIL, 1) as bar:
        bar.say(EVIL)
        bar.update(1, EVIL)
    assert capsys.readouterr().err == f"{SHOWN}\n{SHOWN}  100%  {SHOWN}\n"


def test_progress_on_a_terminal():
    """Names have no effect, neither as escapes nor as rich's own markup."""
    code = (
        "from gmmc.base.progress import Progress\n"
        "with Progress('t\\x1b]0;title', 1) as bar:\n"
        "    bar.say('s\\x1b]0;title :warning:')\n"
        "    bar.update(1, '[red]u\\x1b]0;title')\n"
    )
    shown = shown_on_terminal(code, COLUMNS="200")
    assert b"\x1b]0;" not in shown
    for text in (rb"t\x1b]0;title", rb"s\x1b]0;title :warning:", rb"[red]u\x1b]0;title"):
        assert text in shown


def test_remarks_while_a_command_works(capsys, monkeypatch, tmp_path, data):
    engine.say(EVIL)

    def damaged(*_):
        raise Damaged(EVIL)

    monkeypatch.setattr(loop, "unpack", damaged)
    (tmp_path / "model.safetensors").touch()
    assert loop.load_finished(RunFolder(tmp_path), data, None) is None
    err = capsys.readouterr().err
    assert err.count(SHOWN) == 2
    assert is_safe(err)


# --- other encodings --------------------------------------------------------------------------------


def test_any_text_can_be_written_to_any_stream(monkeypatch):
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    app.let_anything_be_written(stream, None, io.StringIO())
    print("γ² × \udcff", file=stream, flush=True)
    assert stream.encoding == "ascii"
    assert written.getvalue() == rb"\u03b3\xb2 \xd7 \udcff" + b"\n"


@pytest.mark.slow
def test_a_program_on_an_ascii_terminal_with_file_names_that_are_no_text(run, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff\xce\xb3.png"  # undecodable, then γ
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    (tmp_path / "image.png").rename(os.fsdecode(name))
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment |= {"PYTHONIOENCODING": "ascii"}
    command = gmmc_command("predict", run, name, tmp_path / "γ.png")
    done = finished(command, status=2, env=environment, text=False)  # the second is not there
    assert rb"/\udcff" in done.stdout
    assert done.stdout.isascii()


# --- the model card ---------------------------------------------------------------------------------

ATTACKS = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "[click](javascript:alert(1))",
    "![picture](https://example.org/spy.png)",
    "<javascript:alert(1)>",
    "a | b",
    "`code` *bold* __bold__ ~~gone~~ $x$",
    EVIL,
)


def shown_as_text(markdown: str) -> str:
    """The text of Markdown whose every special character is escaped."""
    text = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown)
    return text.replace("&lt;", "<").replace("&amp;", "&")


def is_inert(markdown: str) -> bool:
    unescaped = re.sub(r"\\[!-/:-@\[-`{-~]", "", markdown)
    return is_safe(markdown) and not re.search(r"[<\[\]`*|~$]", unescaped)


@pytest.mark.parametrize("text", ATTACKS)
def test_text_on_a_card_is_text(text):
    markdown = card.escaped(text)
    assert "\n" not in markdown
    assert is_inert(markdown)
    assert shown_as_text(markdown) == (SHOWN.replace(r"\n", " ") if text == EVIL else text)


@pytest.mark.parametrize(
    "line", ["# heading", "> quoted", "- point", "+ point", "---", "===", "    code", "```"]
)
def test_a_line_of_prose_stays_prose(line):
    assert re.match(r"\w|\\", card.prose(f"before\n{line}").split("\n")[1])


def test_a_whole_card(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    words = ["".join(ATTACKS), *ATTACKS]
    (folder / "card.toml").write_text(
        "\n".join(
            [
                f"title = {json.dumps(words[0])}",
                f"purpose = {json.dumps(words[0])}",
                f"limits = {json.dumps(words)}",
            ]
        )
    )
    entry = accuracy_entry(flags=list(ATTACKS), note=words[0])
    entry["conditions"]["data"] = words[0]
    results.write_results(folder, {"accuracy": entry})
    place = gmmc.save_pretrained(folder, tmp_path / 'a"b\n---\n```\x1b')
    text = (place / "README.md").read_text()
    assert is_safe(text)
    _, front, body = re.split(r"^---$", text, maxsplit=2, flags=re.MULTILINE)
    assert is_safe(yaml.safe_load(front)["model-index"][0]["name"])
    allowed = "<details><summary>Conditions</summary>\n", "</details>\n"
    for part in allowed:
        assert body.count(part) == 1
        body = body.replace(part, "")
    assert not re.search(r"<[a-z/!]", body)
    assert not re.search(r"(?<!\\)\]\(", body)
    code = re.findall(r"^```", body, flags=re.MULTILINE)
    assert len(code) == 2  # the example, and nothing else


def test_classes_on_a_card(tmp_path):
    names = [name for name in ATTACKS if printable(name) == name]  # others are no class names
    model = make_model(classes=len(names))
    model.class_names = tuple(names)
    text = (gmmc.save_pretrained(model, tmp_path / "new") / "README.md").read_text()
    line = next(line for line in text.splitlines() if "classes (" in line)
    assert is_inert(line.partition("classes (")[2].partition("). γ²")[0])


def test_results_that_fit_no_card_are_named(run, tmp_path):
    folder = shutil.copytree(run, tmp_path / "run")
    entry = {"accuracy": {"values": {"top1": 0.5}, "intervals": {"top1": 3}}}
    (folder / "results.json").write_text(json.dumps(entry))
    with pytest.raises(InputError, match=r"results\.json"):
        gmmc.save_pretrained(folder, tmp_path / "new")


# --- figures and pages ------------------------------------------------------------------------------

FORMULAS = ("$\\frac", "$x$", "\\$x$", EVIL)


def test_names_in_figures_are_no_formulas():
    for svg in (
        figures.per_class([0.5] * 4, FORMULAS, "a"),
        figures.confusion(np.eye(4, dtype=int).tolist(), FORMULAS, "b"),
        speed.speedups([(name, 1.5) for name in FORMULAS], "c"),
    ):
        assert is_safe(svg)
        for name in FORMULAS[:3]:
            assert f">{name}<" in svg


def test_names_in_pictures_are_on_one_line():
    images = make_model().sample(3, seed=0, steps=1)
    shown = pictures.grid(images, 3, row_names=[EVIL], column_names=[EVIL] * 3)
    assert shown.height == pictures.grid(images, 3, row_names=["a"], column_names=["a"] * 3).height


def test_a_page_about_a_folder_whose_name_is_no_text(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff\x1b")
    page = page_of(make_run(folder, {"accuracy": accuracy_entry()}), out=tmp_path / "page.html")
    assert r"\udcff\x1b" in page.words
