"""The page about out-of-distribution detection: its lists are complete, its commands and code run."""

import re
import shutil

import pytest
from PIL import Image

from doc_blocks import DOCS, blocks_of, linked_files
from gmmc.classifier.abstention import JOINED, JOINED_BY_NOISE
from gmmc.classifier.noise_sizes import QUANTILES
from gmmc.classifier.scores import SCORES
from processes import finished, gmmc_command

PAGE = DOCS / "abstaining.md"


def test_it_lists_every_score():
    table = PAGE.read_text().split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [*SCORES]


def test_its_weights_and_levels_are_in_force():
    text = PAGE.read_text()
    joined = dict(re.findall(r"^\| (denoising|others) \| (.*) \|$", text, re.MULTILINE))
    assert JOINED_BY_NOISE == {"force_size": 0.5, "denoising_error": 0.5, "neighbours": 1.0}
    assert joined["denoising"].startswith("`force_size` ½, `denoising_error` ½, `neighbours` 1")
    assert re.findall(r"`(\w+)`", joined["others"]) == [*JOINED]
    assert {*JOINED.values()} == {1.0}
    levels = re.search(r"\{([^}]*)\}", text.split("## Scores of several")[1])
    assert levels is not None
    assert tuple(float(level.replace("−", "-")) for level in levels[1].split(",")) == QUANTILES


def test_every_link_leads_somewhere():
    assert all(target.exists() for target in linked_files(PAGE))


@pytest.mark.slow
def test_commands_and_code_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/demo")
    Image.new("L", (8, 8)).save("IMAGE.png")
    given: dict = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            exec(block.text, given)
        for words in block.commands if block.language == "sh" else []:
            finished(gmmc_command(*(word.replace("IMAGE", "IMAGE.png") for word in words[1:])))
    assert len(given["answer"].accepted) == 5
    assert given["answer"].score == "combined"
