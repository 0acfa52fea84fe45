"""The report on runs that are young, old, damaged or odd; and its smaller parts."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gmmc.errors import InputError
from gmmc.report import figures, pictures, write_report
from gmmc.report.numbers import duration, plain, printed, shown, shown_interval
from gmmc.report.reading import read_runs
from report_runs import make_run, page_of, samples_entry, save_picture, training_lines

# --- it says what is not there --------------------------------------------------------------------


def test_a_run_in_progress(tmp_path):
    run = make_run(tmp_path / "run", None, training_lines(300), finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 320, "real_en')
    page = page_of(run, out=tmp_path / "p.html")
    assert "in progress: last seen at update 300 after 4 min" in page.words
    assert "Nothing is evaluated yet" in page.words
    assert any(svg["aria-label"].startswith("Energy over the updates") for svg in page.all("svg"))


def test_a_run_that_has_just_begun(tmp_path):
    page = page_of(make_run(tmp_path / "run", finished=False), out=tmp_path / "p.html")
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
    ],
)
def test_damaged_files_are_named_in_one_line(file, content, message, tmp_path):
    run = spoil(make_run(tmp_path / "run"), file, content)
    with pytest.raises(InputError, match=message) as caught:
        write_report([run])
    assert "\n" not in str(caught.value)
    assert not (run / "report.html").exists()


def test_what_is_no_run_folder_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"RUN must be a run folder, with a config.toml in it, got '.*nowhere'"
    ):
        write_report([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="at least one run folder, got none"):
        write_report([])


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    run = make_run(tmp_path / "run")
    with pytest.raises(InputError, match="--out must be the name of a file"):
        write_report([run], tmp_path)
    with pytest.raises(InputError, match=r"cannot write --out '.*page.html': No such file or directory"):
        write_report([run], tmp_path / "no" / "where" / "page.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write --out '.*page.html': File exists"):
        write_report([run], tmp_path / "file" / "page.html")
    assert sorted(path.name for path in tmp_path.rglob("*.tmp")) == []


# --- the parts ------------------------------------------------------------------------------------


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [make_run(tmp_path / parent / "run") for parent in ("a", "b")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run"]
    assert [run.name for run in read_runs(folders[:1] * 2)] == ["run", "run (2)"]


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
    assert not figures.spans_decades([-1, 1000])
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
