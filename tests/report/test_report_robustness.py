"""The section about attacks, from results alone."""

import re

import pytest

from gmmc.errors import InputError
from gmmc.report.attacks import by_family
from gmmc.report.page import write_report
from report_runs import (
    ATTACKS,
    accuracy_entry,
    autoattack_entry,
    entry,
    make_run,
    page_of,
    robustness_entry,
    save_picture,
    table_rows,
)

NOISES = "robustness/noises.png"


def section(page) -> str:
    return page.html[page.html.index('<section id="robustness"') :]


def lines(page, label) -> list[str]:
    """The cells of the first line with this label in the table of L∞ attacks."""
    table = section(page)[section(page).index("Accuracy under L∞ attacks") :]
    found = re.search(rf'<tr class="[^"]*"><th[^>]*>{re.escape(label)}.*?</tr>', table, re.DOTALL)
    assert found, label
    numbers = re.findall(r"<td[^>]*>(.*?)</td>", found[0], re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", number).split()) for number in numbers]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robust")
    run = make_run(folder / "run", {"robustness": robustness_entry(files=[NOISES])})
    save_picture(run / NOISES)
    return page_of(run, out=folder / "page.html")


def test_the_worst_case_stands_beside_the_paper_s_protocol_at_the_top(page):
    rows = table_rows(page)
    assert rows["PGD-40, L∞ 8/255: the paper’s protocol"] == [
        "54.4% 48.3–60.5%",
        "56.27%",
        "42.22%",
        "21.23%",
        "4.95%",
    ]
    assert rows["worst case of the attacks of preset quick, L∞ 8/255"] == [
        "10.5% 6.8–14.3%",
        "–",
        "–",
        "–",
        "–",
    ]
    assert rows["worst case of the attacks of preset quick, L2 0.5"][0] == "18.1% 13.4–22.8%"
    top = section(page)[: section(page).index("</table>")]
    assert top.count('<tr class="ours strong">') == 2
    assert "exactly zero (cross-entropy, the paper’s γ²)</th>" in top
    assert "43.4%" in top


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attacks": {k: v for k, v in ATTACKS.items() if k != "fab_t"}}, "preset quick (no FAB-T)"),
        ({"preset": "full"}, "preset full"),
        ({"attacks": ["margin", "worst_case"]}, "preset quick (no AutoAttack)"),
    ],
)
def test_the_worst_case_names_its_preset_and_what_it_lacks(changes, words, tmp_path):
    page = page_of(make_run(tmp_path / "r", {"robustness": robustness_entry(**changes)}), out=tmp_path / "p")
    label = f"worst case of the attacks of {words}, L∞ 8/255"
    assert label in table_rows(page)
    assert f"{label}</th>" in section(page)


def test_the_worst_cases_of_two_presets_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / p, {"robustness": robustness_entry(preset=p)}) for p in ("quick", "full")]
    rows = table_rows(page_of(*runs, out=tmp_path / "p"))
    assert "worst case of the attacks of preset quick and full, L∞ 8/255" in rows


def test_autoattack_has_a_table_of_parts_by_epsilon(tmp_path):
    runs = [make_run(tmp_path / n, {"autoattack": autoattack_entry()}) for n in ("a", "b")]
    page = page_of(*runs, out=tmp_path / "p")
    text = page.html[page.html.index('<section id="autoattack"') :]
    assert text.count("Accuracy under L∞ attacks by ε") == 2
    found = re.search(r'<tr class="ours strong"><th[^>]*>AutoAttack, all parts.*?</tr>', text, re.DOTALL)
    assert found
    assert re.findall(r">(\d+\.\d)%", found[0])[:3] == ["91.4", "35.2", "3.1"]
    assert table_rows(page)["AutoAttack, L∞ 8/255 (four parts)"][:2] == ["3.10% 2.48–3.41%"] * 2


def test_every_attack_has_a_line_and_every_epsilon_a_column(page):
    columns = re.findall(r'<th scope="col" class="">([^<]*/255|clean)<', section(page))
    assert columns == ["clean", *(f"{e}/255" for e in (1, 2, 4, 8, 16, 32, 64)), "clean"]
    assert lines(page, "logit margin")[4] == "25.4% 20.1–30.7%"
    assert lines(page, "then FAB, targeted")[1:] == ["–", "–", "–", "35.0% 29.2–40.8%", "–", "–", "–"]
    assert lines(page, "worst case of all that ran")[:2] == ["91.4% 87.3–94.2%", "69.8% 64.1–75.4%"]
    assert lines(page, "PGD-200, likewise")[4] == "53.1%"
    for family, members in by_family(list(ATTACKS)):
        assert f">{family.title}</span>" in page.html
        assert all(f">{text}</th>" in page.html for text in members.values())


def test_published_lines_stand_with_what_they_compare_to(page):
    text = section(page)
    paper, adaptive, auto, further, worst = (
        text.index(f">{title}</span>")
        for title in (
            "The paper’s protocol",
            "Adaptive attacks",
            "AutoAttack and its parts",
            "Further attacks",
            "Image by image",
        )
    )
    assert (
        paper < text.index("GMMC (Dis)") < adaptive < auto < text.index("MMC + adversarial") < further < worst
    )
    assert lines(page, "JEM") == ["92.83%", "–", "–", "34.39%", "21.23%", "5.82%", "0.50%", "–"]
    assert lines(page, "MMC + adversarial")[4] == "43.78%"
    assert re.search(r"SADA-JEM.*?31\.93%", text, re.DOTALL)


def test_the_figure_shows_each_attack_and_what_was_printed(page):
    (svg,) = [svg for svg in re.findall(r"<svg.*?</svg>", page.html, re.DOTALL) if "against ε" in svg[:200]]
    assert re.findall(r">(\d+)</text>", svg) == ["0", "1", "2", "4", "8", "16", "32", "64"]
    for colour in ("currentColor", "var(--warm)", "var(--accent)", "var(--good)", "var(--run-4)"):
        assert colour in svg
    legend = re.findall(r"<li style=.*?</li>", section(page), re.DOTALL)
    assert "worst case of all that ran, with its 95% interval" in legend[0]
    assert 'class="dashed"></i>paper’s protocol' in legend[1]
    assert len(legend) == len(ATTACKS) + 1
    assert "GMMC (Gen), PGD-40: published, not measured by us" in legend[-1]


def test_carlini_and_wagner_steps_and_noise(page):
    text = page.words
    for words in (
        "Untargeted run 100.0% 0.210 0.189",
        "Targeted run 98.0% 0.340 0.306",
        "Softmax 1 – 0.205 –",
    ):
        assert words in text
    assert "C&W: image, noise as (x_adv − x)/2 around grey" in text
    assert any("number of PGD steps" in svg["aria-label"] for svg in page.all("svg"))
    assert len(page.all("img")) == 1


def test_nothing_published_on_other_data(tmp_path):
    page = page_of(
        make_run(tmp_path / "r", {"robustness": robustness_entry()}, data="digits"), out=tmp_path / "p"
    )
    assert "not measured by us" not in page.words
    assert "paper’s protocol" in page.words


def test_several_runs_have_tables_of_their_own_and_one_legend(tmp_path):
    runs = [make_run(tmp_path / n, {"robustness": robustness_entry()}) for n in ("a", "b")]
    page = page_of(*runs, make_run(tmp_path / "c", {"accuracy": accuracy_entry()}), out=tmp_path / "p")
    assert table_rows(page)["worst case of the attacks of preset quick, L∞ 8/255"][:3] == [
        "10.5% 6.8–14.3%"
    ] * 2 + ["–"]
    text = section(page)
    assert text.count("Accuracy under L∞ attacks by ε") == 2
    assert "<h3>a</h3>" in text
    assert "<h3>b</h3>" in text
    assert text.count("with its 95% interval") == 1


def test_different_attacks_have_different_legends(tmp_path):
    chosen = {"a": ["margin", "worst_case"], "b": ["square", "worst_case"]}
    runs = [make_run(tmp_path / n, {"robustness": robustness_entry(some)}) for n, some in chosen.items()]
    text = section(page_of(*runs, out=tmp_path / "p"))
    assert text.count("with its 95% interval") == 2
    assert text.count("</b>logit margin</li>") == text.count("</b>Square alone (black box)</li>") == 1


def test_what_is_absent_or_null_or_new(tmp_path):
    measured = robustness_entry(["worst_case", "attack_of_2031"])
    for key in list(measured["values"]):
        if key.startswith(("linf_8/", "l2_", "cw/targeted")):
            measured["values"][key] = None
    measured["values"] |= {
        "cw/both_ways/l2_mean": 1.5,
        "query_count": 5000,
        "linf_3/attack_of_2031/accuracy": 0.5,
    }
    measured["intervals"] |= {"linf_1/worst_case/accuracy": [None, None], "linf_2/worst_case/accuracy": None}
    measured["curves"]["steps"]["accuracy"] = [None, 0.5, None]
    page = page_of(make_run(tmp_path / "run", {"robustness": measured}), out=tmp_path / "p")
    assert lines(page, "attack of 2031")[3] == "50.0%"
    assert "worst case of the attacks of preset quick, L∞ 8/255" not in table_rows(page)
    for words in ("Both_ways run – 1.500 –", "query count 5 000"):
        assert words in page.words.replace("\u202f", " ")


@pytest.mark.parametrize(
    "values", [{}, {"clean": 0.9}, {"clean": None}, {"linf_8/worst_case/accuracy": None}]
)
def test_hardly_anything_measured(values, tmp_path):
    page = page_of(make_run(tmp_path / "run", {"robustness": entry(values)}), out=tmp_path / "p")
    assert ">Robustness</h2>" in page.html


def test_curves_that_do_not_fit_are_told(tmp_path):
    run = make_run(
        tmp_path / "run", {"robustness": entry({}, curves={"steps": {"steps": [1], "accuracy": []}})}
    )
    with pytest.raises(InputError, match=r"entry 'robustness' .* cannot be shown"):
        write_report([run])
