"""The section about generated images, from results alone."""

import re

import pytest

from gmmc.errors import InputError
from gmmc.report import figures
from gmmc.report.numbers import shown, shown_interval
from gmmc.report.page import write_report
from report_runs import accuracy_entry, entry, generation_entry, make_run, page_of, save_picture, table_rows

PICTURES = ["generation/fresh.png", "generation/nearest.png", "generation/buffer.png"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    run = make_run(folder / "run", {"generation": generation_entry(files=PICTURES)})
    for picture in PICTURES:
        save_picture(run / picture)
    return page_of(run, out=folder / "page.html")


def section(page) -> str:
    return page.html[page.html.index('<section id="generation"') :]


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split()).replace("\u202f", " ")


def test_published_fids_stand_beside_the_paper_s_protocol_only(page):
    rows = table_rows(page)
    assert rows["FID of fresh chains, none left out"] == ["67.6", "–", "–"]
    assert rows["FID of the replay buffer as it is"] == ["56.0", "–", "–"]
    assert rows["FID by the paper’s protocol"] == ["48.1", "37.0", "38.4"]
    assert rows["Inception Score, likewise"] == ["–", "7.24", "8.76"]


def test_every_protocol_says_what_it_is(page):
    text = words(section(page))
    for line in (
        "images FID KID ×1000 precision recall density coverage IS",
        "fresh chains, none left out 50 000 67.6 42.9 42.1 to 43.7 0.612 0.431 0.573 0.488 – 1",
        "replay buffer as it is 10 000 56.0",
        "paper’s protocol: the most confident 90% of the relabelled buffer, against train + test 9 000 48.1",
        "real test images, which a perfect generator would equal 10 000 3.15 −0.10 −0.90 to 0.70",
        "fresh chains of 100 steps 10 000 82.3 54.9 – – – – – fresh chains of 200 steps",
        "Inception Score: not measured: the packaged trunk has no class head",
        "Features: Inception 2015-12-05 trunk, sha256 7ff4a85c3a; reference: 50,000 training images",
        "Most published FIDs of energy-based models are of selected images of a replay buffer",
    ):
        assert line in text
    assert text.index("fresh chains of 400 steps") < text.index("not measured by us") < text.index("NCSN")


def test_memorisation_is_told_and_drawn(page):
    text = words(section(page))
    assert "(1% by chance) 1.30% 1.09–1.54%" in text
    assert "nearest training image, median 9.870" in text
    assert "first a sample, then the training images nearest to it in feature space" in text
    assert len(page.all("img")) == 3
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert sum("Distances to the nearest training image" in label for label in labels) == 1
    assert sum("FID of fresh chains against their number of steps" in label for label in labels) == 1


def test_histograms_of_shares_reach_the_same_height():
    curve = {"edges": [0.0, 1, 2], "samples": [0.01, 0.02], "test": [0.4, 0.2], "none": [0, 0]}
    heights = []
    for key in ("samples", "test", "none"):
        svg = figures.histograms(curve, f"The bars of {key}.", "distance", [(key, "#123456")])
        drawn = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: #123456', svg)
        heights.append(min(float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", drawn[0])))
    assert heights[0] == heights[1] < heights[2]


def test_several_runs_compare_within_each_protocol(tmp_path):
    runs = [
        make_run(tmp_path / n, {"generation": generation_entry(features=f)})
        for n, f in (("a", "x"), ("b", "y"))
    ]
    other = make_run(tmp_path / "c", {"accuracy": accuracy_entry()})
    page = page_of(*runs, other, out=tmp_path / "p")
    text = words(section(page))
    assert "fresh chains, none left out a 50 000 67.6" in text
    assert "a – Features: x; reference: 50,000 training images · b – Features: y;" in text
    assert table_rows(page)["FID by the paper’s protocol"][:3] == ["48.1", "48.1", "–"]
    assert sum("number of steps, run a, b" in svg["aria-label"] for svg in page.all("svg")) == 1


def test_the_literature_takes_the_comparable_protocol(tmp_path):
    results = {"accuracy": accuracy_entry(), "generation": generation_entry()}
    page = page_of(make_run(tmp_path / "run", results), out=tmp_path / "p")
    assert "run 94.08% 93.60–94.53% – 48.1" in page.words
    assert "of ours are by the paper’s protocol" in page.words
    page = page_of(make_run(tmp_path / "bare", {"accuracy": accuracy_entry()}), out=tmp_path / "p")
    assert "of ours are by the paper’s protocol" not in page.words


def test_what_is_absent_or_null_or_new(tmp_path):
    values = {"fresh/fid": None, "fresh/kid": None, "protocol_of_2031/fid": 12.34, "test/kid": float("nan")}
    values |= {"steps_400/fid": 9.876, "steps_50/fid": None, "fresh/odd_score": 3, "sharpness": 0.25}
    curves = {"steps": {"steps": [50, 400], "fid": [None, 9.876]}, "nearest": None}
    measured = entry(values, {"fresh/kid": [None, None]}, curves, images=100)
    page = page_of(make_run(tmp_path / "run", {"generation": measured}, data="digits"), out=tmp_path / "p")
    text = words(section(page))
    for line in (
        "fresh chains, none left out – – – – – – – –",
        "protocol_of_2031 – 12.3 – – – – – –",
        "fresh chains of 50 steps – – – – – – – – fresh chains of 400 steps – 9.88",
        "fresh / odd score 3",
        "sharpness 0.250",
    ):
        assert line in text
    assert "not measured by us" not in page.words


@pytest.mark.parametrize("values", [{}, {"fresh/fid": None}, {"memorisation/closer_share": 0.01}])
def test_hardly_anything_measured(values, tmp_path):
    page = page_of(make_run(tmp_path / "run", {"generation": entry(values)}), out=tmp_path / "p")
    assert ">Generation</h2>" in page.html


def test_curves_that_do_not_fit_are_told(tmp_path):
    run = make_run(tmp_path / "run", {"generation": entry({}, curves={"nearest": {"edges": [0, 1]}})})
    with pytest.raises(InputError, match=r"entry 'generation' .* cannot be shown"):
        write_report([run])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("fresh/fid", 67.644, "67.6"),
        ("test/fid", 3.153, "3.15"),
        ("a/inception_score", 7.244, "7.24"),
        ("a/density", 1.0204, "1.020"),
        ("a/recall", 1.0, "1.000"),
    ],
)
def test_scores_have_the_digits_of_the_published_ones(name, value, text):
    assert shown(name, value) == text


def test_an_interval_has_the_digits_of_its_score():
    assert shown_interval("fresh/fid", [66.12, 68.98]) == "66.1–69.0"
