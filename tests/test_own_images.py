"""docs/own-images.md: its commands run on generated photos, its names exist, its numbers are measured."""

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image, ImageDraw

from doc_blocks import DOCS, blocks_of, linked_files
from gmmc.classifier.build import build
from gmmc.cli import app
from gmmc.config import recipes, schema
from processes import finished

PAGE = DOCS / "own-images.md"
TEXT = PAGE.read_text()
SHELL = [block for block in blocks_of(PAGE) if block.language == "sh"]
COMMANDS = [command for block in SHELL for command in block.commands]
OURS = [command[1:] for command in COMMANDS if command[0] == "gmmc"]
INLINE = re.findall(r"`([^`\n]+)`", TEXT)
RESULTS = DOCS.parent / "results"
SECTIONS = {field.name for field in dataclasses.fields(schema.Config)}


# --- what the page names exists -------------------------------------------------------------------


def parsed(arguments: list[str]) -> None:
    """As the command line parses it; nothing is run. What a shell would make of > and * is left to it."""
    group = typer.main.get_command(app.new_app())
    name, command, rest = group.resolve_command(
        group.make_context("gmmc", [], resilient_parsing=True), arguments
    )
    command.make_context(name, rest)


@pytest.mark.parametrize("command", OURS, ids=" ".join)
def test_every_command_parses(command):
    parsed(command[: command.index(">")] if ">" in command else command)


def test_a_command_that_is_wrong_would_be_found():
    with pytest.raises(Exception, match="No such option"):
        parsed(["predict", "runs/photos", "new/a.jpg", "--scores", "max_posterior"])


def test_nothing_but_gmmc_and_rm_is_asked_for():
    assert {command[0] for command in COMMANDS} == {"gmmc", "rm"}
    assert {block.mark for block in SHELL} == {"", "gpu", "network"}


@pytest.mark.parametrize("command", [c for c in OURS if c[0] == "train"], ids=" ".join)
def test_every_recipe_and_its_changes_make_a_model(command):
    changes = [word for word in command[2:] if "=" in word]
    cfg = recipes.load(command[1], changes)
    assert cfg.data.name == "photos"
    assert cfg.data.size in (32, 64)
    model = build(cfg, (3, cfg.data.size, cfg.data.size), ["cat", "frog", "ship"])
    assert model.dim >= 2


def test_every_key_of_the_page_is_one_of_a_recipe():
    keys = {
        (section, key, value)
        for text in INLINE
        for section, key, value in re.findall(r"\b([a-z]+)\.([a-z_]+)(?:=(\S+))?", text)
        if section in SECTIONS and (value or section != "model")  # model.answer is a method
    }
    assert len(keys) > 8
    for section, key, value in keys:
        assert hasattr(getattr(recipes.load("photos"), section), key)
        if value:
            recipes.load("photos", [f"{section}.{key}={value}"])  # refused where it is out of range


def test_every_option_of_the_page_is_one_of_a_command():
    group = typer.main.get_command(app.new_app())
    known = {name for command in group.commands.values() for option in command.params for name in option.opts}
    named = {word for text in INLINE for word in re.findall(r"(?<!\S)--[a-z-]+", text)}
    assert {"--score", "--tpr", "--ood", "--json"} <= named <= known


def test_every_link_leads_somewhere():
    assert [path for path in linked_files(PAGE) if not path.exists()] == []


# --- what the page quotes was measured ------------------------------------------------------------


def measured(name: str, evaluation: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())[evaluation]


def percent(name: str, evaluation: str, key: str, digits: int = 1) -> str:
    return f"{100 * measured(name, evaluation)['values'][key]:.{digits}f}%"


def with_interval(name: str) -> str:
    low, high = measured(name, "accuracy")["intervals"]["top1"]
    return f"{percent(name, 'accuracy', 'top1')} [{100 * low:.1f}, {100 * high:.1f}]"


def aurocs(name: str) -> str:
    values = measured(name, "ood")["values"]
    return ", ".join(f"{values[f'{other}/log_density/unit/auroc']:.2f}" for other in ("svhn", "cifar100"))


@pytest.mark.parametrize("name", ["cifar10-dis", "cifar10-joint", "cifar10"])
def test_accuracies_are_those_of_results(name):
    assert with_interval(name).replace("%", "%**", name == "cifar10-dis") in TEXT


def test_other_numbers_are_those_of_results():
    generated = {name: measured(name, "generation")["values"] for name in ("cifar10", "cifar10-joint")}
    calibration = measured("cifar10", "calibration")["values"]
    search = measured("cifar10-search", "comparison")["values"]
    for quoted in (
        aurocs("cifar10-dis"),
        aurocs("cifar10"),
        f"FID {generated['cifar10-joint']['fresh/fid']:.1f}",
        f"**{generated['cifar10']['fresh/fid']:.1f}**",
        f"test images have {generated['cifar10']['test/fid']:.2f}",
        f"{calibration['paper/gamma2']:.3f} for the shipped",
        f"where {calibration['fitted/gamma2']:.0f} fits",
        percent("cifar10", "calibration", "paper/saturated"),
        percent("cifar10-joint", "robustness", "zero_gradient_share"),
        percent("cifar10-joint", "robustness", "linf_8/paper_pgd/accuracy"),
        percent("cifar10-joint", "robustness", "linf_8/worst_case/accuracy"),
        percent("digits", "accuracy", "top1"),
        percent("digits", "samples", "svc_agreement"),
        f"{100 * search['scratch/valid_accuracy']:.1f}% of validation images",
        f"FID {search['scratch/fresh_fid']:.1f}",
    ):
        assert quoted in " ".join(TEXT.split()), quoted


# --- the walk -------------------------------------------------------------------------------------

SHORT = "transfer.epochs=1 train.precision=fp32"
SHORT_FROM_RANDOM_WEIGHTS = "discriminative.epochs=25 train.precision=fp32"
KINDS = ("cat", "frog", "ship")  # for the test: balls, boxes and stripes


def photo(kind: str, source: np.random.Generator) -> Image.Image:
    """A coloured thing before a blurred background, of some size."""
    width, height = source.integers(48, 100, 2).tolist()
    background = Image.fromarray(source.integers(60, 200, (3, 3, 3), dtype=np.uint8))
    image = background.resize((width, height), Image.Resampling.BICUBIC)
    draw, side = ImageDraw.Draw(image), min(width, height)
    colour = tuple(source.integers(0, 256, 3).tolist())
    x, y = width / 2, height / 2
    radius = side * source.uniform(0.25, 0.4)
    if kind == "cat":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif kind == "frog":
        draw.rectangle((x - radius, y - radius, x + radius, y + radius), outline=colour, width=side // 8)
    else:
        for left in np.arange(-height, width, side / 5):
            draw.line((left, 0, left + height, height), fill=colour, width=side // 12)
    return image


def write_photos(folder: Path, count: int, seed: int, *, by_class: bool) -> None:
    """PNG and JPEG, some grey, some that a camera held sideways."""
    source = np.random.default_rng(seed)
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        place = folder / kind if by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        image, exif = photo(kind, source), Image.Exif()
        if i % 10 == 4:
            image = image.convert("L")
        if i % 7 == 3:
            exif[0x0112] = 6  # orientation: turn by 90°
        ending = "png" if by_class and i % 4 == 0 else "jpg"
        image.save(place / f"{kind}_{i:03d}.{ending}", exif=exif)


def write_other(folder: Path, count: int) -> None:
    folder.mkdir()
    source = np.random.default_rng(2)
    for i in range(count):
        patches = Image.fromarray(source.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        patches.resize((80, 60), Image.Resampling.NEAREST).save(folder / f"{i:03d}.jpg")


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """Where all commands that need neither GPU nor network were run, and what they printed."""
    place = tmp_path_factory.mktemp("walk")
    write_photos(place / "photos", 120, 0, by_class=True)
    write_photos(place / "new", 12, 1, by_class=False)
    write_other(place / "other", 12)
    binaries = Path(sys.executable).parent
    environment = {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "GMMC_CACHE": str(place / "cache"),
    }
    printed = ""
    for block in SHELL:
        if block.mark:
            continue
        quick = re.sub(r"^(gmmc train .*?)(?= --out)", rf"\1 {SHORT}", block.text, flags=re.M)
        quick = quick.replace(f"train.start= {SHORT}", f"train.start= {SHORT_FROM_RANDOM_WEIGHTS}")
        done = finished(["sh", "-e", "-c", quick], env=environment, cwd=place)
        printed += done.stdout + done.stderr
    return place, printed


@pytest.mark.slow
class TestTheWalk:
    def test_says_what_was_done_to_the_photos(self, walk):
        _, printed = walk
        assert "12 grey images converted to RGB" in printed
        assert "turned upright (EXIF)" in printed
        assert "24 of its images, always the same, serve as test images" in printed

    def test_ends_with_a_classifier_and_its_report(self, walk):
        place, _ = walk
        found = json.loads((place / "runs" / "photos" / "results.json").read_text())
        assert found["accuracy"]["values"]["top1"] > 0.6
        assert found["ood"]["conditions"]["outside"] == {"other": 12, "noise": 24, "interp": 24}
        assert found["validation"]["conditions"]["split"] == "validation"
        report = (place / "runs" / "photos" / "report.html").read_text()
        assert all(word in report for word in (*KINDS, "other"))
        assert '<section id="comparison"' in (place / "runs" / "seeds.html").read_text()
        assert (place / "runs" / "comparison" / "comparison.png").exists()

    def test_answers_for_every_new_photo(self, walk):
        place, printed = walk
        answers = [json.loads(line) for line in (place / "answers.jsonl").read_text().splitlines()]
        assert [Path(row["image"]).name for row in answers] == sorted(
            p.name for p in (place / "new").iterdir()
        )
        right = [row["class"] in row["image"] for row in answers]
        assert sum(right) >= 8
        for row in answers:
            assert row["answer"] in (None, row["class"])
            assert row["validation_images"] == 19
            assert row["calibrated"]
        assert "the bound rests on 19 validation images" in printed

    def test_python_gives_the_same_answers(self, walk, monkeypatch):
        place, _ = walk
        monkeypatch.chdir(place)
        names: dict = {}
        (snippet,) = [block.text for block in blocks_of(PAGE) if block.language == "python"]
        exec(snippet, names)
        rows = [json.loads(line) for line in (place / "answers.jsonl").read_text().splitlines()]
        assert names["answer"].names == [row["class"] for row in rows]
        assert names["answer"].accepted.tolist() == [row["in_distribution"] for row in rows]

    def test_goes_on_without_the_resume_states(self, walk):
        place, _ = walk
        assert not (place / "runs" / "photos" / "resume").exists()
        assert (place / "runs" / "seed1" / "resume").exists()
