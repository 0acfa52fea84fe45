"""The ONNX graph says what `answer` says, without torch."""

import json
import re
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import gmmc
from conftest import make_model
from doc_blocks import DOCS, blocks_of
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.export import onnx as export
from gmmc.export.onnx import to_onnx
from gmmc.runs import model_file
from processes import python


@pytest.fixture(scope="module")
def written(digits, tmp_path_factory):
    return to_onnx(digits[0], tmp_path_factory.mktemp("export") / "digits.onnx")


@pytest.fixture(scope="module")
def session(written):
    return onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])


def noise(count, *shape):
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


def outputs_of(session, images):
    names = [output.name for output in session.get_outputs()]
    found = session.run(None, {"images": images.numpy()})
    return {name: torch.from_numpy(output) for name, output in zip(names, found, strict=True)}


def given_graph(written):
    """In place of tracing, which takes seconds."""
    return lambda *_: onnx.load(written.path)


def assert_close(session, model, images, gamma2):
    """Within 1e-4 of the largest logit, as the page promises; against torch in float64. Densities: γ = 1."""
    found = outputs_of(session, images)
    with torch.no_grad():
        features = model.double().backbone(images.double() * 2 - 1)
        exact, unit = (model.head.logits_at(features, value) for value in (gamma2, 1.0))
    size, unit_size = (logits.abs().amax(-1).clamp(min=1) for logits in (exact, unit))
    assert ((found["logits"] - exact).abs().amax(-1) <= 1e-4 * size).all()
    assert ((found["log_density"] - unit.logsumexp(-1)).abs() <= 1e-4 * unit_size).all()
    torch.testing.assert_close(found["posterior"], found["logits"].softmax(-1), atol=1e-4, rtol=0)
    assert ("span_density" in found) == (model.head.means is not None)
    if "span_density" in found:
        _, rest = model.tempered().split(features)
        exact_in_span = unit.logsumexp(-1) + rest
        assert ((found["span_density"] - exact_in_span).abs() <= 1e-4 * unit_size).all()


# --- what it computes ---


def test_it_answers_as_the_model_does(digits, session):
    model, data = digits
    images = torch.cat([data.test.images[:40] / 255, noise(24, *model.shape)])
    answer = model.answer(images)
    found = outputs_of(session, images)
    assert {output.dtype for output in found.values()} == {torch.float32}
    told = session.get_modelmeta().custom_metadata_map
    posterior, density = found["posterior"], found[told["score"]]
    assert density.shape == (64,)
    torch.testing.assert_close(posterior.max(-1).values.double(), answer.confidence, atol=1e-4, rtol=0)
    torch.testing.assert_close(density.double(), answer.values, atol=1e-4, rtol=1e-4)
    assert torch.equal(posterior.argmax(-1), answer.labels)
    clear = (answer.values - answer.threshold).abs() > 1e-3
    accepted = ~(density < float(told["threshold"]))
    assert torch.equal(accepted[clear], answer.accepted[clear])
    assert 0 < answer.accepted.sum() < 64  # both answers were tried


@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_image_does_not_feel_its_neighbours(session, count):
    images = noise(7, 1, 8, 8)
    among = outputs_of(session, images)
    for name, alone in outputs_of(session, images[:count]).items():
        torch.testing.assert_close(alone, among[name][:count], atol=1e-5, rtol=1e-5)


def test_its_metadata_are_those_of_the_model(digits, session):
    model, _ = digits
    told = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(told["class_names"])) == model.class_names
    assert tuple(json.loads(told["shape"])) == model.shape
    assert float(told["gamma2"]) == float(told["gamma2_fitted"]) == model.reference.gamma2
    assert float(told["gamma2_stored"]) == model.head.gamma2.item() != model.reference.gamma2
    assert told["score"] == "log_density"
    assert float(told["threshold"]) == model.reference.threshold("log_density", float(told["tpr"]))
    assert int(told["validation_images"]) == model.reference.images("log_density")
    assert told["gmmc_version"] == gmmc.__version__


def test_it_is_one_file_that_tells_nothing_of_this_machine(written):
    content = written.path.read_bytes()
    assert [path.name for path in written.path.parent.iterdir()] == ["digits.onnx"]
    assert written.size == len(content)
    assert b".py" not in content
    graph = onnx.load(written.path)
    assert graph.opset_import[0].version == written.opset == 20
    assert [node.name for node in graph.graph.input] == ["images"]


def test_exporting_leaves_the_model_as_it_was(digits, written):
    model, _ = digits
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    first = next(p for p in model.parameters() if p.ndim == 4 and p.shape[1] > 1)
    assert first.is_contiguous(memory_format=torch.channels_last)


def test_the_page_s_example_runs_without_torch(digits, written, tmp_path):
    """In a process where torch cannot be imported, and with the answer of `gmmc predict`."""
    model, data = digits
    example = next(block.text for block in blocks_of(DOCS / "export.md") if "onnxruntime" in block.text)
    (tmp_path / "digits.onnx").write_bytes(written.path.read_bytes())
    blocked = "import sys\nsys.modules['torch'] = sys.modules['gmmc'] = None\n"
    answers = set()
    for pixels in (data.test.images[0, 0], noise(8, 8) * 255):
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(tmp_path / "photo.png")
        done = python(blocked + example, cwd=tmp_path)
        answer = model.answer(pixels.to(torch.uint8)[None, None])
        wanted = answer.names[0] if answer.accepted[0] else "not like the training images"
        assert done.stdout.startswith(wanted)
        answers.add(bool(answer.accepted[0]))
    assert answers == {True, False}


def test_the_page_s_other_blocks_run(run, written, tmp_path, monkeypatch):
    """Commands and Python, one after the other; what is traced before is not traced again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "_traced", given_graph(written))
    blocks = [block for block in blocks_of(DOCS / "export.md") if not block.mark]
    for block in blocks:
        for words in block.commands if block.language == "sh" else ():
            with pytest.raises(SystemExit) as stop:
                app.main([word.replace("runs/demo", str(run)) for word in words[1:]])
            assert stop.value.code == 0
        if block.language == "python" and "import onnxruntime" not in block.text:
            exec(block.text.replace("runs/demo", str(run)), {})
    assert [block.language for block in blocks] == ["sh", "python", "python", "python"]
    assert (tmp_path / "digits.onnx").is_file()
    assert (tmp_path / "my-digits" / "README.md").is_file()


# --- the command ---


def test_the_command_prints_a_line_and_what_the_graph_lacks(tmp_path, capfd):
    model = make_model(
        model={"backbone": "wrn-10-1", "head": "lda", "norm": "batch"}, objective={"name": "balanced"}
    )
    model_file.save_model(tmp_path / "model.safetensors", model)
    with pytest.raises(SystemExit) as stop:
        app.main(["export", str(tmp_path), str(tmp_path / "a.onnx"), "--opset", "18"])
    out, err = capfd.readouterr()
    assert stop.value.code == 0
    assert re.fullmatch(r"\S+a\.onnx: 0\.3 MB, opset 18; onnxruntime differs from torch by at most .*\n", out)
    assert len(err.splitlines()) == 1
    assert "not calibrated" in err
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map
    assert "threshold" not in told
    assert "gamma2_fitted" not in told
    assert_close(session, model, noise(5, *model.shape), float(told["gamma2"]))


# --- what is refused ---


@pytest.mark.parametrize(
    ("place", "words"),
    [("model.pt", "must be a file that ends in .onnx"), ("", "must be a file that ends in .onnx")],
)
def test_a_wrong_place_is_refused(model, tmp_path, place, words):
    with pytest.raises(InputError, match=words):
        to_onnx(model, tmp_path / place)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "a.onnx"), "no run folder or model file 'nowhere'"),
        (("{run}", "a.pt"), "PLACE must be a file that ends in .onnx or a folder, got 'a.pt'"),
        (("{run}", "a.onnx", "--opset", "17"), "opset must lie in 18.."),
        (("{run}", "folder", "--opset", "18"), "--opset is for a file that ends in .onnx"),
    ],
)
def test_bad_arguments_end_in_one_line(run, tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        app.main(["export", *(argument.format(run=run) for argument in arguments)])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert words in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(model, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"package {package}: pip install onnx onnxruntime onnxscript,"):
        to_onnx(model, tmp_path / "a.onnx")


def test_a_graph_that_disagrees_is_not_written(written, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_traced", given_graph(written))
    other = make_model(classes=10)
    other.reference = digits[0].reference
    with pytest.raises(InputError, match=r"onnxruntime must agree with torch to 0.0001, got .* in logits"):
        to_onnx(other, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_without_onnxruntime_it_says_that_nothing_was_checked(written, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_traced", given_graph(written))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    unchecked = to_onnx(digits[0], tmp_path / "a.onnx")
    assert unchecked.difference is None
    assert "not checked: onnxruntime is not installed" in str(unchecked)
    assert (tmp_path / "a.onnx").read_bytes() == written.path.read_bytes()


def test_a_model_too_large_for_one_file_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONE_FILE", 1000)
    with pytest.raises(InputError, match="this model has more"):
        to_onnx(model, tmp_path / "a.onnx")


def test_a_dot_and_a_number_are_no_ending(tmp_path):
    assert export.is_graph(tmp_path / "a.ONNX")
    assert not export.is_graph(tmp_path / "v1.2")
    assert not export.is_graph(tmp_path / "folder")


# --- every kind of model ---

KINDS = {
    "lda": {"model": {"head": "lda"}, "objective": {"name": "balanced"}},
    "linear": {"model": {"head": "linear"}, "objective": {"name": "balanced"}, "sampler": {"name": "sgld"}},
    "wide": {"model": {"backbone": "wrn-10-1"}, "shape": (3, 9, 11)},
    "odd": {"shape": (1, 9, 11)},
    "vectors": {"model": {"backbone": "mlp-2-16"}, "shape": (4, 1, 1)},
    "unequal priors": {"priors": [0.7, 0.2, 0.1]},
    "certain": {"gamma2": 1e-4},  # logits of 10⁵ and more
    "stored as bf16": {"train": {"weights": "bf16"}},
    "float64": {"dtype": torch.float64},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_exported(kind, tmp_path):
    sections = dict(KINDS[kind])
    gamma2, priors, dtype = (sections.pop(name, None) for name in ("gamma2", "priors", "dtype"))
    model = make_model(**sections)
    if gamma2:
        model.head.gamma2.fill_(gamma2)
    if priors:
        model.head.priors.copy_(torch.tensor(priors))
    model_file.save_model(tmp_path / "model.safetensors", model)
    model = model_file.load(tmp_path).to(dtype or torch.float32)
    written = to_onnx(model, tmp_path / "a.onnx")
    assert written.difference < 1e-4  # as the page promises
    session = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    assert_close(session, model, noise(6, *model.shape), float(written.metadata["gamma2"]))


@pytest.mark.slow
def test_the_shipped_model_is_exported(tmp_path):
    model = gmmc.load("cifar10")
    written = to_onnx(model, tmp_path / "cifar10.onnx")
    session = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    images = noise(10, 3, 32, 32)
    found = outputs_of(session, images)
    answer = model.answer(images)
    np.testing.assert_allclose(found["posterior"].max(-1).values, answer.confidence, atol=1e-4)
    assert answer.score == "span_density"
    np.testing.assert_allclose(found["span_density"], answer.values, atol=1e-4, rtol=1e-4)


def test_a_noise_conditional_model_is_exported_at_the_noise_of_its_predictions(tmp_path):
    model = make_model(
        train={"algorithm": "denoising"},
        model={"backbone": "smooth-10-1", "dim": 8, "scale": 1.0},
        sampler={"name": "heun"},
    )
    written = to_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(written.path, providers=["CPUExecutionProvider"])
    for count in (1, 3):
        images = noise(count, *model.shape)
        found = outputs_of(session, images)
        torch.testing.assert_close(found["posterior"], model.predict_proba(images), atol=1e-4, rtol=0)
        torch.testing.assert_close(found["log_density"], model.log_density(images), atol=1e-2, rtol=1e-4)
