"""The promise of the demo recipe, kept: this is the whole of `make demo` but for the installation."""

from pathlib import Path

import pytest

from gmmc.classifier.predict_files import predict_files
from gmmc.config import recipes
from gmmc.evaluations.run import evaluate_run
from gmmc.generate.examples import write_examples
from gmmc.report.page import write_report
from gmmc.runs.finished import load_model
from gmmc.train.loop import train


@pytest.mark.slow
def test_the_digits_recipe_keeps_its_promises(tmp_path):
    cfg = recipes.load("digits")
    assert cfg.evaluate.samples == 1000
    train(cfg, tmp_path / "demo")
    results = dict(evaluate_run(str(tmp_path / "demo"), [], "cpu"))
    assert results["accuracy"].values["top1"] >= 0.97
    assert results["samples"].values["svc_agreement"] >= 0.95
    assert results["samples"].values["diversity"] >= 0.5
    assert results["samples"].conditions["start"] == "uniform noise, not the buffer"
    assert results["calibration"].values["fitted/nll"] < results["calibration"].values["paper/nll"]
    for name in ("noise", "constant", "inverted", "rotated"):
        assert results["ood"].values[f"{name}/log_density/unit/auroc"] >= 0.95, name
    long = dict(evaluate_run(str(tmp_path / "demo"), ["robustness", "generation"], "cpu"))
    attacks = long["robustness"].values
    assert attacks["linf_64/paper_pgd/accuracy"] > 0.5  # masked gradients, and it is said
    assert attacks["linf_64/worst_case/accuracy"] < 0.05
    assert any("exactly zero" in flag for flag in long["robustness"].flags)
    assert any("small CNN, not of Inception" in flag for flag in long["generation"].flags)
    assert long["generation"].values["fresh/fid"] < 1
    assert not (tmp_path / "demo" / "work").exists()
    shown = write_examples(str(tmp_path / "demo"))
    rows, _ = predict_files(load_model(str(tmp_path / "demo"), "cpu"), list(shown))
    rows = {Path(row["image"]).name: row for row in rows}
    assert rows.keys() == {"held-out.png", "noise.png", "turned.png"}
    assert rows["held-out.png"]["class"] == "7"  # of 20 images, one is rejected by design
    assert [rows[name]["answer"] for name in ("noise.png", "turned.png")] == [None, None]
    page = write_report([tmp_path / "demo"]).page
    assert page.stat().st_size < 6_000_000
