"""The section of `gmmc bench`, from results alone."""

import json

import pytest

from gmmc.errors import InputError
from gmmc.report.page import write_report
from report_runs import entry, full_results, make_run, page_of, table_rows


def bench_entry(*, gpu=True, **changes):
    values, intervals = {"matmul_tflops": 787.5}, {}
    for place, ours, reference in (
        ("wrn-28-10/64/sampling", 3.9, 10.1),
        ("wrn-28-10/256/sampling", 13.2, 35.0),
        ("wrn-28-10/64/generative", 84.0, 240.0),
        ("wrn-28-4/128/generative", 38.0, 1446.0),
    ):
        values |= {f"{place}/ours_ms": ours, f"{place}/reference_ms": reference}
        values |= {f"{place}/ratio": reference / ours, f"{place}/tflops": 400.0}
        values[f"{place}/share_of_matmul"] = 0.586
        if gpu:
            values[f"{place}/memory_gb"] = 2.5
        intervals[f"{place}/ours_ms"] = [0.98 * ours, 1.02 * ours]
    curves: dict[str, dict] = {"tau": {"wrn-28-10/64": {"tau": [10, 20, 40], "ms": [39.0, 78.0, 156.0]}}}
    if not gpu:
        way = {"threads": 2, "channels_last": True, "bf16": False}
        rows = [{**way, "compiled": True, "ms": 1.5}, {**way, "compiled": False, "ms": 2.5}]
        curves["variants"] = {"wrn-10-1/16": rows}
    told = {"matrix_product": "8192³, bf16", "hardware": "NVIDIA H200", "data": "synthetic images"}
    return entry(values, intervals, curves, **told, **changes)


def bench_folder(path, **changes):
    """As `gmmc bench` leaves it: nothing but results.json."""
    path.mkdir()
    (path / "results.json").write_text(json.dumps({"bench": bench_entry(**changes)}))
    return path


def test_a_folder_with_results_only(tmp_path):
    folder = bench_folder(tmp_path / "bench")
    page = page_of(folder, out=tmp_path / "page.html")
    titles = {attributes.get("id") for attributes in page.all("section")}
    assert titles == {"headline", "bench"}
    assert "no training of this folder is recorded" in page.words
    assert "Nothing is evaluated yet" not in page.words


def test_the_times_and_what_they_are_worth(tmp_path):
    page = page_of(bench_folder(tmp_path / "bench"), out=tmp_path / "page.html")
    assert table_rows(page)["WRN-28-10, batch 64: one generative iteration"] == ["2.86×"]
    for words in (
        "WRN-28-10, 64 84.0 82.3–85.7 240 2.86× 400 58.6% 2.50",
        "WRN-28-4, 128 38.0 37.2–38.8 1\u202f446".replace("\u202f", " "),
        "The matrix rate is 788 TFLOP/s (8192³, bf16).",
        "not a 95% interval",
    ):
        assert words in page.words.replace("\u202f", " ")
    for number in ("number", "speed"):
        assert f"Small print below a {number}" not in page.words


def test_the_range_of_a_ratio_is_not_called_a_95_interval(tmp_path):
    folder = bench_folder(tmp_path / "bench")
    found = json.loads((folder / "results.json").read_text())
    found["bench"]["intervals"]["wrn-28-10/64/generative/ratio"] = [2.7, 3.1]
    (folder / "results.json").write_text(json.dumps(found))
    page = page_of(folder, out=tmp_path / "page.html")
    assert "2.86× 2.70–3.10" in page.words
    assert "Small print below a speed is the range of its blocks of calls" in page.words
    assert "Small print below a number is its 95% interval" not in page.words


def test_the_figures(tmp_path):
    page = page_of(bench_folder(tmp_path / "bench"), out=tmp_path / "page.html")
    labels = [attributes["aria-label"] for attributes in page.all("svg")]
    assert [label.split(",")[0] for label in labels] == [
        "How many times faster than the plain loop",
        "Share of the matrix rate that sampling reaches",
        "Time of a chain against its number of steps",
    ]
    assert "WRN-28-10, batch 64" in page.words


def test_without_a_gpu(tmp_path):
    page = page_of(bench_folder(tmp_path / "bench", gpu=False), out=tmp_path / "page.html")
    assert "memory, GB" not in page.words
    assert "One plain sampling step of WRN-10-1, batch 16, fastest way first" in page.words
    assert "compiled channels last fp32 2 1.50" in page.words


def test_a_benchmark_that_was_cut_short(tmp_path):
    """Only one side of one cell, and nothing of the matrix product."""
    folder = tmp_path / "bench"
    folder.mkdir()
    cut = entry({"wrn-28-4/64/sampling/ours_ms": 1.2}, flags=["wrn-28-4/64, reference: not measured"])
    (folder / "results.json").write_text(json.dumps({"bench": cut}))
    page = page_of(folder, out=tmp_path / "page.html")
    assert "WRN-28-4, 64 1.20" in page.words
    assert "reference: not measured" in page.words
    assert page.all("svg") == []


def test_doubts_stand_beside_the_numbers(tmp_path):
    doubt = "void: a generative iteration takes the reference 300 ms"
    page = page_of(bench_folder(tmp_path / "bench", flags=[doubt]), out=tmp_path / "page.html")
    assert page.words.count(doubt) == 2  # at a glance and in its section


def test_beside_a_training(tmp_path):
    run = make_run(tmp_path / "run", full_results())
    page = page_of(run, bench_folder(tmp_path / "bench"), out=tmp_path / "page.html")
    sections = {attributes.get("id") for attributes in page.all("section")}
    assert {"accuracy", "bench", "training"} <= sections
    assert "No metrics yet: run." in page.words


def test_an_empty_folder_is_still_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="RUN must be a run folder"):
        write_report([tmp_path / "empty"])
