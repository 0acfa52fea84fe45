"""The sections about noise levels and bits per dimension, from results alone."""

import re

from report_runs import denoising_entry, likelihood_entry, make_run, ood_entry, page_of


def words(page, name) -> str:
    html = page.html[page.html.index(f'<section id="{name}"') :]
    html = html[: html.index("</section>")]
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def results(**changes):
    return {"denoising": denoising_entry(), "likelihood": likelihood_entry(**changes)}


def test_a_row_per_noise_level_and_three_figures(tmp_path):
    page = page_of(make_run(tmp_path / "run", results()), out=tmp_path / "page.html")
    text = words(page, "denoising")
    assert "σ = 0.03 0.700 0.680–0.720 1.030 1.010–1.050 1.100" in text.replace("\u202f", " ")
    assert "σ = 3 1.100 1.080–1.120 2.800 2.780–2.820 – 20.0% " in text  # no slope where F = 0
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert [sum(label.startswith(word) for label in labels) for word in ("Loss", "Slope", "Accuracy")] == [
        1
    ] * 3


def test_bits_with_their_error_their_histogram_and_a_row_per_class(tmp_path):
    page = page_of(make_run(tmp_path / "run", results()), out=tmp_path / "page.html")
    text = words(page, "likelihood")
    assert "bits per dimension 3.512 3.472–3.552 standard error over images 0.020" in text
    assert "half as many steps 3.522" in text
    assert "σ₀: 0.002" in text
    assert "plane – automobile 3.612" in text
    assert any("Histogram of the bits" in svg["aria-label"] for svg in page.all("svg"))


def test_several_runs_side_by_side(tmp_path):
    runs = [make_run(tmp_path / name, results(bits=bits)) for name, bits in (("a", 3.5), ("b", 4.5))]
    runs.append(make_run(tmp_path / "c", {}))
    page = page_of(*runs, out=tmp_path / "page.html")
    text = words(page, "likelihood")
    assert "bits per dimension 3.500 3.460–3.540 4.500 4.460–4.540 –" in text
    assert "σ₀: a 0.002, b 0.002" in text
    labels = [svg["aria-label"] for svg in page.all("svg")]
    assert len([label for label in labels if label.startswith("Slope")]) == 1
    assert len(labels) == len(set(labels))
    assert words(page, "denoising").count("σ = 0.3 ") == 2


def test_runs_of_other_classes_have_no_table_by_class(tmp_path):
    runs = [
        make_run(tmp_path / "a", results()),
        make_run(tmp_path / "b", results(classes=["cat", "dog"])),
    ]
    page = page_of(*runs, out=tmp_path / "page.html")
    assert "by class" not in words(page, "likelihood")


def test_the_score_to_abstain_by_comes_first_with_its_name(tmp_path):
    entry = ood_entry()
    sets = {place.split("/")[0] for place in entry["values"] if place.endswith("/auroc")}
    entry["conditions"]["abstains"] = {"score": "combined", "tpr": 0.95, "below": -5.0}
    page = page_of(make_run(tmp_path / "run", {"ood": entry}), out=tmp_path / "page.html")
    glance, section = words(page, "headline"), words(page, "ood")
    assert "AUROC of the score to abstain by" in glance
    assert glance.count(", combined p-values") == len(sets)
    found = re.findall(r"Distribution of ([\w ()-]+?) (?:Each|SVHN|Distribution)", section)
    assert found[0] == "combined p-values"
    assert "combined p-values run" in section  # without a temperature, which it does not have
    assert "log p(x), γ = 1 run" in section
