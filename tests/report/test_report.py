"""The report: one page that opens anywhere and shows what is there."""

import itertools
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gmmc.report.headline import GROUPS
from gmmc.report.page import write_report
from gmmc.report.reading import read_runs
from processes import finished, python
from report_runs import (
    Page,
    accuracy_entry,
    calibration_entry,
    entry,
    full_results,
    latent_entry,
    make_run,
    ood_entry,
    page_of,
    save_picture,
    table_rows,
    training_lines,
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """A run with everything, and one that was rolled back and has no map of features."""
    base = tmp_path_factory.mktemp("runs")
    whole = make_run(base / "whole", full_results(), training_lines())
    save_picture(whole / "samples" / "by_class.png")
    lines = training_lines()
    rolled = {
        **lines[25],
        "event": "rollback",
        "reason": "real energies above 200",
        "to": 400,
        "rollbacks": 1,
    }
    part = {name: e for name, e in full_results().items() if name != "latent"}
    return whole, make_run(
        base / "part", part, [*lines[:25], rolled, *({**line, "rollbacks": 1} for line in lines[20:])]
    )


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Page:
    return page_of(*runs, out=tmp_path_factory.mktemp("pages") / "two.html")


# --- the page opens anywhere ----------------------------------------------------------------------


def test_the_report_needs_no_torch(runs):
    code = "import sys; from gmmc.report.page import write_report; print(write_report([sys.argv[1]]).page)"
    code += "; assert not {'torch', 'matplotlib.pyplot'} & sys.modules.keys()"
    assert python(code, runs[0]).stdout.strip() == str(runs[0] / "report.html")


def test_nothing_is_loaded_from_elsewhere(page):
    assert not re.search(r"https?:|@import|<script|javascript:", page.html)
    for attributes in page.all(*{tag for tag, _ in page.elements}):
        for name in ("src", "href", "xlink:href", "srcset", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))
    assert set(re.findall(r"url\((.)", page.html)) <= {"#"}


def test_it_is_a_page_for_phones_and_for_the_dark(page):
    assert page.html.startswith("<!doctype html>")
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert "prefers-color-scheme: dark" in page.html
    assert "color-scheme: light dark" in page.html


def test_every_figure_says_what_it_shows(page):
    drawn, shown_pictures = page.all("svg"), page.all("img")
    assert len(drawn) > 20
    assert len(shown_pictures) == 1
    labels = [svg["aria-label"] for svg in drawn]
    assert all(svg["role"] == "img" for svg in drawn)
    assert all(label.endswith(".") and len(label.split()) > 4 for label in labels)
    assert len(set(labels)) == len(labels)
    assert len(page.all("title")) == 1 + len(drawn)
    assert all(len(picture["alt"].split()) > 4 for picture in shown_pictures)


def test_ids_are_unique_and_every_reference_has_its_target(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    used = re.findall(r'(?:url\(#|href="#)([^)"]+)', page.html)
    assert set(used) <= set(ids)


def test_figures_take_their_colours_and_their_font_from_the_page(page):
    drawings = " ".join(re.findall(r"<svg.*?</svg>", page.html, re.DOTALL))
    assert "#0a0" not in drawings
    assert "font-family" not in drawings
    assert "DejaVu" not in drawings
    for wanted in ("currentColor", "var(--accent)", "var(--good)", "var(--bad)", "var(--run-2)", "<text"):
        assert wanted in drawings


def test_the_same_run_gives_the_same_page(tmp_path):
    run = make_run(tmp_path / "run", {"accuracy": accuracy_entry()}, training_lines(100))
    first, second = (write_report([run], tmp_path / name).page.read_bytes() for name in ("a.html", "b.html"))
    assert first == second


# --- it shows what is there -----------------------------------------------------------------------


def test_numbers_stand_beside_their_run_and_their_interval(page):
    rows = table_rows(page)
    assert rows["test accuracy"][:2] == ["94.08% 93.60–94.53%"] * 2
    assert rows["ECE with γ² fitted on validation images"][:2] == ["1.00%"] * 2
    assert rows["SVHN"][0] == "0.940 0.936–0.944"  # log p(x) at γ = 1
    assert rows["recognised by an independent SVC"][0] == "87.1% 85.0–89.0%"
    assert rows["updates"][:2] == ["1 000"] * 2
    assert rows["rollbacks"][:2] == ["0", "1"]


def test_a_line_of_the_headline_shows_the_number_that_its_words_name():
    """A word of the label stands for a part of the value's name, and for no other."""
    words = {
        "calibration": {
            "paper’s γ²": "paper/",
            "γ = 1": "unit/",
            "fitted": "fitted/",
            "ECE": "/ece",
            "NLL": "/nll",
        },
        "robustness": {
            "8/255": "linf_8/",
            "L2 0.5": "l2_0.5/",
            "PGD": "/paper_pgd/",
            "worst_case": "/worst_case/",
        },
        "autoattack": {"4/255": "linf_4/", "8/255": "linf_8/", "AutoAttack": "/autoattack/"},
        "generation": {
            "fresh chains": "fresh/",
            "their start": "start/",
            "buffer": "buffer/",
            "paper’s protocol": "paper/",
            "FID": "/fid",
            "KID": "/kid",
            "Inception Score": "/inception_score",
        },
    }
    for group, meanings in words.items():
        for wanted in GROUPS[group][1]:
            if "likewise" not in wanted.label and "the same" not in wanted.label and wanted.value:
                told = {part for word, part in meanings.items() if word in wanted.label}
                assert told == {part for part in meanings.values() if part in wanted.value}, wanted.label


def test_what_one_run_lacks_is_a_dash(page):
    assert table_rows(page)["accuracy of nearest neighbours"][:2] == ["93.9%", "–"]


def test_a_doubt_stands_below_the_numbers_it_concerns_and_in_its_section(page):
    table = page.html[page.html.index("<table") : page.html.index("</table>")]
    doubt = "⚠</b> whole, part: the judge itself is weak"
    assert (
        table.index("recognised by an independent SVC") < table.index(doubt) < table.index(">Features</span>")
    )
    section = page.html[page.html.index(">Samples</h2>") :]
    warning = '<p class="warning"><b role="img" aria-label="warning">⚠</b> <strong>{}:</strong> the judge'
    assert section.count(warning.format("whole, part")) == 1
    assert section.count("the judge itself is weak") == 1


def test_figures_of_a_kind_stand_in_rows_of_their_own(page, runs, tmp_path):
    section = page.html[page.html.index(">Accuracy</h2>") : page.html.index(">Calibration</h2>")]
    figures = re.findall(r'<figure class="(.*?)">\s*<figcaption><strong>(.*?)</strong>', section)
    bars, maps = "Accuracy by class", "Confusion"
    assert figures == [("first", bars), ("", bars), ("first", maps), ("", maps)]
    alone = page_of(runs[0], out=tmp_path / "one.html")
    assert 'class="first"' not in alone.html


def test_doubts_are_told_once_and_counted_at_the_top(tmp_path):
    doubts = {"a": ["too sure", "few images"], "b": ["too sure"], "c": []}
    runs = [make_run(tmp_path / n, {"accuracy": accuracy_entry(flags=f)}) for n, f in doubts.items()]
    page = page_of(*runs, out=tmp_path / "p.html")
    assert page.words.count("⚠") == 3
    assert "⚠ 2 doubts, see Accuracy" in page.words
    assert '2 doubts, see <a href="#accuracy">' in page.html
    assert '<section id="accuracy"' in page.html
    assert "⚠ a, b: too sure" in page.words
    assert "⚠ a: few images" in page.words
    assert page_of(runs[1], out=tmp_path / "p.html").words.count("⚠ too sure") == 2


def test_conditions_are_there_to_unfold(page):
    assert page.words.count("Conditions") == len(full_results())
    assert "split test" in page.words
    assert "train.seed 0" in page.words


def test_rollbacks_are_told_and_drawn(page):
    training = page.html[page.html.index(">Training</h2>") :]
    assert "rolled back at update 520 to update 400: real energies above 200" in training
    assert "</i>the guard stepped in" in training


def test_published_numbers_are_marked_with_their_source(page):
    assert table_rows(page)["test accuracy"][2:] == ["94.08%", "94.3%", "92.9%", "–"]
    assert table_rows(page)["ECE with a γ² that was not stated"] == ["–", "–", "1.33%", "–", "–", "–"]
    for cell in re.findall(r"<td [^>]*title=[^>]*>", page.html):
        assert 'class="published"' in cell
        assert "published, not measured by us: Yang et al. 2021" in cell
    rows = re.findall(r'<tr class="(?:group )?(ours|published|group|not-ours|flag)">', page.html)
    assert "In italics" not in page.words
    for before, kind in itertools.pairwise(rows):
        if kind == "published":
            assert before in ("published", "not-ours")
    assert rows.count("published") >= 10 + 14 + 20
    assert page.words.count("published, not measured by us") >= rows.count("not-ours") + 1


@pytest.mark.parametrize(("data", "here"), [("svhn", "97.2%"), ("cifar100", "73.9%"), ("digits", None)])
def test_only_the_rows_of_the_run_s_own_data_set_are_shown(data, here, tmp_path):
    page = page_of(
        make_run(tmp_path / "run", {"accuracy": accuracy_entry()}, data=data), out=tmp_path / "p.html"
    )
    assert ("not measured by us" in page.words) == (here is not None)
    for number in ("97.2%", "73.9%", "37.0"):
        assert (number in page.words) == (number == here)


def test_runs_on_different_data_sets_share_no_published_column(tmp_path):
    folders = [make_run(tmp_path / d, {"accuracy": accuracy_entry()}, data=d) for d in ("svhn", "cifar10")]
    page = page_of(*folders, out=tmp_path / "p.html")
    assert "not measured by us" not in page.words
    assert "SVHN, CIFAR-10" in page.words


def test_a_run_is_named_by_the_data_it_was_measured_on(tmp_path):
    run = make_run(tmp_path / "run", {"accuracy": accuracy_entry()}, data="arrays")
    recipe = (run / "config.toml").read_text().replace('name = "arrays"', 'name = "cifar10"')
    (run / "config.toml").write_text(recipe)
    page = page_of(run, out=tmp_path / "p.html")
    assert "arrays" in page.words
    assert "not measured by us" not in page.words


def test_a_softmax_network_has_two_temperatures(tmp_path):
    run = make_run(tmp_path / "run", {"calibration": calibration_entry(("unit", "fitted"))})
    page = page_of(run, out=tmp_path / "p.html")
    assert sum("Reliability diagram" in svg["aria-label"] for svg in page.all("svg")) == 2
    assert "ECE with the paper’s γ²" not in table_rows(page)


def test_how_far_chance_goes_is_small_print_and_no_column(tmp_path):
    page = page_of(make_run(tmp_path / "run", {"calibration": calibration_entry()}), out=tmp_path / "p.html")
    assert page.words.count("0.41% ≤ 0.72% in 19 of 20") == 3
    assert page.html.count('<small title="what chance alone gives">') == 3
    assert "perfect 95" not in page.words


def test_an_older_run_without_intervals_and_names(tmp_path):
    old = accuracy_entry()
    old = {k: v for k, v in old.items() if k != "intervals"}
    old["curves"] = {"top1_per_class": [0.9, None, 1.0]}
    page = page_of(make_run(tmp_path / "run", {"accuracy": old}, data="digits"), out=tmp_path / "p.html")
    assert table_rows(page)["test accuracy"] == ["94.1%"]
    assert "95% interval" not in page.words


def test_an_evaluation_of_the_future_is_shown_as_it_is(tmp_path):
    values = {"l2/steps": 12, "clean_accuracy": 0.5, "odd": math.nan, "none": None}
    new = entry(
        values, curves={"epsilon": [1, 2]}, files=["samples/a.png"], flags=["take care"], attack="none"
    )
    run = make_run(tmp_path / "run", {"attack_of_2031": new})
    save_picture(run / "samples" / "a.png")
    page = page_of(run, out=tmp_path / "p.html")
    for words in ("attack of 2031", "l2 / steps 12", "clean accuracy 50.0%", "odd not a number", "none –"):
        assert words in page.words
    assert "⚠ take care" in page.words
    assert "curves epsilon" in page.words
    assert len(page.all("img")) == 1


@pytest.mark.parametrize(("classes", "keys"), [(3, 3), (20, 20), (100, 0)])
def test_many_classes(classes, keys, tmp_path):
    names = [f"class {i}" for i in range(classes)]
    results = {"accuracy": accuracy_entry(names), "latent": latent_entry(names, 300)}
    page = page_of(make_run(tmp_path / "run", results), out=tmp_path / "p.html")
    legend = page.html[page.html.index(">Features</h2>") :]
    assert legend.count('<b aria-hidden="true">') == keys
    confusion = re.search(r"<svg[^>]*Confusion.*?</svg>", page.html, re.DOTALL)
    assert confusion is not None
    assert ("<image" in confusion[0]) == (classes > 20)
    assert (">900<" in confusion[0]) == (classes <= 20)


def test_words_of_the_run_are_never_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    names = [evil, "a & b", "$x$ and \\frac", "猫", '"quoted"']
    results = {
        "accuracy": accuracy_entry(names, flags=[evil], note=evil),
        "latent": latent_entry(names, 50),
        evil: entry({evil: 1.0}),
        "ood": ood_entry((evil,)),
    }
    page = page_of(make_run(tmp_path / "<b>run", results, data=evil), out=tmp_path / "p.html")
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.words.count(evil) >= 6
    assert "$x$ and \\frac" in page.words
    assert "猫" in page.words


def test_control_characters_of_a_record_are_escapes(tmp_path):
    """Names of values and of evaluations; U+202E reverses the text after it."""
    odd = "a\x1b[2J\u202e"
    results = {
        "accuracy": accuracy_entry([odd, "b"], note=odd),
        "robustness": entry({f"linf_8/{odd}/accuracy": 0.5, odd: 0.1}, flags=[odd]),
        odd: entry({odd: 1.0}),
    }
    page = page_of(make_run(tmp_path / "run", results), out=tmp_path / "p.html")
    assert not {"\x1b", "\u202e"} & set(page.html)
    assert page.words.count("a\\x1b[2J\\u202e") >= 5


# --- a browser looks at it ------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium")
WIDTHS = (390, 1200)  # a phone and a desk
MEASURE = """
function measured(frame) {
  const page = frame.contentDocument;
  const box = element => element.getBoundingClientRect();
  const outside = text => {
    const [a, b] = [box(text), box(text.closest("svg"))];
    return Math.min(a.left - b.left, b.right - a.right, a.top - b.top, b.bottom - a.bottom) < -0.5;
  };
  const narrow = svg => box(svg).width < box(svg.closest("figure")).width - 1;
  const clipped = [...page.querySelectorAll("svg text")].filter(outside).map(text => text.textContent);
  const drawn = [...page.querySelectorAll("svg")];
  return `${page.documentElement.scrollWidth} of ${frame.contentWindow.innerWidth}, clipped: [${clipped}]`
    + (frame.contentWindow.innerWidth < 500 ? `, narrow: ${drawn.filter(narrow).length}` : "");
}
onload = () => document.title = [...document.querySelectorAll("iframe")].map(measured).join("; ");
"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page was not looked at")
def test_a_browser_shows_it_without_overflow_in_light_and_dark(page, tmp_path):
    """Both widths in frames of one window; with everything unfolded. No label is cut, no figure too small."""
    unfolded = page.html.replace("<details", "<details open")
    quoted = unfolded.replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(
        f'<iframe srcdoc="{quoted}" style="width:{w}px;height:1500px;border:0"></iframe>' for w in WIDTHS
    )
    window = tmp_path / "window.html"
    window.write_text(
        f'<!doctype html><body style="margin:0;display:flex">{frames}<script>{MEASURE}</script>'
    )
    brightness = {}
    for scheme, number in (("light", 1), ("dark", 0)):
        browse = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        browse += [f"--user-data-dir={tmp_path / scheme}", f"--blink-settings=preferredColorScheme={number}"]
        picture = tmp_path / f"{scheme}.png"
        shot = [f"--screenshot={picture}", f"--window-size={sum(WIDTHS)},1500", window.as_uri()]
        finished([*browse, *shot])
        dom = finished([*browse, "--dump-dom", window.as_uri()], status=None)
        told = re.search("<title>(.*?)</title>", dom.stdout)
        assert told is not None
        assert told[1] == "390 of 390, clipped: [], narrow: 0; 1200 of 1200, clipped: []"
        with Image.open(picture) as image:
            pixels = np.asarray(image.convert("L"), dtype=float)
        halves = (pixels[:, : WIDTHS[0]], pixels[:, WIDTHS[0] :])
        assert all(half.std() > 8 for half in halves)  # a blank page has 0
        brightness[scheme] = [np.median(half) for half in halves]
    assert min(brightness["light"]) > 230
    assert max(brightness["dark"]) < 40


def test_maps_of_different_classes_have_their_own_legends(tmp_path):
    folders = [
        make_run(tmp_path / name, {"latent": latent_entry([f"{name} {i}" for i in range(3)], 30)}, data=name)
        for name in ("digits", "cifar10")
    ]
    page = page_of(*folders, out=tmp_path / "p.html")
    assert all(f"{name} {i}" in page.words for name in ("digits", "cifar10") for i in range(3))


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize(
    ("measured", "has_means"),
    [
        ({"calibration": calibration_entry()}, True),
        ({"calibration": calibration_entry(("unit", "fitted"))}, False),
        ({"ood": ood_entry(("paper",), older=True)}, True),
        ({"ood": entry({"paper/accepted": 0.1, "paper/log_density/unit/auroc": 0.9})}, False),
        ({"generation": entry({"paper/fid": 48.1})}, False),
        ({}, False),
    ],
    ids=["calibration", "softmax", "ood", "set of that name", "protocol of that name", "nothing else"],
)
@pytest.mark.parametrize("head", ["mmc", "a head of 2031"])
def test_accuracy_of_an_older_version_is_at_the_papers_gamma2(tmp_path, old, measured, has_means, head):
    """Values at that γ², which only a model with class means has, decide; the name of its head does not."""
    accuracy = accuracy_entry(flags=["overconfident: the NLL is worse than knowing nothing"])
    accuracy["conditions"]["settings"]["model"] = {"head": head}
    if old:
        del accuracy["conditions"]["temperature"]
    (run,) = read_runs([make_run(tmp_path / "run", {"accuracy": accuracy, **measured})])
    at_paper = old and has_means
    found = run.results["accuracy"]
    assert {"paper/nll", "paper/brier"} <= found.values.keys() if at_paper else "nll" in found.values
    assert ("nll" in found.values) != at_paper
    assert bool(found.flags) != at_paper


def test_nll_of_an_older_version_is_named_by_its_temperature(tmp_path):
    accuracy = accuracy_entry()
    del accuracy["conditions"]["temperature"]
    results = {"accuracy": accuracy, "calibration": calibration_entry()}
    words = page_of(make_run(tmp_path / "run", results), out=tmp_path / "p.html").words
    assert "NLL at the paper’s γ² 0.247" in words
