"""The documents say what is there."""

import re
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
from PIL import Image

import gmmc
from conftest import tiny_data
from doc_blocks import blocks_of
from gmmc import load
from gmmc.export.onnx import to_onnx
from processes import finished

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_readme_s_numbers_are_those_of_results():
    finished([sys.executable, ROOT / "docs" / "readme.py", "--check"])


def test_every_function_of_the_paper_table_exists():
    table = README.split("## From the paper to the code")[1].split("\n## ")[0]
    names = re.findall(r"`([a-z_]+\.[A-Za-z_.]+)`", table)
    assert len(names) >= 12
    for name in names:
        assert resolve_name(f"gmmc.{name}") is not None


@pytest.mark.slow
def test_the_python_snippets_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tiny_data(classes=2)
    given = {"images": data.train.images, "labels": data.train.labels}
    snippets = [block.text for block in blocks_of(ROOT / "README.md") if block.language == "python"]
    assert len(snippets) == 4
    to_onnx(load(run), "cifar10.onnx")
    Image.new("L", (40, 30)).save("photo.jpg")
    quick = {
        "GMMCClassifier(": "GMMCClassifier(settings={'discriminative.epochs': 1, 'generative.epochs': 1}, "
        "min_updates=1, "
    }
    # The shipped model is three channels of 32×32 pixels; this one has one of 8×8.
    small = {
        "runs/demo": str(run),
        '"RGB"': '"L"',
        "(32, 32)": "(8, 8)",
        ".transpose(2, 0, 1)[None]": "[None, None]",
    }
    for snippet in snippets:
        for old, new in (quick | small).items():
            snippet = snippet.replace(old, new)
        exec(snippet, dict(given))
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()


def test_every_linked_file_exists():
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gmmc.__version__
    assert f"version: {gmmc.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {gmmc.__version__}" in (ROOT / "CHANGELOG.md").read_text()
