"""docs/other-tools.md, block by block: what other tools say of our models, and we of their networks."""

import copy
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gmmc
from conftest import make_model, tiny_data
from doc_blocks import DOCS, blocks_of, linked_files
from gmmc.base.names import TEMPERATURES
from gmmc.cli import app
from gmmc.errors import InputError
from gmmc.evaluations.attack_run import open_store
from gmmc.evaluations.attacks.target import Target

PAGE = DOCS / "other-tools.md"
BLOCKS = blocks_of(PAGE)


def run_blocks(blocks, names: dict) -> None:
    """AutoAttack and the page seed the global generators; afterwards these are as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(), warnings.catch_warnings():
        # foolbox, on import
        warnings.filterwarnings(
            "ignore", "Please import `gaussian_filter` from the `scipy.ndimage` namespace"
        )
        for block in blocks:
            exec(block.text, names)
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002


@pytest.fixture(scope="module")
def page(run, tmp_path_factory):
    """The names that the page's quick blocks define, run as they stand, and the folder they ran in."""
    place, names = tmp_path_factory.mktemp("page"), {}
    (place / "runs").mkdir()
    (place / "runs" / "demo").symlink_to(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run_blocks([block for block in BLOCKS if block.language == "python" and not block.mark], names)
    return names, place


@pytest.fixture
def names(page):
    return page[0]


def test_the_page_has_blocks_of_all_kinds():
    kinds = {(block.language, block.mark) for block in BLOCKS}
    assert kinds == {("python", ""), ("python", "slow"), ("sh", "")}


def test_every_link_leads_somewhere():
    assert [path for path in linked_files(PAGE) if not path.exists()] == []


class TestAttacks:
    def test_foolbox_sees_the_accuracy_that_we_see(self, names):
        right = (names["model"].predict(names["some"]) == names["truth"]).double().mean().item()
        for name in ("paper", "fitted"):
            assert names["robust"][name, "clean"] == pytest.approx(right)

    def test_its_attacks_only_ever_lower_it(self, names):
        for (name, attack), accuracy in names["robust"].items():
            assert accuracy <= names["robust"][name, "clean"], attack
        assert names["robust"]["fitted", "BoundaryAttack"] < names["robust"]["fitted", "clean"]

    def test_autoattack_stays_within_epsilon_and_in_the_box(self, names):
        moved, some, truth = names["attacked"], names["some"], names["truth"]
        assert (moved - some).abs().max() <= 32 / 255 + 1e-6
        assert moved.min() >= 0
        assert moved.max() <= 1
        right = names["model"].predict(some) == truth
        still_right = names["model"].predict(moved) == truth
        assert still_right.sum() < right.sum()
        assert torch.equal(moved[~right], some[~right])  # what is wrong already is left alone


class TestMetrics:
    def test_torchmetrics_agrees(self, names):
        assert names["theirs"].keys() <= names["ours"].keys()
        for key, value in names["theirs"].items():
            assert value == pytest.approx(names["ours"][key], abs=1e-5), key
        assert names["theirs"]["fitted/ece"] != pytest.approx(names["theirs"]["paper/ece"], abs=1e-4)


class TestDetectors:
    def test_their_aurocs_are_those_of_our_evaluation(self, names):
        cfg = gmmc.config.EvaluateConfig(ood=("interp",))
        ours = gmmc.evaluate(names["model"], names["data"], "ood", cfg)["ood"].values
        theirs = names["aurocs"]
        for name, place in {
            "log p(x)": "log_density/unit",
            "max p(y|x)": "max_posterior/fitted",
            "gradient norm": "gradient_norm/unit",
            "energy": "log_density/unit",
            "max softmax": "max_posterior/fitted",
        }.items():
            assert theirs[name] == pytest.approx(ours[f"interp/{place}/auroc"], abs=2e-3), name
        assert theirs["max softmax, the paper's γ²"] < theirs["max softmax"]

    def test_fit_moves_the_scores_to_other_validation_images(self, names, digits):
        model = make_model(10)
        assert model.reference is None
        _, data = digits
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(data.valid.images / 255, data.valid.labels), batch_size=32
        )
        scores = names["Detector"](model).fit(loader)(data.test.images[:5])
        assert model.reference.images("log_density") == len(data.valid)
        assert torch.equal(scores, -model.answer(data.test.images[:5]).values)

    def test_openoods_confidence_is_higher_inside(self, names):
        answer = names["model"].answer(names["images"])
        assert torch.equal(names["predicted"], answer.labels)
        assert torch.equal(names["confidence"], -names["detectors"]["log p(x)"](names["images"]))


class TestTemperatures:
    def test_is_the_model_at_the_gamma2_of_its_answers(self, digits):
        model, data = digits
        logits, answer = model.at("fitted")(data.test.images / 255), model.answer(data.test.images)
        torch.testing.assert_close(
            logits.detach().softmax(1).amax(1).double(), answer.confidence, rtol=0, atol=1e-5
        )
        density = model.at(1.0)(data.test.images / 255).detach().logsumexp(1).double()
        by_density = model.answer(data.test.images, score="log_density")
        torch.testing.assert_close(density, by_density.values, rtol=1e-4, atol=1e-4)

    def test_another_temperature_is_another_network_to_an_interrupted_attack(self, digits):
        model, data = digits
        some = data.test[:2]
        keys = {
            open_store("autoattack", None, Target(module), some).key
            for module in (model, model.at(1.0), model.at(2.0))
        }
        assert len(keys) == 3

    @pytest.mark.parametrize("value", [0.0, -1, float("nan"), float("inf"), True, None, [1.0, 2.0]])
    def test_a_temperature_must_be_a_finite_number_above_0(self, digits, value):
        with pytest.raises(InputError, match=r"gamma2 must be .* above 0.*, got") as error:
            digits[0].at(value)
        assert str(error.value).endswith(repr(value))

    def test_numbers_of_numpy_and_torch_are_numbers(self, digits):
        for value in (np.float32(2), np.array(2), torch.tensor(2.0)):
            assert digits[0].at(value).gamma2 == 2

    def test_has_a_gradient_where_the_papers_posterior_is_exactly_1(self, digits):
        """The page warns of it: PGD at the paper's γ² stands still."""
        model = copy.deepcopy(digits[0])
        x = (digits[1].test.images[:16] / 255).requires_grad_(True)
        labels = model.predict(x)

        def lengths(network: nn.Module) -> torch.Tensor:
            loss = nn.functional.cross_entropy(network(x), labels, reduction="sum")
            return torch.autograd.grad(loss, x)[0].flatten(1).norm(dim=1)

        before = lengths(model.at("fitted"))
        model.head.gamma2.fill_(1e-4)
        assert (lengths(model.at("paper")) == 0).all()
        assert torch.equal(lengths(model), before)
        assert (before > 0).all()

    def test_shares_weights_and_mode(self):
        model = make_model()
        model.calibrate(tiny_data().valid.images, tiny_data().valid.labels)
        shared = model.at("fitted")
        assert not shared.training
        assert {id(p) for p in shared.parameters()} == {id(p) for p in model.parameters()}
        assert model.train().at("fitted").training

    def test_needs_a_fitted_gamma2(self):
        with pytest.raises(InputError, match="keeps no scores of validation images"):
            make_model().at("fitted")

    def test_predicts_at_its_own_gamma2(self, digits):
        model, images = digits[0], digits[1].test.images[:9]
        for name in ("paper", "unit", "fitted", 3.0):
            other = model.at(name)
            posterior = other(images / 255).detach().softmax(-1)
            torch.testing.assert_close(other.predict_proba(images), posterior)
            assert torch.equal(other.predict(images), model.predict(images))

    @pytest.mark.parametrize("gamma2", ["fitted", "paper", "unit", 3.0])
    def test_an_evaluation_records_its_gamma2(self, digits, gamma2):
        model, data = digits
        results = gmmc.evaluate(model.at(gamma2), data, ["accuracy", "calibration"])
        accuracy, calibration = results["accuracy"], results["calibration"]
        expected = {"fitted": model.gamma2, "paper": model.head.gamma2.item(), "unit": 1.0}
        assert accuracy.conditions["gamma2"] == expected.get(gamma2, gamma2)
        name = gamma2 if gamma2 in expected else "given"
        assert accuracy.conditions["temperature"] == TEMPERATURES[name]
        assert calibration.values[f"{name}/nll"] == pytest.approx(accuracy.values["nll"], rel=1e-4)
        ours = gmmc.evaluate(model, data, "calibration")["calibration"].values
        assert ours.items() <= calibration.values.items()


class TestNetworksOfOthers:
    def test_are_measured_and_given_back_as_they_were(self, names):
        values = names["measured"]["accuracy"].values
        assert names["measured"].keys() >= {"accuracy", "calibration", "ood"}
        assert values["top1"] > 0.9
        assert names["network"].training

    def test_precision_and_splits_of_ones_own_change_no_number(self, names):
        for name, result in names["again"].items():
            for key, value in names["measured"][name].values.items():
                # γ² is found to 1e-6 of its logarithm; a rank may change where two scores tie in float32
                assert result.values[key] == pytest.approx(value, abs=1e-3), key

    def test_the_report_shows_them(self, page):
        names, place = page
        [block] = [block for block in BLOCKS if block.language == "sh"]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            for command in block.commands:
                assert command[0] == "gmmc"
                with pytest.raises(SystemExit) as done:
                    app.main(command[1:])
                assert done.value.code == 0
        shown = (place / "runs" / "theirs" / "report.html").read_text()
        assert f"{100 * names['measured']['accuracy'].values['top1']:.1f}" in shown

    def test_its_layers_as_a_model_of_ours(self, names):
        logits = names["network"].eval()(names["images"])
        assert torch.equal(names["answer"].labels, logits.argmax(1))
        assert 0.8 < names["answer"].accepted.float().mean() < 1

    def test_words_for_what_is_no_network_and_no_data(self):
        with pytest.raises(InputError, match=r"model must be a torch.nn.Module of .* got function"):
            gmmc.evaluate(lambda images: images, tiny_data(), "accuracy")
        with pytest.raises(InputError, match=r"data must be a gmmc.data.Dataset, .* got tuple"):
            gmmc.evaluate(make_model(), (torch.zeros(2, 1, 8, 8), [0, 1]), "accuracy")

    def test_the_page_quotes_our_words(self):
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        with pytest.raises(InputError) as refused:
            gmmc.evaluate(network, tiny_data(10, 64), "accuracy")
        assert str(refused.value) in PAGE.read_text()

    @pytest.mark.slow
    def test_under_attack(self, page):
        names, place = page
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            run_blocks([block for block in BLOCKS if block.mark == "slow"], names)
        values = names["measured"]["robustness"].values
        assert values["linf_64/worst_case/accuracy"] < values["linf_2/worst_case/accuracy"] <= values["clean"]
