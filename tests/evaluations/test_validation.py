"""The validation evaluation: the same numbers as the long ones give, and nothing of the test images."""

import dataclasses
import json
import re
import shutil

import pytest
import torch

import gmmc
from conftest import make_model, tiny_config
from gmmc.base import intervals
from gmmc.classifier.drawing import Drawer
from gmmc.cli.app import main
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations import accuracy, generation, generation_conditions, validation
from gmmc.evaluations.buffer_images import read_buffer
from gmmc.evaluations.evaluate import keep
from gmmc.evaluations.registry import choose
from gmmc.evaluations.run import evaluate_run
from gmmc.evaluations.validation import evaluate
from gmmc.fid import small_features
from gmmc.fid.features import find
from gmmc.fid.similarity import Gaussian, frechet
from gmmc.pictures import png
from gmmc.pixels import to_uint8
from gmmc.runs.folder import RunFolder
from gmmc.train import buffer_fid
from gmmc.train.loop import train
from report_runs import accuracy_entry, entry, make_run, page_of, table_rows

FEW = EvaluateOptions(generated=40, generated_by_steps=0)
VALUES = ["top1", "fresh/fid", "fresh/kid", "buffer/fid", "buffer/kid"]


pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def own_run(run, tmp_path):
    """One whose results are nobody else's, and without those of others so far."""
    return shutil.copytree(run, tmp_path / "own", ignore=shutil.ignore_patterns("results.json"))


def fid_by_hand(images, data):
    network = find("small", data, torch.device("cpu"))
    real = torch.cat([data.train.images, data.valid.images])
    return frechet(Gaussian.of(network.features(real)), Gaussian.of(network.features(images)))


class TestNumbers:
    @pytest.fixture(scope="class")
    @classmethod
    def result(cls, run, digits):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_features, "UPDATES", 40)
            return evaluate(*digits, FEW, RunFolder(run))

    def test_accuracy_is_that_of_the_validation_images(self, result, digits):
        model, data = digits
        hits = int((model.predict_proba(data.valid.images).argmax(1) == data.valid.labels).sum())
        assert list(result.values) == VALUES
        assert result.values["top1"] == hits / len(data.valid)
        assert result.intervals["top1"] == intervals.of_proportion(hits, len(data.valid))
        as_test = Dataset(data.train, data.valid, data.valid, data.class_names)
        assert accuracy.evaluate(model, as_test, FEW).values["top1"] == result.values["top1"]

    def test_fid_of_fresh_chains_is_that_of_the_images_that_sample_draws(self, result, digits):
        model, data = digits
        images = to_uint8(model.sample(40, torch.arange(40) % 10, seed=0))
        assert result.values["fresh/fid"] == pytest.approx(fid_by_hand(images, data), rel=1e-6)

    def test_of_the_buffer_as_many_slots_are_taken_evenly_spaced(self, result, digits, run):
        model, data = digits
        buffer = read_buffer(RunFolder(run), model)
        assert len(buffer) == 200
        by_hand = fid_by_hand(buffer.images[::5], data)
        assert result.values["buffer/fid"] == pytest.approx(by_hand, rel=1e-6)
        assert result.conditions["buffer"] == 40
        assert result.conditions["selection"]["buffer"].startswith("of the 200 chains")

    def test_are_those_of_generation(self, digits, run):
        cfg = EvaluateOptions(generated=200, generated_by_steps=0, seed=3)
        ours = evaluate(*digits, cfg, RunFolder(run))
        theirs = generation.evaluate(*digits, cfg, RunFolder(run))
        for name in VALUES[1:]:
            assert ours.values[name] == pytest.approx(theirs.values[name], rel=1e-6), name
        for name in ("fresh/kid", "buffer/kid"):
            assert ours.intervals[name] == pytest.approx(theirs.intervals[name], rel=1e-6)
        for fact in ("features", "steps", "seeds", "start", "labels", "sampler", "alpha", "kid", "seed"):
            assert ours.conditions[fact] == theirs.conditions[fact]
        assert ours.conditions["selection"].items() <= theirs.conditions["selection"].items()

    def test_conditions_tell_what_was_measured(self, result, digits):
        _, data = digits
        told = result.conditions
        assert (told["split"], told["images"], told["generated"]) == ("validation", len(data.valid), 40)
        assert (told["steps"], told["seeds"], told["labels"]) == (3, "0..39", "0..9 in turn")
        assert told["start"] == "uniform noise, not the buffer"
        assert told["reference"] == f"{len(data.train) + len(data.valid):,} training and validation images"
        assert "test" not in json.dumps({key: told[key] for key in told.keys() - {"settings", "trained"}})

    def test_doubts_are_those_of_a_choice_between_runs(self, result):
        (flag,) = [flag for flag in result.flags if "too few images" in flag]
        assert flag.endswith("fresh 40, buffer 40")

    def test_of_a_small_buffer_all_is_measured(self, digits, run):
        result = evaluate(*digits, dataclasses.replace(FEW, generated=300), RunFolder(run))
        assert (result.conditions["generated"], result.conditions["buffer"]) == (300, 200)
        assert result.conditions["selection"]["buffer"] == generation_conditions.SELECTION["buffer"]

    def test_pictures_have_a_row_per_class(self, result, digits):
        model, _ = digits
        assert result.pictures.keys() == {"validation/fresh.png", "validation/buffer.png"}
        images = torch.arange(24, dtype=torch.uint8).reshape(24, 1, 1, 1).expand(-1, 1, 8, 8)
        shown = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(validation, "grid", lambda *given: shown.append(given))
            validation.by_class(LabelledImages(images, torch.arange(24) % 3), model)
            validation.by_class(LabelledImages(images[:7], torch.tensor([4, 4, 4, 1, 1, 4, 1])), model)
        pixels, columns, names = shown[0]
        assert (columns, names) == (8, ["0", "1", "2"])
        first = [0, 3, 6, 9, 12, 15, 18, 21]
        assert (pixels[:8, 0, 0, 0] * 255).round().tolist() == first
        pixels, columns, names = shown[1]
        assert (columns, names) == (3, ["1", "4"])
        assert (pixels[:, 0, 0, 0] * 255).round().tolist() == [3, 4, 6, 0, 1, 2]


def test_the_test_images_are_not_looked_at(run, digits):
    model, data = digits
    source = torch.Generator().manual_seed(0)
    garbage = LabelledImages(
        torch.randint(0, 256, (11, *data.shape), generator=source).to(torch.uint8), torch.zeros(11).long()
    )
    other = Dataset(data.train, data.valid, garbage, data.class_names, data.name)
    first, again = (evaluate(model, each, FEW, RunFolder(run)) for each in (data, other))
    assert first.entry() == again.entry()
    assert [*map(png, first.pictures.values())] == [*map(png, again.pictures.values())]


def test_the_buffer_is_scored_as_it_was_while_training(tmp_path, data, monkeypatch):
    monkeypatch.setattr(buffer_fid, "IMAGES", 13)
    cfg = tiny_config(train={"fid_every": 1}, generative={"epochs": 1})
    model = train(cfg, tmp_path / "run", data)
    folder = RunFolder(tmp_path / "run")
    (watched,) = [line["buffer_fid"] for line in folder.metrics() if "buffer_fid" in line]
    result = evaluate(model, data, EvaluateOptions(generated=13), folder)
    assert result.values["buffer/fid"] == pytest.approx(watched, rel=1e-6)


class TestWithoutSamples:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: make_model(train={"beta": 0.0}),
            lambda: make_model(model={"head": "linear"}, objective={"name": "balanced"}, train={"beta": 0.0}),
            lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3)),
        ],
        ids=["trained without", "cannot", "of others"],
    )
    def test_there_is_the_accuracy_alone_and_no_doubt(self, make, data, monkeypatch):
        monkeypatch.setattr(validation, "draw", None)
        result = gmmc.evaluate(make(), data, "validation", EvaluateOptions(generated=2))["validation"]
        assert result.values.keys() == result.intervals.keys() == {"top1"}
        assert (result.flags, result.pictures, result.conditions["generated"]) == ([], {}, 0)
        assert result.conditions["samples"].startswith("not measured: ")

    def test_a_missing_buffer_is_told_and_the_rest_is_measured(self, model, data):
        result = evaluate(model, data, EvaluateOptions(generated=12))
        assert list(result.values) == VALUES[:3]
        assert result.flags[0].startswith("buffer is not measured: the model comes without its run folder")
        assert "buffer" not in result.conditions
        assert result.pictures.keys() == {"validation/fresh.png"}


class TestBadInput:
    def test_without_validation_images_it_is_told_what_to_do(self, model, data):
        none = Dataset(data.train, data.valid[:0], data.test, data.class_names)
        with pytest.raises(
            InputError, match=r"needs validation images, got none; train with data.valid above"
        ):
            evaluate(model, none, FEW)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"generated": 5}, "generated must be at least 2 per class, 6, got 5"),
            ({"features": "vgg"}, "got 'vgg'"),
        ],
    )
    def test_is_refused_before_the_work(self, model, data, changes, message, monkeypatch):
        monkeypatch.setattr(validation, "logits_of", None)
        with pytest.raises(InputError, match=message):
            evaluate(model, data, EvaluateOptions(**changes))

    def test_too_few_training_images(self, model, data):
        few = Dataset(data.train[:3], data.valid, data.test, data.class_names)
        with pytest.raises(InputError, match="validation needs at least 4 train images, got 3"):
            evaluate(model, few, FEW)

    def test_numbers_that_are_none(self, data):
        model = make_model()
        with torch.no_grad():
            next(model.parameters()).fill_(torch.nan)
        with pytest.raises(InputError, match="not finite for 12 of 12 images"):
            evaluate(model, data, FEW)

    def test_options_are_refused_where_nothing_looks_at_them(self, run):
        wanted = "`gmmc evaluate RUN generation` or `gmmc evaluate RUN validation`"
        for option, value in (("features", "small"), ("generated", 30)):
            with pytest.raises(InputError, match=re.escape(f"--{option} is for {wanted}, got accuracy")):
                dict(evaluate_run(str(run), ["accuracy"], "cpu", **{option: value}))
        with pytest.raises(InputError, match="--ood is for `gmmc evaluate RUN ood`, got validation"):
            dict(evaluate_run(str(run), ["validation"], "cpu", ood=("noise",)))


def test_an_interrupted_evaluation_goes_on_with_what_was_drawn(model, data, tmp_path, monkeypatch):
    cfg, folder = EvaluateOptions(generated=12), RunFolder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(validation, "score", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluate(model, data, cfg, folder)
    assert folder.work("validation").is_dir()
    blocks, left = Drawer.blocks, []
    monkeypatch.setattr(
        Drawer, "blocks", lambda self, y, *rest, **k: left.append(len(y)) or blocks(self, y, *rest, **k)
    )
    result = evaluate(model, data, cfg, folder)
    assert left[-1] == 0  # nothing was left to draw
    assert result.values == evaluate(model, data, cfg).values
    keep(result, "validation", folder)
    assert not (tmp_path / "work").exists()


def test_runs_only_by_name(model):
    assert "validation" not in choose(model, [])
    assert choose(model, ["validation"]) == ["validation"]


def test_on_the_command_line_and_in_the_report(own_run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(own_run), "validation", "--generated", "40", "--seed", "2", "--device", "cpu"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert re.search(r"^validation\n  top1 +0\.\d+ \[", printed, re.MULTILINE)
    assert re.search(r"^ +fid +kid\n +fresh +\d.*\n +buffer +\d", printed, re.MULTILINE)
    kept = json.loads((own_run / "results.json").read_text())["validation"]
    assert kept["conditions"]["trained"]["seconds"] > 0
    for picture in kept["files"]:
        assert (own_run / picture).is_file()
    assert len(page_of(own_run, out=own_run / "report.html").all("img")) == 2


class TestReport:
    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("validated")
        values = dict(zip(VALUES, (0.9312, 30.25, 0.0213, 25.5, 0.0187), strict=True))
        ranges = {"top1": [0.92, 0.94], "fresh/kid": [0.0209, 0.0217]}
        told = {
            "split": "validation",
            "images": 5000,
            "features": "Inception",
            "reference": "50,000 training images",
        }
        results = {"accuracy": accuracy_entry(), "validation": entry(values, ranges, **told)}
        without = {"validation": entry({"top1": 0.91}, split="validation", images=5000)}
        runs = [make_run(folder / "base", results), make_run(folder / "plain", without)]
        return page_of(*runs, out=folder / "page.html")

    def test_numbers_stand_in_a_section_of_their_own(self, page):
        section = page.html[page.html.index('<section id="validation"') :]
        text = " ".join(re.sub(r"<[^>]+>", " ", section).split())
        for line in (
            "Features: Inception; reference: 50,000 training images",
            "no test image was looked at",
            "accuracy on validation images 93.1% 92.0–94.0% 91.0%",
            "FID of fresh chains, none left out 30.2 – KID ×1000, likewise 21.3 20.9 to 21.7 –",
            "FID of the replay buffer 25.5 – KID ×1000, likewise 18.7 –",
        ):
            assert line in text

    def test_the_headline_shows_test_numbers_only(self, page):
        rows = table_rows(page)
        assert rows["test accuracy"][:2] == ["94.08% 93.60–94.53%", "–"]
        shown = " ".join(cell for row in rows.values() for cell in row)
        assert not any(number in shown for number in ("93.1", "91.0", "30.2", "25.5"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(data):
    there, here = (evaluate(make_model().to(device), data, FEW) for device in ("cuda", "cpu"))
    assert there.values.keys() == here.values.keys()
    assert there.values["top1"] == pytest.approx(here.values["top1"], abs=0.1)  # an image of 12
