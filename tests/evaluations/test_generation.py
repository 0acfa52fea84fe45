"""The generation evaluation: protocols that are what they say, copies that are caught, doubts."""

import dataclasses
import json
import math

import pytest
import torch

from conftest import make_model, tiny_data
from gmmc.classifier.drawing import Drawer
from gmmc.config.sections import EvaluateOptions
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.evaluations import buffer_images, generation
from gmmc.evaluations.buffer_images import Buffer, most_confident, read_buffer
from gmmc.evaluations.evaluate import keep
from gmmc.evaluations.generation import draw, draw_start, evaluate
from gmmc.evaluations.generation_flags import (
    doubts_of_buffer,
    doubts_of_chains,
    doubts_of_counts,
    doubts_of_memorisation,
)
from gmmc.evaluations.memorisation import compare
from gmmc.fid import small_features
from gmmc.fid.features import find
from gmmc.fid.similarity import Gaussian, frechet, overlap
from gmmc.pictures import grid
from gmmc.pixels import as_unit, to_uint8
from gmmc.runs.folder import RunFolder
from gmmc.runs.resume import State

FEW = EvaluateOptions(generated=30, generated_by_steps=20, generation_steps=(4, 2))
METRICS = {"fid", "kid", "precision", "recall", "density", "coverage", "inception_score"}


pytestmark = pytest.mark.usefixtures("hurried")


def metrics_of(values, protocol):
    return {key.removeprefix(f"{protocol}/") for key in values if key.startswith(f"{protocol}/")}


class TestWhole:
    @pytest.fixture(scope="class")
    @classmethod
    def result(cls, run, digits):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_features, "UPDATES", 40)
            return evaluate(*digits, FEW, RunFolder(run))

    def test_scores_of_every_protocol(self, result):
        for protocol in ("fresh", "buffer", "paper", "test"):
            assert metrics_of(result.values, protocol) == METRICS
        for protocol in ("start", "steps_2", "steps_4"):
            assert metrics_of(result.values, protocol) == {"fid", "kid"}
        assert metrics_of(result.values, "memorisation") == {
            "closer_share",
            "sample_distance",
            "test_distance",
        }
        assert all(map(math.isfinite, result.values.values()))

    def test_real_images_are_better_than_those_of_a_model_that_learned_nothing(self, result):
        for metric, sign in (("fid", 1), ("kid", 1), ("precision", -1), ("recall", -1), ("density", -1)):
            test, fresh = (result.values[f"{protocol}/{metric}"] for protocol in ("test", "fresh"))
            assert sign * test < sign * fresh, metric

    def test_each_protocol_has_its_reference(self, result, run, digits):
        """FID against training and validation images; the paper's against the test images too."""
        model, data = digits
        network = find("small", data, torch.device("cpu"))
        train, valid, test = (network.features(part.images) for part in (data.train, data.valid, data.test))
        usual, papers = (torch.cat(parts) for parts in ([train, valid], [train, valid, test]))
        buffer = read_buffer(RunFolder(run), model).images
        fresh = network.features(to_uint8(model.sample(30, torch.arange(30) % 10, seed=0)))
        sets = {
            "fresh": (fresh, usual),
            "buffer": (network.features(buffer), usual),
            "paper": (network.features(buffer[most_confident(model, buffer)]), papers),
            "test": (test, usual),
        }
        for protocol, (images, reference) in sets.items():
            fid = frechet(Gaussian.of(reference), Gaussian.of(images))
            assert result.values[f"{protocol}/fid"] == pytest.approx(fid, rel=1e-6), protocol
            for name, value in overlap(reference, images)._asdict().items():
                assert result.values[f"{protocol}/{name}"] == pytest.approx(value), (protocol, name)
        for name, images in {"sample": fresh, "test": test}.items():
            distance = torch.cdist(images.double(), train.double()).amin(1).median().item()
            assert result.values[f"memorisation/{name}_distance"] == pytest.approx(distance, rel=1e-4)

    def test_intervals_hold_their_values(self, result):
        assert {"fresh/kid", "fresh/precision", "paper/recall", "buffer/coverage", "steps_2/kid"} <= set(
            result.intervals
        )
        for name, (low, high) in result.intervals.items():
            assert low <= result.values[name] <= high, name

    def test_conditions_tell_what_was_measured(self, result, run, digits):
        told = result.conditions
        _, data = digits
        assert told["images"] == {
            "fresh": 30,
            "buffer": 200,
            "paper": told["images"]["paper"],
            "test": len(data.test),
            "start": 30,
            "steps_2": 20,
            "steps_4": 20,
        }
        assert 175 <= told["images"]["paper"] <= 185
        assert "not Inception" in told["features"]
        assert told["reference"].startswith(f"{len(data.train) + len(data.valid):,} training")
        assert told["seeds"] == "0..29"
        assert told["steps"] == 3
        assert told["selection"].keys() == told["images"].keys()
        assert "inception_score" not in told  # this network has a head
        assert told["buffer"]["chains"] == 200

    def test_curves_and_pictures(self, result):
        curve = result.curves["steps"]
        assert curve == {"steps": [2, 4], "fid": [result.values[f"steps_{n}/fid"] for n in (2, 4)]}
        nearest = result.curves["nearest"]
        assert len(nearest["edges"]) == len(nearest["samples"]) + 1 == len(nearest["test"]) + 1
        assert sum(nearest["samples"]) == pytest.approx(1) == sum(nearest["test"])
        names = ("fresh", "by_steps", "nearest", "buffer")
        assert result.pictures.keys() == {f"generation/{name}.png" for name in names}
        json.dumps(result.entry(), allow_nan=False)

    @pytest.mark.usefixtures("hurried")
    def test_a_row_per_number_of_steps(self, model, data):
        """The same seeds in all, those of the recipe's number among them."""
        steps, seeds = (model.drawing.steps, 9), 6
        cfg = EvaluateOptions(generated=8, generated_by_steps=seeds, generation_steps=steps, seed=2)
        picture = evaluate(model, data, cfg).pictures["generation/by_steps.png"]
        rows = torch.cat([model.sample(seeds, [0, 1, 2] * 2, seed=2, steps=n) for n in sorted(steps)])
        names = [f"{n} steps" for n in sorted(steps)]
        assert picture.tobytes() == grid(rows, seeds, names).tobytes()

    def test_doubts(self, result):
        flags = "; ".join(result.flags)
        assert "not comparable with published FIDs" in flags
        assert "too few images for the covariance of 64 features" in flags

    def test_is_the_same_again(self, result, run, digits):
        assert evaluate(*digits, FEW, RunFolder(run)).entry() == result.entry()


@pytest.mark.parametrize("start", ["uniform", "gaussian"])
def test_the_start_is_that_of_the_fresh_chains(start, monkeypatch):
    model = make_model(buffer={"start": start})
    drawer = model.drawer()
    whole = drawer.film(torch.arange(8) % 3, seed=5, frames=[0, 1])
    monkeypatch.setattr(generation, "STARTS_AT_ONCE", 3)
    assert torch.equal(draw_start(drawer, 8, seed=5), to_uint8(whole[0]))
    assert torch.equal(draw(model, drawer, 8, seed=5, steps=1, work=None), to_uint8(whole[1]))


def test_other_data_than_the_model_s_are_told(model, data):
    cfg = EvaluateOptions(generated=8, generated_by_steps=0)
    said = "not measured by the data that the model was trained on"
    for fingerprint, count in ((data.fingerprint, 0), ("0" * 64, 1)):
        model.trained = {"data_sha256": fingerprint}
        assert sum(flag.startswith(said) for flag in evaluate(model, data, cfg).flags) == count


class TestWithoutABuffer:
    def test_is_told_and_the_rest_is_measured(self, model, data):
        result = evaluate(model, data, EvaluateOptions(generated=8, generated_by_steps=0))
        assert result.flags[0].startswith("buffer and paper are not measured: the model comes without")
        assert metrics_of(result.values, "fresh") == METRICS
        assert not metrics_of(result.values, "buffer") | metrics_of(result.values, "paper")
        assert result.curves.keys() == {"nearest"}
        assert result.pictures.keys() == {"generation/fresh.png", "generation/nearest.png"}

    def test_a_folder_without_a_state(self, model, tmp_path):
        with pytest.raises(InputError, match="keeps no intact state of the training"):
            read_buffer(RunFolder(tmp_path), model)

    def test_a_folder_whose_states_are_damaged(self, model, tmp_path):
        (tmp_path / "resume").mkdir()
        (tmp_path / "resume" / f"step-000000001-rank-0-{'0' * 16}.safetensors").write_text("none")
        with pytest.raises(InputError, match=r"keeps no intact state of the training$"):
            read_buffer(RunFolder(tmp_path), model)

    def test_a_training_without_one(self, model, tmp_path):
        (tmp_path / "resume").mkdir()
        RunFolder(tmp_path).save_state(State(3, {"x": torch.zeros(1)}, {}, {"processes": 1}))
        with pytest.raises(InputError, match="the training had no replay buffer"):
            read_buffer(RunFolder(tmp_path), model)

    def test_without_a_class_head_it_is_told_why_there_is_no_inception_score(self, model, data, monkeypatch):
        headless = dataclasses.replace(find("small", data, torch.device("cpu")), classes=False)
        monkeypatch.setattr(generation.features, "find", lambda *_: headless)
        result = evaluate(model, data, EvaluateOptions(generated=8, generated_by_steps=0))
        assert "fresh/inception_score" not in result.values
        assert "no class head" in result.conditions["inception_score"]


def shard(first: int, count: int) -> dict[str, torch.Tensor]:
    """Chains whose pixels tell their numbers."""
    numbers = torch.arange(first, first + count)
    images = (numbers[:, None, None, None] / 255 * 2 - 1).expand(-1, 1, 8, 8).half()
    return {
        "buffer.images": images,
        "buffer.labels": numbers % 3,
        "buffer.visits": (numbers > 1).int(),
        "buffer.energies": torch.zeros(count),
    }


def test_the_buffer_is_that_of_all_processes(model, tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "resume").mkdir()
    info = {"processes": 2, "lines": 0, "rollbacks": 0}
    folder.save_state(State(7, {}, shard(10, 10), info), rank=1)
    folder.save_state(State(7, {"x": torch.zeros(1)}, shard(0, 10), info), rank=0)
    buffer = read_buffer(folder, model)
    assert buffer.images[:, 0, 0, 0].sort().values.tolist() == list(range(20))
    assert torch.equal(buffer.images[:, 0, 0, 0].long() % 3, buffer.labels)
    assert (buffer.step, len(buffer), buffer.untouched) == (7, 20, 2)


def test_the_papers_selection_keeps_the_most_confident_90_percent_of_each_predicted_class():
    model = make_model(seed=1)
    images = torch.randint(0, 256, (200, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    probabilities = model.predict_proba(images)
    confidence, predicted = probabilities.max(1)
    kept = most_confident(model, images)
    assert len(kept.unique()) == len(kept)
    assert len(predicted.unique()) > 1
    for y in predicted.unique():
        mine = predicted == y
        chosen = torch.zeros(200, dtype=torch.bool)
        chosen[kept] = True
        assert (mine & chosen).sum() == round(0.9 * int(mine.sum()))
        if (mine & ~chosen).any():
            assert confidence[mine & chosen].min() >= confidence[mine & ~chosen].max() - 1e-6


def test_a_class_of_less_confident_images_keeps_as_large_a_share(monkeypatch):
    """Twenty images of each of two classes; all of the first are surer than any of the second."""
    labels = torch.arange(40) % 2
    gaps = torch.where(labels == 0, 100.0, 1.0) + torch.arange(40) / 100
    energies = torch.full((40, 3), 1000.0, dtype=torch.float64)
    energies[torch.arange(40), labels] = 0
    energies[torch.arange(40), 1 - labels] = gaps.double()
    monkeypatch.setattr(buffer_images, "unit_energies", lambda *_: energies)
    kept = most_confident(make_model(), torch.zeros(40, 1, 8, 8, dtype=torch.uint8))
    assert kept.tolist() == list(range(4, 40))  # the two least sure of each class are left out


class Copies(Drawer):
    """Whatever it is asked for, it shows given images."""

    images: torch.Tensor

    def blocks(self, labels, seed=0, *, steps=None, on_progress=None):
        yield as_unit(self.images[torch.arange(len(labels)) % len(self.images)])


class TestMemorisation:
    @pytest.fixture
    def data(self):
        whole = tiny_data(count=400)
        return Dataset(whole.train[:200], whole.valid, whole.train[200:], whole.class_names)

    def copying(self, images):
        model = make_model()
        drawer = model.drawer()
        drawer.__class__ = Copies
        drawer.images = images
        model.drawer = lambda: drawer
        return model

    def test_copies_are_caught(self, data):
        model = self.copying(data.train.images)
        result = evaluate(model, data, EvaluateOptions(generated=60, generated_by_steps=0))
        assert result.values["memorisation/closer_share"] > 0.9
        assert result.values["memorisation/sample_distance"] == pytest.approx(0, abs=1e-3)
        assert any("nearer to a training image" in flag for flag in result.flags)

    def test_other_images_of_the_same_kind_are_not(self, data):
        model = self.copying(data.test.images)
        result = evaluate(model, data, EvaluateOptions(generated=60, generated_by_steps=0))
        assert result.values["memorisation/closer_share"] < 0.1
        assert not any("nearer to a training image" in flag for flag in result.flags)

    def test_by_hand(self):
        train = torch.tensor([[0.0], [10.0]])
        test = torch.tensor([[1.0], [8.0], [13.0]])
        found = compare(torch.tensor([[0.0], [4.0], [9.99]]), train, test)
        assert torch.allclose(found.samples, torch.tensor([0, 4, 0.01], dtype=torch.float64), atol=1e-6)
        assert found.test.tolist() == [1, 2, 3]
        assert found.places[:, 0].tolist() == [0, 0, 1]
        assert found.closer == 2
        assert found.values["test_distance"] == 2


class TestChains:
    def test_fresh_ones_are_those_of_sample(self, model, tmp_path):
        images = generation.draw(model, model.drawer(), 10, 5, 3, tmp_path / "work")
        assert torch.equal(images, to_uint8(model.sample(10, torch.arange(10) % 3, 5)))

    def test_an_interrupted_evaluation_goes_on_with_what_was_drawn(self, model, data, tmp_path, monkeypatch):
        cfg = EvaluateOptions(generated=12, generated_by_steps=0)
        (tmp_path / "resume").mkdir()
        with monkeypatch.context() as patch:
            patch.setattr(generation, "score_all", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                evaluate(model, data, cfg, RunFolder(tmp_path))
        drawn_before = []
        blocks = Drawer.blocks
        monkeypatch.setattr(
            Drawer,
            "blocks",
            lambda self, y, *rest, **k: drawn_before.append(len(y)) or blocks(self, y, *rest, **k),
        )
        result = evaluate(model, data, cfg, RunFolder(tmp_path))
        assert 0 in drawn_before  # of the images that were left to draw
        keep(result, "generation", RunFolder(tmp_path))
        assert not (tmp_path / "work").exists()

    def test_the_curve_has_no_more_chains_than_were_asked_for_and_uses_the_fresh_ones(self, model, data):
        cfg = EvaluateOptions(generated=12, generation_steps=(3, 2))  # 3 is the model's own number
        result = evaluate(model, data, cfg)
        assert result.conditions["images"]["steps_2"] == result.conditions["images"]["steps_3"] == 12
        assert result.values["steps_3/fid"] == pytest.approx(result.values["fresh/fid"], rel=1e-9)
        assert result.values["steps_2/fid"] != result.values["fresh/fid"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(data):
    result = evaluate(make_model().cuda(), data, FEW)
    here = evaluate(make_model(), data, FEW)
    assert result.values.keys() == here.values.keys()
    assert result.values["test/fid"] == pytest.approx(here.values["test/fid"], rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generated": 5}, "generated must be at least 2 per class, 6, got 5"),
        ({"generated_by_steps": 3}, "generated_by_steps must be 0 or at least 2 per class, 6, got 3"),
        ({"generation_steps": (100, 0)}, "generation_steps must be at least 1, got 0"),
        ({"features": "vgg"}, "got 'vgg'"),
    ],
)
def test_bad_input_is_refused_before_the_work(model, data, changes, message, monkeypatch):
    monkeypatch.setattr(generation, "draw", None)
    with pytest.raises(InputError, match=message):
        evaluate(model, data, EvaluateOptions(**changes))


def test_too_few_test_images_are_refused(model, data):
    few = Dataset(data.train, data.valid, data.test[:3], data.class_names)
    with pytest.raises(InputError, match="needs at least 4 test images, got 3"):
        evaluate(model, few, FEW)


class TestDoubts:
    def test_counts(self):
        assert doubts_of_counts({"fresh": 50_000, "test": 10_000}, 2048) == []
        (flag,) = doubts_of_counts({"fresh": 10_000, "test": 10_000}, 2048)
        assert flag.endswith("fresh 10,000")
        (flag,) = doubts_of_counts({"fresh": 50_000, "buffer": 2048}, 2048)
        assert flag.startswith("too few images")
        assert flag.endswith("buffer 2,048")

    def test_chains(self):
        low, high = (0.01, 0.02), (0.03, 0.04)
        apart = {"fresh/kid": high, "buffer/kid": low, "steps_200/kid": low, "steps_1000/kid": high}
        alike = dict.fromkeys(apart, low)
        assert doubts_of_chains({"fresh/fid": 40.0}, apart, 200) == []
        assert doubts_of_chains({"fresh/fid": 40.0, "buffer/fid": 39.0}, apart, 200) == []
        (flag,) = doubts_of_chains({"fresh/fid": 80.0, "buffer/fid": 39.0}, apart, 200)
        assert "perhaps 200 steps are too few" in flag
        assert doubts_of_chains({"fresh/fid": 80.0, "buffer/fid": 39.0}, alike, 200) == []
        falling = {"steps_100/fid": 60.0, "steps_200/fid": 40.0, "steps_1000/fid": 30.0}
        assert doubts_of_chains({"fresh/fid": 40.0} | falling, apart, 200) == []
        rising = {"fresh/fid": 40.0} | falling | {"steps_1000/fid": 50.0}
        assert doubts_of_chains(rising, alike, 200) == []
        (flag,) = doubts_of_chains(rising, apart, 200)
        assert flag == "more steps make it worse: FID 40 after 200, 50 after 1000"

    @pytest.mark.parametrize("start", [(0.01, 0.02), (0.035, 0.05)], ids=["better", "alike"])
    def test_chains_that_do_not_improve_on_their_start(self, start):
        values, fresh = {"fresh/fid": 40.0, "start/fid": 39.0}, (0.03, 0.04)
        (flag,) = doubts_of_chains(values, {"fresh/kid": fresh, "start/kid": start}, 200)
        assert "FID 39 before the first step, 40 after 200" in flag

    def test_buffer(self):
        images, labels = torch.zeros(50, 1, 8, 8, dtype=torch.uint8), torch.zeros(50)
        moved = Buffer(images, labels, torch.ones(50), 7)
        assert doubts_of_buffer(moved, 7) == []
        assert doubts_of_buffer(moved, None) == []
        assert "of update 7, the model that of 9" in doubts_of_buffer(moved, 9)[0]
        unmoved = Buffer(images, labels, torch.arange(50), 7)
        assert doubts_of_buffer(unmoved, 7) == ["buffer: 1 of 50 chains were never moved"]

    def test_memorisation(self):
        values = {"memorisation/closer_share": 0.05}
        assert doubts_of_memorisation(values, {"memorisation/closer_share": (0.01, 0.09)}, 1000) == []
        (flag,) = doubts_of_memorisation(values, {"memorisation/closer_share": (0.04, 0.06)}, 1000)
        assert flag.startswith("5.0% of the samples are nearer")
        (flag,) = doubts_of_memorisation(values, {"memorisation/closer_share": (0.01, 0.09)}, 50)
        assert "1% of 50 test images" in flag
