"""The benchmark measures what it says. No time is asserted."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from gmmc.bench import cells, measure, record, reference, run, summary, variants
from gmmc.bench.cells import Cell, Preset, choose_preset
from gmmc.bench.measure import Timing
from gmmc.bench.reference import PlainLoop
from gmmc.bench.summary import Measured
from gmmc.classifier.model import pick_device
from gmmc.cli import app
from gmmc.config.sections import ModelConfig, SamplerConfig
from gmmc.core import simplex_means, unit_energy
from gmmc.errors import Diverged, InputError
from gmmc.evaluations.result import Result
from gmmc.networks.threads import multiply_adds
from gmmc.sampling.engine import PlainGradient, resolve_precision
from gmmc.sampling.samplers import Chains, staged

CPU = torch.device("cpu")
TINY = Preset(
    "cpu",
    (Cell("small_cnn", 4, (1, 8, 8), taus=(1, 2)), Cell("small_cnn", 8, (1, 8, 8), phases=cells.SAMPLED)),
    images=40,
    buffer=20,
    steps=2,
    seconds=0.01,
    warmup=1,
    matmul=16,
)


def tiny_loop(**changes) -> PlainLoop:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16, 6))
    buffer = torch.rand(12, 1, 4, 4) * 2 - 1
    return PlainLoop(network, simplex_means(3, 6), buffer, **{"steps": 3, **changes})


def batch():
    source = torch.Generator().manual_seed(1)
    return torch.rand(5, 1, 4, 4, generator=source) * 2 - 1, torch.tensor([0, 1, 2, 0, 1])


# --- the reference --------------------------------------------------------------------------------


class GivenNoise:
    """All zeros: the targets are the means."""

    def normal(self, *size: int) -> torch.Tensor:
        return torch.zeros(5, *size)

    uniform = normal


def test_its_chains_are_those_of_our_sampler():
    """With the step that a batch of 5 makes of 1 on the mean energy."""
    loop = tiny_loop(target_std=0.0)
    x, y = batch()
    means = loop.means[y]
    chains = Chains(labels=y, means=means, energy=unit_energy, noise=GivenNoise())
    ours = staged(PlainGradient(loop.network), x, chains, SamplerConfig(alpha=1 / 5), steps=3)
    theirs = x
    for _ in range(3):
        theirs = reference.sampling_step(loop.network, theirs, means, step_size=1.0)
    torch.testing.assert_close(theirs, ours)
    assert not torch.equal(theirs, x)


@pytest.mark.parametrize("generative", [False, True])
def test_its_update_is_adam_on_the_loss_of_the_paper(generative, monkeypatch):
    loop, plain = tiny_loop(), tiny_loop()
    x, y = batch()
    sampled = x.flip(0)
    monkeypatch.setattr(reference, "sample", lambda *_: sampled)
    iteration = reference.generative_iteration if generative else reference.discriminative_iteration
    value = iteration(loop, x, y)

    def energy(images):
        return 0.5 * ((plain.network(images) - plain.means[y]) ** 2).sum(1).mean()

    loss = energy(x) - 0.5 * energy(sampled) if generative else energy(x)
    loss.backward()
    torch.optim.Adam(plain.network.parameters(), lr=1e-4).step()
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for mine, wanted in zip(loop.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_its_chains_come_from_slots_of_their_label_and_go_back():
    loop = tiny_loop(reinit=0.0)
    before = loop.buffer.clone()
    _, y = batch()
    slots, x = reference.draw(loop, y)
    assert torch.equal(slots // 4, y)
    assert torch.equal(x, before[slots])
    reference.sample(loop, y)
    moved = (loop.buffer != before).flatten(1).any(1)
    assert 0 < moved.sum() <= len(y)
    assert loop.buffer.abs().max() <= 1


def test_all_its_chains_may_start_anew():
    loop = tiny_loop(reinit=1.0)
    slots, x = reference.draw(loop, batch()[1])
    assert not torch.isclose(x, loop.buffer[slots]).flatten(1).all(1).any()


def test_its_network_samples_in_eval_mode_and_learns_in_train_mode():
    loop = tiny_loop()
    modes = []
    loop.network.register_forward_hook(lambda module, *_: modes.append(module.training))
    reference.generative_iteration(loop, *batch())
    assert modes == [False] * 3 + [True] * 2


def test_a_loss_beyond_all_bounds_stops_it():
    loop = tiny_loop()
    with pytest.raises(Diverged, match="its loss is"):
        reference.update(loop, torch.tensor(math.nan))
    with pytest.raises(Diverged, match="its loss is"):
        reference.update(loop, torch.tensor(-1e9))


# --- measuring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "billions"), [("wrn-28-10", 5.95), ("wrn-28-4", 0.96)])
def test_macs(network, billions):
    assert multiply_adds(ModelConfig(backbone=network), (3, 32, 32)) / 1e9 == pytest.approx(
        billions, abs=0.005
    )


def test_macs_by_hand():
    """Convolutions 1→16→16 at 8×8, 16→32→64 at 4×4, then 256→64."""
    by_hand = 64 * 9 * (16 + 16 * 16) + 16 * 9 * (16 * 32 + 32 * 64) + 256 * 64
    assert multiply_adds(ModelConfig(backbone="small_cnn"), (1, 8, 8)) == by_hand


def test_flops_of_an_iteration_are_those_of_its_parts():
    step, discriminative = (measure.flops(phase, 100, 8, 20) for phase in ("sampling", "discriminative"))
    assert step == 4 * 100 * 8
    assert measure.flops("generative", 100, 8, 20) == 20 * step + 2 * discriminative


def test_timing_is_of_one_call_and_in_order(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    calls = []
    timing = measure.time_calls(lambda: calls.append(1), CPU, warmup=2, seconds=20.0, blocks=5)
    assert len(calls) == 2 + 1 + 5 * 4  # every block takes a second of this clock
    assert timing == Timing(1 / 4, 1 / 4, 1 / 4)
    assert timing.per(2) == Timing(1 / 8, 1 / 8, 1 / 8)


# --- the summary ----------------------------------------------------------------------------------


def measured(milliseconds, network="wrn-28-10", batch=64, phase="generative", side="ours", memory=None):
    seconds = milliseconds / 1000
    return Measured(Cell(network, batch), phase, side, Timing(seconds, 0.9 * seconds, 1.1 * seconds), memory)


def test_values():
    found = [measured(80.0, memory=3.0), measured(240.0, side="reference", memory=9.0)]
    values, ranges = summary.tabulate(found, [700.0, 800.0], steps=20)
    place = "wrn-28-10/64/generative"
    assert values["matmul_tflops"] == 750
    assert values[f"{place}/ratio"] == pytest.approx(3)
    assert values[f"{place}/tflops"] == pytest.approx(92 * 5.951111168e9 * 64 / 0.080 / 1e12)
    assert values[f"{place}/share_of_matmul"] == pytest.approx(values[f"{place}/tflops"] / 750)
    assert values[f"{place}/epoch_seconds"] == pytest.approx(50_000 / 64 * 0.080)
    assert (values[f"{place}/memory_gb"], values[f"{place}/reference_memory_gb"]) == (3, 9)
    assert ranges[f"{place}/ours_ms"] == pytest.approx((72, 88))


def test_one_side_alone_has_no_ratio_and_no_rate_no_share():
    values, _ = summary.tabulate([measured(80.0)], [], steps=20)
    assert {key.rsplit("/")[-1] for key in values} == {"ours_ms", "tflops", "epoch_seconds"}


@pytest.mark.parametrize(("took", "void"), [(241.8, False), (270.0, False), (290.0, True), (200.0, True)])
def test_a_reference_that_is_off_makes_the_ratios_void(took, void):
    values = {"wrn-28-10/64/generative/reference_ms": took, "wrn-28-2/64/generative/reference_ms": 1.0}
    flags = summary.void_reference(values, "NVIDIA H200")
    assert list(flags) == ["wrn-28-10/64"] * void
    assert all(flag.startswith("void: ") for flag in flags.values())
    assert summary.void_reference(values, "NVIDIA A100") == {}


def test_time_per_image_must_not_rise():
    found = [measured(10.0, batch=64), measured(20.5, batch=128), measured(43.0, batch=256)]
    curves = summary.per_image(reversed(found))
    assert curves["wrn-28-10/generative"]["batch"] == [64, 128, 256]
    (flag,) = summary.rising(curves)
    assert "rises by 5% from batch 128 to 256" in flag
    assert summary.per_image([measured(10.0), measured(99.0, batch=128, side="reference")]) == {}


def test_time_must_be_linear_in_the_steps():
    assert summary.bent("net/64", [10, 20, 40], [10.0, 20.5, 43.0]) == []
    (flag,) = summary.bent("net/64", [10, 20, 40], [10.0, 20.0, 46.0])
    assert "1.15 ms at τ = 40" in flag


def test_blocks_that_differ_are_told():
    assert summary.unsteady({"a": (10.0, 12.9)}) == []
    (flag,) = summary.unsteady({"a": (10.0, 12.9), "b": (10.0, 13.1)})
    assert "1 of 2 times (b)" in flag


# --- the whole ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results():
    return list(run.measure_all(TINY, CPU))


def test_the_promised_keys(results):
    values = results[-1].values
    for phase in cells.PHASES:
        keys = {key for key in values if key.startswith(f"small_cnn/4/{phase}/")}
        names = {"ours_ms", "reference_ms", "ratio", "tflops", "share_of_matmul"}
        assert keys == {f"small_cnn/4/{phase}/{name}" for name in names}
    assert not any("discriminative" in key for key in values if key.startswith("small_cnn/8/"))
    assert all(math.isfinite(value) and value > 0 for value in values.values())
    assert results[-1].curves["tau"]["small_cnn/4"]["tau"] == [1, 2]
    assert results[-1].curves["per_image"]["small_cnn/sampling"]["batch"] == [4, 8]
    assert {"hardware", "torch", "commit", "engine", "settings"} <= results[-1].conditions.keys()
    assert results[0].flags[0].startswith("incomplete: ")
    assert not any(flag.startswith("incomplete") for flag in results[-1].flags)
    low, high = results[-1].intervals["small_cnn/4/generative/ratio"]
    assert low <= values["small_cnn/4/generative/ratio"] <= high
    precision = resolve_precision("auto", CPU)
    told = results[-1].conditions["engine"]
    assert told["small_cnn/4/generative"] == f"update plain, {precision}; sampler plain, {precision}"
    assert told["small_cnn/4/discriminative"] == f"update plain, {precision}"


def test_the_reference_has_torch_s_own_layout():
    loop = reference.plain_loop("wrn-10-1", (3, 8, 8), CPU, classes=2, buffer=4, steps=1, lr=1e-4)
    assert all(parameter.is_contiguous() for parameter in loop.network.parameters())


def test_every_part_adds_to_what_is_known(results):
    counts = [len(result.values) for result in results]
    assert len(results) == 2 + 3 + 2
    assert counts == sorted(counts)
    json.dumps([result.entry() for result in results], allow_nan=False)


def test_a_part_that_fails_is_a_flag(monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("CUDA out of memory\nand a long story")

    monkeypatch.setattr(run, "new_learner", out_of_memory)
    *_, last = run.measure_all(TINY, CPU)
    assert "small_cnn/4, ours: not measured, RuntimeError: CUDA out of memory" in last.flags
    assert "small_cnn/4/generative/reference_ms" in last.values
    assert "small_cnn/4/generative/ours_ms" not in last.values


def test_ways_to_run_on_a_cpu(monkeypatch):
    def no_compiler(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", no_compiler)
    threads = torch.get_num_threads()
    rows, flags = variants.compare(Cell("small_cnn", 2, (1, 8, 8)), seconds=0.001)
    assert torch.get_num_threads() == threads
    assert len(rows) == len(variants.eager_variants(threads))
    assert [row["ms"] for row in rows] == sorted(row["ms"] for row in rows)
    assert flags == ["small_cnn/2: the plain step does not compile here (RuntimeError)"]


def test_presets():
    assert choose_preset("auto", "cuda").name == "default"
    assert choose_preset("auto", "cpu").name == "cpu"
    assert len(choose_preset("full", "cuda").cells) == 12
    with pytest.raises(InputError, match="--preset full is for a GPU"):
        choose_preset("full", "cpu")
    with pytest.raises(InputError, match="--preset must be one of auto, default, full, cpu, got 'quick'"):
        choose_preset("quick", "cpu")


def test_the_command(tmp_path, monkeypatch, capsys):
    one = dataclasses.replace(TINY, cells=TINY.cells[1:], variants=True)
    monkeypatch.setitem(cells.PRESETS, "cpu", one)
    monkeypatch.setattr(variants, "compare", lambda *_, **__: ([ROW], []))
    with pytest.raises(SystemExit) as stop:
        app.main(["bench", "--preset", "cpu", "--out", str(tmp_path / "bench")])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    assert "small_cnn  8      generative" in told
    assert "channels last" in told
    entry = json.loads((tmp_path / "bench" / "results.json").read_text())["bench"]
    assert entry.keys() == {"values", "intervals", "curves", "files", "flags", "conditions"}
    assert "small_cnn/8/generative/ratio" in entry["values"]


ROW = {"threads": 1, "channels_last": True, "bf16": False, "compiled": False, "ms": 1.5}


def test_a_complete_measurement_gives_way_only_to_another(tmp_path, monkeypatch):
    def interrupted(*_):
        yield Result({"a": 1.0}, {}, flags=["incomplete: 1 of 2 parts were not reached"])
        raise KeyboardInterrupt

    def kept():
        return json.loads((tmp_path / "results.json").read_text())["bench"]["values"]

    monkeypatch.setattr(record, "measure_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record.run_bench("cpu", tmp_path, "cpu")
    assert kept() == {"a": 1.0}  # better than nothing
    monkeypatch.setattr(record, "measure_all", lambda *_: iter([Result({"b": 2.0}, {})]))
    record.run_bench("cpu", tmp_path, "cpu")
    monkeypatch.setattr(record, "measure_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record.run_bench("cpu", tmp_path, "cpu")
    assert kept() == {"b": 2.0}


def test_the_command_refuses_the_current_folder(capsys):
    with pytest.raises(SystemExit) as stop:
        app.main(["bench", "--preset", "cpu", "--out", ""])
    assert stop.value.code == 2
    assert "--out must be a folder of its own" in capsys.readouterr().err


def test_the_command_refuses_what_it_does_not_know(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        app.main(["bench", "--preset", "quick", "--out", str(tmp_path / "bench")])
    assert stop.value.code == 2
    assert "--preset must be one of" in capsys.readouterr().err
    assert not (tmp_path / "bench").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_memory_is_told():
    *_, last = run.measure_all(TINY, pick_device("cuda"))
    assert last.values["small_cnn/8/generative/memory_gb"] > 0
    assert last.values["small_cnn/8/generative/reference_memory_gb"] > 0
    assert {"cuda", "cudnn"} <= last.conditions.keys()
