"""A folder in the Hub's layout: nothing is lost, nothing foreign is touched, nothing needs a network."""

import dataclasses
import json
import shutil
import socket

import huggingface_hub
import pytest
import torch
from huggingface_hub import ModelCard, errors
from PIL import Image

import gmmc
from conftest import make_model
from gmmc.base import atomic
from gmmc.base.tensorfile import pack, unpack
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.export import hub
from gmmc.runs import model_file, restore
from gmmc.runs.results import read_results, write_results

CARD = """
title = "Digits | by <hand>"
purpose = "Reading digits."
not_for = ["Cheques.", "Letters."]
licence = "MIT for all of it."
"""


@pytest.fixture(scope="module")
def measured(digits):
    model, data = digits
    found = gmmc.evaluate(model, data, ["accuracy", "calibration"])
    doubted = {
        name: dataclasses.replace(result, flags=[f"{name} is <doubted>"]) for name, result in found.items()
    }
    return found | doubted


@pytest.fixture(scope="module")
def folder(run, measured, tmp_path_factory):
    """Of a run with results and a card."""
    place = tmp_path_factory.mktemp("hub")
    shutil.copytree(run, place / "run")
    write_results(place / "run", {name: found.entry() for name, found in measured.items()})
    (place / "run" / "card.toml").write_text(CARD)
    return gmmc.save_pretrained(place / "run", place / "my-digits")


@pytest.fixture
def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copied")


# --- there and back ---


def test_nothing_is_lost_on_the_way(folder, digits, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("a local folder needs no network")

    monkeypatch.setattr(socket, "socket", no_network)
    model, data = digits
    images = data.test.images[:20]
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    for again in (gmmc.from_pretrained(folder), gmmc.load(folder)):
        assert torch.equal(again.logits(images), model.logits(images))
        assert torch.equal(again.sample(2, seed=3), model.sample(2, seed=3))
        assert again.answer(images).threshold == model.answer(images).threshold
        assert again.class_names == model.class_names
        assert again.cfg == model.cfg
        assert again.trained == model.trained


def test_scores_that_are_rounded_when_stored_are_told_as_they_are_read(digits, tmp_path):
    """In memory the scores are float64; a recipe that stores bf16 keeps float32 of them."""
    model = make_model(classes=10, train={"weights": "bf16"})
    model.calibrate(digits[1].valid.images, digits[1].valid.labels)
    again = gmmc.from_pretrained(gmmc.save_pretrained(model, tmp_path / "half"))
    told = json.loads((tmp_path / "half" / "config.json").read_text())
    score, tpr = again.abstains_by, again.abstain.tpr
    assert told["score"] == score
    assert told["threshold"] == again.reference.threshold(score, tpr)
    assert told["threshold"] != model.reference.threshold(score, tpr)


def test_predict_takes_the_folder(folder, digits, tmp_path, capsys):
    Image.fromarray(digits[1].test.images[0, 0].numpy()).save(tmp_path / "one.png")
    with pytest.raises(SystemExit) as stop:
        app.main(["predict", str(folder), str(tmp_path / "one.png"), "--json"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["class"] in digits[0].class_names


def test_the_command_writes_the_same_folder(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        app.main(["export", str(run), str(tmp_path / "v1.2")])
    assert stop.value.code == 0
    assert "gmmc.from_pretrained" in capsys.readouterr().out
    assert (tmp_path / "v1.2" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_a_refused_export_leaves_no_folder(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "run")
    (other / "card.toml").write_text("porpuse = 'tests'")
    with pytest.raises(InputError, match="porpuse"):
        gmmc.save_pretrained(other, tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


# --- config.json ---


def edit(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_config_json_tells_of_the_model(folder, digits):
    model, _ = digits
    told = json.loads((folder / "config.json").read_text())
    assert told["gmmc"] == gmmc.__version__
    assert told["class_names"] == list(model.class_names)
    assert told["shape"] == list(model.shape)
    assert told["gamma2_fitted"] == model.reference.gamma2
    assert gmmc.config.from_dict(told["recipe"]) == model.cfg


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gamma2_stored": 2.0}, "gamma2_stored must be .* as in model.safetensors, got 2.0"),
        ({"class_names": ["a"] * 10}, "class_names must be"),
        ({"recipe": {"discriminative": {"epochs": 7}}}, r"recipe\.\S+ must be"),
        ({"recipe": {"trian": {}}}, r"is not one of this version of gmmc: unknown section \[trian\]"),
    ],
)
def test_a_description_of_another_model_is_refused(copied, changes, words):
    edit(copied, **changes)
    with pytest.raises(InputError, match=words):
        gmmc.from_pretrained(copied)


def test_weights_of_another_model_are_refused(copied):
    model_file.save_model(copied / "model.safetensors", make_model(classes=10))
    with pytest.raises(InputError, match=r"config\.json is of another model"):
        gmmc.from_pretrained(copied)


def test_what_others_add_and_what_older_versions_lack_is_let_be(copied, digits):
    edit(copied, gmmc="0.0.1", tags=["mine"])
    file = copied / "config.json"
    told = json.loads(file.read_text())
    del told["parameters"], told["recipe"]["abstain"]  # as the defaults are
    file.write_text(json.dumps(told))
    assert gmmc.from_pretrained(copied).cfg == digits[0].cfg


def test_a_folder_of_an_older_version_is_read_without_its_threshold(copied, digits):
    """Its log p(x) was at the fitted γ²: the model answers by what is left, and names the command."""
    tensors, info, _ = unpack(copied / "model.safetensors")
    del info[restore.DENSITY_GAMMA2]
    (copied / "model.safetensors").write_bytes(pack(tensors, info)[0])
    model, images = gmmc.from_pretrained(copied), digits[1].test.images[:3]
    with pytest.raises(InputError, match="gmmc calibrate RUN"):
        model.answer(images)
    assert torch.equal(
        model.answer(images, score="max_posterior").labels,
        digits[0].answer(images, score="max_posterior").labels,
    )


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"model_type": "bert"}', "[" * 2000 + "]" * 2000, '{"gmmc": ' * 2000 + "1" + "}" * 2000],
)
def test_a_foreign_description_is_refused(copied, text):
    (copied / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json must be a JSON object with the key 'gmmc'"):
        gmmc.from_pretrained(copied)


def test_damaged_weights_are_refused(copied):
    file = copied / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match="was altered"):
        gmmc.from_pretrained(copied)


def test_a_run_folder_is_not_such_a_folder(run):
    with pytest.raises(InputError, match=r"it has no config\.json; gmmc\.load reads run folders"):
        gmmc.from_pretrained(run)


# --- the card ---


def test_the_card_is_one_that_the_hub_reads(folder, measured):
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "gmmc"
    assert card.data.pipeline_tag == "image-classification"
    assert card.data.license == "mit"
    assert card.data.model_name == "my-digits"
    found = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert found["accuracy"] == measured["accuracy"].values["top1"]
    assert found["ece"] == measured["calibration"].values["fitted/ece"]


def test_the_card_has_words_numbers_doubts_and_conditions(folder, measured):
    text = (folder / "README.md").read_text()
    assert r"# Digits \| by &lt;hand>" in text
    assert "## What it is for\n\nReading digits.\n" in text
    assert "- Cheques.\n- Letters.\n" in text
    row = next(line for line in text.splitlines() if line.startswith("| test accuracy |"))
    low, high = (f"{100 * end:.1f}" for end in measured["accuracy"].intervals["top1"])
    assert f"{100 * measured['accuracy'].values['top1']:.1f}%" in row
    assert f"{low}–{high}%" in row
    assert "not measured: do not assume any" in text  # robustness
    assert "- Accuracy: accuracy is &lt;doubted>\n- Calibration: calibration is &lt;doubted>\n" in text
    assert "- Accuracy: data digits; split test;" in text
    assert 'gmmc.from_pretrained("my-digits")' in text


def test_without_results_the_card_says_so(model, tmp_path):
    card = ModelCard.load(gmmc.save_pretrained(model, tmp_path / "new") / "README.md")
    assert "No measurements came with this model" in card.text
    assert card.data.eval_results is None
    assert card.data.license == "unknown"


def test_results_of_a_model_in_memory_are_shown(digits, measured, tmp_path):
    saved = gmmc.save_pretrained(digits[0], tmp_path / "new", results=measured, licence="apache-2.0")
    card = ModelCard.load(saved / "README.md")
    assert "No measurements" not in card.text
    assert card.data.license == "apache-2.0"
    assert card.data.eval_results[0].metric_value == measured["accuracy"].values["top1"]


@pytest.mark.parametrize("results", [{"accuracy": {"top1": 0.9}}, {"accuracy": 0.9}, 0.9])
def test_results_of_another_kind_are_refused(model, tmp_path, results):
    with pytest.raises(InputError, match=r"results must be what gmmc\.evaluate gives"):
        gmmc.save_pretrained(model, tmp_path / "new", results=results)
    assert not (tmp_path / "new").exists()


def test_names_of_classes_cannot_break_the_card(tmp_path):
    model = make_model()
    model.class_names = ("a|b", "<script>", "c d")
    text = (gmmc.save_pretrained(model, tmp_path / "new") / "README.md").read_text()
    assert "(a\\|b, &lt;script>, c d)" in text


def test_the_shipped_model_brings_its_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    card = ModelCard.load(gmmc.save_pretrained("cifar10", "c10") / "README.md")
    results = read_results(gmmc.runs.shipped.SHIPPED / "cifar10")
    assert card.data.datasets == ["uoft-cs/cifar10"]
    assert card.data.eval_results[0].metric_value == results["accuracy"]["values"]["top1"]
    assert "| **worst case of the attacks of preset quick (no FAB-T), L∞ 8/255** |" in card.text
    assert {path.name for path in tmp_path.iterdir()} == {"c10"}


# --- whose folder it is ---


def test_a_folder_of_ours_is_replaced_and_git_stays(copied, model):
    (copied / ".git").mkdir()
    (copied / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    gmmc.save_pretrained(model, copied)
    assert gmmc.from_pretrained(copied).class_names == model.class_names
    assert len(list(copied.iterdir())) == 5


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "my notes"),
        ("config.json", '{"model_type": "bert"}'),
        ("photo.png", ""),
        ("config.toml", ""),
    ],
)
def test_a_folder_with_anything_else_is_refused_and_left_alone(model, tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(
        InputError, match=f"must be empty or hold what gmmc export wrote there before.*{name}"
    ):
        gmmc.save_pretrained(model, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text


def test_something_added_to_a_folder_of_ours_is_refused(copied, model):
    before = (copied / "model.safetensors").read_bytes()
    (copied / "results.json").write_text("{}")
    with pytest.raises(InputError, match=r"results\.json"):
        gmmc.save_pretrained(model, copied)
    assert (copied / "model.safetensors").read_bytes() == before


def test_what_a_kill_left_is_written_anew(copied, digits, model):
    """The description goes first: with older weights it is refused, and the same call mends it."""
    (copied / "config.json").write_text(json.dumps(hub.described(model)))
    with pytest.raises(InputError, match="of another model"):
        gmmc.from_pretrained(copied)
    gmmc.save_pretrained(model, copied)
    assert gmmc.from_pretrained(copied).shape == model.shape


def test_an_edited_card_is_not_replaced(copied, model):
    card = copied / "README.md"
    card.write_text(card.read_text() + "\nMy notes.\n")
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(InputError, match=r"README\.md"):
        gmmc.save_pretrained(model, copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    card.unlink()
    gmmc.save_pretrained(model, copied)
    assert ModelCard.load(card).data.library_name == "gmmc"


def test_a_card_of_an_older_version_is_known_by_its_mark(copied, model):
    description = json.loads((copied / "config.json").read_text())
    del description["card_sha256"]
    (copied / "config.json").write_text(json.dumps(description))
    gmmc.save_pretrained(model, copied)
    gmmc.save_pretrained(model, copied)


@pytest.mark.parametrize("killed_at", ["config.json", "README.md"])
def test_a_kill_between_two_files_is_mended_by_the_same_call(copied, model, monkeypatch, killed_at):
    def killed(path, content):
        if path.name == killed_at:
            raise KeyboardInterrupt
        atomic.write_atomic(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(hub, "write_atomic", killed)
        with pytest.raises(KeyboardInterrupt):
            gmmc.save_pretrained(model, copied)
    gmmc.save_pretrained(model, copied)
    assert (copied / "README.md").is_file()


def test_a_file_is_no_folder(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a model is saved to a folder, got the file"):
        gmmc.save_pretrained(model, tmp_path / "file")


# --- from the Hub ---


def test_a_repository_is_downloaded_as_far_as_needed(folder, monkeypatch, digits):
    asked = {}

    def download(repository, **options):
        asked.update(options, repository=repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = gmmc.from_pretrained("user/my-digits", revision="v2")
    assert torch.equal(model.head.means, digits[0].head.means)
    assert asked["repository"] == "user/my-digits"
    assert asked["revision"] == "v2"
    assert sorted(asked["allow_patterns"]) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.OfflineModeIsEnabled("off"), "cannot be downloaded: no network"),
        (errors.LocalEntryNotFoundError("gone"), "cannot be downloaded: no network"),
        (ConnectionError("refused"), "cannot be downloaded: no network"),
        (ValueError("404\nnot found"), r"the Hub gives no such repository \(ValueError: 404 not found\)"),
    ],
)
def test_a_failed_download_is_one_line(monkeypatch, error, words):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(InputError, match=f"^no folder 'user/name' here, and .*{words}") as found:
        gmmc.from_pretrained("user/name")
    assert "\n" not in str(found.value)


def test_a_repository_without_our_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(
        InputError, match=r"user/name was not written by save_pretrained: it has no config\.json"
    ):
        gmmc.from_pretrained("user/name")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere", r"must be a folder, or a repository on the Hub \(user/name\), got 'nowhere'$"),
        ("../up/there", "got '../up/there'"),
        ("cifar10", r'gmmc.load\("cifar10"\) reads it'),
    ],
)
def test_a_name_that_can_be_neither_is_refused(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        gmmc.from_pretrained(name)


def test_a_folder_has_no_revisions(folder):
    with pytest.raises(InputError, match="revision is for a repository on the Hub, got the folder"):
        gmmc.from_pretrained(folder, revision="main")


def test_the_card_of_a_table_says_what_a_row_is(tmp_path):
    vectors = make_model(shape=(5, 1, 1), model={"backbone": "mlp-1-8"}, train={"beta": 0.0})
    text = (hub.save_pretrained(vectors, tmp_path / "table") / "README.md").read_text()
    assert "vectors of 5 numbers" in text
    assert "as (N, 5, 1, 1)" in text
    assert "model.sample" not in text  # it has never learned to draw
