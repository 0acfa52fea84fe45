"""The model card: words of card.toml beside numbers of results.json."""

import re
import shutil
from pathlib import Path

import pytest

from gmmc.errors import InputError
from gmmc.report.card import HEADINGS, NO_ROBUSTNESS, PICTURE_BYTES
from gmmc.report.page import write_report
from report_runs import (
    Page,
    accuracy_entry,
    autoattack_entry,
    calibration_entry,
    entry,
    full_results,
    generation_entry,
    make_run,
    ood_entry,
    page_of,
    robustness_entry,
    samples_entry,
    save_picture,
)

CARD = """
title = "Ten things"
licence = "MIT"
limits = ["It errs.", "It is small."]
purpose = "To name ten things."
"""
WORST, PGD = "worst case of the attacks of preset quick, L∞ 8/255", "PGD-40, L∞ 8/255: the paper’s protocol"

AUTOATTACK = [f"AutoAttack, L∞ {pixels}/255 (four parts)" for pixels in (8, 4)]


def with_card(folder: Path, results=None, card=CARD, **options) -> Path:
    run = make_run(folder, results, **options)
    (run / "card.toml").write_text(card, encoding="utf-8")
    return run


def section(page: Page) -> str:
    start = page.html.index('<section id="card"')
    return page.html[start : page.html.index("</section>", start)]


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def rows(html: str) -> dict[str, str]:
    """The numbers of all lines of tables by their label, each with its interval; the first of a label."""
    found = re.findall(r'<tr class="ours[^"]*"><th[^>]*>(.*?)</th>\s*<td[^>]*>(.*?)</td>', html, re.DOTALL)
    return {words(label): words(number) for label, number in reversed(found)}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    results = full_results()
    results["generation"]["conditions"] |= {"steps": 200, "start": "Gaussian noise, not the buffer"}
    folder = with_card(tmp_path_factory.mktemp("runs") / "run", results)
    save_picture(folder / "samples" / "by_class.png")
    return folder


@pytest.fixture(scope="module")
def page(run, tmp_path_factory) -> Page:
    return page_of(run, out=tmp_path_factory.mktemp("pages") / "page.html")


def test_the_card_is_the_first_section_and_says_what_the_file_says_in_its_own_order(page):
    assert re.findall(r'<section id="(\w+)"', page.html)[:2] == ["card", "headline"]
    assert '<nav aria-label="sections"><a href="#card">Model card</a>' in page.html
    assert "<h3>Ten things</h3>" in section(page)
    assert re.findall("<h4>(.*?)</h4>", section(page)) == ["What it is for", "Limits", "Licence"]
    assert "<p>To name ten things.</p>" in section(page)
    assert re.findall("<li>(.*?)</li>", section(page)) == ["It errs.", "It is small."]


def test_numbers_are_those_of_the_table_of_all_runs(page):
    card = rows(section(page))
    rest = page.html.replace(section(page), "")
    elsewhere = rows(rest[: rest.index('<section id="accuracy"')])
    carried = {
        label for label in card if label.startswith("γ²") or "abstains" in label or "accepted" in label
    }
    assert {label: card[label] for label in card.keys() - carried} == {
        label: elsewhere[label] for label in card.keys() - carried
    }
    sets = {"SVHN", "Interpolated", "CIFAR-100", "CelebA", "Noise", "Constant"}
    assert card.keys() - carried - sets == {
        "test accuracy",
        "ECE with γ² fitted on validation images",
        "FID of fresh chains, none left out",
        "KID of the same",
        WORST,
        PGD,
        *AUTOATTACK,
    }
    assert sets <= card.keys()


def test_numbers_are_those_of_results(page):
    card = rows(section(page))
    assert card["test accuracy"] == "94.08% 93.60–94.53%"
    assert card["SVHN"] == "0.940 0.936–0.944"  # log p(x) at γ = 1
    assert card["test images: accepted"] == "95.0% 94.5–95.5%"
    assert card["SVHN: accepted"] == "85.0% 84.5–85.5%"
    assert card["γ² by the paper’s formula"] == "12.4"
    assert card["γ² fitted on validation images: the temperature of its confidences"] == "1.550"


def test_numbers_stand_with_their_conditions(page):
    told = words(section(page))
    assert "Classification (10 000 test images)" in told
    chains = "50 000 images; chains of 200 steps; start: Gaussian noise, not the buffer; features: Inception"
    assert f"Generated images ({chains}" in told
    assert "Accuracy under attack (256)" in told
    assert "AUROC of log p(x), γ = 1" in told
    assert "AUROC of log p(x) in the span of the means, γ = 1" in told
    assert "Share of images that it accepts, by log p(x) in the span of the means" in told


def test_the_worst_case_stands_above_the_paper_s_attack(page):
    card = section(page)
    assert card.index(WORST) < card.index(PGD)
    assert re.search(rf'<tr class="ours strong"><th scope="row">{re.escape(WORST)}', card)
    assert NO_ROBUSTNESS not in card


@pytest.mark.parametrize(
    "results",
    [
        None,
        {"accuracy": accuracy_entry()},
        {"robustness": robustness_entry(["paper_pgd"])},
        {"robustness": entry({"linf_8/worst_case/accuracy": None, "linf_8/paper_pgd/accuracy": 0.5})},
    ],
)
def test_without_a_worst_case_no_robustness_is_to_be_assumed(results, tmp_path):
    card = section(page_of(with_card(tmp_path / "run", results), out=tmp_path / "p.html"))
    assert f"⚠</b> {NO_ROBUSTNESS}" in card
    assert PGD not in card


def test_autoattack_stands_below_the_worst_case(page):
    card = section(page)
    assert card.index(PGD) < card.index(AUTOATTACK[0]) < card.index(AUTOATTACK[1])
    assert "AutoAttack (256)" in words(card)


def test_autoattack_alone_is_a_measurement(tmp_path):
    results = {"autoattack": autoattack_entry()}
    card = section(page_of(with_card(tmp_path / "run", results), out=tmp_path / "p.html"))
    assert NO_ROBUSTNESS not in card
    assert rows(card) == {AUTOATTACK[0]: "3.10% 2.48–3.41%", AUTOATTACK[1]: "35.2% 28.2–38.7%"}


def test_what_is_not_measured_is_left_out(tmp_path):
    results = {"calibration": calibration_entry(("unit",)), "ood": ood_entry((), older=True)}
    card = section(page_of(with_card(tmp_path / "run", results), out=tmp_path / "p.html"))
    assert rows(card) == {}
    assert "Calibration" not in words(card).replace("conditions: Calibration", "")


def test_older_results_that_tell_no_conditions(tmp_path):
    bare = {
        "accuracy": accuracy_entry(images=None),
        "generation": generation_entry(images=50_000, features=None),
    }
    card = section(page_of(with_card(tmp_path / "run", bare), out=tmp_path / "p.html"))
    assert rows(card)["FID of fresh chains, none left out"] == "67.6"
    assert ">Classification</span>" in card
    assert ">Generated images</span>" in card


def test_links_of_the_card_lead_to_sections_of_the_page(page):
    places = re.findall(r'href="#([\w-]+)"', section(page))
    assert {"samples", "robustness"} <= set(places)
    assert all(f'<section id="{place}"' in page.html for place in places)


def test_one_picture_of_unselected_samples_that_is_small(tmp_path):
    files = ("samples/nearest.png", "samples/by_class.png", "samples/unconditional.png")
    run = with_card(tmp_path / "run", {"samples": samples_entry(files)})
    for file in files:
        save_picture(run / file, size=(400, 400))
    page = page_of(run, out=tmp_path / "p.html")
    (source,) = re.findall('<img src="([^"]*)"', section(page))
    assert len(source) <= PICTURE_BYTES + 100
    assert "Fresh samples by class" in section(page)
    labels = [picture["alt"] for picture in page.all("img")]
    assert len(set(labels)) == len(labels) == 4
    (run / files[1]).unlink()
    gone = page_of(run, out=tmp_path / "p.html")
    assert "<img" not in section(gone)
    assert gone.words.count("is not in the run folder any more") == 1


def test_without_a_card_there_is_no_section_and_the_rest_is_the_same(run, page, tmp_path):
    plain = Path(shutil.copytree(run, tmp_path / "run"))
    (plain / "card.toml").unlink()
    html = page_of(plain, out=tmp_path / "p.html").html
    assert "Model card" not in html
    link = '<a href="#card">Model card</a>'
    rest = page.html.replace(section(page) + "</section>\n", "").replace(link, "")
    # Only the numbers of the sections, to which foot notes link, have moved on by one.
    moved = re.compile(r'(id="|href="#|labelledby=")s\d+-')
    assert moved.sub(r"\1s-", rest) == moved.sub(r"\1s-", html)


def test_several_cards_stand_below_each_other_with_their_runs(tmp_path):
    ones = [with_card(tmp_path / n, {"accuracy": accuracy_entry()}) for n in ("a", "b")]
    page = page_of(ones[0], make_run(tmp_path / "plain"), ones[1], out=tmp_path / "p.html")
    assert re.findall("<h3>(.*?)</h3>", section(page)) == ["a: Ten things", "b: Ten things"]
    assert section(page).count("94.08%") == 2
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_words_are_never_markup(tmp_path):
    evil = "<script>alert(1)</script> & {{ 7 * 7 }}"
    lines = [f"{key} = ['{evil}']" if key == "limits" else f"{key} = '{evil}'" for key in HEADINGS]
    run = with_card(tmp_path / "run", card="\n".join([f"title = '{evil}'", *lines]))
    page = page_of(run, out=tmp_path / "p.html")
    assert "<script" not in page.html
    assert page.words.count(evil) == 1 + len(HEADINGS)


def test_an_empty_card_still_shows_the_numbers(tmp_path):
    card = section(
        page_of(with_card(tmp_path / "r", {"accuracy": accuracy_entry()}, ""), out=tmp_path / "p.html")
    )
    assert "94.08%" in card
    assert "<h4>" not in card


@pytest.mark.parametrize(
    ("card", "told"),
    [
        ("porpose = 'x'", r"unknown key 'porpose' in .*card\.toml; did you mean 'purpose'\?"),
        ("accuracy = 0.99", r"unknown key 'accuracy' in .*card\.toml; known are title, purpose"),
        ("data = 3", r"data in .*card\.toml must be text or a list of texts, none of it empty, got 3"),
        ("limits = ['a', 1]", r"limits in .*card\.toml must be .* got \['a', 1\]"),
        ("limits = []", r"limits in .*card\.toml must be .* got \[\]"),
        ("quote = ' '", r"quote in .*card\.toml must be .* got ' '"),
        ("title = ['a']", r"title in .*card\.toml must be text, none of it empty, got \['a'\]"),
        ("[data]\nname = 'x'", r"data in .*card\.toml must be .* got \{'name': 'x'\}"),
        ("title = ", r"card\.toml is not valid TOML"),
    ],
)
def test_a_bad_card_is_told_in_one_line(card, told, tmp_path):
    run = with_card(tmp_path / "run", {"accuracy": accuracy_entry()}, card)
    with pytest.raises(InputError, match=told) as raised:
        write_report([run])
    assert "\n" not in str(raised.value)
    assert not (run / "report.html").exists()


def test_the_threshold_is_the_one_recorded(page):
    label = (
        "log p(x) in the span of the means below which it abstains: 95% of the validation images are above"
    )
    assert rows(section(page))[label] == "−7.250"


def test_results_of_an_older_version_are_shown_at_gamma_1(tmp_path):
    """They have densities at every temperature, and nothing about acceptance."""
    results = full_results() | {"ood": ood_entry(older=True)}
    html = section(page_of(with_card(tmp_path / "run", results), out=tmp_path / "page.html"))
    assert rows(html)["SVHN"] == "0.940 0.936–0.944"
    assert "accepted" not in html
