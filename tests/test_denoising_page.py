"""Training by denoising from the command line, and the commands and code of its page."""

import numpy as np
import pytest
from PIL import Image

from conftest import make_model
from doc_blocks import DOCS, blocks_of, linked_files
from gmmc.cli import app
from gmmc.runs import model_file
from processes import finished, gmmc_command

PAGE = DOCS / "denoising.md"
BLOCKS = blocks_of(PAGE)
# The page's commands and code in seconds.
QUICK = ["generative.epochs=1", "generative.warmup=0", "train.checkpoint_seconds=0"]
QUICK_CODE = {
    'algorithm="denoising", ': 'algorithm="denoising", min_updates=1, '
    'settings={"generative.epochs": 1, "generative.warmup": 0}, '
}


@pytest.fixture
def denoiser(tmp_path):
    """A model file."""
    model = make_model(
        model={"backbone": "smooth-mlp-2-16"}, train={"algorithm": "denoising"}, sampler={"name": "heun"}
    )
    model_file.save_model(tmp_path / "denoiser.safetensors", model)
    return tmp_path / "denoiser.safetensors"


def sample(*words, capsys):
    """(exit status, standard error) of `gmmc sample`, in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main(["sample", *map(str, words)])
    return stop.value.code, capsys.readouterr().err


class TestGuidance:
    def test_it_changes_the_images_of_a_seed(self, denoiser, tmp_path, capsys):
        drawn = []
        for guidance in ([], ["--guidance", 0], ["--guidance", 3]):
            out = tmp_path / f"drawn{len(drawn)}"
            assert sample(denoiser, "-n", 1, "--out", out, *guidance, capsys=capsys)[0] == 0
            (image,) = out.glob("*_seed000000.png")
            drawn.append(np.asarray(Image.open(image)))
        without, zero, three = drawn
        assert np.array_equal(without, zero)
        assert not np.array_equal(without, three)

    def test_a_model_by_chains_has_none(self, tmp_path, capsys):
        model_file.save_model(tmp_path / "chains.safetensors", make_model())
        words = [tmp_path / "chains.safetensors", "--guidance", 1, "--out", tmp_path / "drawn"]
        status, err = sample(*words, capsys=capsys)
        assert status == 2
        assert err.count("\n") == 1
        assert "guidance" in err
        assert not (tmp_path / "drawn").exists()


def test_every_link_leads_somewhere():
    assert all(target.exists() for target in linked_files(PAGE))


@pytest.mark.slow
def test_commands_and_code_run(tmp_path, monkeypatch):
    """In the order of the page, in one folder."""
    monkeypatch.chdir(tmp_path)
    given: dict = {}
    for block in BLOCKS:
        if block.language == "python":
            code = block.text
            for old, new in QUICK_CODE.items():
                code = code.replace(old, new)
            exec(code, given)
        elif block.language == "sh":
            for words in block.commands:
                finished(gmmc_command(*words[1:], *(QUICK if "train" in words else [])))
    assert given["rows"].shape == (100, 2)
    assert (tmp_path / "runs" / "so-far" / "model.safetensors").exists()
    assert len([*(tmp_path / "runs" / "digits-denoising" / "samples").glob("*_seed*.png")]) == 20
