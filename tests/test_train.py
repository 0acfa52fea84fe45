import json
import math
import threading

import pytest
import torch

import gmmc.train
from conftest import tiny_config, tiny_data
from gmmc import core, runs
from gmmc.errors import Diverged, InputError
from gmmc.learner import Learner
from gmmc.progress import Progress
from gmmc.sampling import SAMPLERS
from gmmc.train import train

CPU = torch.device("cpu")


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("priors", ["uniform", "empirical"])
@pytest.mark.parametrize("backbone", ["small_cnn", "wrn-10-1"])
@pytest.mark.parametrize("epochs", [(1, 0), (0, 1), (1, 1)], ids=["discriminative", "generative", "joint"])
def test_every_combination_trains_saves_resumes_and_samples(tmp_path, sampler, priors, backbone, epochs):
    cfg = tiny_config(
        model={"backbone": backbone, "priors": priors},
        sampler={"name": sampler},
        discriminative={"epochs": epochs[0]},
        generative={"epochs": epochs[1]},
    )
    data = tiny_data(classes=4, channels=3, size=9)
    trained = train(cfg, tmp_path / "run", data)

    reference = Learner(cfg, data, CPU)
    while reference.step < reference.plan.total:
        resumed = Learner(cfg, data, CPU)  # as a new process after every update
        resumed.restore(reference.state())
        resumed.update()
        reference = resumed
    loaded = runs.load(tmp_path / "run")
    for name, tensor in reference.model.state_dict().items():
        if name != "head.gamma2":
            assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert torch.equal(loaded.sample(2, seed=1), trained.sample(2, seed=1))
    assert loaded.class_names == tuple(data.class_names)


def test_discriminative_training_never_touches_the_sampler(tmp_path, monkeypatch, data):
    def forbidden(*_, **__):
        raise AssertionError("β = 0 must not sample")

    monkeypatch.setattr(gmmc.learner, "descend", forbidden)
    monkeypatch.setattr(gmmc.learner, "ReplayBuffer", forbidden)
    train(tiny_config(generative={"epochs": 0}), tmp_path / "a", data)
    train(tiny_config(train={"beta": 0.0}), tmp_path / "b", data)
    assert not any("sampled_energy" in line for line in lines(tmp_path / "b"))
    with pytest.raises(AssertionError, match="must not sample"):
        train(tiny_config(), tmp_path / "c", data)


def test_gamma2_changes_no_update(data):
    cfg = tiny_config(discriminative={"epochs": 0})
    a, b = Learner(cfg, data, CPU), Learner(cfg, data, CPU)
    b.model.head.gamma2.fill_(0.01)
    for learner in (a, b):
        for _ in range(3):
            learner.update()
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(a.buffer.images, b.buffer.images)


def test_gamma2_of_the_finished_model_is_that_of_the_training_images(tmp_path, data):
    model = train(tiny_config(), tmp_path / "run", data)
    with torch.no_grad():
        features = model.backbone(data.train.images / 127.5 - 1)
    expected = (features - model.head.means[data.train.labels]).square().mean().item()
    assert model.head.gamma2.item() == pytest.approx(expected, rel=1e-4)
    assert runs.load(tmp_path / "run").head.gamma2 == model.head.gamma2


def test_training_learns(tmp_path):
    data = tiny_data(count=256)
    train(tiny_config(discriminative={"epochs": 5}, generative={"epochs": 1}), tmp_path / "run", data)
    first, last = lines(tmp_path / "run")[0], lines(tmp_path / "run")[-1]
    assert last["real_energy"] < first["real_energy"] / 2
    assert last["valid_accuracy"] > 0.9


def test_chains_go_back_to_the_buffer(data):
    learner = Learner(tiny_config(discriminative={"epochs": 0}, buffer={"reinit": 0.0}), data, CPU)
    before = learner.buffer.images.clone()
    learner.update()
    changed = (learner.buffer.images != before).flatten(1).any(1)
    assert changed.sum() == learner.batch_size


def test_every_image_is_seen_once_per_epoch(data):
    learner = Learner(tiny_config(discriminative={"shift": 0}, train={"batch_size": 20}), data, CPU)
    assert learner.plan.steps_per_epoch == 3  # 64 images: the last 4 of the order wait for another epoch
    seen = []
    for _ in range(3):
        x, _ = learner._real_batch(learner.plan.at(learner.step))
        seen.append(x)
        learner.step += 1
    assert len(torch.cat(seen).flatten(1).unique(dim=0)) == 60


def test_fewer_images_than_a_batch(tmp_path):
    train(tiny_config(train={"batch_size": 40}), tmp_path / "run", tiny_data(count=9))


def test_empirical_priors_of_imbalanced_data(tmp_path):
    data = tiny_data(classes=2)
    keep = (data.train.labels == 0) | (torch.arange(64) < 16)
    uneven = gmmc.data.Dataset(data.train[keep], data.valid, data.test, data.class_names)
    model = train(tiny_config(model={"priors": "empirical"}), tmp_path / "run", uneven)
    assert model.head.priors.tolist() == pytest.approx([32 / 40, 8 / 40])
    assert train(tiny_config(), tmp_path / "uniform", uneven).head.priors.tolist() == [0.5, 0.5]


def test_other_data_is_refused(tmp_path, data):
    cfg = tiny_config()
    train(cfg, tmp_path / "run", data)
    with pytest.raises(InputError, match="was trained on other images or labels"):
        train(cfg, tmp_path / "run", tiny_data(classes=5))
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="was trained on other images or labels"):
        train(cfg, tmp_path / "run", tiny_data(count=66))


def test_the_number_of_threads_is_a_setting(tmp_path, data):
    before = torch.get_num_threads()
    try:
        train(tiny_config(train={"threads": before + 1}), tmp_path / "run", data)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_an_interrupt_does_not_save_a_diverged_state(tmp_path, data):
    learner = Learner(tiny_config(), data, CPU)
    folder = runs.RunFolder(tmp_path / "run")
    stop = threading.Event()
    with folder.opened_for(learner.cfg), Progress("", 1) as bar:
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.mul_(1e6)
        stop.set()
        with pytest.raises(Diverged):
            gmmc.train.run_updates(learner, folder, bar, stop)
        assert folder.load_state()[0].step == 0


def test_divergence_has_a_name_and_leaves_the_last_good_state(tmp_path, data):
    cfg = tiny_config(
        generative={"epochs": 50, "lr": 1.0}, sampler={"alpha": 10.0}, train={"checkpoint_seconds": 0.0}
    )
    with pytest.raises(Diverged, match=r"training diverged by update \d+: energies of real images"):
        train(cfg, tmp_path / "run", data)
    state, complaints = runs.RunFolder(tmp_path / "run").load_state()
    assert not complaints
    assert all(
        torch.isfinite(tensor).all() for name, tensor in state.tensors.items() if name.startswith("model")
    )
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_metrics_tell_the_story(tmp_path, data):
    train(tiny_config(), tmp_path / "run", data)
    story = lines(tmp_path / "run")
    assert [line["step"] for line in story] == [3, 4, 6, 8, 9, 12]  # every 3 updates and each epoch of 4
    assert [line["phase"] for line in story] == ["discriminative"] * 2 + ["generative"] * 4
    for line in story:
        assert math.isfinite(line["real_energy"])
        assert 0 <= line["accuracy"] <= 1
        assert ("sampled_energy" in line) == (line["beta"] > 0)
        assert ("valid_accuracy" in line) == (line["step"] % 4 == 0)


def test_logged_energies_are_means_over_the_interval(data):
    learner = Learner(tiny_config(discriminative={"epochs": 0}), data, CPU)
    expected = []
    for _ in range(3):
        with torch.no_grad():
            x, y = learner._real_batch(learner.plan.at(learner.step))
            expected.append(core.unit_energy(learner.model.backbone(x), learner.model.head.means[y]).mean())
        learner.update()
    line = learner.log_line(with_validation=False)
    assert line["real_energy"] == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"generative": {"shift": 8}}, "generative.shift must be less than the image size 8, got 8"),
        ({"train": {"device": "abacus"}}, "device must be auto"),
        ({"model": {"dim": 1}}, "3 equiangular means need dim >= 2, got dim=1"),
        ({"model": {"backbone": "vgg"}}, "model.backbone must be"),
    ],
)
def test_a_bad_recipe_leaves_nothing_behind(tmp_path, data, sections, message):
    with pytest.raises(InputError, match=message):
        train(tiny_config(**sections), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu(tmp_path, data):
    cfg = tiny_config(train={"device": "cuda"}, sampler={"name": "noise_injected"})
    trained = train(cfg, tmp_path / "run", data)
    assert trained.device.type == "cuda"
    assert train(cfg, tmp_path / "run", data).device.type == "cuda"
    resumed = Learner(cfg, data, torch.device("cuda"))
    resumed.restore(runs.RunFolder(tmp_path / "run").load_state()[0])
    resumed.update()
    on_cpu = runs.load(tmp_path / "run")
    images = data.test.images
    assert torch.allclose(on_cpu.logits(images), trained.logits(images).cpu(), rtol=0.02, atol=0.5)
    assert trained.sample(3).device.type == "cuda"
