"""Evaluations of a noise-conditional model at a noise level of choice, attacks through it included."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

import gmmc
from conftest import make_model, tiny_config, tiny_data
from gmmc.cli import app
from gmmc.config.sections import EvaluateConfig, EvaluateOptions
from gmmc.errors import InputError
from gmmc.evaluations import robustness
from gmmc.evaluations.attack_run import open_store
from gmmc.evaluations.attacks import protocol
from gmmc.evaluations.attacks.gradient import gradient_of
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.registry import EVALUATIONS, NEED_NOISE, NEED_SAMPLES
from gmmc.evaluations.result import conditions
from gmmc.evaluations.temperatures import temperatures, used
from gmmc.report.page import write_report
from gmmc.report.reading import read_runs
from gmmc.report.sections import names
from gmmc.runs.results import read_results
from gmmc.train.loop import train

SIGMA = 0.25
SQUARE = Image.new("L", (8, 8))
SMALL = EvaluateOptions(attacked=4, ood=("noise",))
OF_PREDICTIONS = [name for name in EVALUATIONS if name not in NEED_SAMPLES | NEED_NOISE]
BY_DENOISING = {
    "model": {"backbone": "smooth-mlp-2-16", "dim": 9, "scale": 1.0},
    "train": {"algorithm": "denoising"},
    "sampler": {"name": "heun"},
}


@pytest.fixture
def denoiser():
    """Calibrated; with training features."""
    model, data = make_model(**BY_DENOISING), tiny_data()
    model.keep_neighbours(data.train.images, data.train.labels)
    model.calibrate(data.valid.images, data.valid.labels)
    return model


@pytest.fixture
def images():
    return torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.usefixtures("few_queries")
@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_every_evaluation_of_predictions_names_its_level(name, denoiser):
    (result,) = gmmc.evaluate(denoiser.at_noise(SIGMA), tiny_data(), name, SMALL).values()
    assert result.values
    assert result.conditions["sigma"] == SIGMA
    assert result.conditions["settings"]["train"]["algorithm"] == "denoising"
    (own,) = gmmc.evaluate(denoiser, tiny_data(), name, dataclasses.replace(SMALL, generated=30)).values()
    assert own.conditions["sigma"] == denoiser.denoising.class_sigma


@pytest.mark.parametrize("name", sorted(NEED_NOISE))
def test_what_goes_through_all_levels_has_none(name, denoiser):
    with pytest.raises(InputError, match=f"sigma must be left out for '{name}'"):
        gmmc.evaluate(denoiser.at_noise(SIGMA), tiny_data(), name, SMALL)


@pytest.mark.parametrize("name", sorted(NEED_SAMPLES))
def test_samples_have_no_level(name, denoiser):
    with pytest.raises(InputError, match="sigma"):
        gmmc.evaluate(denoiser.at_noise(SIGMA), tiny_data(), name, SMALL)
    options = EvaluateOptions(samples=30, generated=30, generated_by_steps=0)
    result = gmmc.evaluate(denoiser, tiny_data(), name, options)[name]
    assert "sigma" not in result.conditions


def test_the_option_is_the_same_as_the_module(denoiser):
    data = tiny_data()
    by_option = gmmc.evaluate(denoiser, data, "accuracy", EvaluateOptions(sigma=SIGMA))["accuracy"]
    assert by_option.entry() == gmmc.evaluate(denoiser.at_noise(SIGMA), data, "accuracy")["accuracy"].entry()
    for other in (make_model(), torch.nn.Flatten(), denoiser.at_noise(0.1)):
        with pytest.raises(InputError, match=r"noise level|sigma must be 0"):
            gmmc.evaluate(other, data, "accuracy", EvaluateOptions(sigma=SIGMA))


class TestTempered:
    def test_it_is_the_model_at_its_own_level_up_to_the_temperature(self, denoiser, images):
        own, at = denoiser.tempered(), denoiser.at_noise(denoiser.denoising.class_sigma).tempered()
        assert at.density_gamma2 == pytest.approx(own.density_gamma2)
        torch.testing.assert_close(at.energies(images), own.energies(images))
        assert own.fitted is not None
        assert at.fitted is None
        assert (used(own), used(at)) == ("fitted", "trained")
        found = temperatures(at, tiny_data())
        assert found["fitted"] == pytest.approx(own.fitted, rel=1e-4)  # of the same validation images

    def test_its_logits_are_those_of_the_module_at_that_level(self, denoiser, images):
        module = denoiser.at_noise(SIGMA)
        network = module.tempered()
        assert network.gamma2 == network.density_gamma2 == SIGMA / denoiser.denoising.sigma_data
        assert network.density_sigma == SIGMA
        torch.testing.assert_close(
            network.logits(network.energies(images), network.gamma2).float(), module(images)
        )
        assert not torch.allclose(module(images), denoiser.at_noise(0.05)(images), rtol=0.1)

    def test_distances_to_features_of_another_level_do_not_count(self, denoiser):
        assert denoiser.tempered().distance is not None
        assert denoiser.at_noise(SIGMA).tempered().distance is None


class TestAttacks:
    def test_their_gradient_is_that_of_the_energy_at_the_level(self, denoiser, images):
        denoiser.double()
        target, labels = Target(denoiser.at_noise(SIGMA)), torch.arange(4) % 3
        pick = lambda logits: logits.gather(1, labels[:, None]).sum()  # noqa: E731
        seen = gradient_of(lambda x: pick(target.view(x).logits()), images.double())
        x = images.double().requires_grad_(True)
        energy = -denoiser.head.logits_at(denoiser.features(x, SIGMA), SIGMA / denoiser.denoising.sigma_data)
        (wanted,) = torch.autograd.grad(-pick(energy), x)
        torch.testing.assert_close(seen, wanted)
        other = gradient_of(lambda x: pick(Target(denoiser).view(x).logits()), images.double())
        assert not torch.allclose(seen, other, rtol=0.1)

    @pytest.mark.usefixtures("few_queries")
    @pytest.mark.parametrize("name", ["robustness", "autoattack"])
    def test_they_never_raise_the_accuracy(self, tmp_path, name):
        data = tiny_data()
        sections = {**BY_DENOISING, "generative": {"epochs": 20}}
        model = train(tiny_config(**sections), tmp_path / "run", data, silent=True)
        options = dataclasses.replace(SMALL, attacked=18)
        values = gmmc.evaluate(model.at_noise(SIGMA), data, name, options)[name].values
        accuracies = [value for key, value in values.items() if key.endswith("/accuracy")]
        assert values["clean"] > 0.6
        assert accuracies
        assert max(accuracies) <= values["clean"]
        assert name == "autoattack" or min(accuracies) < values["clean"]  # which ends at 8/255

    def test_an_interrupted_attack_is_not_resumed_at_another_level(self, denoiser):
        """Nor at one that is equal in float32."""
        data = tiny_data()
        levels = (SIGMA, SIGMA * (1 + 1e-12), 0.5, denoiser.denoising.class_sigma)
        targets = [Target(denoiser), *(Target(denoiser.at_noise(sigma)) for sigma in levels)]
        preset = protocol.PRESETS["quick"]
        keys = [open_store("robustness", None, target, data.test, preset, 0).key for target in targets]
        assert len(set(keys)) == len(keys)
        again = Target(denoiser.at_noise(SIGMA))
        assert open_store("robustness", None, again, data.test, preset, 0).key == keys[1]


@pytest.fixture(scope="module")
def denoised(tmp_path_factory):
    """On the digits; as the commands take it."""
    out = tmp_path_factory.mktemp("runs") / "denoised"
    sections = {**BY_DENOISING, "train": {"algorithm": "denoising", "batch_size": 128}}
    train(tiny_config(**sections), out, silent=True)
    return out


@pytest.mark.usefixtures("few_queries")
class TestRun:
    def command(self, *words, status=0):
        with pytest.raises(SystemExit) as stop:
            app.main([*map(str, words)])
        assert (stop.value.code or 0) == status

    def test_results_at_two_levels_stand_beside_each_other(self, denoised, capsys):
        self.command("evaluate", denoised, "accuracy", "--device", "cpu")
        own = read_results(denoised)["accuracy"]
        self.command("evaluate", denoised, "accuracy", "calibration", "--sigma", SIGMA, "--device", "cpu")
        self.command("evaluate", denoised, "accuracy", "--sigma", 2, "--device", "cpu")
        results = read_results(denoised)
        assert results["accuracy"] == own
        assert {"accuracy", "accuracy@0.25", "calibration@0.25", "accuracy@2.0"} <= results.keys()
        assert results["accuracy@2.0"]["conditions"]["sigma"] == 2
        assert results["accuracy@2.0"]["values"] != own["values"]
        assert "accuracy@0.25" in capsys.readouterr().out

    def test_pictures_and_the_report_have_places_for_both(self, denoised, monkeypatch):
        monkeypatch.setattr(robustness, "noise_picture", lambda *_: {"robustness/noises.png": SQUARE})
        for level in ([], ["--sigma", SIGMA]):
            self.command("evaluate", denoised, "robustness", "--attacked", 3, "--device", "cpu", *level)
        for entry in ("robustness", "robustness@0.25"):
            assert read_results(denoised)[entry]["files"] == [f"{entry}/noises.png"]
            assert (denoised / entry / "noises.png").is_file()
        assert not (denoised / "work").exists()
        shown = names(read_runs([denoised]))
        assert shown.index("robustness@0.25") == shown.index("robustness") + 1
        page = write_report([denoised]).page.read_text()
        assert "Robustness at σ = 0.25" in page
        assert page.count("Adversarial noise") >= 2

    @pytest.mark.parametrize("names", [["samples"], ["accuracy", "generation"]])
    def test_drawing_has_no_level(self, denoised, names, capsys):
        before = (denoised / "results.json").read_bytes() if (denoised / "results.json").exists() else None
        self.command("evaluate", denoised, *names, "--sigma", SIGMA, "--device", "cpu", status=2)
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "sigma" in err
        assert ((denoised / "results.json").read_bytes() if before else None) == before

    @pytest.mark.parametrize("sigma", [-1, 1000])
    def test_impossible_levels_are_refused(self, denoised, sigma, capsys):
        self.command("evaluate", denoised, "accuracy", "--sigma", sigma, "--device", "cpu", status=2)
        assert str(sigma) in capsys.readouterr().err


def test_a_model_without_levels_is_refused(run, capsys):
    before = json.dumps(read_results(run))
    with pytest.raises(SystemExit) as stop:
        app.main(["evaluate", str(run), "accuracy", "--sigma", "0.25", "--device", "cpu"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no noise levels" in err
    assert json.dumps(read_results(run)) == before


def test_without_names_the_short_evaluations_of_predictions_run(denoiser):
    found = gmmc.evaluate(denoiser.at_noise(SIGMA), tiny_data(), cfg=EvaluateConfig(ood=("noise",)))
    assert found.keys() == {"accuracy", "calibration", "ood", "latent"}
    assert "trained" in conditions(denoiser.at_noise(SIGMA))
