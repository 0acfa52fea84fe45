import copy

import numpy as np
import pytest
import torch

from conftest import make_model
from gmmc.classifier.abstention import Reference
from gmmc.classifier.model import pick_device
from gmmc.errors import InputError
from gmmc.evaluations import registry
from gmmc.networks.heads import HEADS


def test_answers_follow_from_the_logits(model):
    images = torch.rand(9, 1, 8, 8)
    logits = model.logits(images)
    assert torch.allclose(model.predict_proba(images), logits.softmax(-1))
    assert torch.allclose(model.predict_proba(images).sum(-1), torch.ones(9))
    assert torch.equal(model.predict(images), logits.argmax(-1))
    assert torch.allclose(model.log_density(images), model.at(1.0)(images).logsumexp(-1))
    y = torch.arange(9) % 3
    assert torch.allclose(model.energy(images, y), -model.at(1.0)(images)[torch.arange(9), y])


@pytest.mark.parametrize("labels", [[0], [0.5, 1, 2], [[0], [1], [2]], ["a", "b", "c"], 3, np.eye(3)])
def test_odd_labels_are_refused(model, labels):
    with pytest.raises(InputError, match="labels must be"):
        model.energy(torch.rand(3, 1, 8, 8), labels)


@pytest.mark.parametrize(
    "labels", [[0, 1, 2], (0, 1, 2), range(3), np.arange(3), torch.arange(3), iter([0, 1, 2])]
)
def test_labels_of_every_kind(model, labels):
    assert model.energy(torch.rand(3, 1, 8, 8), labels).shape == (3,)


def test_logits_are_squared_distances_to_the_means(model):
    """Eq. 4 written out, with another γ²."""
    model.head.gamma2.fill_(0.3)
    images = torch.rand(4, 1, 8, 8)
    distances = torch.cdist(model.backbone(images * 2 - 1), model.head.means)
    assert torch.allclose(model.logits(images), -distances.square() / 0.6, rtol=1e-4)


def test_gamma2_changes_confidence_but_no_decision(model):
    """With uniform priors; with others it weighs the evidence against them."""
    images = torch.rand(50, 1, 8, 8)
    before, sure = model.predict(images), model.predict_proba(images).amax(-1)
    model.head.gamma2.fill_(25.0)
    assert torch.equal(model.predict(images), before)
    assert (model.predict_proba(images).amax(-1) < sure).all()


@pytest.fixture
def calibrated(data):
    """A model with a saturated γ² of the paper and a fitted one."""
    model = make_model()
    model.head.gamma2.fill_(1e-4)
    model.calibrate(data.valid.images, data.valid.labels)
    return model


def test_probabilities_and_logits_are_at_the_fitted_gamma2(calibrated, data):
    images = data.test.images / 255
    fitted = calibrated.reference.gamma2
    assert calibrated.gamma2 == fitted
    logits = calibrated(images)
    assert torch.equal(logits, calibrated.at("fitted")(images))
    assert torch.equal(logits, calibrated.at(fitted)(images))
    assert torch.allclose(calibrated.logits(images), logits)
    confidence = calibrated.predict_proba(images).amax(-1)
    assert torch.allclose(confidence.double(), calibrated.answer(images).confidence, atol=1e-5)
    assert (confidence < 1).all()


def test_the_papers_gamma2_is_one_argument_away(calibrated, data):
    images = data.test.images / 255
    paper = calibrated.at("paper")(images)
    assert torch.equal(paper, calibrated.head(calibrated.features(images)))
    assert (paper.softmax(-1).amax(-1) == 1).all()
    assert torch.equal(paper.argmax(-1), calibrated.predict(images))  # uniform priors: the same decisions
    assert torch.equal(calibrated.at("unit")(images), calibrated.at(1.0)(images))


def test_densities_and_energies_do_not_feel_the_temperature(calibrated, data):
    images, labels = data.test.images, data.test.labels
    before = calibrated.log_density(images), calibrated.energy(images, labels)
    calibrated.head.gamma2.fill_(3.0)
    calibrated.reference = None
    assert torch.equal(calibrated.log_density(images), before[0])
    assert torch.equal(calibrated.energy(images, labels), before[1])


def test_without_calibration_the_papers_gamma2_is_all_there_is(model):
    images = torch.rand(3, 1, 8, 8)
    model.head.gamma2.fill_(0.3)
    assert model.gamma2 == pytest.approx(0.3)
    assert torch.equal(model(images), model.at("paper")(images))
    with pytest.raises(InputError, match="keeps no scores of validation images"):
        model.at("fitted")


@pytest.mark.parametrize("name", ["", "warm", "Paper"])
def test_a_temperature_without_a_name_is_refused(model, name):
    with pytest.raises(InputError, match=f"gamma2 must be .*got '{name}'"):
        model.at(name)


def test_a_softmax_head_has_no_gamma2_of_the_paper():
    with pytest.raises(InputError, match="'paper'"):
        make_model(model={"head": "linear"}, objective={"name": "balanced"}, train={"beta": 0.0}).at("paper")


def test_arrays_and_tensors_bytes_and_floats_agree(model):
    bytes_ = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    assert torch.allclose(
        model.logits(bytes_), model.logits(torch.from_numpy(bytes_[:, None] / 255)), atol=1e-4
    )


def test_any_number_of_images(model):
    images = torch.rand(600, 1, 8, 8)
    assert torch.allclose(model.logits(images)[300:303], model.logits(images[300:303]), atol=1e-4)
    assert model.predict_proba(images[:0]).shape == (0, 3)


def test_forward_is_differentiable_in_unit_images(model):
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    model(images).sum().backward()
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


def test_the_means_are_no_parameters_but_are_saved(model):
    assert all("means" not in name for name, _ in model.named_parameters())
    assert {"head.means", "head.gamma2", "head.priors"} <= model.state_dict().keys()


def test_more_classes_than_the_dimension_allows_are_refused():
    with pytest.raises(InputError, match="6 equiangular means need dim >= 5, got dim=4"):
        make_model(classes=6, model={"dim": 4})


@pytest.mark.parametrize("name", ["quantum", "cuda:99", "meta", ""])
def test_unknown_devices_are_refused(name):
    with pytest.raises(InputError, match=f"device must be auto.* got {name!r}"):
        pick_device(name)


@pytest.mark.parametrize("phase", [{"train": {"beta": 0.0}}, {"generative": {"epochs": 0}}])
@pytest.mark.parametrize("head", HEADS)
def test_a_model_trained_without_samples_classifies_and_cannot_draw(head, phase):
    model = make_model(model={"head": head}, objective={"name": "balanced"}, **phase)
    assert not model.can_sample
    assert model.predict_proba(torch.rand(2, 1, 8, 8)).sum(1).tolist() == pytest.approx([1, 1])
    facts = rf"train\.beta={model.cfg.train.beta:g}, generative\.epochs={model.cfg.generative.epochs}\b"
    for draw in (
        lambda: model.sample(1),
        lambda: model.sample(0),
        model.drawer,
        model.check_can_sample,
    ):
        with pytest.raises(InputError, match=facts) as refused:
            draw()
        assert ("sampler.name=sgld" in str(refused.value)) == (head == "linear")
    assert registry.choose(model, []) == ["accuracy", "calibration", "ood", "latent"]


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_model_trained_with_samples_can_draw(epochs):
    model = make_model(discriminative={"epochs": epochs})
    assert model.can_sample
    assert len(model.sample(1)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_images_of_any_precision(model, dtype):
    """Also for other tools, which call the module itself."""
    model.reference = Reference(3.0, {"log_density": torch.zeros(1)})
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for module in (model, model.at("fitted"), copy.deepcopy(model).double()):
        assert torch.allclose(
            module(images.to(dtype)).double(), module(images).double(), rtol=1e-2, atol=1e-2
        )
