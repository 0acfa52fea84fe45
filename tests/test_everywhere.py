"""What a model can do after one way to train, it can do after every other.

Commands, evaluations, methods of the model and of the estimator are listed by the program itself: one that is
added to it must be added here, and then runs for every way to train.
"""

import inspect
import json
import shutil

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import gmmc
from conftest import interrupted_at, tiny_config, tiny_data
from gmmc.classifier.model import Classifier
from gmmc.classifier.predictor import Predictor
from gmmc.cli import app
from gmmc.config import recipes, schema
from gmmc.errors import InputError
from gmmc.estimator.recipe import AUTOMATIC
from gmmc.evaluations.registry import EVALUATIONS, NEED_NOISE
from gmmc.pixels import as_unit
from gmmc.report import sections
from gmmc.report.pictures import CAPTIONS
from gmmc.runs import model_file
from gmmc.runs.results import read_results
from gmmc.train.initialize import with_start
from gmmc.train.learner import ALGORITHMS
from gmmc.train.loop import train
from gmmc.train.so_far import write_model_so_far

# A tiny recipe of each way to train.
RECIPES: dict[str, dict] = {
    "contrastive": {"buffer": {"size": 200}},
    "denoising": {"model": {"backbone": "smooth-mlp-1-32"}, "sampler": {"name": "heun"}},
}
EVALUATE = {"samples": 30, "generated": 30, "generated_by_steps": 20, "generation_steps": [2, 3]}
EVALUATE |= {"ood": ["noise", "rotated"]}
# Pictures that only one way to train can have.
ONLY = {"generation/buffer.png": "contrastive", "validation/buffer.png": "contrastive"}

pytestmark = [
    pytest.mark.usefixtures("hurried", "few_queries"),
    pytest.mark.parametrize("algorithm", RECIPES),
]


def recipe(algorithm: str, **settings) -> schema.Config:
    settings = {"algorithm": algorithm, "batch_size": 128} | settings
    return tiny_config(**RECIPES[algorithm], train=settings, evaluate=EVALUATE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict:
    """A finished run on the digits of each way to train."""
    folder = tmp_path_factory.mktemp("runs")
    for algorithm in RECIPES:
        train(recipe(algorithm), folder / algorithm, silent=True)
    return {algorithm: folder / algorithm for algorithm in RECIPES}


@pytest.fixture
def run(runs, algorithm):
    """Shared by the tests, which add results to it."""
    return runs[algorithm]


@pytest.fixture
def model(run) -> Classifier:
    return gmmc.load(run)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    digits = gmmc.data.load(tiny_config().data, seed=0)
    return as_unit(digits.test.images[:6])


def command(*words, capsys) -> str:
    """Standard output of a command that succeeds."""
    with pytest.raises(SystemExit) as stop:
        app.main([*map(str, words)])
    printed = capsys.readouterr()
    assert not stop.value.code, printed.err
    return printed.out


# --- commands ---


def commands_of(run, algorithm, folder) -> dict[str, tuple]:
    """Words of each command, and a file that it writes or a text that it prints."""
    picture = folder / "image.png"
    Image.fromarray(np.full((8, 8), 100, np.uint8)).save(picture)
    written = folder / "recipe.toml"
    written.write_text(recipes.to_toml(recipe(algorithm)))
    copy = shutil.copytree(run, folder / "copy")
    return {
        "train": (("train", written, "--out", folder / "new"), folder / "new" / "model.safetensors"),
        "evaluate": (("evaluate", copy, "accuracy"), "top1"),
        "report": (("report", copy), copy / "report.html"),
        "sample": (("sample", copy, "-n", 2, "--out", folder / "drawn"), folder / "drawn" / "grid.png"),
        "predict": (("predict", copy, picture), "confidence"),
        "examples": (("examples", copy), copy / "examples" / "noise.png"),
        "calibrate": (("calibrate", copy, "--tpr", 0.9), "gamma2"),
        "export": (("export", copy, folder / "model.onnx"), folder / "model.onnx"),
        "recipes": (("recipes",), AUTOMATIC[algorithm][0]),
    }


OF_NO_MODEL = {"bench", "models"}  # the speed of Algorithm 1; what ships with gmmc
COMMANDS = sorted({*app.COMMANDS} - app.DEPRECATED - OF_NO_MODEL)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command(run, algorithm, name, tmp_path, capsys):
    words, wanted = commands_of(run, algorithm, tmp_path)[name]
    out = command(*words, capsys=capsys)
    assert wanted in out if isinstance(wanted, str) else wanted.is_file()


def test_a_hub_folder_is_one_that_predict_takes(run, algorithm, images, tmp_path, capsys):
    command("export", run, tmp_path / "hub", capsys=capsys)
    before, after = gmmc.load(run), gmmc.from_pretrained(tmp_path / "hub")
    assert torch.equal(before.predict_proba(images), after.predict_proba(images))
    assert torch.equal(before.answer(images).accepted, after.answer(images).accepted)
    assert torch.equal(before.sample(2, [0, 1]), after.sample(2, [0, 1]))
    assert (before.denoising is None) == (after.denoising is None)
    told = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert told["recipe"]["train"]["algorithm"] == algorithm


# --- evaluations and their report ---


def possible(algorithm: str) -> list[str]:
    """Evaluations after this way to train: all but those of noise levels, which chains do not have."""
    return [name for name in EVALUATIONS if algorithm == "denoising" or name not in NEED_NOISE]


@pytest.fixture
def evaluated(run, algorithm, capsys):
    """The run with results of all evaluations, by the command; the first test waits for it."""
    missing = [name for name in possible(algorithm) if name not in read_results(run)]
    if missing:
        attacked = ("--attacked", 4) if {"robustness", "autoattack"} & {*missing} else ()
        command("evaluate", run, *missing, *attacked, "--device", "cpu", capsys=capsys)
    return run


@pytest.mark.slow
def test_every_evaluation_has_results(evaluated, algorithm):
    results = read_results(evaluated)
    assert {*possible(algorithm)} <= results.keys()
    for name in possible(algorithm):
        assert results[name]["values"], name
        assert results[name]["conditions"]["settings"]["train"]["algorithm"] == algorithm
        assert not any("not measured:" in flag for flag in results[name]["flags"]), name


@pytest.mark.slow
def test_every_evaluation_and_picture_is_on_the_page(evaluated, algorithm, capsys):
    page = evaluated / "report.html"
    command("report", evaluated, capsys=capsys)
    text = page.read_text()
    results = read_results(evaluated)
    for name in possible(algorithm):
        assert sections.KNOWN[name][0] in text, name
    pictures = {file for name in possible(algorithm) for file in results[name]["files"]}
    for file in pictures:
        assert CAPTIONS[file][0] in text
        assert (evaluated / file).is_file()
    assert "is not in the run folder any more" not in text
    shown = {file for file in CAPTIONS if ONLY.get(file, algorithm) == algorithm}
    assert shown - pictures <= {"robustness/noises.png"}, "none of so few images may be broken"


# --- the model ---

CALLS = {
    "answer": lambda model, x: model.answer(x),
    "at": lambda model, x: model.at("trained").logits(x),
    "energy": lambda model, x: model.energy(x, [0] * len(x)),
    "features": lambda model, x: model.features(x),
    "looks_for": lambda model, x: torch.tensor(model.looks_for() + model.looks),
    "forward": lambda model, x: model(x),
    "log_density": lambda model, x: model.log_density(x),
    "logits": lambda model, x: model.logits(x),
    "predict": lambda model, x: model.predict(x),
    "predict_log_proba": lambda model, x: model.predict_log_proba(x),
    "predict_proba": lambda model, x: model.predict_proba(x),
    "sample": lambda model, x: model.sample(2),
    "tempered": lambda model, x: model.tempered().energies(x),
    "drawer": lambda model, x: model.drawer().film([0, 1], frames=[0, 1, 2]),
    "calibrate": lambda model, x: model.calibrate(x, [0, 1, 2] * 2),
    "keep_neighbours": lambda model, x: model.keep_neighbours(x, [0, 1, 2] * 2),
    "check_can_sample": lambda model, x: model.check_can_sample(),
    "label_tensor": lambda model, x: model.label_tensor([0], 1),
}
# Methods of models with noise levels alone.
NOISE_CALLS = {"at_noise": lambda model, x: model.at_noise(0.3).predict_proba(x)}


def public_methods(*kinds: type) -> set[str]:
    return {
        name
        for kind in kinds
        for name, value in vars(kind).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def test_every_method_of_a_model(model, algorithm, images):
    assert public_methods(Classifier, Predictor) == CALLS.keys() | NOISE_CALLS.keys()
    for name, call in CALLS.items():
        found = call(model, images)
        if isinstance(found, torch.Tensor):
            assert found.isfinite().all(), name
    for call in NOISE_CALLS.values():
        if algorithm in schema.NOISE_CONDITIONAL:
            assert call(model, images).isfinite().all()
        else:
            with pytest.raises(InputError, match="noise levels"):
                call(model, images)


def test_a_graph_answers_as_torch_does(model, algorithm, images, tmp_path):
    written = gmmc.export.to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    found = dict(
        zip(
            [output.name for output in session.get_outputs()],
            session.run(None, {"images": images.numpy()}),
            strict=True,
        )
    )
    answer = model.answer(images, score="log_density")
    np.testing.assert_allclose(found["posterior"], model.predict_proba(images).numpy(), atol=1e-4)
    np.testing.assert_allclose(found["posterior"].max(-1), answer.confidence.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["log_density"], model.log_density(images), rtol=1e-4, atol=1e-3)
    facts = session.get_modelmeta().custom_metadata_map
    assert float(facts["gamma2"]) == float(facts["gamma2_fitted"]) == model.gamma2
    assert float(facts["gamma2_density"]) == model.density_gamma2
    score = facts["score"]  # the graph computes it, which need not be the model's own
    assert score in found
    assert float(facts["threshold"]) == model.reference.threshold(score, model.abstain.tpr)
    assert (score == model.abstains_by) == (not written.remarks)
    if algorithm in schema.NOISE_CONDITIONAL:
        assert float(facts["sigma"]) == model.denoising.class_sigma
        at = model.at_noise(float(facts["sigma"]))
        np.testing.assert_allclose(found["log_density"], at.log_density(images), rtol=1e-4, atol=1e-3)
    else:
        assert "sigma" not in facts


# --- training ---


@pytest.mark.parametrize("classes", [10, 3])
def test_it_begins_with_a_run_of_the_same_kind(run, algorithm, classes, tmp_path):
    cfg = with_start(recipe(algorithm, batch_size=16), str(run))
    cfg = recipes.from_text(recipes.to_toml(cfg))
    model = train(cfg, tmp_path / "next", None if classes == 10 else tiny_data(classes), silent=True)
    assert model.trained["start"]["updates"] == gmmc.load(run).trained["updates"]
    assert len(model.class_names) == classes


def test_a_model_so_far_and_the_same_model_after_an_interruption(run, algorithm, tmp_path):
    out, cfg = tmp_path / "run", recipe(algorithm, checkpoint_seconds=0.0)
    with interrupted_at(17):
        train(cfg, out, silent=True)
    so_far = write_model_so_far(out, tmp_path / "so-far")
    assert 0 < so_far.trained["updates"] <= 17
    train(cfg, out, silent=True)
    ended, whole = (model_file.load(place).state_dict() for place in (out, run))
    assert all(torch.equal(ended[name], tensor) for name, tensor in whole.items())


# --- the estimator ---

ROWS = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat([[-2], [2]], 30, axis=0)
CLASSES = np.repeat([0, 1], 30)
QUICK = {"generative.epochs": 1, "generative.warmup": 0, "sample.steps": 3}
ESTIMATOR_CALLS = {
    "acceptance_scores": lambda model: model.acceptance_scores(ROWS),
    "accepts": lambda model: model.accepts(ROWS),
    "decision_function": lambda model: model.decision_function(ROWS),
    "fit": lambda model: model.fit(ROWS, CLASSES).predict(ROWS),
    "from_unit": lambda model: model.from_unit(model.to_unit(ROWS)),
    "partial_fit": lambda model: model.partial_fit(ROWS, CLASSES).predict(ROWS),
    "predict": lambda model: model.predict(ROWS),
    "predict_log_proba": lambda model: model.predict_log_proba(ROWS),
    "predict_or_abstain": lambda model: model.predict_or_abstain(ROWS, unknown=-1),
    "predict_proba": lambda model: model.predict_proba(ROWS),
    "sample": lambda model: model.sample(5)[0],
    "score_samples": lambda model: model.score_samples(ROWS),
    "to_unit": lambda model: model.to_unit(ROWS).numpy(),
}


def test_every_method_of_the_estimator(algorithm):
    assert public_methods(gmmc.GMMCClassifier) == ESTIMATOR_CALLS.keys()
    model = gmmc.GMMCClassifier(
        algorithm=algorithm, settings=QUICK, min_updates=1, random_state=0, device="cpu"
    ).fit(ROWS, CLASSES)
    assert (model.model_.denoising is not None) == (algorithm in schema.NOISE_CONDITIONAL)
    for name, call in ESTIMATOR_CALLS.items():
        found = call(model)
        assert len(found) == (5 if name == "sample" else len(ROWS)), name
        assert np.isfinite(found).all(), name


# --- this list ---


def test_every_way_to_train_is_here(algorithm):
    assert algorithm in ALGORITHMS
    assert RECIPES.keys() == ALGORITHMS.keys() == AUTOMATIC.keys()
    assert recipe(algorithm).train.algorithm == algorithm
