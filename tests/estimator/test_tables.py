"""The comparison of docs/tables.md measures what it says, and the page's code runs."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import make_blobs

from doc_blocks import blocks_of, linked_files

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tables.md"


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))


@pytest.mark.parametrize("name", ["LDA", "QDA"])
def test_gaussian_densities_are_those_that_rows_were_drawn_from(tables, name):
    x, y = make_blobs(4000, centers=[[0.0, 0.0], [6.0, 1.0]], cluster_std=1.0, random_state=0)
    method = tables["METHODS"][name]
    found = method.familiarity(method.make().fit(x, y), x)
    parts = [multivariate_normal(mean).pdf(x) / 2 for mean in ([0.0, 0.0], [6.0, 1.0])]
    assert np.abs(found - np.log(sum(parts))).mean() < 0.05


def test_easy_classes_and_obvious_strangers(tables):
    table = tables["Table"](*make_blobs(150, centers=[[0, 0], [9, 0], [0, 9]], random_state=0))
    found = tables["classification"](tables["METHODS"]["QDA"], table)
    assert found["accuracy"] == 1
    assert found["log_loss"] < 0.01
    assert found["ece"] < 0.01
    strangers = tables["novelty"](tables["METHODS"]["QDA"], table)
    assert strangers["novelty_by_class"].keys() == {"0", "1", "2"}
    assert strangers["novelty_auroc"] > 0.99


def test_labels_that_mean_nothing_are_not_learned(tables):
    """No row is named by a model that has seen it."""
    source = np.random.default_rng(0)
    table = tables["Table"](source.normal(size=(60, 30)), np.arange(60) % 2)
    assert tables["classification"](tables["METHODS"]["LDA"], table)["accuracy"] < 0.75


def test_all_six_tables_are_there(tables):
    assert len(tables["TABLES"]) == 6
    for name, load in tables["TABLES"].items():
        x, y = load()
        assert len(x) == len(y), name
        assert np.isfinite(x).all(), name


@pytest.mark.slow
def test_the_page_s_code_runs():
    given: dict = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            exec(block.text, given)
    assert given["images"].shape == (100, 8, 8)


def test_every_link_of_the_page_leads_somewhere():
    assert all(target.exists() for target in linked_files(PAGE))
