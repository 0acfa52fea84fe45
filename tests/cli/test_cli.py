import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_model, tiny_config, tiny_data
from gmmc import __version__
from gmmc.base.tensorfile import pack, unpack
from gmmc.cli import app
from gmmc.config import recipes
from gmmc.data.splits import Dataset
from gmmc.export import hub
from gmmc.runs import model_file, restore
from gmmc.runs.folder import RECALIBRATED, RunFolder
from gmmc.train.loop import train
from processes import finished, gmmc_command, python

COMMANDS = [
    "train",
    "evaluate",
    "report",
    "sample",
    "examples",
    "predict",
    "calibrate",
    "export",
    "bench",
]
COMMANDS += ["models", "recipes"]


def gmmc(*arguments, capsys):
    """(exit status, standard output, standard error) of the command, in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


@pytest.mark.parametrize("command", [*COMMANDS, *app.DEPRECATED])
def test_every_command_has_help_with_an_example(command, capsys):
    status, out, _ = gmmc(command, "--help", capsys=capsys)
    assert status == 0
    assert re.search(rf"Example: gmmc {command}\b", out)


def test_help_lists_the_commands(capsys):
    status, out, _ = gmmc("--help", capsys=capsys)
    assert status == 0
    assert all(f"  {command} " in out for command in COMMANDS)
    assert set(app.COMMANDS) == {*COMMANDS, *app.DEPRECATED}


def test_deprecated_commands_are_not_listed(capsys):
    _, out, _ = gmmc("--help", capsys=capsys)
    for command in app.DEPRECATED:
        assert command not in out
        assert "Deprecated: " in gmmc(command, "--help", capsys=capsys)[1]


def test_no_arguments_show_the_help(capsys):
    assert gmmc(capsys=capsys) == gmmc("--help", capsys=capsys)


def test_version(capsys):
    assert gmmc("--version", capsys=capsys)[:2] == (0, f"gmmc {__version__}\n")


def test_train_evaluate_sample_predict(tmp_path, capsys):
    """The whole way, as a user walks it."""
    out = tmp_path / "run"
    small = ["discriminative.epochs=1", "generative.epochs=1", "sampler.steps=2", "sample.steps=2"]
    status, told, _ = gmmc("train", "digits", *small, "--out", out, "evaluate.samples=20", capsys=capsys)
    assert status == 0
    assert "gamma2" in told
    status, told, _ = gmmc("evaluate", out, capsys=capsys)
    assert status == 0
    assert "top1" in told
    assert "svc_agreement" in told
    assert re.search(r"inverted +log_density +unit", told)
    assert re.search(r"inverted +max_posterior +fitted", told)
    assert re.search(r"test images +0\.\d+ \[.*\]", told)  # the share that it accepts
    status, told, _ = gmmc("report", out, capsys=capsys)
    assert (status, told) == (0, f"{out / 'report.html'}\n")
    assert (out / "report.html").stat().st_size > 10_000
    status, told, _ = gmmc(
        "sample", out, "-n", 3, "--label", 7, "--seed", 5, "--out", tmp_path / "s", capsys=capsys
    )
    assert status == 0
    names = sorted(p.name for p in (tmp_path / "s").iterdir())
    assert names == ["7_seed000005.png", "7_seed000006.png", "7_seed000007.png", "grid.png"]
    image = tmp_path / "s" / "7_seed000005.png"
    with Image.open(image) as picture:
        assert picture.size == (8, 8)
    status, told, _ = gmmc("predict", out, image, image, capsys=capsys)
    assert status == 0
    assert [line.split()[0] for line in told.splitlines()] == ["image", str(image), str(image)]


def test_your_own_photos(tmp_path, capsys):
    """A folder of pictures of all sizes, on the way that the README shows."""
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("bright", 210)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(20):
            size = (*rng.integers(20, 40, 2), 3)
            pixels = (level + rng.normal(0, 20, size)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    out = tmp_path / "run"
    small = ["data.size=16", "model.backbone=wrn-10-1", "discriminative.epochs=30", "discriminative.warmup=5"]
    status, _, err = gmmc(
        "train", "photos", f"data.name={tmp_path / 'photos'}", *small, "--out", out, capsys=capsys
    )
    assert status == 0
    assert "photos: no test split; 8 of its images" in err
    assert "26 training images in batches of 16 make 30 updates in all" in err
    status, told, _ = gmmc("evaluate", out, capsys=capsys)
    assert status == 0
    assert re.search(r"constant +log_density", told)
    assert "not measured: a map of features needs 11 test images" in told
    photo = tmp_path / "photos" / "bright" / "3.png"
    status, told, err = gmmc("predict", out, photo, "--json", capsys=capsys)
    assert json.loads(told)["class"] == "bright"
    assert gmmc("report", out, capsys=capsys)[0] == 0
    for place in ([], ["--out", tmp_path / "drawn"], ["--out", tmp_path / "drawn.npz"]):
        status, told, err = gmmc("sample", out, *place, capsys=capsys)
        assert (status, told, err.count("\n")) == (2, "", 1)
        assert "train.beta=0" in err
    assert not [*out.glob("samples*"), *tmp_path.glob("drawn*")]


def test_samples_of_a_seed_are_the_same_files_whatever_the_number(run, tmp_path, capsys):
    gmmc("sample", run, "-n", 40, "--label", 3, "--out", tmp_path / "many", capsys=capsys)
    gmmc("sample", run, "-n", 1, "--seed", 17, "--label", 3, "--out", tmp_path / "one", capsys=capsys)
    name = "3_seed000017.png"
    assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_labels_take_turns_and_steps_matter(run, tmp_path, capsys):
    gmmc("sample", run, "-n", 4, "--label", 3, "--label", 5, "--out", tmp_path / "a", capsys=capsys)
    assert sorted(p.name[0] for p in (tmp_path / "a").glob("*_seed*")) == ["3", "3", "5", "5"]
    gmmc("sample", run, "-n", 4, "--label", 3, "--steps", 50, "--out", tmp_path / "b", capsys=capsys)
    name = "3_seed000000.png"
    assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "b" / name).read_bytes()


def test_drawing_again_goes_on(run, tmp_path, capsys):
    """One line says how many images there are, and how many there were."""
    for name in ("folder", "v1.2", "drawn.npz", "DRAWN.PARQUET"):
        out = tmp_path / name
        some = ["sample", run, "--balanced", "--seed", 3, "--out", out]
        grid = "" if out.suffix.isupper() or out.suffix == ".npz" else f"; all at once: {out / 'grid.png'}"
        assert gmmc(*some, "-n", 12, capsys=capsys)[:2] == (0, f"12 images in {out}{grid}\n")
        told = f"12 images in {out}, all of them drawn before{grid}\n"
        assert gmmc(*some, "-n", 12, capsys=capsys)[:2] == (0, told)
    names = {p.name for p in (tmp_path / "folder").iterdir()}
    assert names == {"grid.png", *(f"{i % 10}_seed{3 + i:06d}.png" for i in range(12))}
    folder = tmp_path / "folder"
    _, told, _ = gmmc("sample", run, "-n", 101, "--balanced", "--seed", 3, "--out", folder, capsys=capsys)
    assert told == f"101 images in {folder}, 12 of them drawn before; the first 100: {folder / 'grid.png'}\n"


def test_a_file_of_something_else_is_not_overwritten(run, tmp_path, capsys):
    out = tmp_path / "drawn.npz"
    out.write_text("precious")
    status, told, err = gmmc("sample", run, "-n", 2, "--out", out, capsys=capsys)
    assert (status, told) == (2, "")
    assert err == f"gmmc: --out must be a new file, got {out}, which holds something else\n"
    assert out.read_text() == "precious"


def test_predictions_as_json_are_the_model_s(run, tmp_path, capsys):
    import gmmc as package

    gmmc("sample", run, "-n", 2, "--out", tmp_path, capsys=capsys)
    paths = sorted(tmp_path.glob("*_seed*"))
    status, out, _ = gmmc("predict", run, *paths, "--json", "--device", "cpu", capsys=capsys)
    assert status == 0
    model = model_file.load(run)
    for path, line in zip(paths, out.splitlines(), strict=True):
        answer = json.loads(line)
        pixels = package.data.files.read_image(path, model.shape)[None]
        assert answer["image"] == str(path)
        assert answer["class"] == model.class_names[model.predict(pixels).item()]
        expected = model.answer(pixels)
        assert answer["confidence"] == pytest.approx(expected.confidence.item(), rel=1e-5)
        assert answer["in_distribution"] == expected.accepted.item()
        assert answer["score"] == "log_density"
        assert answer["value"] == pytest.approx(expected.values.item(), rel=1e-5)
        assert answer["threshold"] == expected.threshold
        assert answer["percentile"] == expected.percentile.item()
        assert answer["answer"] == (answer["class"] if answer["in_distribution"] else None)


def test_an_image_like_no_other_is_not_named(run, tmp_path, capsys):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "noise.png")
    # Of images like the training images hardly one is accepted, so this one is not either.
    status, out, _ = gmmc("predict", run, tmp_path / "noise.png", "--tpr", 0.001, capsys=capsys)
    assert status == 0
    assert "not like the training images (nearest: " in out
    assert "accepted from" in out
    for score, words in (
        ("max_posterior", "log odds"),
        ("gradient_norm", "-gradient norm"),
        ("span_density", "log p(x) in span"),
        ("neighbours", "-distance"),
    ):
        _, out, _ = gmmc("predict", run, tmp_path / "noise.png", "--score", score, capsys=capsys)
        assert words in out.splitlines()[0]


def test_a_bound_of_few_images_is_said_to_be_rough(tmp_path, capsys):
    train(tiny_config(), tmp_path / "run", tiny_data())
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    _, _, err = gmmc("predict", tmp_path / "run", tmp_path / "black.png", capsys=capsys)
    assert "rests on 12 validation images" in err


def test_metrics_that_tell_no_seconds(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    for command in (["evaluate", tmp_path / "run", "accuracy"], ["report", tmp_path / "run"]):
        status, _, err = gmmc(*command, capsys=capsys)
        assert status == 0, err
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": Infinity}\n')
    status, _, err = gmmc("evaluate", tmp_path / "run", "accuracy", capsys=capsys)
    assert (status, err.count("\n")) == (2, 1)
    assert "step must be" in err


def test_hardly_any_image_is_accepted(run, pictures, capsys):
    status, out, _ = gmmc("predict", run, pictures / "good.png", "--tpr", "1e-17", capsys=capsys)
    assert status == 0
    assert "good.png" in out


def test_photos_are_resized_as_the_training_images_were_unless_that_is_refused(tmp_path, capsys):
    train(tiny_config(data={"size": 8}), tmp_path / "run", tiny_data())
    Image.new("L", (20, 30)).save(tmp_path / "photo.png")
    status, _, _ = gmmc("predict", tmp_path / "run", tmp_path / "photo.png", capsys=capsys)
    assert status == 0
    status, _, err = gmmc("predict", tmp_path / "run", tmp_path / "photo.png", "--no-resize", capsys=capsys)
    assert status == 2
    assert "must be 8×8 pixels" in err


def test_earlier_results_for_other_sets_are_not_lost_in_silence(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    gmmc("evaluate", tmp_path / "run", "ood", "--ood", "noise", "--ood", "constant", capsys=capsys)
    _, out, _ = gmmc("evaluate", tmp_path / "run", "ood", "--ood", "noise", capsys=capsys)
    assert "replaces the earlier results for constant" in out


def test_a_model_without_validation_images_answers_without_abstaining(tmp_path, capsys):
    data = tiny_data()
    train(tiny_config(), tmp_path / "run", Dataset(data.train, data.valid[:0], data.test, data.class_names))
    Image.new("L", (8, 8)).save(tmp_path / "black.png")
    status, out, _ = gmmc("predict", tmp_path / "run", tmp_path / "black.png", "--json", capsys=capsys)
    assert status == 0
    assert json.loads(out)["in_distribution"] is None
    assert json.loads(out)["calibrated"] is False
    status, out, err = gmmc("predict", tmp_path / "run", tmp_path / "black.png", capsys=capsys)
    assert out.splitlines()[0].split() == ["image", "answer", "confidence"]
    assert "never abstains" in err


@pytest.fixture
def pictures(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    Image.new("L", (28, 28)).save(tmp_path / "big.png")
    (tmp_path / "text.png").write_text("hello")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "train.betta=1"], "unknown key 'betta' in [train]; did you mean 'beta'?"),
        (["train", "digits", "train.batch_size=-3"], "train.batch_size must be at least 1, got -3"),
        (["train", "digits", "generative.lr=fast"], "generative.lr must be a number, got 'fast'"),
        (
            ["train", "digits", "model.dim=5"],
            "model.dim must be at least 9 for equiangular means of 10 classes",
        ),
        (["train", "digits", "data.name=cats"], "data.name must be one of digits"),
        (["evaluate", "{run}", "ood", "--ood", "cats"], "cats"),
        (["evaluate", "{run}", "accuracy", "--ood", "noise"], "--ood is for `gmmc evaluate RUN ood`"),
        (["report", "nowhere"], "nowhere"),
        (["predict", "{run}", "{dir}/good.png", "--tpr", "2"], "tpr must lie between 0 and 1, got 2"),
        *(
            (["predict", "{run}", "{dir}/good.png", "--tpr", tpr], "tpr must lie between 0 and 1, got")
            for tpr in ("0", "1", "-0.5", "nan", "inf")
        ),
        *((["calibrate", "{run}", "--tpr", tpr], "tpr must be") for tpr in ("0", "1", "-0.5", "nan", "inf")),
        (["train", "digits", "train.seed=" + "[" * 2000], "train.seed must be a whole number"),
        (["predict", "{run}", "{dir}/good.png", "--score", "beauty"], "score must be one of log_density"),
        (["train", "nowhere.toml"], "no recipe file 'nowhere.toml'"),
        (["train", "digits", "--out", "{dir}/text.png/run"], "cannot write to --out"),
        (["train", "digits", "--out", "{dir}"], "holds files but no config.toml"),
        (["train", "digits", "model.dim=99999999999"], "model.dim must be at most 1e+06"),
        (["train", "digits", "train.seed=" + "9" * 5000], "train.seed must be a whole number"),
        (["train"], "Missing argument 'RECIPE'"),
        (["train", "digits", "--speed", "11"], "No such option: --speed"),
        (["evaluate", "nowhere"], "RUN must be a run folder, got 'nowhere'"),
        (["evaluate", "{run}", "beauty"], "unknown evaluation 'beauty'"),
        (["evaluate", "{dir}"], "is not a run folder"),
        (["sample", "nowhere"], "no run folder or model file 'nowhere'"),
        (
            ["sample", "{run}", "--label", "cat"],
            "--label must be one of 0, 1, 2, 3",
        ),
        (["sample", "{run}", "-n", "0"], "'-n'"),
        (["sample", "{run}", "-n", "many"], "'-n'"),
        (["sample", "{run}", "--out", "{dir}/text.png/s"], "cannot write to --out"),
        (["sample", "{run}", "--out", "{dir}/text.png/s.npz"], "cannot write to --out"),
        (["sample", "{run}", "--out", "{dir}/drawn.zip"], "a file that ends in .npz or .parquet, got '"),
        (["sample", "{run}", "--balanced", "--label", "3"], "--balanced is for all classes"),
        (["sample", "{run}", "--device", "abacus"], "device must be auto"),
        (["predict", "{run}"], "Missing argument 'IMAGE'"),
        (["predict", "{run}", "{dir}/none.png"], "no image file"),
        (["predict", "{run}", "{dir}/text.png"], "as an image"),
        (["predict", "{run}", "{dir}/big.png"], "must be 8×8 pixels"),
        (["predict", "{dir}/text.png", "{dir}/good.png"], "is not a whole gmmc file"),
        (["paint"], "No such command 'paint'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_status_2(arguments, message, run, pictures, capsys, monkeypatch):
    monkeypatch.chdir(pictures.parent)
    before = sorted(p for p in pictures.rglob("*"))
    status, out, err = gmmc(*(a.format(run=run, dir=pictures) for a in arguments), capsys=capsys)
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert message in err
    assert sorted(p for p in pictures.rglob("*")) == before
    assert not (pictures.parent / "runs").exists()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_bad_file_does_not_hide_the_others(run, pictures, form, capsys):
    files = [pictures / name for name in ("none.png", "good.png", "big.png", "good.png")]
    status, out, err = gmmc("predict", run, *files, "--device", "cpu", *form, capsys=capsys)
    assert status == 2
    assert [line.count("good.png") for line in out.splitlines() if "good.png" in line] == [1, 1]
    complaint = err.splitlines()[-1]
    assert "none.png" in complaint
    assert "big.png" in complaint
    assert "good.png" not in err


def test_a_folder_of_the_hub_takes_photos_of_any_size(run, tmp_path, pictures, capsys):
    hub.save_pretrained(run, tmp_path / "folder")
    status, _, _ = gmmc("predict", tmp_path / "folder", pictures / "big.png", capsys=capsys)
    assert status == 0


def test_a_model_of_a_table_has_no_image_files(tmp_path, pictures, capsys):
    vectors = make_model(shape=(5, 1, 1), model={"backbone": "mlp-1-8"})
    model_file.save_model(tmp_path / "model.safetensors", vectors)
    for command in (
        ["predict", tmp_path, pictures / "good.png"],
        ["sample", tmp_path, "--out", tmp_path / "drawn"],
    ):
        status, _, err = gmmc(*command, "--device", "cpu", capsys=capsys)
        assert status == 2
        assert "a model of rows of 5 numbers, not of images" in err
    assert not (tmp_path / "drawn").exists()


def test_resizing_on_request(run, pictures, capsys):
    status, _, _ = gmmc("predict", run, pictures / "big.png", "--resize", capsys=capsys)
    assert status == 0


def test_another_configuration_is_refused(run, capsys):
    status, _, err = gmmc("train", "digits", "--out", run, capsys=capsys)
    assert status == 2
    assert "was made with another configuration" in err
    assert "train.batch_size: 128, now 64" in err


def test_evaluation_settings_can_be_changed(run, capsys):
    status, told, _ = gmmc("evaluate", run, "samples", "--samples", 20, "--seed", 7, capsys=capsys)
    assert status == 0
    assert "samples 20" in told
    assert "seeds 7..26" in told


@pytest.mark.parametrize("content", ["{", "[1]", "null"])
def test_damaged_results_are_named_before_the_work(run, content, capsys, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "results.json").write_text(content)
    status, out, err = gmmc("evaluate", copy, capsys=capsys)
    assert (status, out) == (2, "")
    assert "results.json is damaged" in err
    assert "sampling" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "reader"), [(1, "true"), (3000, "head -1")], ids=["in one write", "in many"]
)
def test_a_reader_that_has_seen_enough_is_no_complaint(run, pictures, count, reader):
    """gmmc predict … | head -1"""
    command = gmmc_command("predict", run, *[pictures / "good.png"] * count)
    script = f'{{ "$@"; echo status $? >&2; }} | {reader}'
    lines = finished(["sh", "-c", script, "sh", *command]).stderr.splitlines()
    assert lines[-1] == "status 0"
    assert not [line for line in lines if line.startswith("gmmc:") or "Error" in line]


INTERRUPTED = """
import runpy, signal, sys
moment = sys.argv.pop(1)
class Interrupting:
    def find_spec(name, path, target=None):
        if name == moment:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting)
runpy.run_module("gmmc", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("moment", ["numpy", "torch.nn"])
def test_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path, moment):
    done = python(INTERRUPTED, moment, "train", "digits", "--out", tmp_path / "run", status=130)
    assert (done.stdout, done.stderr) == ("", "gmmc: interrupted\n")


@pytest.mark.parametrize("status", [0, 1, 3])
def test_an_exit_keeps_its_status(monkeypatch, status):
    monkeypatch.setattr(app, "new_app", lambda _: lambda *_, **__: exit(status))
    with pytest.raises(SystemExit) as end:
        app.main(["predict"])
    assert end.value.code == status


def test_out_of_memory_is_one_line(monkeypatch, run, capsys):
    def hungry(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes")

    monkeypatch.setattr("gmmc.generate.draw.draw", hungry)
    status, _, err = gmmc("sample", run, capsys=capsys)
    assert status == 1
    assert err.startswith("gmmc: not enough memory; ")


def test_an_error_of_ours_is_not_hidden(monkeypatch, run, capsys):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("gmmc.evaluations.run.evaluate_run", broken)
    with pytest.raises(ZeroDivisionError):
        app.main(["evaluate", str(run)])


class TestCalibrate:
    @pytest.fixture
    def old(self, run, tmp_path):
        """A run of an older version: densities of its reference at the fitted γ², no training features."""
        folder = tmp_path / "old"
        shutil.copytree(run, folder)
        tensors, info, _ = unpack(folder / "model.safetensors")
        del info[restore.DENSITY_GAMMA2], tensors[restore.NEIGHBOURS]
        for name in ("span_density", "residual", "neighbours"):
            del tensors[f"{restore.REFERENCE}{name}"]
        (folder / "model.safetensors").write_bytes(pack(tensors, info)[0])
        return folder

    def test_an_older_run_is_refused_with_the_command_that_helps(self, old, run, tmp_path, capsys):
        Image.new("L", (8, 8)).save(tmp_path / "black.png")
        status, _, err = gmmc("predict", old, tmp_path / "black.png", capsys=capsys)
        assert status == 2
        assert "no threshold for the score 'log_density'" in err
        assert "`gmmc calibrate RUN --score auto`" in err
        assert err.count("\n") == 1
        assert gmmc("evaluate", old, "ood", capsys=capsys)[0] == 0
        status, told, _ = gmmc("calibrate", old, "--device", "cpu", capsys=capsys)
        assert status == 0
        assert "abstains by log_density" in told
        wanted, found = model_file.load(run), model_file.load(old)
        assert found.reference.scores.keys() == wanted.reference.scores.keys()
        assert found.reference.threshold("log_density", 0.95) == pytest.approx(
            wanted.reference.threshold("log_density", 0.95), rel=1e-5
        )
        assert gmmc("predict", old, tmp_path / "black.png", capsys=capsys)[0] == 0

    def test_another_score_becomes_the_model_s_own(self, old, capsys):
        status, told, _ = gmmc("calibrate", old, "--score", "neighbours", "--tpr", 0.9, capsys=capsys)
        assert status == 0
        assert "abstains by neighbours" in told
        model, images = model_file.load(old), torch.rand(2, 1, 8, 8)
        assert (model.abstains_by, model.abstain.tpr) == ("neighbours", 0.9)
        assert 'score = "neighbours"' in (old / "config.toml").read_text()
        assert model.answer(images).score == "neighbours"
        assert model.answer(images, score="auto").score == "log_density"  # the rule, not the model's own

    def test_the_rest_of_the_recipe_stays_as_it_was(self, old):
        """A rollback lowers the step of the model's own chains, not that of the recipe."""
        model = model_file.load(old)
        alpha, sampler = model.cfg.sampler.alpha, dataclasses.replace(model.cfg.sampler, alpha=1e-3)
        model.drawing = dataclasses.replace(model.drawing, sampler=sampler)
        RunFolder(old).replace_model(model)
        assert recipes.from_dict(recipes.read_toml(old / "config.toml")).sampler.alpha == alpha
        assert model_file.load(old).cfg.sampler.alpha == 1e-3

    def test_shares_measured_before_are_flagged_until_they_are_measured_again(self, old, capsys):
        gmmc("evaluate", old, "ood", "--ood", "noise", capsys=capsys)
        for _ in range(2):
            gmmc("calibrate", old, capsys=capsys)
        assert json.loads((old / "results.json").read_text())["ood"]["flags"].count(RECALIBRATED) == 1
        gmmc("evaluate", old, "ood", "--ood", "noise", capsys=capsys)
        assert RECALIBRATED not in json.loads((old / "results.json").read_text())["ood"]["flags"]

    def test_training_again_leaves_it_and_names_the_command(self, tmp_path, capsys):
        small = ["digits", "discriminative.epochs=1", "generative.epochs=0", "--out", tmp_path / "run"]
        gmmc("train", *small, capsys=capsys)
        gmmc("calibrate", tmp_path / "run", "--score", "neighbours", capsys=capsys)
        status, told, err = gmmc("train", *small, capsys=capsys)
        assert status == 0
        assert "already trained" in told
        assert "its [abstain] stays score=neighbours tpr=0.95; gmmc calibrate changes it" in err
        assert 'score = "neighbours"' in (tmp_path / "run" / "config.toml").read_text()

    def test_changed_validation_images_are_refused(self, old, capsys):
        tensors, info, _ = unpack(old / "model.safetensors")
        info["trained"]["held_out_sha256"] = "of others"
        (old / "model.safetensors").write_bytes(pack(tensors, info)[0])
        status, _, err = gmmc("calibrate", old, capsys=capsys)
        assert status == 2
        assert "validation or test images are not those that the model was trained with" in err

    def test_a_damaged_recipe_is_refused_before_the_work(self, old, capsys):
        (old / "config.toml").write_text("[train]\nbetta = 1\n")
        status, _, err = gmmc("calibrate", old, capsys=capsys)
        assert status == 2
        assert str(old / "config.toml") in err
        assert "betta" in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["cifar10"], "cifar10 ships with gmmc and stays as it is"),
            (["{old}/model.safetensors"], "RUN must be a run folder with a config.toml"),
            (["{old}/nowhere"], "nowhere', which does not exist"),
            (["{old}", "--score", "beauty"], "score must be one of auto, log_density"),
            (["{old}", "--tpr", "1"], "tpr must be at most 0.9999, got 1"),
        ],
    )
    def test_bad_input_ends_in_one_line_and_changes_nothing(self, old, capsys, arguments, words):
        before = (old / "model.safetensors").read_bytes()
        status, _, err = gmmc("calibrate", *(a.format(old=old) for a in arguments), capsys=capsys)
        assert status == 2
        assert words in err
        assert err.count("\n") == 1
        assert (old / "model.safetensors").read_bytes() == before


def test_evaluate_reports_that_samples_are_left_out(tmp_path, capsys):
    settings = ["generative.epochs=0", "train.beta=0", "discriminative.epochs=1"]
    gmmc("train", "digits", *settings, "--out", tmp_path / "run", capsys=capsys)
    _, out, err = gmmc("evaluate", tmp_path / "run", "--ood", "noise", capsys=capsys)
    assert "samples is left out" in err
    assert "accuracy" in out
