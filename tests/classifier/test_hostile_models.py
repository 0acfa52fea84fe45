"""Hostile model files whose hash fits: refused in one line, without writing files or taking memory."""

import dataclasses
import json
import os
import re
import shutil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import make_model, tiny_config, tiny_data
from gmmc import generate
from gmmc.base.tensorfile import pack, unpack
from gmmc.base.text import printable
from gmmc.cli import app
from gmmc.config import recipes
from gmmc.config.sections import EvaluateConfig, EvaluateOptions
from gmmc.errors import InputError
from gmmc.evaluations.attacks.target import Target
from gmmc.evaluations.buffer_images import read_buffer
from gmmc.fid import features
from gmmc.networks.backbones import build_backbone
from gmmc.runs import layout, metrics, model_file, restore
from gmmc.runs.folder import RunFolder
from gmmc.runs.layout import CONFIG, MODEL
from gmmc.runs.results import write_results
from gmmc.train.loop import train
from processes import python


@pytest.fixture(scope="module")
def content(run):
    """The tensors and the header of a finished run."""
    tensors, info, _ = unpack(run / MODEL)
    return tensors, info


def load(tmp_path, tensors, info):
    """Write a file whose hash fits, and load it."""
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(pack(tensors, info)[0])
    return model_file.load(path)


def refused(tmp_path, tensors, info) -> str:
    with pytest.raises(InputError) as caught:
        load(tmp_path, tensors, info)
    line = str(caught.value)
    assert "hostile.safetensors" in line
    assert printable(line) == line
    assert len(line) < 500
    return line


# --- networks that a recipe names ---


class Writer(torch.nn.Module):
    """A feature network that creates a file, as TorchScript can."""

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :4] + torch.from_file(self.path, True, 4, dtype=torch.float32)


@pytest.fixture
def writer(tmp_path):
    network = tmp_path / "features.pt"
    torch.jit.save(torch.jit.script(Writer(str(tmp_path / "written"))), network)
    return network


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_recipe_brings_no_network_of_its_own(run, content, writer, tmp_path, capsys):
    tensors, info = content
    recipe = info["config"].replace("[evaluate]", f'[evaluate]\nfeatures = "{writer}"')
    assert recipe != info["config"]
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / MODEL).write_bytes(pack(tensors, info | {"config": recipe})[0])
    (foreign / CONFIG).write_text(recipe)
    model = model_file.load(foreign)
    assert f"{foreign / MODEL}: evaluate.features=" in capsys.readouterr().err
    assert EvaluateOptions.of(model.cfg.evaluate).features == "auto"
    with pytest.raises(SystemExit) as stopped:
        app.main(["train", str(foreign / CONFIG), "train.fid_every=1", "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "evaluate.features" in capsys.readouterr().err
    assert not (tmp_path / "written").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_network_that_the_user_names_runs(writer, tmp_path):
    """So the test above would notice if a recipe's network ran."""
    features.find(str(writer), tiny_data(), torch.device("cpu"))
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize("key", ["features", "surrogate"])
def test_recipes_name_no_network_by_its_path(key):
    with pytest.raises(InputError, match=rf"evaluate\.{key}='some/file' .*--{key}"):
        tiny_config(evaluate={key: "some/file"})
    assert key not in {field.name for field in dataclasses.fields(EvaluateConfig)}
    assert getattr(EvaluateOptions(**{key: "some/file"}), key) == "some/file"


# --- memory ---


def test_a_network_is_built_without_memory_until_its_shapes_fit(tmp_path, content, monkeypatch):
    seen = []
    check = restore._check_tensors
    monkeypatch.setattr(restore, "_check_tensors", lambda *args: (seen.append(args[1]), check(*args))[1])
    tensors, info = content
    huge = info["config"].replace('backbone = "small_cnn"', 'backbone = "wrn-28-100"')
    assert "tensor" in refused(tmp_path, tensors, info | {"config": huge})
    assert all(tensor.is_meta for tensor in seen[0].values())
    assert sum(tensor.numel() for tensor in seen[0].values()) > 3e9


class Operations(TorchDispatchMode):
    """Counts operations on tensors."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_means_are_not_computed_to_compare_their_shape(tmp_path, content):
    """Algorithm 2 takes minutes for 100,000 classes."""
    tensors, info = content
    recipe = re.sub(r"(?m)^dim = \d+", "dim = 1000", info["config"])
    assert "dim = 1000" in recipe
    names = [str(i) for i in range(1000)]
    with Operations() as operations:
        assert "shape" in refused(tmp_path, tensors, info | {"config": recipe, "class_names": names})
    assert operations.count < 1000


@pytest.mark.parametrize("name", ["wrn-{}-1", "wrn-28-{}", "mlp-{}-1", "mlp-1-{}"])
@pytest.mark.parametrize("digits", [20, 3000, 5000])
def test_sizes_of_a_network_of_many_digits_are_refused(name, digits):
    recipe = tiny_config().model
    with pytest.raises(InputError, match=r"model\.backbone") as caught:
        build_backbone(dataclasses.replace(recipe, backbone=name.format("1" * digits)), (1, 8, 8))
    assert len(str(caught.value)) < 300


def test_loading_does_not_import_the_compiler(run, tmp_path):
    """torch imports it, for a second, to compute on the meta device."""
    code = (
        "import sys, gmmc; [gmmc.load(name) for name in sys.argv[1:]]; print('torch._dynamo' in sys.modules)"
    )
    cfg = tiny_config(
        model={"backbone": "smooth-10-1", "dim": 8},
        train={"algorithm": "denoising"},
        sampler={"name": "heun"},
        denoising={"gaussian": "fitted"},
        buffer={"start": "gaussian"},
    )
    train(cfg, tmp_path, tiny_data(), silent=True)
    assert python(code, run, "cifar10", tmp_path).stdout == "False\n"


LOAD = """
import sys
import gmmc
import gmmc.runs.folder
from gmmc.errors import InputError

def peak():  # not ru_maxrss, which a process inherits from the one that started it
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024

before = peak()
try:
    gmmc.load(sys.argv[1])
except InputError as error:
    print(error)
print(peak() - before)
"""


@pytest.mark.slow
def test_a_small_file_takes_little_memory(tmp_path, content):
    tensors, info = content
    recipe = info["config"].replace('backbone = "small_cnn"', 'backbone = "wrn-28-100"')
    (tmp_path / "huge").write_bytes(pack(tensors, info | {"config": recipe})[0])
    error, taken = python(LOAD, tmp_path / "huge").stdout.splitlines()
    assert "tensor" in error
    assert int(taken) < 500  # MiB


def test_a_file_larger_than_the_bound_is_not_read(tmp_path):
    path = tmp_path / "sparse.safetensors"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match=r"sparse.*limits\.MODEL_BYTES"):
        model_file.load(path)


def test_a_gaussian_start_of_long_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"buffer\.start=gaussian.*limits\.IMAGE_SIDE"):
        make_model(shape=(50_000, 1, 1), model={"backbone": "mlp-1-4"}, buffer={"start": "gaussian"})


# --- headers ---

WRONG = {
    "config": [None, 1, [], {}, "[", "model = 1", "[model]\nbackbone = 'wrn-28-9999999999999999999'"],
    "shape": [None, 3, "188", [], [1, 8], [1, 8, 8, 8], [1, 8, -8], [1, 8, 8.0], [True, 8, 8], [1, 8, "8"]],
    "class_names": [None, 3, "abc", {}, [], ["a", None], ["a", 1], ["a", ""], ["a", "a"], ["a", "\0"]],
    "trained": [None, 3, "abc", [], {"updates": "1"}, {"updates": 1.5}, {"updates": True}, {"commit": 3}],
    "density_gamma2": ["1", [], {}, True, float("nan"), float("inf")],
}
WRONG["shape"] += [[1, 10**9, 8], [10**9, 1, 1], [3, 8, 8], [1, 9, 8, 8]]
WRONG["class_names"] += [["a", "\ud800"], ["a", "\x1b[2J"], ["a", "b" * 10**6], ["a", "b", "c"], ["a", ["b"]]]
WRONG["trained"] += [
    {"seconds": float("nan")},
    {"seconds": "x"},
    {"seconds": -1e308},
    {"engine": "\x1b]0;"},
    {"start": 3},
    {"start": {"updates": "1"}},
]
WRONG["trained"] += [{"new": [[[[]]]]}, {"data_sha256": None}, {"parameters": -1}, {"new": "\ud800"}]


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in WRONG for value in WRONG[key]])
def test_a_header_of_wrong_types_is_refused(tmp_path, content, key, value):
    tensors, info = content
    assert refused(tmp_path, tensors, info | {key: value})


@pytest.mark.parametrize("key", ["config", "shape", "class_names", "trained"])
def test_a_header_that_lacks_a_key_is_refused(tmp_path, content, key):
    tensors, info = content
    assert key in refused(tmp_path, tensors, {k: v for k, v in info.items() if k != key})


@pytest.mark.parametrize("info", [None, [], "text", 3, float("inf")])
def test_a_header_that_is_no_object_is_refused(tmp_path, content, info):
    refused(tmp_path, content[0], info)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    max_leaves=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(["shape", "class_names", "trained", "gmmc", "density_gamma2"]), value=JSON)
def test_any_header_is_read_or_refused(tmp_path, content, key, value):
    """A change that no rule forbids must leave a model that answers."""
    tensors, info = content
    try:
        model = load(tmp_path, tensors, info | {key: value})
    except InputError:
        return
    json.dumps(model.trained, allow_nan=False).encode()
    assert model.predict(torch.zeros(1, *model.shape)).shape == (1,)


@pytest.mark.parametrize("depth", [2_000, 100_000])
def test_deep_brackets_in_a_header_are_damage(tmp_path, content, depth, monkeypatch):
    monkeypatch.setattr("gmmc.base.tensorfile.json.dumps", lambda value, **_: Nested.text(value, depth))
    with pytest.raises(InputError, match="hostile"):
        load(tmp_path, content[0], "nested")


class Nested:
    """JSON whose innermost document is nothing but brackets."""

    dumps = staticmethod(json.dumps)

    @classmethod
    def text(cls, value, depth: int) -> str:
        return "[" * depth + "]" * depth if value == "nested" else cls.dumps(value)


# --- tensors ---


def changed(tensors, name, change):
    return tensors | {name: change(tensors[name].clone())}


def first_is(value):
    def change(tensor):
        tensor.view(-1)[0] = value
        return tensor

    return change


WEIGHT = "backbone.0.weight"
CHANGES = {
    "a weight that is not a number": (WEIGHT, first_is(float("nan"))),
    "an infinite weight": (WEIGHT, first_is(float("inf"))),
    "an infinite mean": ("head.means", first_is(float("-inf"))),
    "no temperature": ("head.gamma2", torch.zeros_like),
    "a negative prior": ("head.priors", first_is(-1.0)),
    "priors of nothing": ("head.priors", torch.zeros_like),
    "whole numbers": (WEIGHT, lambda tensor: tensor.long()),
    "another shape": (WEIGHT, lambda tensor: tensor[:1]),
    "a score that is not a number": ("reference.log_density", first_is(float("nan"))),
    "scores in another order": ("reference.log_density", lambda tensor: tensor.flip(0)),
    "no scores": ("reference.log_density", lambda tensor: tensor[:0]),
    "a table of scores": ("reference.log_density", lambda tensor: tensor[None]),
    "a fitted temperature of zero": ("reference.gamma2", torch.zeros_like),
    "two fitted temperatures": ("reference.gamma2", lambda tensor: tensor.repeat(2)),
    "neighbours of another width": ("neighbours.features", lambda tensor: tensor[:, :3]),
    "neighbours that are not numbers": ("neighbours.features", first_is(float("nan"))),
    "no neighbours": ("neighbours.features", lambda tensor: tensor[:0]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_tensors_that_do_not_fit_are_refused(tmp_path, content, kind):
    tensors, info = content
    name, change = CHANGES[kind]
    line = refused(tmp_path, changed(tensors, name, change), info)
    assert name in line or name.split(".")[0] in line


@pytest.mark.parametrize("name", ["reference.unheard_of", "extra", "head.extra"])
def test_tensors_without_a_place_are_refused(tmp_path, content, name):
    tensors, info = content
    assert name in refused(tmp_path, tensors | {name: torch.zeros(3)}, info)


@pytest.mark.parametrize("name", [WEIGHT, "head.means", "head.gamma2", "reference.gamma2"])
def test_a_missing_tensor_is_named(tmp_path, content, name):
    tensors, info = content
    assert name in refused(tmp_path, {k: v for k, v in tensors.items() if k != name}, info)


def without_reference(tensors):
    return {k: v for k, v in tensors.items() if not k.startswith(("reference.", "neighbours."))}


def huge_weights(tensors):
    return {k: torch.full_like(v, 1e38) if k.startswith("backbone.") else v for k, v in tensors.items()}


# How to change the tensors of a model, options of predict, and what the error names.
NOT_FINITE = {
    "NaN": (lambda t: changed(t, WEIGHT, first_is(float("nan"))), [], WEIGHT),
    "overflow": (huge_weights, [], "not finite"),
    "overflow, uncalibrated": (lambda t: huge_weights(without_reference(t)), [], "not finite"),
    "γ²": (lambda t: without_reference(t) | {"head.gamma2": torch.tensor(1e-45)}, [], "not finite"),
    "fitted γ²": (
        lambda t: t | {"reference.gamma2": torch.tensor(1e-320, dtype=torch.float64)},
        [],
        "not finite",
    ),
    "neighbours": (
        lambda t: t | {"neighbours.features": torch.full_like(t["neighbours.features"].double(), 1e308)},
        ["--score", "neighbours"],
        "not finite",
    ),
}


@pytest.mark.parametrize("kind", NOT_FINITE)
def test_predict_prints_no_number_that_is_not_finite(content, tmp_path, capsys, kind):
    tensors, info = content
    change, options, reason = NOT_FINITE[kind]
    (tmp_path / MODEL).write_bytes(pack(change(tensors), info)[0])
    Image.new("L", (8, 8), 100).save(tmp_path / "grey.png")
    with pytest.raises(SystemExit) as stopped:
        app.main(["predict", str(tmp_path), str(tmp_path / "grey.png"), *options])
    shown = capsys.readouterr()
    assert (stopped.value.code, shown.out) == (2, "")
    assert reason in shown.err


def test_no_images_are_drawn_from_numbers_that_are_not_finite(tmp_path, content):
    tensors, info = content
    model = load(tmp_path, huge_weights(tensors), info)
    with pytest.raises(InputError, match="not finite"):
        model.sample(2, steps=2)
    with pytest.raises(InputError, match="not finite"):
        model.log_density(torch.zeros(1, 1, 8, 8))


@pytest.mark.parametrize("out", ["a/b", "a/b.npz", "a/b.parquet"])
def test_a_refused_drawing_leaves_no_folder(tmp_path, content, capsys, out):
    tensors, info = content
    (tmp_path / MODEL).write_bytes(pack(huge_weights(tensors), info)[0])
    with pytest.raises(SystemExit) as stopped:
        app.main(["sample", str(tmp_path), "-n", "2", "--steps", "2", "--out", str(tmp_path / out)])
    assert stopped.value.code == 2
    assert "not finite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [MODEL]


@pytest.mark.parametrize("name", ["robustness", "autoattack"])
def test_attacks_refuse_a_model_whose_answers_are_not_finite(tmp_path, content, capsys, name):
    """Each image would count as broken."""
    tensors, info = content
    (tmp_path / MODEL).write_bytes(pack(huge_weights(tensors), info)[0])
    with pytest.raises(SystemExit) as stopped:
        app.main(["evaluate", str(tmp_path), name, "--attacked", "4"])
    shown = capsys.readouterr()
    assert (stopped.value.code, shown.out) == (2, "")
    assert "not finite" in shown.err
    assert shown.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [MODEL]


def test_an_attacked_model_may_have_a_class_whose_prior_is_zero():
    target = Target(make_model())
    images = torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        target.module.head.priors.copy_(torch.tensor([0.5, 0.5, 0.0]))
        labels = target(images).argmax(1)
    assert target(images)[:, 2].isinf().all()
    assert target.names(images, labels).all()


def test_a_class_whose_prior_is_zero_is_no_fault(tmp_path, content):
    tensors, info = content
    priors = torch.zeros(10)
    priors[:5] = 0.2
    posterior = load(tmp_path, tensors | {"head.priors": priors}, info).predict_proba(torch.zeros(1, 1, 8, 8))
    assert posterior.sum().item() == pytest.approx(1)
    assert not posterior[:, 5:].any()


def test_what_is_left_as_it_was_loads_bit_for_bit(tmp_path, content, run):
    model, again = model_file.load(run), load(tmp_path, *content)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert recipes.to_toml(model.cfg) == recipes.to_toml(again.cfg)


# --- other files of a run folder ---


@pytest.fixture
def foreign(run, tmp_path):
    """A copy of a run whose states a test may forge."""
    return shutil.copytree(run, tmp_path / "foreign")


def forge(folder, change):
    """Change the content of the newest state, under a name that its hash fits."""
    newest = RunFolder(folder)._state_files(0)[0]
    tensors, info, _ = unpack(newest)
    tensors, info = change(tensors, info)
    forged, digest = pack(tensors, info)
    for path in (folder / "resume").iterdir():
        path.unlink()
    (folder / "resume" / f"{newest.name[:14]}-rank-0-{digest[:16]}.safetensors").write_bytes(forged)


HEADERS = [None, [], {}, {"step": "30"}, {"step": 1.5}, {"step": 30, "processes": "1"}]
HEADERS += [{"step": 30, "processes": 1, "threads": 10**9}, {"step": 30, "processes": 10**12}]


@pytest.mark.parametrize("info", HEADERS)
def test_a_state_with_a_forged_header_is_damaged(foreign, info):
    forge(foreign, lambda tensors, _: (tensors, info))
    with pytest.raises(InputError, match="resume"):
        RunFolder(foreign).load_state()


@pytest.mark.parametrize("key", ["pace", "trouble_at", "seconds", "rollbacks", "capped", "threads"])
def test_a_state_that_lacks_a_fact_does_not_end_in_a_traceback(foreign, key):
    forge(foreign, lambda tensors, info: (tensors, {k: v for k, v in info.items() if k != key}))
    (foreign / MODEL).unlink()
    cfg = recipes.from_dict(recipes.read_toml(foreign / CONFIG))
    with pytest.raises(InputError, match="resume"):
        train(cfg, foreign)


def broken_buffers():
    yield lambda buffer: {}
    yield lambda buffer: buffer | {"buffer.images": torch.full_like(buffer["buffer.images"], float("nan"))}
    yield lambda buffer: buffer | {"buffer.labels": buffer["buffer.labels"] + 1000}
    yield lambda buffer: buffer | {"buffer.visits": buffer["buffer.visits"][:3]}
    yield lambda buffer: {"buffer.images": buffer["buffer.images"]}


@pytest.mark.parametrize("change", list(broken_buffers()))
def test_a_forged_buffer_is_refused(foreign, change):
    def without_or_with(tensors, info):
        buffer = {name: tensor for name, tensor in tensors.items() if name.startswith("buffer.")}
        rest = {name: tensor for name, tensor in tensors.items() if name not in buffer}
        return rest | change(buffer), info

    forge(foreign, without_or_with)
    with pytest.raises(InputError, match=r"buffer|labels"):
        read_buffer(RunFolder(foreign), model_file.load(foreign))


FORGED = [{}, {"images": torch.zeros(2, 1, 8, 8)}, {"images": torch.zeros(2, 9, 9, 9, dtype=torch.uint8)}]
FORGED += [{"images": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, {"labels": torch.zeros(2)}]


@pytest.mark.parametrize("tensors", FORGED)
def test_forged_parts_of_a_drawing_are_drawn_again(tmp_path, model, tensors):
    made_by = generate.parts.fingerprint(model)
    labels = torch.tensor([0, 1])
    (tmp_path / "part-000000000.safetensors").write_bytes(
        pack({"labels": labels} | tensors, {"made_by": made_by, "seed": 0})[0]
    )
    found = generate.drawn(model, labels, folder=tmp_path)
    assert torch.equal(found, generate.drawn(model, labels))


@pytest.mark.parametrize("name", [layout.LOCK, layout.RESULTS_LOCK])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_is_a_regular_file(foreign, tmp_path, name, kind):
    (foreign / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(foreign / name)
    else:
        (foreign / name).symlink_to(tmp_path / "elsewhere")
    assert not layout.is_training(foreign)
    cfg = recipes.from_dict(recipes.read_toml(foreign / CONFIG))
    use = {
        layout.LOCK: lambda: RunFolder(foreign).opened_for(cfg).__enter__(),
        layout.RESULTS_LOCK: lambda: write_results(foreign, {"accuracy": {"values": {}}}),
    }
    with pytest.raises((InputError, OSError)):
        use[name]()
    assert not (tmp_path / "elsewhere").exists()


def test_metrics_larger_than_the_bound_are_not_read(foreign):
    os.truncate(foreign / layout.METRICS, 2**40)
    with pytest.raises(InputError, match=r"limits\.METRICS_BYTES"):
        metrics.read_metrics(foreign)


@pytest.mark.parametrize("name", [WEIGHT, "reference.log_density", "reference.gamma2", "neighbours.features"])
def test_kinds_of_numbers_that_torch_hardly_knows_are_refused(tmp_path, content, name):
    tensors, info = content
    line = refused(tmp_path, changed(tensors, name, lambda tensor: tensor.to(torch.float8_e4m3fn)), info)
    assert name in line


def test_a_reference_may_lack_a_score(tmp_path, content):
    tensors, info = content
    fewer = {name: tensor for name, tensor in tensors.items() if name != "reference.span_density"}
    assert load(tmp_path, fewer, info).abstains_by == "log_density"


@pytest.mark.parametrize("pace", [{}, {"lr": 1.0, "beta": 1.0}, {"lr": 1, "beta": 1, "alpha": {}}])
def test_a_state_with_a_forged_pace_does_not_end_in_a_traceback(foreign, pace):
    forge(foreign, lambda tensors, info: (tensors, info | {"pace": pace}))
    (foreign / MODEL).unlink()
    with pytest.raises(InputError, match="resume"):
        train(recipes.from_dict(recipes.read_toml(foreign / CONFIG)), foreign)


@pytest.mark.parametrize("key", ["data", "device"])
def test_a_state_without_its_data_or_device(foreign, key):
    forge(foreign, lambda tensors, info: (tensors, {k: v for k, v in info.items() if k != key}))
    (foreign / MODEL).unlink()
    cfg = recipes.from_dict(recipes.read_toml(foreign / CONFIG))
    if key == "device":
        assert train(cfg, foreign).trained["updates"] > 0
        return
    with pytest.raises(InputError, match="data"):
        train(cfg, foreign)


ODD_RESULTS = [
    {"ood": []},
    {"ood": {"values": {}, "conditions": []}},
    {"ood": {"values": {"x": float("inf")}}},
]


@pytest.mark.parametrize("results", [*ODD_RESULTS, {"ood": {"values": {}, "conditions": {"outside": [[]]}}}])
def test_odd_results_do_not_end_in_a_traceback(foreign, results, capsys):
    (foreign / layout.RESULTS).write_text(json.dumps(results))
    with pytest.raises(SystemExit) as stopped:
        app.main(["evaluate", str(foreign), "accuracy"])
    assert stopped.value.code in (0, 2)


def test_a_home_of_nobody_is_a_path_like_others(foreign, capsys):
    with pytest.raises(SystemExit) as stopped:
        app.main(["evaluate", str(foreign), "ood", "--ood", "~nobody-at-all/photos"])
    assert stopped.value.code == 2
    assert "~nobody-at-all" in capsys.readouterr().err
