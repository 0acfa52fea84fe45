"""The report on runs that are young, old, damaged or odd; and its smaller parts."""

import ast
import contextlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gmmc.errors import InputError
from gmmc.report import figures
from gmmc.report import page as report
from gmmc.report.compare.comparison import compare
from gmmc.report.conditions import described, flat
from gmmc.report.numbers import duration, plain, printed, shown, shown_interval
from gmmc.report.page import pictures, write_report
from gmmc.report.reading import read_runs
from report_runs import (
    accuracy_entry,
    being_trained,
    calibration_entry,
    make_run,
    page_of,
    samples_entry,
    save_picture,
    table_rows,
    training_lines,
)

# --- it says what is not there --------------------------------------------------------------------


def test_a_run_in_progress(tmp_path):
    run = make_run(tmp_path / "run", None, training_lines(300), finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 320, "real_en')
    with being_trained(run):
        page = page_of(run, out=tmp_path / "p.html")
    assert "in progress: last seen at update 300 after 4 min" in page.words
    assert "Nothing is evaluated yet" in page.words
    assert any(svg["aria-label"].startswith("Energy over the updates") for svg in page.all("svg"))


def test_the_panel_of_energies_shows_contrast_images_where_there_are_any(tmp_path):
    plain = make_run(tmp_path / "plain", None, training_lines(300))
    lines = [{**line, "contrast_energy": 3.0} for line in training_lines(300)]
    contrasted = make_run(tmp_path / "contrasted", None, lines)
    for runs, present in (([plain], False), ([contrasted], True), ([plain, contrasted], True)):
        page = page_of(*runs, out=tmp_path / "p.html")
        (energy,) = [svg for svg in page.all("svg") if svg["aria-label"].startswith("Energy over")]
        assert ("contrast images" in energy["aria-label"]) == present
        assert ('class="dotted"></i>contrast images' in (tmp_path / "p.html").read_text()) == present


def test_a_run_that_nobody_trains_has_stopped(tmp_path):
    run = make_run(tmp_path / "run", None, training_lines(300), finished=False)
    with being_trained(run):
        pass
    page = page_of(run, out=tmp_path / "p.html")
    assert "stopped at update 300 after 4 min" in page.words
    assert table_rows(page)["state"] == ["stopped"]
    assert "in progress" not in page.words


def test_a_run_that_has_just_begun(tmp_path):
    run = make_run(tmp_path / "run", finished=False)
    assert "stopped before any metrics" in page_of(run, out=tmp_path / "p.html").words
    with being_trained(run):
        page = page_of(run, out=tmp_path / "p.html")
    assert "in progress: no line of metrics yet" in page.words
    assert not page.all("svg")


def test_a_run_that_the_guard_gave_up(tmp_path):
    lines = [*training_lines(100), {"step": 120, "event": "diverged", "reason": "energy is not finite"}]
    page = page_of(make_run(tmp_path / "run", None, lines, finished=False), out=tmp_path / "p.html")
    assert "stopped by the guard at update 120" in page.words
    assert "diverged at update 120: energy is not finite" in page.words


def test_training_that_exploded_is_drawn(tmp_path):
    lines = training_lines(200)
    lines[-2]["real_energy"], lines[-1]["real_energy"] = 1e20, math.inf
    page = page_of(make_run(tmp_path / "run", None, lines), out=tmp_path / "p.html")
    assert len(page.all("svg")) >= 4


def test_pictures_that_cannot_be_shown_are_named(tmp_path):
    files = ["samples/gone.png", "samples/broken.png", "../secret.png"]
    run = make_run(tmp_path / "run", {"samples": samples_entry(files)})
    save_picture(tmp_path / "secret.png")
    save_picture(run / "samples" / "broken.png")
    cut = (run / "samples" / "broken.png").read_bytes()[:400]
    (run / "samples" / "broken.png").write_bytes(cut)
    page = page_of(run, out=tmp_path / "p.html")
    assert not page.all("img")
    assert "⚠ samples/gone.png is not in the run folder any more" in page.words
    assert "⚠ samples/broken.png is no picture that can be read" in page.words
    assert "⚠ ../secret.png lies outside the run folder" in page.words


def test_big_pictures_are_made_to_fit(tmp_path):
    files = [f"samples/{name}.png" for name in ("by_class", "nearest", "film")]
    run = make_run(tmp_path / "run", {"samples": samples_entry(files)})
    for seed, file in enumerate(files):
        save_picture(run / file, (1000, 900), seed)
    assert sum((run / file).stat().st_size for file in files) > 6_000_000
    page = page_of(run, out=tmp_path / "page.html")
    assert len(page.html) < 6_000_000
    assert len(page.all("img")) == 3
    assert page.words.count("compressed for this page") == 3


@pytest.mark.parametrize("most", [400_000, 60_000, 2000])
def test_a_picture_keeps_its_shape_and_its_budget(most):
    content = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (200, 400, 3), dtype=np.uint8)).save(
        content, "PNG"
    )
    kind, smaller = pictures.fitted(content.getvalue(), most)
    assert len(smaller) * 4 / 3 <= most
    with Image.open(io.BytesIO(smaller)) as picture:
        assert picture.width == 2 * picture.height
    assert (kind == "png") == (most == 400_000)


def spoil(run: Path, file: str, content: str) -> Path:
    (run / file).write_text(content)
    return run


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.toml", "[data", "config.toml is not valid TOML"),
        ("config.toml", "data = 3", r"\[data\] must be a table, got 3"),
        (
            "results.json",
            '{"a": {"values": {"b": 1}, "intervals": {"b": 3}}}',
            "entry 'a' .* cannot be shown",
        ),
        ("results.json", '{"accuracy"', "results.json is damaged"),
        ("results.json", '{"accuracy": 3}', "damaged in entry 'accuracy'"),
        ("results.json", '{"accuracy": {"values": []}}', "damaged in entry 'accuracy'"),
        (
            "results.json",
            '{"calibration": {"curves": {"unit": {}}, "values": {"unit/ece": 1}}}',
            "cannot be shown",
        ),
        ("metrics.jsonl", "nonsense\n", "metrics.jsonl is damaged in line 1"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl is damaged in line 1"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl is damaged in line 1: .*step"),
        ("metrics.jsonl", '{"step": Infinity}\n', "line 1: step must be .*, got inf"),
        ("metrics.jsonl", '{"step": NaN}\n', "line 1: step must be .*, got nan"),
        ("metrics.jsonl", '{"step": "1"}\n', "line 1: step must be .*, got '1'"),
        ("metrics.jsonl", '{"step": true}\n', "line 1: step must be .*, got True"),
        ("metrics.jsonl", '{"step": 1.5}\n', "line 1: step must be .*, got 1.5"),
        ("metrics.jsonl", '{"step": 1e400}\n', "line 1: step must be .*, got inf"),
        ("metrics.jsonl", '{"step": -1}\n', "line 1: step must be .*, got -1"),
        ("metrics.jsonl", '{"step": 1' + "0" * 400 + "}\n", "damaged in line 1"),
        ("metrics.jsonl", '{"step": 1}\n{"step": 2, "to": "x"}\n', "line 2: to must be .*, got 'x'"),
        ("metrics.jsonl", '{"step": 1, "rollbacks": []}\n', r"line 1: rollbacks must be .*, got \[\]"),
        ("metrics.jsonl", '{"step": 1, "seconds": "x"}\n', "line 1: seconds must be .*, got 'x'"),
        ("metrics.jsonl", '{"step": 1, "seconds": NaN}\n', "line 1: seconds must be .*, got nan"),
        ("metrics.jsonl", '{"step": ' + "[" * 2000 + "\n", "metrics.jsonl is damaged in line 1"),
        ("results.json", "[" * 2000 + "]" * 2000, "results.json is damaged"),
        ("results.json", '{"a": ' * 40 + "1" + "}" * 40, "results.json is damaged"),
        ("results.json", json.dumps({str(i): {} for i in range(1001)}), "limits.RESULTS_KEPT"),
        ("results.json", '{"accuracy": {"values": {"top1": 1' + "0" * 400 + "}}}", "results.json is damaged"),
        ("results.json", r'{"accuracy": {"flags": ["\ud83d"]}}', "results.json is damaged"),
        ("results.json", '{"' + "x" * 100_000 + '": 3}', "damaged in entry 'xxx"),
        ("card.toml", "title = " + "[" * 2000 + "]" * 2000, "card.toml is not valid TOML"),
        ("card.toml", "title = [" + "1, " * 100_000 + "]", r"title in .*, got \[1, "),
        ("config.toml", "a = " + "[" * 2000 + "]" * 2000, "config.toml is not valid TOML"),
        ("config.toml", "data = [" + "1, " * 100_000 + "]", r"\[data\] must be a table, got \[1, "),
    ],
)
def test_damaged_files_are_named_in_one_line(file, content, message, tmp_path):
    run = spoil(make_run(tmp_path / "run"), file, content)
    with pytest.raises(InputError, match=message) as caught:
        write_report([run])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("value", ['"x"', "NaN", "-Infinity", "1e400", "[]", "{}", "null", "true", "1e308"])
def test_values_of_metrics_that_are_no_numbers_are_left_out(value, tmp_path):
    lines = [line | {"odd": 0} for line in training_lines(100)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    for key in ("real_energy", "accuracy", "force_ratio", "lr", "epoch"):
        text = re.sub(rf'("{key}"): [^,]*', rf"\1: {value}", text, count=1)
    run = spoil(make_run(tmp_path / "run", {}), "metrics.jsonl", text)
    assert "update 100" in page_of(run, out=tmp_path / "page.html").words


@pytest.mark.parametrize("value", ['"x"', "NaN", "Infinity", str(2**63 - 1), "[]", "{}", "null", "true"])
@pytest.mark.parametrize("part", ["values", "intervals", "conditions", "curves"])
def test_results_of_the_wrong_type_are_shown_or_named(value, part, tmp_path):
    results = json.dumps({"accuracy": accuracy_entry(), "calibration": calibration_entry()})
    tree = json.loads(results)
    for entry in tree.values():
        entry[part] = dict.fromkeys(entry[part], "REPLACED")
    run = spoil(make_run(tmp_path / "run"), "results.json", json.dumps(tree).replace('"REPLACED"', value))
    for show in (lambda: write_report([run]), lambda: compare([run], tmp_path / "compared")):
        with contextlib.suppress(InputError):
            show()


@pytest.mark.parametrize("force", ['"x"', "[1]", "inf", "{a = 1}", "2020-02-02"])
def test_a_recipe_of_the_wrong_type(force, tmp_path):
    run = make_run(tmp_path / "run", {}, training_lines(100))
    (run / "config.toml").write_text(f"[guard]\non = true\nforce = {force}\n")
    assert "update 100" in page_of(run, out=tmp_path / "page.html").words


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"RUN must be a run folder, with a config.toml in it, got '.*nowhere'"
    ):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="at least one run folder, got none"):
        write_report([])


def test_folders_of_the_output_are_made(tmp_path):
    run, out = make_run(tmp_path / "run"), tmp_path / "a" / "b" / "page.html"
    assert write_report([run], out).page == out
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (".", "--out must be the name of a file, got the folder"),
        ("file/page.html", r"--out .*file: Not a directory"),
        ("file/deep/page.html", r"--out .*file/deep: Not a directory"),
        ("x" * 300, r"--out .*xxx.*: File name too long"),
    ],
)
def test_an_impossible_output_is_refused_before_the_work(out, message, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(report, "render", lambda _: pytest.fail("it worked in vain"))
    with pytest.raises(InputError, match=message):
        write_report([run], tmp_path / out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


def test_a_wrong_run_makes_no_folder(tmp_path):
    with pytest.raises(InputError, match="RUN must be a run folder"):
        write_report([tmp_path / "nowhere"], tmp_path / "new" / "page.html")
    assert not (tmp_path / "new").exists()


# --- several runs ---------------------------------------------------------------------------------


def test_runs_side_by_side_have_the_same_digits(tmp_path):
    folders = []
    for name, value, half in (("a", 0.9336, 0.0049), ("b", 0.921, 0.0053), ("c", 0.5, 0.3)):
        measured = accuracy_entry()
        measured["values"]["top1"], measured["intervals"]["top1"] = value, [value - half, value + half]
        folders.append(make_run(tmp_path / name, {"accuracy": measured}, data="digits"))
    row = table_rows(page_of(*folders, out=tmp_path / "p.html"))["test accuracy"]
    assert row == ["93.36% 92.87–93.85%", "92.10% 91.57–92.63%", "50.00% 20.00–80.00%"]
    assert table_rows(page_of(folders[2], out=tmp_path / "p.html"))["test accuracy"] == ["50% 20–80%"]


def test_runs_on_different_data_say_so_first(tmp_path):
    folders = [
        make_run(tmp_path / d, {"accuracy": accuracy_entry(images=n)}, training_lines(100), data=d)
        for d, n in (("digits", 359), ("cifar10", 10_000))
    ]
    rows = table_rows(page_of(*folders, out=tmp_path / "p.html"))
    assert (rows["data"], rows["test images"]) == (["Digits", "CIFAR-10"], ["359", "10 000"])
    assert list(rows).index("data") + 2 == list(rows).index("state")
    assert "data" not in table_rows(page_of(folders[0], out=tmp_path / "p.html"))


@pytest.mark.parametrize(("backbone", "told"), [("wrn-28-10", False), ("wrn-28-4", True)])
def test_published_models_of_another_size_are_told(backbone, told, tmp_path):
    run = make_run(tmp_path / "run", {"accuracy": accuracy_entry()})
    recipe = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub('backbone = ".*"', f'backbone = "{backbone}"', recipe))
    words = page_of(run, out=tmp_path / "p.html").words
    assert ("a WRN-28-10 after 150 epochs" in words) == told


def test_no_module_asks_for_the_name_of_a_head_an_objective_or_a_sampler():
    """What a model has follows from its results, also for names that are added later."""
    names = {"head", "objective", "sampler"}
    for file in sorted(Path(report.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            asked = {ast.Constant: "value", ast.Attribute: "attr"}.get(type(node))
            assert asked is None or getattr(node, asked) not in names, f"{file.name}:{node.lineno}"


# --- the parts ------------------------------------------------------------------------------------


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [make_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run"]


def test_a_run_is_read_once(tmp_path, monkeypatch):
    """`base *` names the first twice; a link is another name of the same folder."""
    base, other = (make_run(tmp_path / name) for name in ("base", "other"))
    (tmp_path / "link").symlink_to(base)
    monkeypatch.chdir(tmp_path)
    runs = read_runs([base, "base/", "link", other, base], without=[tmp_path / "other"])
    assert [(run.path, run.name) for run in runs] == [(base, "base")]
    assert [run.name for run in read_runs([other, "base", other])] == ["other", "base"]


def test_names_that_print_alike_are_numbered(tmp_path):
    folders = [make_run(tmp_path / name) for name in ("a\x1b", "a\\x1b")]
    assert [run.name for run in read_runs(folders)] == ["a\\x1b", "a\\x1b (2)"]


@pytest.mark.parametrize(
    ("name", "value", "interval", "text", "below"),
    [
        ("top1", 0.94083, [0.9360, 0.9453], "94.08%", "93.60–94.53%"),
        ("top1", 0.98, [0.96, 0.99], "98.0%", "96.0–99.0%"),
        ("top1", 0.5, [0.2, 0.8], "50%", "20–80%"),
        ("top1", 1.0, None, "100.0%", ""),
        ("unit/ece", 0.00931, None, "0.93%", ""),
        ("svhn/log_density/unit/auroc", 0.84251, [0.84, 0.845], "0.843", "0.840–0.845"),
        ("svhn/log_density/unit/fpr95", 0.25, None, "25.0%", ""),
        ("nll", 2.58777, None, "2.588", ""),
        ("errors", 12345, None, "12\u202f345", ""),
        ("silhouette", -0.25, None, "−0.250", ""),
        ("gamma2", 3.2e-5, None, "3.20·10⁻⁵", ""),
        ("anything", None, None, "–", ""),
        ("anything", math.inf, None, "∞", ""),
        ("separate", 7.0, None, "7", ""),
    ],
)
def test_how_numbers_are_written(name, value, interval, text, below):
    assert shown(name, value, interval) == text
    assert shown_interval(name, interval) == below


@pytest.mark.parametrize("name", ["top1", "unit/ece", "a/b/unit/auroc", "a/b/unit/aupr", "a/b/unit/fpr95"])
@pytest.mark.parametrize("tiny", [0.0005, 0.00049, 1e-5, 1e-12])
def test_only_one_reads_as_one_and_only_nothing_as_nothing(name, tiny):
    low, high = shown(name, tiny), shown(name, 1 - tiny)
    assert float(low.strip("<%")) > 0
    assert float(high.strip(">%")) < (100 if "%" in high else 1)


def test_ends_of_intervals_read_alike():
    assert shown_interval("x/auroc", [0.9998, 1.0]) == ">0.999 to 1.000"
    assert shown_interval("x/auroc", [0.99, 0.9999]) == "0.990 to >0.999"
    assert shown_interval("x/auroc", [0.9998, 0.9999]) == ">0.999"
    assert shown_interval("x/auroc", [1.0, 1.0]) == "1.000–1.000"
    assert shown_interval("top1", [0.98, 0.99999]) == "98.0 to >99.9%"
    assert shown_interval("fpr95", [0.0001, 0.02]) == "<0.1 to 2.0%"
    assert shown_interval("fpr95", [0.00001, 0.00002]) == "<0.01%"


def test_durations_and_zero():
    assert [duration(s) for s in (0.2, 59, 90, 3600, 7260.0, None)] == [
        "0 s",
        "59 s",
        "2 min",
        "1 h 00 min",
        "2 h 01 min",
        "–",
    ]
    assert plain(0) == plain(0.0) == "0"
    assert printed("fid", None) == "–"


def test_a_logarithmic_axis_only_where_it_can_and_must():
    assert figures.spans_decades([1, 101])
    assert not figures.spans_decades([1, 99])
    assert not figures.spans_decades([-1, -5, 5, 99])
    assert figures.spans_decades([-1, -5, 5, 1e20])
    assert not figures.spans_decades([None, None])


def test_a_long_curve_keeps_its_extremes_and_its_breaks():
    values: list[float | None] = [math.sin(i / 50) for i in range(20_000)]
    values[7777], values[12_345] = 55.0, None
    steps, kept = figures._thinned(figures.Curve(list(range(20_000)), values, "red"))
    assert len(kept) <= figures.CURVE_POINTS + 1
    assert np.nanmax(kept) == 55.0
    assert steps[np.nanargmax(kept)] == 7777
    assert np.isnan(kept[steps == 12_345]).all()
    assert (np.diff(steps) > 0).all()


def test_bars_stand_in_the_order_of_the_classes():
    svg = figures.per_class([0.25, None, 1.0, 0.9999], ["a", "b", "c", "d"], "The bars of a test.")
    texts = re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg)
    assert [text for _, text in texts] == ["a", "c", "d", "25.0%", "100.0%", "&gt;99.9%"]
    for column in (texts[:3], texts[3:]):
        heights = [float(y) for y, _ in column]
        assert heights == sorted(heights)


def test_conditions_are_told_in_words():
    facts = {
        "outside": {"noise": 359, "constant": 10_000},
        "data_notes": ["not read: 3 files", "12 turned"],
        "outside_notes": [],
        "seeds": [1, 2],
        "exact": True,
        "commit": "0123456789abcdef-dirty",
        "trained": {"commit": "fedcba9876543210", "seconds": 55.123},
    }
    assert described(facts) == {
        "outside": "noise 359, constant 10\u202f000",
        "data notes": "not read: 3 files; 12 turned",
        "outside notes": "–",
        "seeds": "1, 2",
        "exact": "yes",
        "gmmc commit": "0123456789-dirty",
        "training: gmmc commit": "fedcba9876",
        "training: seconds": "55.12",
    }
    assert flat({"generative": {"decay_epochs": [30, 50], "flip": False, "fill": ""}}) == {
        "generative.decay_epochs": "30, 50",
        "generative.flip": "false",
        "generative.fill": "–",
    }


@pytest.mark.parametrize(
    ("limit", "told"), [(10, "the guard trips at 10 once"), (3, "the guard trips at 3 once")]
)
def test_training_curves_are_explained(limit, told, tmp_path):
    run = make_run(tmp_path / "run", None, training_lines(100))
    recipe = (run / "config.toml").read_text()
    (run / "config.toml").write_text(recipe.replace("force = 10.0", f"force = {limit}.0"))
    words = page_of(run, out=tmp_path / "p.html").words
    assert "R, the force ratio, is how hard samples push relative to the pull of real images" in words
    assert told in words
