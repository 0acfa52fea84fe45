"""The fast way gives what the plain way gives: here on the CPU, where it is the same code without the graph,
and on a GPU where there is one."""

import copy
import dataclasses
import gc
import socket
import sys
import weakref
from pathlib import Path

import pytest
import torch

from conftest import make_learner, make_model, set_pace, tiny_config, tiny_data
from gmmc.core import unit_energy
from gmmc.errors import InputError
from gmmc.networks.backbones import batch_norms
from gmmc.runs.folder import RunFolder
from gmmc.sampling import engine
from gmmc.sampling.engine import PLAIN, Captured, Engine, FastGradient, PlainGradient
from gmmc.sampling.samplers import SAMPLERS, BatchNoise, Chains
from gmmc.train import updater
from processes import finished

GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]
COPY, GRAPH = Engine(), Engine(graph=True)
COMPILED, FUSED = Engine(graph=True, compile=True), Engine(graph=True, compile=True, fused=True)
NAMES = {GRAPH: "graph", COMPILED: "compiled", FUSED: "fused"}

# bf16 keeps 8 bits, so that each of a layer's outputs is off by up to 1/500. Energies of chains that began
# alike differ, after 20 steps and on average, by less than this share of what they changed.
BF16_TOLERANCE = 0.03


def chains_by(model, gradient, name, steps=20, count=8):
    """Where the sampler brings the same chains, and the energies they have without it and there, in fp32."""
    device = model.device
    labels = torch.arange(count, device=device) % 3
    source = torch.Generator(device).manual_seed(5)
    x = torch.rand(count, *model.shape, generator=source, device=device) * 2 - 1
    energy = model.head.guided_energy if model.denoising else model.head.unit_energy
    sigma_data = model.denoising.sigma_data if model.denoising else None
    chains = Chains.of(model.head, energy, labels, BatchNoise(count, source), sigma_data)
    cfg, move, state = model.drawing.sampler, SAMPLERS[name].move, source.get_state()
    without = x
    if model.denoising:  # noise is added and taken away even where the network finds no direction
        without = move(lambda energy, x, goal: torch.zeros_like(x), x, chains, cfg, steps=steps)
        source.set_state(state)
    x = move(gradient, x, chains, cfg, steps=steps)
    return x, unit_energies(model, without, labels), unit_energies(model, x, labels)


@torch.no_grad()
def unit_energies(model, x, labels):
    """Of a noise-conditional model at the noise level of its predictions."""
    return model.head.unit_energy(model.features((x + 1) / 2), labels)


def model_on(device, name="staged", **sections):
    alpha = (
        0.05 if name == "sgld" else 10.0
    )  # a network of random weights is flat; of sgld α is also the noise
    sampler = {"name": name, "target_std": 0.2, "alpha": alpha, "noise": 0.02}
    network = {"backbone": "wrn-10-1"}
    if SAMPLERS[name].noise_conditional:  # its step has no factor: far means make up for flatness
        sections = {**sections, "train": {**sections.get("train", {}), "algorithm": "denoising"}}
        network["scale"] = 1000.0
    model = make_model(shape=(3, 16, 16), sampler=sampler, model=network, **sections)
    return model.to(device).requires_grad_(True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    "way", [GRAPH, *(pytest.param(way, marks=on_gpu) for way in (COMPILED, FUSED))], ids=NAMES.get
)
class TestTheSameChains:
    def test_in_full_precision(self, device, name, way):
        model = model_on(device, name)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            plain, _, at_plain = chains_by(model, PlainGradient(model.backbone), name)
            fast, _, at_fast = chains_by(model, FastGradient(model.backbone, way, "fp32"), name)
        # Other algorithms sum in another order, and where an activation changes its sign a chain turns off.
        assert (plain - fast).abs().mean() < 1e-3
        assert torch.allclose(at_plain, at_fast, rtol=1e-2)

    def test_in_bf16_within_its_tolerance(self, device, name, way):
        model = model_on(device, name)
        _, before, at_plain = chains_by(model, PlainGradient(model.backbone), name)
        _, _, at_fast = chains_by(model, FastGradient(model.backbone, way, "bf16"), name)
        assert (at_fast - at_plain).abs().mean() < BF16_TOLERANCE * (at_plain - before).abs().mean()

    def test_with_a_longest_step(self, device, name, way):
        if SAMPLERS[name].noise_conditional:
            pytest.skip("its steps have no limit")
        model = model_on(device, name)
        free = chains_by(model, PlainGradient(model.backbone), name)[0]
        sampler = dataclasses.replace(model.drawing.sampler, max_step=1e-4)
        model.drawing = dataclasses.replace(model.drawing, sampler=sampler)
        plain = chains_by(model, PlainGradient(model.backbone), name)[0]
        fast = chains_by(model, FastGradient(model.backbone, way, "fp32"), name)[0]
        assert (plain - fast).abs().mean() < 0.1 * (plain - free).abs().mean()

    def test_chains_do_not_depend_on_those_before(self, device, name, way):
        """The memory of a captured gradient is used again and again."""
        model = model_on(device, name)
        gradient = FastGradient(model.backbone, way, "bf16")
        first = [chains_by(model, gradient, name)[0] for _ in range(3)][-1]
        assert torch.equal(first, chains_by(model, gradient, name)[0])


@pytest.mark.parametrize("device", DEVICES)
class TestTheCopy:
    def test_it_follows_the_network_when_asked(self, device):
        model = model_on(device)
        gradient = FastGradient(model.backbone, GRAPH, "bf16")
        stale = chains_by(model, gradient, "staged")[0]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        assert torch.equal(chains_by(model, gradient, "staged")[0], stale)
        gradient.refresh()
        fresh = chains_by(model, FastGradient(model.backbone, GRAPH, "bf16"), "staged")[0]
        assert torch.equal(chains_by(model, gradient, "staged")[0], fresh)
        assert not torch.equal(fresh, stale)

    def test_the_network_itself_is_left_alone(self, device):
        model = model_on(device)
        before = copy.deepcopy(model.state_dict())
        chains_by(model, FastGradient(model.backbone, GRAPH, "bf16"), "staged")
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert all(p.requires_grad and p.grad is None for p in model.backbone.parameters())

    def test_batch_norm_keeps_its_precision_and_its_statistics(self, device):
        sampler = {"target_std": 0.2, "alpha": 0.05}
        sections = {"model": {"backbone": "wrn-10-1", "norm": "batch"}, "sampler": sampler}
        model = make_model(shape=(3, 16, 16), **sections).to(device)
        for norm in batch_norms(model):
            norm.running_mean.normal_(std=0.1)
        gradient = FastGradient(model.backbone.train(), GRAPH, "bf16")
        assert {norm.running_mean.dtype for norm in batch_norms(gradient._copy.network)} == {torch.float32}
        fast = chains_by(model.eval(), gradient, "staged")[2]
        plain = chains_by(model, PlainGradient(model.backbone), "staged")[2]
        assert torch.allclose(fast, plain, rtol=0.1)


class TestChoosing:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")

    def test_auto_compiles_where_there_is_enough_to_do(self):
        assert engine.choose("auto", self.cuda, compile=True) == FUSED
        assert engine.choose("auto", self.cuda, compile=False) == GRAPH
        assert engine.choose("auto", self.cpu, compile=True) == COPY
        assert engine.choose("plain", self.cpu, compile=True) == PLAIN

    def test_what_is_asked_for_is_given(self):
        for compile in (True, False):
            assert engine.choose("plain", self.cuda, compile=compile) == PLAIN
            assert engine.choose("graph", self.cuda, compile=compile) == GRAPH
            assert engine.choose("compiled", self.cuda, compile=compile) == FUSED

    def test_a_graph_needs_a_gpu(self):
        for asked in ("graph", "compiled"):
            with pytest.raises(InputError, match=f"train.engine={asked} needs a GPU, got cpu"):
                engine.choose(asked, self.cpu, compile=False)

    def test_precision(self, monkeypatch):
        for asked in ("fp32", "bf16"):
            assert engine.resolve_precision(asked, self.cpu) == asked
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        for built_in, expected in ((True, "bf16"), (False, "fp32")):
            monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda built_in=built_in: built_in)
            assert engine.resolve_precision("auto", self.cpu) == expected

    def test_a_cpu_that_traps_bf16_computes_in_fp32(self, monkeypatch, capsys):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
        monkeypatch.setattr(engine, "cpu_traps_bf16", lambda: True)
        engine._warn_of_trapped_bf16.cache_clear()
        assert [engine.resolve_precision(asked, self.cpu) for asked in ("auto", "auto", "fp32")] == [
            "fp32"
        ] * 3
        assert capsys.readouterr().err.count("ONEDNN_MAX_CPU_ISA") == 1  # the remedy, named once
        with pytest.raises(InputError, match=r"train\.precision=bf16 .*ONEDNN_MAX_CPU_ISA"):
            engine.resolve_precision("bf16", self.cpu)

    def test_fresh_samples_do_not_depend_on_how_the_training_was_run(self):
        for asked in ("auto", "graph", "compiled"):
            assert engine.choose_for_samples(asked, self.cpu) == Engine(repeatable=True)
            assert engine.choose_for_samples(asked, self.cuda) == Engine(
                graph=True, fused=True, repeatable=True
            )
        assert engine.choose_for_samples("plain", self.cuda) == PLAIN
        assert make_model(train={"engine": "plain", "precision": "bf16"}).drawer().precision == "fp32"
        assert make_model(train={"engine": "graph", "precision": "bf16"}).drawer().precision == "bf16"


class TestFallingBack:
    def test_a_compiler_that_fails_costs_one_line(self, capsys):
        def broken(x):
            raise RuntimeError("no compiler here\nand a page about it")

        ways = [("fused kernels", broken), ("compiled", broken), ("plain", lambda x: x + 1)]
        function = Captured(ways, CPU, what="the sampler")
        assert function(torch.zeros(1)) == function(torch.zeros(1)) == 1
        told = [line for line in capsys.readouterr().err.splitlines() if "without" in line]
        assert told == ["the sampler runs without that: RuntimeError: no compiler here"] * 2
        assert function.how == "plain"

    def test_only_the_first_call_may_fail(self):
        """Later failures are the function's own, as is any of the plain way."""

        def broken(x):
            if x > 0:
                raise ValueError("mine")
            return x

        for ways in ([("plain", broken)], [("compiled", broken), ("plain", broken)]):
            function = Captured(ways, CPU, what="the update")
            function(torch.zeros(1))
            with pytest.raises(ValueError, match="mine"):
                function(torch.ones(1))

    def test_another_shape_is_not_stretched(self):
        function = Captured([("plain", lambda x: x)], CPU, what="the update")
        function(torch.zeros(4))
        with pytest.raises(AssertionError):
            function(torch.zeros(1))

    @on_gpu
    def test_what_cannot_be_captured_runs_plainly_and_costs_one_line(self, capsys):
        def reads_the_device(x):
            return x * 2 if x.sum().item() else x

        function = Captured([("plain", reads_the_device)], torch.device("cuda"), what="the sampler")
        for value in range(8):
            x = torch.full((2,), float(value), device="cuda")
            assert torch.equal(function(x), 2 * x)
        told = [line for line in capsys.readouterr().err.splitlines() if "without a CUDA graph" in line]
        assert len(told) == 1
        assert told[0].startswith("the sampler runs without a CUDA graph: ")


def test_a_gradient_is_gone_when_nobody_holds_it():
    """Else a loop of samples would pile up copies, and on a GPU the memory of graphs."""
    model = model_on("cpu")
    gc.collect()
    gc.disable()
    try:
        gradient = FastGradient(model.backbone, COPY, "bf16")
        chains_by(model, gradient, "staged", steps=2)
        gradient.refresh()
        alive = weakref.ref(gradient)
        del gradient
        assert alive() is None
    finally:
        gc.enable()


# --- training ---


@pytest.mark.parametrize("device", DEVICES)
def test_a_fused_optimiser_goes_on_from_a_state_of_the_disk(tmp_path, monkeypatch, device):
    """It takes the order of its slots in memory for granted, and files know no order."""
    monkeypatch.setattr(updater, "FUSED_ON", {"cpu", "cuda"})
    data = tiny_data(channels=3)
    phase = {"lr": 1e-2, "epochs": 2}
    train = {"device": device, "precision": "fp32", "engine": "plain"}
    cfg = tiny_config(train=train, discriminative=phase, model={"backbone": "wrn-10-1"})
    whole = make_learner(cfg, data)
    for _ in range(3):
        whole.update()
    folder = RunFolder(tmp_path)
    folder.save_state(whole.snapshot(), 0, lambda: None)
    resumed = make_learner(cfg, data)
    resumed.restore(folder.load_state()[0])
    for learner in (whole, resumed):
        for _ in range(2):
            learner.update()
    for mine, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


def trained(way, data, device, updates=10, **sections):
    train = {
        "device": device,
        "engine": way,
        "precision": "fp32",
        "log_every": 50,
        **sections.pop("train", {}),
    }
    cfg = tiny_config(train=train, discriminative={"epochs": 1}, **sections)
    learner = make_learner(cfg, data)
    while learner.step < updates:  # four discriminative ones, then generative
        learner.update()
    return learner


@on_gpu
@pytest.mark.parametrize("way", ["graph", "compiled"])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"objective": {"name": "balanced", "shape": "huber"}, "train": {"clip": 1.0, "ema": 0.9}},
        {"model": {"norm": "batch"}, "generative": {"weight_decay": 0.01, "epochs": 2}},
        {"sampler": {"name": "sgld_jem"}, "buffer": {"labels": "batch", "size": 60}},
    ],
    ids=["plain recipe", "balanced", "batch norm", "sgld"],
)
def test_updates_agree_with_the_plain_ones(way, sections):
    data = tiny_data(channels=3, size=8)
    fast, plain = (trained(kind, data, "cuda", **copy.deepcopy(sections)) for kind in (way, "plain"))
    lines = [learner.report()[0] for learner in (fast, plain)]
    assert lines[0].keys() == lines[1].keys()
    for key in {"real_energy", "contrast_energy", "sampled_energy", "grad_norm", "weight_norm"} & lines[
        1
    ].keys():
        assert lines[0][key] == pytest.approx(lines[1][key], rel=0.02), key
    assert lines[0]["chain_age"] == lines[1]["chain_age"]
    again = trained(way, data, "cuda", **copy.deepcopy(sections))
    assert again.report()[0]["real_energy"] == pytest.approx(lines[0]["real_energy"], rel=1e-3)


@on_gpu
def test_a_rollback_and_a_new_phase_reach_the_captured_update():
    """Learning rate, β and the bound change after the capture."""
    learner = trained("graph", tiny_data(), "cuda", updates=9, generative={"epochs": 8})
    before = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
    set_pace(learner, lr=0.0)
    learner.update()
    after = torch.cat([p.detach().flatten() for p in learner.model.parameters()])
    assert torch.equal(before, after)
    learner.algorithm.capped = True
    for _ in range(6):
        learner.update()
    assert learner.algorithm.loss.limit < float("inf")
    plain = trained("plain", tiny_data(), "cuda", updates=0, generative={"epochs": 8})
    state = learner.snapshot()
    for other in (learner, plain):
        other.restore(state)
        set_pace(other, lr=1.0)
        other.algorithm.capped = True
        other.meter.reset()
        for _ in range(2):
            other.update()
    for key, value in plain.report()[0].items():
        if key in ("real_energy", "sampled_energy", "grad_norm"):
            assert learner.report()[0][key] == pytest.approx(value, rel=0.02), key


@on_gpu
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_image_of_the_graph_is_the_same_alone_and_among_others(name):
    model = model_on("cuda", name)
    many = model.sample(300, seed=0, steps=12)
    assert torch.equal(model.sample(1, seed=17, steps=12), many[17:18])
    assert torch.equal(model.sample(9, seed=290, steps=12), many[290:299])
    frames = model.drawer().film([0, 1, 2], seed=4, frames=[0, 6, 12])
    assert torch.equal(frames[-1], model.sample(3, [0, 1, 2], seed=4, steps=12))
    reference = model_on("cuda", name, train={"engine": "plain", "device": "cuda"})
    difference = reference.sample(20, seed=0, steps=12) - model.sample(20, seed=0, steps=12)
    assert difference.abs().mean() < 0.02


RANKED = """
import sys
sys.path.insert(0, {tests!r})
from conftest import tiny_config, tiny_data
from gmmc.train.learner import Learner
from gmmc.train.distributed import build_fabric
cfg = tiny_config(train={{"device": "cuda", "engine": "compiled"}}, discriminative={{"epochs": 1}})
fabric = build_fabric(cfg.train)
fabric.launch()
assert type(fabric.strategy).__name__ == "DDPStrategy", fabric.strategy
learner = Learner(cfg, tiny_data(), fabric)
while learner.step < 12:
    learner.update()
print("energy", learner.report()[0]["real_energy"])
"""


@on_gpu
def test_in_a_process_group_of_one(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RANKED.format(tests=str(Path(__file__).parents[1])))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1"]
    done = finished([*command, f"--master-port={port}", script])
    energy = float(done.stdout.split("energy")[1])
    assert 0 < energy < 100
    assert "without a CUDA graph" not in done.stderr


def test_energies_of_features_stay_in_full_precision():
    features = torch.full((2, 4), 1.001, dtype=torch.bfloat16)
    assert unit_energy(features, torch.ones(2, 4)).dtype == torch.float32


def test_energies_that_are_new_in_every_call_do_not_pile_up(monkeypatch, capsys):
    """Each would be compiled and captured; beyond a few the gradient is computed without, and is the same."""
    monkeypatch.setattr(engine, "MOST_CAPTURES", 3)
    model = model_on("cpu")
    gradient = FastGradient(model.backbone, COPY, "fp32")
    x, goal = torch.rand(2, *model.shape), torch.zeros(2, model.head.dim)
    found = [gradient(lambda phi, z: unit_energy(phi, z), x, goal).clone() for _ in range(6)]
    assert len(gradient._captured) == 3
    assert all(torch.equal(found[0], other) for other in found)
    assert "without captures" in capsys.readouterr().err
