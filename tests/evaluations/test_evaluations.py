import dataclasses
import json
import math
import shutil

import pytest
import torch
from torch import nn

import gmmc
from conftest import make_model, tiny_config, tiny_data
from gmmc.classifier.drawing import Drawer
from gmmc.cli import app
from gmmc.config.sections import DataConfig, EvaluateOptions
from gmmc.data.splits import LabelledImages
from gmmc.errors import InputError
from gmmc.evaluations import latent
from gmmc.evaluations.evaluate import evaluate
from gmmc.evaluations.latent import separability
from gmmc.evaluations.registry import EVALUATIONS, NEED_NOISE, choose
from gmmc.evaluations.result import Result
from gmmc.evaluations.run import evaluate_run
from gmmc.evaluations.samples import (
    by_class,
    diversity,
    doubts,
    film_frames,
    judge_images,
    lowest,
    within_distance,
)
from gmmc.train.loop import train

SMALL = EvaluateOptions(samples=30, attacked=4, generated=30, generated_by_steps=12, generation_steps=(2,))


BY_CHAINS: dict[str, dict] = {}
BY_DENOISING = {
    "model": {"backbone": "smooth-mlp-2-16"},
    "train": {"algorithm": "denoising"},
    "sampler": {"name": "heun"},
}
POSSIBLE = [
    pytest.param(name, recipe, id=f"{name}-{kind}")
    for name in EVALUATIONS
    for kind, recipe in (("chains", BY_CHAINS), ("denoising", BY_DENOISING))
    if recipe or name not in NEED_NOISE
]


@pytest.mark.parametrize("name", sorted(NEED_NOISE))
def test_a_model_without_noise_levels_is_not_measured_at_them(name):
    for module, got in ((make_model(), "one trained otherwise"), (Brightness(), "Brightness")):
        assert name not in choose(module, [])
        for measure in (
            lambda module=module: choose(module, [name]),
            lambda module=module: run_of(name, module),
        ):
            with pytest.raises(
                InputError, match=rf"'{name}'.*train\.algorithm=denoising.*got {got}"
            ) as error:
                measure()
            assert "\n" not in str(error.value)


def run_of(name, model):
    return EVALUATIONS[name](model, tiny_data(), SMALL)


def test_a_model_trained_by_denoising_is_measured_at_its_noise_levels():
    assert [name for name in choose(make_model(**BY_DENOISING), []) if name in NEED_NOISE] == ["denoising"]


@pytest.mark.usefixtures("few_queries")
@pytest.mark.parametrize(("name", "recipe"), POSSIBLE)
class TestEveryEvaluation:
    def test_gives_a_result_that_json_can_keep(self, name, recipe):
        result = EVALUATIONS[name](make_model(**recipe), tiny_data(), SMALL)
        assert isinstance(result, Result)
        entry = json.loads(json.dumps(result.entry(), allow_nan=False))
        assert entry.keys() == {"values", "intervals", "curves", "files", "flags", "conditions"}
        assert entry["values"]
        assert {"precision", "hardware", "torch", "gmmc", "commit"} < entry["conditions"].keys()

    def test_gives_the_same_result_again(self, name, recipe):
        first, again = (EVALUATIONS[name](make_model(**recipe), tiny_data(), SMALL) for _ in range(2))
        assert first.entry() == again.entry()

    def test_leaves_the_model_as_it_was(self, name, recipe):
        model = make_model(**recipe)
        model.train()  # gmmc switches to evaluation mode, and back
        before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        EVALUATIONS[name](model, tiny_data(), SMALL)
        assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
        assert all(part.training for part in model.modules())


class Brightness(nn.Module):
    """A network that gmmc did not train: brightness decides, and it takes images in [0, 1]."""

    def __init__(self):
        super().__init__()
        self.levels = nn.Parameter(torch.tensor([1 / 6, 3 / 6, 5 / 6]))

    def forward(self, x):
        assert x.min() >= 0
        assert x.max() <= 1
        return -100 * (x.mean((1, 2, 3))[:, None] - self.levels).square()


def test_any_module_of_images_to_logits_can_be_evaluated():
    results = gmmc.evaluate(Brightness(), tiny_data())
    assert results.keys() == {"accuracy", "calibration", "ood", "latent"}  # it cannot sample
    assert results["accuracy"].values["top1"] == 1.0
    with pytest.raises(InputError, match="'samples' needs a model that can sample, got Brightness"):
        evaluate(Brightness(), tiny_data(), ["samples"])


def test_a_foreign_network_is_evaluated_in_eval_mode_and_given_back_as_it_was():
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 3)).train()
    network[1].eval()  # frozen statistics in a network that trains
    before = network[1].running_mean.clone()
    first, again = (gmmc.evaluate(network, tiny_data())["accuracy"].values for _ in range(2))
    assert first == again
    assert torch.equal(network[1].running_mean, before)
    assert [part.training for part in network] == [True, False, True, True]


def test_one_name_may_stand_alone():
    assert gmmc.evaluate(Brightness(), tiny_data(), "accuracy").keys() == {"accuracy"}


def test_a_network_without_parameters():
    class Fixed(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 3)

    results = gmmc.evaluate(Fixed(), tiny_data())
    assert results["accuracy"].values["top1"] == pytest.approx(1 / 3)
    assert any("all test images have the same score" in flag for flag in results["ood"].flags)


def test_missing_test_images_are_no_hidden_nan():
    data = tiny_data()
    some = data.test.labels != 1
    without_one = gmmc.data.Dataset(data.train, data.valid, data.test[some], data.class_names)
    assert gmmc.evaluate(Brightness(), without_one)["accuracy"].curves["top1_per_class"] == [1.0, None, 1.0]
    without_any = gmmc.data.Dataset(data.train, data.valid, data.test[:0], data.class_names)
    with pytest.raises(InputError, match="at least one test image, got none"):
        gmmc.evaluate(Brightness(), without_any)


def test_probabilities_worse_than_a_guess_are_flagged():
    network = Brightness()
    assert gmmc.evaluate(network, tiny_data())["accuracy"].flags == []
    with torch.no_grad():
        network.levels.copy_(network.levels.flip(0))
    assert "overconfident" in gmmc.evaluate(network, tiny_data())["accuracy"].flags[0]


def test_accuracy_counts():
    data = tiny_data()
    wrong = gmmc.data.Dataset(
        data.train, data.valid, LabelledImages(data.test.images, (data.test.labels + 1) % 3), data.class_names
    )
    values = evaluate(Brightness(), wrong)["accuracy"].values
    assert values["top1"] == 0.0
    assert values["errors"] == 18


@pytest.mark.parametrize("name", ["samples", "generation"])
def test_a_model_trained_without_samples_is_not_measured_by_them(name):
    model = make_model(train={"beta": 0.0})
    assert name not in choose(model, [])
    with pytest.raises(InputError, match=r"train\.beta=0\b"):
        choose(model, [name])
    with pytest.raises(InputError, match=r"train\.beta=0\b"):
        EVALUATIONS[name](model, tiny_data(), EvaluateOptions())


def test_samples_that_are_real_images_agree_with_the_judge_and_are_as_diverse():
    data = tiny_data(count=300)

    class Copies(Drawer):
        def sample(self, n, labels=None, seed=0, *, steps=None, on_progress=None):
            if labels is None:
                return super().sample(n, seed=seed)
            chosen = [data.test.images[data.test.labels == y][i // 3 % 6] for i, y in enumerate(labels)]
            on_progress(n)
            return torch.stack(chosen) / 255

    model = make_model()
    drawer = model.drawer()
    drawer.__class__ = Copies
    model.drawer = lambda: drawer
    result = EVALUATIONS["samples"](model, data, EvaluateOptions(samples=18))
    assert result.values["svc_agreement"] > 0.9
    assert result.values["diversity"] == pytest.approx(1, abs=0.1)
    assert result.flags == []


def test_the_judge_learns_from_training_images_alone():
    """One that learned to call each class by the next one's name is never right on the test images."""
    data = tiny_data()
    turned = LabelledImages(data.train.images, (data.train.labels + 1) % 3)
    other = dataclasses.replace(data, train=turned, valid=turned[:0])
    values = EVALUATIONS["samples"](make_model(), other, SMALL).values
    assert values["svc_test_accuracy"] == 0


def test_confusion_has_the_truth_in_rows():
    data = tiny_data()
    network = Brightness()
    with torch.no_grad():
        network.levels[2] = 9.0  # class 2 is taken for class 1
    result = evaluate(network, data, "accuracy")["accuracy"]
    assert result.curves["confusion"] == [[6, 0, 0], [0, 6, 0], [0, 6, 0]]
    assert result.curves["top1_per_class"] == [1, 1, 0]
    low, high = result.intervals["top1"]
    assert result.values["top1"] == pytest.approx(2 / 3)
    assert low < 2 / 3 < high


def test_a_network_with_other_classes_is_refused():
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    with pytest.raises(InputError, match=r"one logit per class, \(2, 3\) for 2 image\(s\), got \(2, 5\)"):
        evaluate(network, tiny_data())


class Tupled(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)), x


def test_a_network_that_gives_something_else_is_refused():
    with pytest.raises(InputError, match=r"one logit per class, .* got tuple"):
        evaluate(Tupled(), tiny_data())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_network_of_another_precision(dtype):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).to(dtype)
    assert 0 <= evaluate(network, tiny_data())["accuracy"].values["top1"] <= 1


class Sampling(Brightness):
    def sample(self, n):
        return torch.zeros(n)


def test_a_foreign_network_that_can_sample_is_still_foreign():
    assert "samples" not in evaluate(Sampling(), tiny_data())


def test_our_model_is_measured_on_data_like_its_own():
    with pytest.raises(InputError, match="like those of the training, 1×8×8 with the classes class 0"):
        evaluate(make_model(), tiny_data(size=16))
    data = tiny_data()
    renamed = gmmc.data.Dataset(data.train, data.valid, data.test, ("x", "y", "z"))
    with pytest.raises(InputError, match="got 1×8×8 with the classes x, y, z"):
        evaluate(make_model(), renamed)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_end_in_one_line(wrong):
    class Broken(Brightness):
        def forward(self, x):
            logits = super().forward(x)
            return torch.where(torch.arange(len(x))[:, None] == 0, wrong, logits)

    for name in ("accuracy", "calibration", "ood", "latent"):
        with pytest.raises(InputError, match="not finite for 1 of"):
            evaluate(Broken(), tiny_data(), name)
    results = evaluate(Broken(), tiny_data())
    assert all("not measured: the model gives numbers" in r.flags[0] for r in results.values())


def test_what_is_impossible_with_so_few_images_is_left_out_unless_asked_for():
    data = tiny_data()
    few = gmmc.data.Dataset(data.train, data.valid, data.test[:5], data.class_names)
    results = evaluate(make_model(), few)
    assert "not measured: a map of features needs 11 test images" in results["latent"].flags[0]
    assert results["accuracy"].values
    with pytest.raises(InputError, match="needs 11 test images"):
        evaluate(make_model(), few, "latent")


class TestLatent:
    def test_one_image_per_class_and_features_that_collapse(self):
        features = torch.randn(15, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert "silhouette" not in separability(features, torch.arange(15))
        corners = torch.eye(3, dtype=torch.float64).repeat(5, 1)
        network = Brightness()
        result = evaluate(network, tiny_data(), "latent")["latent"]
        assert all(math.isfinite(value) for value in result.values.values())
        assert math.isinf(separability(corners, torch.arange(15) % 3)["between_within"])

    def test_classes_far_apart_are_seen_as_such(self):
        source = torch.Generator().manual_seed(0)
        labels = torch.arange(90) % 3
        noise = torch.randn(90, 4, generator=source, dtype=torch.float64)
        apart = separability(100 * torch.eye(3, 4, dtype=torch.float64)[labels] + noise, labels)
        assert apart["knn_accuracy"] == 1
        assert apart["silhouette"] > 0.9
        assert apart["between_within"] > 100
        assert apart["mean_cosine"] == pytest.approx(apart["simplex_cosine"], abs=0.01)
        mixed = separability(noise, labels)
        assert mixed["knn_accuracy"] < 0.6
        assert abs(mixed["silhouette"]) < 0.1

    def test_it_maps_test_images(self):
        data = tiny_data(count=128)
        of_two = dataclasses.replace(data, test=data.test[data.test.labels != 1])
        result = evaluate(Brightness(), of_two, "latent")["latent"]
        assert set(result.curves["tsne"]["label"]) == {0, 2}

    def test_an_image_has_no_vote_on_itself(self):
        """Eleven images, six of one class: the ten others of each never have its class in the majority."""
        features = torch.randn(11, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([0] * 5 + [1] * 6)  # ties go to the first class
        assert separability(features, labels)["knn_accuracy"] == 0

    def test_the_variance_between_and_within_classes_is_all_there_is(self):
        source = torch.Generator().manual_seed(0)
        labels = torch.tensor([0] * 20 + [1] * 5 + [2] * 3)
        features = torch.randn(28, 4, generator=source, dtype=torch.float64) + labels[:, None]
        within = sum(
            (features[labels == y] - features[labels == y].mean(0)).square().sum() for y in (0, 1, 2)
        )
        total = (features - features.mean(0)).square().sum()
        found = separability(features, labels)
        assert found["between_within"] == pytest.approx(((total - within) / within).item())
        moved = separability(features + 1000, labels)
        assert moved == pytest.approx(found, abs=1e-6)

    def test_it_maps_only_so_many_images(self, monkeypatch):
        monkeypatch.setattr(latent, "IMAGES", 12)
        result = evaluate(make_model(), tiny_data(), "latent")["latent"]
        assert [len(result.curves["tsne"][key]) for key in ("x", "y", "label")] == [12, 12, 12]
        assert result.conditions["images"] == 12


class TestPictures:
    def test_the_film_ends_with_the_sample(self):
        model = make_model()
        film = model.drawer().film([2, 0], seed=5, frames=[0, 1, 3])
        assert film.shape == (3, 2, 1, 8, 8)
        assert torch.equal(film[-1], model.sample(2, [2, 0], seed=5, steps=3))
        assert torch.equal(film[1], model.sample(2, [2, 0], seed=5, steps=1))
        with pytest.raises(InputError, match="frames must be numbers of steps"):
            model.drawer().film([0], frames=[])

    def test_frames_go_up_to_the_last_step(self):
        for steps, frames in ((200, [0, 1, 2, 5, 10, 20, 50, 100, 200]), (3, [0, 1, 2, 3]), (1, [0, 1])):
            assert film_frames(make_model(sample={"steps": steps}).drawer()) == {n: str(n) for n in frames}

    def test_frames_of_a_denoiser_are_noise_levels(self):
        def frames(steps):
            return film_frames(make_model(**BY_DENOISING, sample={"steps": steps}).drawer())

        assert frames(1) == {0: "80", 1: "image"}
        assert frames(2) == {0: "80", 1: "0.02", 2: "image"}
        shown = frames(18)
        assert list(shown) == [*range(0, 18, 2), 18]
        sigmas = [float(title) for title in list(shown.values())[:-1]]
        assert sigmas == sorted(sigmas, reverse=True)
        assert sigmas[0] == 80

    def test_the_nearest_of_each_class_come_class_by_class(self):
        images = torch.arange(6.0).reshape(6, 1, 1, 1)
        labels = torch.tensor([0, 1, 0, 1, 0, 1])
        energies = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, 0.0])
        assert lowest(images, energies, labels, 2).flatten().tolist() == [2, 4, 5, 1]
        assert lowest(images, -energies, labels, 1).flatten().tolist() == [0, 3]

    def test_every_picture_of_the_paper_is_drawn(self):
        result = EVALUATIONS["samples"](make_model(), tiny_data(), SMALL)
        names = {"by_class", "unconditional", "nearest", "farthest", "film"}
        assert set(result.pictures) == {f"samples/{name}.png" for name in names}


def test_too_few_samples_to_compare_are_refused():
    with pytest.raises(InputError, match="at least 2 per class, 6, got 5"):
        EVALUATIONS["samples"](make_model(), tiny_data(), EvaluateOptions(samples=5))


def test_prototypes_and_weak_judges_are_flagged():
    assert "prototypes" in doubts({"svc_test_accuracy": 1.0, "diversity": 0.3})[0]
    assert "judge" in doubts({"svc_test_accuracy": 0.5, "diversity": 1.0})[0]
    assert doubts({"svc_test_accuracy": 0.95, "diversity": 0.8}) == []


def test_distances_on_hand_placed_images():
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    images[1, 0, 0, 0] = 255  # 1 from image 0
    images[3, 0, :, 0] = 255  # √8 from image 2
    data = LabelledImages(images, torch.tensor([0, 0, 1, 1]))
    assert [within_distance(data, y) for y in (0, 1)] == pytest.approx([1, 8**0.5])
    assert diversity(data, data, 2) == 1
    one_alone = LabelledImages(images, torch.tensor([0, 0, 0, 1]))
    assert diversity(data, one_alone, 2) == pytest.approx(1 / within_distance(one_alone, 0))
    assert math.isnan(diversity(data, one_alone[2:], 2))


def test_the_judge_sees_every_class():
    labels = torch.tensor([0] * 500 + [1] * 3)
    images = torch.zeros(503, 1, 600, 600, dtype=torch.uint8)  # so large that it may see few
    chosen = judge_images(LabelledImages(images, labels), 2, seed=0)
    assert chosen.labels.bincount().tolist() == [20, 3]


def test_by_class_sorts_interleaved_images():
    images = (torch.arange(12) % 3).reshape(12, 1, 1, 1)
    assert by_class(images, 3, 4).flatten().tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_a_run_gets_its_results_and_pictures(run, tmp_path):
    run = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("results.json"))
    for name in ("accuracy", "samples"):
        dict(evaluate_run(str(run), [name], "cpu"))
    results = json.loads((run / "results.json").read_text())
    assert results.keys() == {"accuracy", "samples"}
    assert 0 <= results["accuracy"]["values"]["top1"] <= 1
    assert 0 <= results["samples"]["values"]["svc_agreement"] <= 1
    conditions = results["accuracy"]["conditions"]
    assert (conditions["data"], conditions["split"], conditions["images"]) == ("digits", "test", 359)
    assert conditions["trained"]["updates"] == 30
    assert conditions["trained"]["seconds"] > 0
    assert conditions["settings"]["train"]["seed"] == 0
    assert results["samples"]["conditions"]["steps"] == 3
    for path in results["samples"]["files"]:
        assert (run / path).is_file()


def test_a_run_is_not_measured_on_data_it_was_not_trained_on(tmp_path):
    digits = gmmc.data.load(DataConfig(), seed=0)
    half = gmmc.data.Dataset(digits.train[::2], digits.valid, digits.test, digits.class_names, name="digits")
    train(tiny_config(), tmp_path / "run", half)
    with pytest.raises(InputError, match="was not trained on the digits"):
        dict(evaluate_run(str(tmp_path / "run"), [], "cpu"))


@pytest.mark.parametrize("part", ["valid", "test"])
def test_changed_held_out_images_are_flagged_in_every_result(tmp_path, part, capsys):
    """Each result, and its printed lines; not with the same images, nor for a model of an older version."""
    digits = gmmc.data.load(DataConfig(), seed=0)
    run, flag = tmp_path / "run", "validation or test images are not those that the model was trained with"
    other = dataclasses.replace(digits, **{part: getattr(digits, part)[1:]})
    train(tiny_config(train={"batch_size": 128}, buffer={"size": 200}), run, other)
    with pytest.raises(SystemExit):
        app.main(["evaluate", str(run), "accuracy", "calibration", "--device", "cpu"])
    assert capsys.readouterr().out.count(f"! {flag}") == 2
    results = json.loads((run / "results.json").read_text())
    for name in ("accuracy", "calibration"):
        assert any(line.startswith(flag) for line in results[name]["flags"]), name
    model = gmmc.load(run)
    for trained, data in (
        (model.trained, other),
        ({k: v for k, v in model.trained.items() if k != "held_out_sha256"}, digits),
    ):
        model.trained = trained
        assert not any(flag in line for line in gmmc.evaluate(model, data, "accuracy")["accuracy"].flags)


def test_results_on_arrays_are_kept_where_the_report_finds_them(tmp_path):
    run, data = tmp_path / "run", tiny_data()
    train(tiny_config(), run, data)
    with pytest.raises(InputError, match=r"trained on arrays, .* gmmc.evaluate\(gmmc.load"):
        dict(evaluate_run(str(run), [], "cpu"))
    gmmc.evaluate(gmmc.load(run), data, ["accuracy", "samples"], SMALL, out=run)
    results = json.loads((run / "results.json").read_text())
    assert results["accuracy"]["conditions"]["data"] == "arrays"
    assert (run / "samples" / "film.png").is_file()


def test_results_and_data_do_not_fill_the_screen():
    assert len(repr(evaluate(Brightness(), tiny_data(), "accuracy")["accuracy"])) < 300
    assert repr(tiny_data()) == "Dataset(arrays: 64 train, 12 valid, 18 test, 1×8×8, 3 classes)"


def test_probabilities_are_not_taken_for_logits():
    network = nn.Sequential(Brightness(), nn.Softmax(-1))
    assert any(
        "probabilities, not logits" in flag for flag in evaluate(network, tiny_data())["accuracy"].flags
    )


def test_unknown_evaluations_are_listed(run):
    with pytest.raises(InputError, match="unknown evaluation 'beauty'; known are accuracy, calibration"):
        dict(evaluate_run(str(run), ["beauty"], "cpu"))
