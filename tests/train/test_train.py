import dataclasses
import json
import math

import pytest
import torch

import gmmc.train.loop
from conftest import make_learner, real_batch, set_state, tiny_config, tiny_data
from gmmc import core
from gmmc.base.tensorfile import pack, unpack
from gmmc.config import recipes
from gmmc.data import sources as data_sources
from gmmc.errors import InputError
from gmmc.networks.backbones import batch_norms
from gmmc.pixels import to_signed
from gmmc.runs import folder, model_file
from gmmc.train import contrastive, messages
from gmmc.train.loop import train


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_discriminative_training_never_touches_the_sampler(tmp_path, monkeypatch, data):
    def forbidden(*_, **__):
        raise AssertionError("β = 0 must not sample")

    monkeypatch.setattr(contrastive.Contrastive, "move", forbidden)
    monkeypatch.setattr(contrastive, "ReplayBuffer", forbidden)
    train(tiny_config(generative={"epochs": 0}), tmp_path / "a", data)
    train(tiny_config(train={"beta": 0.0}), tmp_path / "b", data)
    assert not any("sampled_energy" in line for line in lines(tmp_path / "b"))
    with pytest.raises(AssertionError, match="must not sample"):
        train(tiny_config(), tmp_path / "c", data)


def test_gamma2_changes_no_update(data):
    cfg = tiny_config(discriminative={"epochs": 0})
    a, b = make_learner(cfg, data), make_learner(cfg, data)
    b.model.head.gamma2.fill_(0.01)
    for learner in (a, b):
        for _ in range(3):
            learner.update()
    for p, q in zip(a.model.parameters(), b.model.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(a.algorithm.buffer.images, b.algorithm.buffer.images)


def test_gamma2_of_the_finished_model_is_that_of_the_training_images(tmp_path, data):
    model = train(tiny_config(), tmp_path / "run", data)
    with torch.no_grad():
        features = model.backbone(data.train.images / 127.5 - 1)
    expected = (features - model.head.means[data.train.labels]).square().mean().item()
    assert model.head.gamma2.item() == pytest.approx(expected, rel=1e-4)
    assert model_file.load(tmp_path / "run").head.gamma2 == model.head.gamma2


def test_training_learns(tmp_path):
    data = tiny_data(count=256)
    train(tiny_config(discriminative={"epochs": 5}, generative={"epochs": 1}), tmp_path / "run", data)
    first, last = lines(tmp_path / "run")[0], lines(tmp_path / "run")[-1]
    assert last["real_energy"] < first["real_energy"] / 2
    assert last["valid_accuracy"] > 0.9


def test_chains_go_back_to_the_buffer(data):
    learner = make_learner(tiny_config(discriminative={"epochs": 0}, buffer={"reinit": 0.0}), data)
    before = learner.algorithm.buffer.images.clone()
    learner.update()
    changed = (learner.algorithm.buffer.images != before).flatten(1).any(1)
    assert changed.sum() == learner.batch_size


def test_every_image_is_seen_once_per_epoch(data):
    learner = make_learner(tiny_config(discriminative={"shift": 0}, train={"batch_size": 20}), data)
    assert learner.plan.steps_per_epoch == 3  # 64 images: the last 4 of the order wait for another epoch
    seen = []
    for _ in range(3):
        seen.append(real_batch(learner, len(seen))[0])
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


def test_metrics_tell_the_story(tmp_path, data):
    train(tiny_config(), tmp_path / "run", data)
    story = lines(tmp_path / "run")
    assert [line["step"] for line in story] == [3, 4, 6, 8, 9, 12]  # every 3 updates and each epoch of 4
    assert [line["phase"] for line in story] == ["discriminative"] * 2 + ["generative"] * 4
    for line in story:
        assert math.isfinite(line["real_energy"])
        assert 0 <= line["accuracy"] <= 1
        for key in ("sampled_energy", "force_ratio", "chain_age"):
            assert (key in line) == (line["beta"] > 0)
        assert ("valid_accuracy" in line) == (line["step"] % 4 == 0)


def without_second_fingerprint(path):
    """The file as an older version wrote it; the name of a state holds its hash."""
    tensors, info, old = unpack(path)
    info.pop("held_out") if "held_out" in info else info["trained"].pop("held_out_sha256")
    content, new = pack(tensors, info)
    path.unlink()
    path.with_name(path.name.replace(old[:16], new[:16])).write_bytes(content)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_other_held_out_images_are_refused(tmp_path, data, part):
    cfg, out = tiny_config(), tmp_path / "run"
    train(cfg, out, data)
    other = dataclasses.replace(data, **{part: getattr(data, part)[1:]})
    with pytest.raises(InputError, match="was trained with other validation or test images"):
        train(cfg, out, other)
    (out / "model.safetensors").unlink()
    with pytest.raises(InputError, match="was trained with other validation or test images"):
        train(cfg, out, other)
    assert train(cfg, out, data).trained["held_out_sha256"] == data.held_out_fingerprint


def test_files_of_versions_without_the_second_fingerprint_are_taken(tmp_path, data, capsys):
    cfg, out = tiny_config(), tmp_path / "run"
    train(cfg, out, data)
    without_second_fingerprint(out / "model.safetensors")
    for path in (out / "resume").glob("step-*"):
        without_second_fingerprint(path)
    other = dataclasses.replace(data, valid=data.valid[1:])
    train(cfg, out, other)
    assert "already trained" in capsys.readouterr().out
    (out / "model.safetensors").unlink()
    train(cfg, out, other)
    assert "resuming" in capsys.readouterr().err


@pytest.mark.parametrize(("every", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (9, [5])])
def test_validation_after_some_epochs_and_the_last(tmp_path, data, every, epochs):
    cfg = tiny_config(train={"valid_every": every}, generative={"epochs": 4})
    train(cfg, tmp_path / "run", data)
    assert [line["epoch"] for line in lines(tmp_path / "run") if "valid_accuracy" in line] == epochs


def test_logged_energies_are_means_over_the_interval(data):
    learner = make_learner(tiny_config(discriminative={"epochs": 0}), data)
    expected = []
    for _ in range(3):
        with torch.no_grad():
            x, y, _ = real_batch(learner, learner.step)
            expected.append(core.unit_energy(learner.model.backbone(x), learner.model.head.means[y]).mean())
        learner.update()
    line, _ = learner.report()
    assert line["real_energy"] == pytest.approx(torch.stack(expected).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"generative": {"shift": 8}}, "generative.shift must be less than the image size 8, got 8"),
        ({"generative": {"cutout": 8}}, "generative.cutout must be less than the image size 8, got 8"),
        ({"train": {"device": "abacus"}}, "device must be auto"),
        ({"model": {"dim": 1}}, "model.dim must be at least 2 for equiangular means of 3 classes"),
        ({"model": {"backbone": "vgg"}}, "model.backbone must be"),
        ({"contrast": {"shift": 9}, "objective": {"name": "balanced"}}, "contrast.shift must be less than"),
        (
            {"generative": {"warmup": 9}},
            "generative.warmup must be at most the 8 updates of the phase, got 9",
        ),
        ({"buffer": {"labels": "batch"}}, "buffer.labels=batch needs a whole batch of 16 among the chains"),
        ({"train": {"devices": 3}}, "train.batch_size must be a multiple of the 3 processes, got 16"),
        ({"train": {"devices": 16}}, "buffer.size must be a multiple of the 16 processes, got 40"),
        (
            {"train": {"devices": 8}, "buffer": {"chains": 4}},
            "buffer.chains must be a multiple of the 8 processes, got 4",
        ),
        ({"train": {"devices": 20}}, "train.nodes, must be at most the 16 images of a batch, got 20"),
    ],
)
def test_a_bad_recipe_leaves_nothing_behind(tmp_path, data, sections, message):
    with pytest.raises(InputError, match=message):
        train(tiny_config(**sections), tmp_path / "run", data)
    assert not (tmp_path / "run").exists()


CUT_OUT = {"generative": {"cutout": 4}}


@pytest.mark.parametrize(
    ("sections", "warned"),
    [
        ({**CUT_OUT, "objective": {"name": "balanced"}}, True),
        ({**CUT_OUT, "objective": {"name": "balanced"}, "contrast": {"cutout": 3}}, True),
        ({**CUT_OUT, "objective": {"name": "balanced"}, "contrast": {"cutout": 4}}, False),
        ({**CUT_OUT, "objective": {"name": "balanced", "anchor_on": "contrast"}}, False),
        ({**CUT_OUT, "objective": {"name": "balanced", "anchor": 0.0}}, False),
        ({**CUT_OUT, "objective": {"name": "balanced"}, "train": {"beta": 0.0}}, False),
        (CUT_OUT, False),  # gmmc has no other images
        ({"discriminative": {"cutout": 4}, "objective": {"name": "balanced"}}, False),
        (
            {
                **CUT_OUT,
                "objective": {"name": "balanced"},
                "model": {"head": "linear"},
                "sampler": {"name": "sgld"},
            },
            False,
        ),
    ],
)
def test_a_density_that_will_learn_cut_outs_is_warned_of(data, sections, warned):
    learner = make_learner(tiny_config(**sections), data)
    lines = [line for line in messages.beginning(learner) if "generative.cutout=4" in line]
    assert len(lines) == warned
    assert all("objective.anchor_on=contrast" in line for line in lines)


def test_a_metric_s_line_is_worth_its_name(data):
    """Force ratio R = β√(Ē′/Ē) and chain age in sampler steps, from the numbers beside them."""
    learner = make_learner(tiny_config(discriminative={"epochs": 0}, buffer={"reinit": 0.0}), data)
    for _ in range(5):
        learner.update()
    line, _ = learner.report()
    assert line["force_ratio"] == pytest.approx(0.5 * (line["sampled_energy"] / line["real_energy"]) ** 0.5)
    assert line["chain_age"] == pytest.approx(5 * 16 / 40 * 2)  # 5 updates move 16 of 40 chains 2 steps
    assert torch.equal(learner.algorithm.buffer.visits.sum(), torch.tensor(5 * 16))


class TestAveragedWeights:
    def test_they_follow_the_last_ones_with_the_stated_decay(self, data):
        learner = make_learner(tiny_config(train={"ema": 0.9}), data)
        expected = [p.detach().clone() for p in learner.model.parameters()]
        for step in range(6):
            learner.update()
            decay = min(0.9, (1 + step) / (10 + step))
            for mean, now in zip(expected, learner.model.parameters(), strict=True):
                mean.mul_(decay).add_(now.detach(), alpha=1 - decay)
        for mean, ours in zip(expected, learner.average.model.parameters(), strict=True):
            assert torch.allclose(mean, ours, atol=1e-6)

    def test_they_are_what_is_saved_evaluated_and_sampled(self, tmp_path, data):
        cfg = tiny_config(train={"ema": 0.5})
        averaged = train(cfg, tmp_path / "run", data)
        assert (
            averaged.trained["weights"] == model_file.load(tmp_path / "run").trained["weights"] == "average"
        )
        last = train(tiny_config(), tmp_path / "last", data)
        assert last.trained["weights"] == "last"
        pairs = list(zip(averaged.parameters(), last.parameters(), strict=True))
        assert not any(torch.equal(a, b) for a, b in pairs)
        assert torch.equal(model_file.load(tmp_path / "run").sample(2), averaged.sample(2))

    def test_averaging_changes_no_update(self, data):
        plain, averaged = (make_learner(tiny_config(train={"ema": ema}), data) for ema in (0.0, 0.9))
        for learner in (plain, averaged):
            for _ in range(6):
                learner.update()
        for p, q in zip(plain.model.parameters(), averaged.model.parameters(), strict=True):
            assert torch.equal(p, q)


class TestOptimiser:
    def test_it_is_one_for_all_phases_each_with_its_weight_decay(self, data):
        learner = make_learner(tiny_config(generative={"weight_decay": 0.01}), data)
        optimizer = learner.updater.optimizer
        for decay, updates in ((0.0, 4), (0.01, 1)):
            for _ in range(updates):
                learner.update()
            assert learner.updater.optimizer is optimizer
            assert optimizer.param_groups[0]["weight_decay"] == decay
        assert optimizer.state_dict()["state"][0]["step"] == 5

    def test_a_clipped_gradient_is_no_longer_than_asked(self, data):
        """After the first update, Adam's second moment is a thousandth of the squared gradient."""
        learner = make_learner(tiny_config(train={"clip": 0.01}), data)
        learner.update()
        moments = [slot.flatten() for name, slot in learner.updater.slots().items() if "exp_avg_sq" in name]
        assert torch.cat(moments).sum().sqrt().item() == pytest.approx(0.01 * 0.001**0.5, rel=1e-3)
        assert learner.report()[0]["grad_norm"] > 0.01


class TestBatchNorm:
    def statistics(self, learner):
        return torch.cat([norm.running_mean for norm in batch_norms(learner.model)]).clone()

    def learner(self, data, norm):
        return make_learner(tiny_config(model={"norm": norm}), data)

    def test_sampling_and_its_images_leave_the_statistics_alone(self, data):
        learner = self.learner(data, "batch")
        set_state(learner, step=4)  # the generative phase
        before = self.statistics(learner)
        drawn = learner.algorithm.draw(learner.batches.labels[:16], 4)
        learner.algorithm.move(drawn, 4, pace=1.0)
        assert torch.equal(self.statistics(learner), before)
        learner.update()
        assert not torch.equal(self.statistics(learner), before)

    def test_frozen_for_good_after_the_start(self, data):
        learner = self.learner(data, "batch_then_frozen")
        first = self.statistics(learner)
        for _ in range(4):
            learner.update()
        learned = self.statistics(learner)
        assert not torch.equal(learned, first)
        for _ in range(4):
            learner.update()
        assert torch.equal(self.statistics(learner), learned)


def test_chains_of_the_batch_s_labels(data):
    cfg = tiny_config(buffer={"labels": "batch", "size": 60, "reinit": 0.3}, discriminative={"epochs": 0})
    learner = make_learner(cfg, data)
    _, y, _ = real_batch(learner)
    assert torch.equal(learner.algorithm.draw(y, 0).labels, y)


def test_contrast_images_are_the_same_ones_augmented_otherwise(data):
    cfg = tiny_config(
        objective={"name": "balanced"}, discriminative={"epochs": 0}, generative={"shift": 2, "noise": 0.0}
    )
    learner = make_learner(cfg, data)
    x, y, clean = real_batch(learner)
    originals = (data.train.images / 127.5 - 1).flatten(1)
    found = [(originals == row).all(1).nonzero().item() for row in clean.flatten(1)]
    assert torch.equal(data.train.labels[found], y)
    assert not torch.equal(x, clean)


FEW_CHAINS = {"buffer": {"chains": 4, "labels": "batch", "size": 60}, "objective": {"name": "balanced"}}


class TestFewerChainsThanImages:
    def test_so_many_move_and_as_many_images_are_their_contrast(self, data):
        learner = make_learner(tiny_config(discriminative={"epochs": 0}, **FEW_CHAINS), data)
        x, y, contrast = real_batch(learner)
        assert (len(x), len(y), len(contrast)) == (16, 16, 4)
        assert torch.equal(learner.algorithm.draw(y, 0).labels, y[:4])
        for done in range(1, 4):
            learner.update()
            assert learner.algorithm.buffer.visits.sum() <= 4 * done  # a chain that starts anew counts from 1

    @pytest.mark.parametrize("name", ["gmmc", "balanced"])
    def test_as_many_as_images_is_the_default(self, data, name):
        """Bit for bit; and fewer is something else."""
        weights = []
        for chains in (0, 16, 8):
            cfg = tiny_config(buffer={"chains": chains}, objective={"name": name})
            learner = make_learner(cfg, data)
            for _ in range(6):
                learner.update()
            weights.append(torch.cat([p.flatten() for p in learner.model.parameters()]))
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_a_whole_training(self, tmp_path, data):
        model = train(tiny_config(**FEW_CHAINS), tmp_path / "run", data)
        assert model.sample(2).isfinite().all()

    def test_an_update_costs_less(self):
        few, many = (make_learner(tiny_config(buffer={"chains": n}), tiny_data()) for n in (4, 0))
        assert few.work(4) == many.work(4)  # discriminative
        assert few.work(8) < many.work(8)
        steps = make_learner(tiny_config(sampler={"steps": 40}), tiny_data())
        assert many.work(8) < steps.work(8)


class TestWeightsStoredInBf16:
    def test_what_was_measured_is_what_is_loaded(self, tmp_path, data):
        """γ², the fitted γ² and the threshold belong to the rounded weights."""
        cfg = tiny_config(train={"weights": "bf16", "ema": 0.9}, buffer={"start": "gaussian"})
        model = train(cfg, tmp_path / "run", data)
        again = model_file.load(tmp_path / "run")
        for name, tensor in model.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name
        assert {p.dtype for p in again.parameters()} == {torch.float32}
        assert all(torch.equal(p, p.bfloat16().float()) for p in again.parameters())
        x = data.test.images
        assert torch.equal(model.logits(x), again.logits(x))
        assert torch.equal(model.sample(3), again.sample(3))
        assert torch.equal(model.answer(x).accepted, again.answer(x).accepted)
        energies = again.head.unit_energy(again.backbone(to_signed(data.train.images)), data.train.labels)
        assert again.head.gamma2.item() == pytest.approx(2 * energies.mean().item() / model.dim, rel=1e-4)

    def test_it_takes_half_the_room(self, tmp_path, data):
        size = {}
        for weights in ("fp32", "bf16"):
            train(tiny_config(train={"weights": weights}), tmp_path / weights, data)
            size[weights] = (tmp_path / weights / "model.safetensors").stat().st_size
        assert 0.45 < size["bf16"] / size["fp32"] < 0.6

    def test_training_itself_is_not_rounded(self, tmp_path, data):
        for weights in ("fp32", "bf16"):
            train(tiny_config(train={"weights": weights}), tmp_path / weights, data)
        one, other = (lines(tmp_path / weights) for weights in ("fp32", "bf16"))
        assert [line["real_energy"] for line in one] == [line["real_energy"] for line in other]


def test_class_gaussian_starts_reach_buffer_and_samples(tmp_path, data):
    cfg = tiny_config(buffer={"start": "gaussian", "rank": 8})
    learner = make_learner(cfg, data)
    levels = [
        learner.algorithm.buffer.images[learner.algorithm.buffer.labels == y].float().mean().item()
        for y in range(3)
    ]
    real = [(data.train.images[data.train.labels == y] / 127.5 - 1).mean().item() for y in range(3)]
    assert levels == pytest.approx(real, abs=0.05)
    model = train(cfg, tmp_path / "run", data)
    brightness = model.sample(60, torch.arange(60) % 3, steps=1).flatten(1).mean(1)
    assert [brightness[y::3].mean().item() * 2 - 1 for y in range(3)] == pytest.approx(real, abs=0.1)
    assert torch.equal(model_file.load(tmp_path / "run").sample(3), model.sample(3))


def test_bf16_keeps_weights_and_energies_in_full_precision(data):
    learner = make_learner(tiny_config(train={"precision": "bf16"}), data)
    exact = make_learner(tiny_config(), data)
    for _ in range(6):
        learner.update()
        exact.update()
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    (rough, _), (fine, _) = learner.report(), exact.report()
    assert rough["real_energy"] != fine["real_energy"]
    assert rough["real_energy"] == pytest.approx(fine["real_energy"], rel=0.02)


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
@pytest.mark.parametrize("sections", [{}, {"train": {"precision": "bf16", "ema": 0.9, "clip": 1.0}}])
@pytest.mark.parametrize("labels", ["priors", "batch"])
@pytest.mark.parametrize("start", ["uniform", "gaussian"])
def test_an_update_does_not_wait_for_the_gpu(data, sections, labels, start):
    cfg = tiny_config(
        **{**sections, "train": {**sections.get("train", {}), "device": "cuda"}},
        buffer={"labels": labels, "start": start, "size": 60},
        objective={"name": "balanced", "shape": "huber"},
    )
    learner = make_learner(cfg, data)
    for _ in range(10):
        learner.update()  # the first few of each phase may
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            learner.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
def test_on_a_gpu(tmp_path, data):
    cfg = tiny_config(train={"device": "cuda"}, sampler={"name": "noise_injected"})
    trained = train(cfg, tmp_path / "run", data)
    assert trained.device.type == "cuda"
    assert train(cfg, tmp_path / "run", data).device.type == "cuda"
    resumed = make_learner(cfg, data)
    resumed.restore(folder.RunFolder(tmp_path / "run").load_state()[0])
    resumed.update()
    on_cpu = model_file.load(tmp_path / "run")
    images = data.test.images
    assert torch.allclose(on_cpu.logits(images), trained.logits(images).cpu(), rtol=0.02, atol=0.5)
    assert trained.sample(3).device.type == "cuda"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
@pytest.mark.parametrize("labels", ["priors", "batch"])
def test_what_does_not_fit_on_the_device_is_streamed_and_changes_nothing(data, device, labels, monkeypatch):
    monkeypatch.setattr(
        torch.backends.cudnn, "deterministic", True
    )  # else no two trainings on a GPU are equal
    train = {"device": device, "engine": "plain"}
    buffer = {"labels": labels, "size": 60, "reinit": 0.3}
    whole, streamed = (
        make_learner(tiny_config(train={**train, "memory": memory}, buffer=buffer), data)
        for memory in (0.0, 1e-9)
    )
    assert [note.split(" (")[0] for note in streamed.room.notes] == ["64 images", "60 chains"]
    assert whole.room.notes == []
    for learner in (whole, streamed):
        for _ in range(7):  # four discriminative ones, then generative
            learner.update()
    chains = [learner.algorithm.buffer.images.cpu() for learner in (whole, streamed)]
    assert torch.equal(*chains)
    for mine, theirs in zip(streamed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert streamed.estimate_gamma2(streamed.model) == whole.estimate_gamma2(whole.model)


def test_a_streamed_training_says_so_and_resumes(tmp_path, data, capsys):
    cfg = tiny_config(train={"memory": 1e-9, "checkpoint_seconds": 0.0})
    train(cfg, tmp_path / "run", data)
    (tmp_path / "run" / "model.safetensors").unlink()
    again = train(cfg, tmp_path / "run", data)
    told = capsys.readouterr().err
    assert "64 images (4.1e-06 GB) are streamed from host memory: train.memory=1e-09 GB" in told
    plain = train(tiny_config(), tmp_path / "plain", data)
    for mine, theirs in zip(again.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("overrides", "facts"),
    [
        (["sampler.name=sgld", "train.beta=0"], ["sampler.name=sgld", "never used", "generative.epochs"]),
        (["sampler.name=sgld_jem", "generative.epochs=0"], ["sampler.name=sgld_jem", "never used"]),
        (
            ["model.head=linear", "objective.name=balanced"],
            ["sampler.name=staged", "model.head=linear", "sgld or sgld_jem"],
        ),
        (["model.head=lda"], ["objective.name=gmmc", "fixed", "model.head=lda", "objective.name=balanced"]),
        (["model.head=linear", "sampler.name=sgld"], ["objective.name=gmmc", "model.head=linear"]),
        (
            ["model.head=linear", "objective.name=balanced", "train.beta=0", "abstain.score=residual"],
            ["abstain.score=residual", "model.head=linear"],
        ),
        (
            ["model.head=linear", "objective.name=balanced", "sampler.name=sgld", "model.scale=3"],
            ["model.scale", "model.head=linear", "got 3"],
        ),
        (["contrast.noise=0.1"], ["[contrast]", "objective.name=gmmc"]),
    ],
)
def test_settings_that_contradict_what_they_name_are_refused_before_data_are_read(
    overrides, facts, tmp_path, monkeypatch
):
    monkeypatch.setattr(data_sources, "load", lambda *_: pytest.fail("data were read"))
    with pytest.raises(InputError) as caught:
        train(recipes.load("digits", overrides), tmp_path / "run")
    assert all(fact in str(caught.value) for fact in facts)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
