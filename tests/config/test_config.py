import re
import tomllib
from pathlib import Path

import pytest

from conftest import tiny_config
from gmmc.config import recipes
from gmmc.config.schema import Config
from gmmc.config.sections import DataConfig, TrainConfig
from gmmc.data import sources
from gmmc.errors import InputError
from gmmc.train.schedule import Plan

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_survives_the_round_trip(path):
    cfg = recipes.load(path)
    assert recipes.from_text(recipes.to_toml(cfg)) == cfg


@pytest.mark.parametrize("path", [p for p in RECIPES if "gen-paper" in p.stem], ids=lambda path: path.stem)
def test_the_paper_s_values_are_kept(path):
    """Table 8 and Appendix B."""
    cfg = recipes.load(path)
    assert cfg.model.scale == 10
    assert cfg.train.beta == 0.5
    assert cfg.sampler.alpha * cfg.train.batch_size == 1.0  # α = 1 on the mean energy of a batch
    assert (cfg.sampler.steps, cfg.buffer.size, cfg.buffer.reinit) == (20, 100_000, 0.025)
    assert (cfg.discriminative.epochs, cfg.generative.epochs) == (0, 150)
    assert cfg.generative.lr == 1e-4
    late = "cifar100" in path.stem
    assert cfg.generative.decay_epochs == ((120, 140) if late else (30, 50, 80))


def test_the_other_recipes_of_the_paper():
    dis, joint = recipes.load("cifar10-dis-paper"), recipes.load("cifar10-joint-paper")
    assert (dis.discriminative.epochs, dis.generative.epochs, dis.train.beta) == (150, 0, 0.0)
    assert (joint.discriminative.epochs, joint.generative.epochs, joint.train.beta) == (50, 50, 0.5)
    assert joint.train.ramp == 0  # switched
    plan = Plan(joint, steps_per_epoch=1)
    rates = [plan.at(epoch).lr for epoch in (0, 29, 30, 49, 50, 79, 80, 99)]
    assert rates == pytest.approx([1e-4, 1e-4, 3e-5, 3e-5, 9e-6, 9e-6, 2.7e-6, 2.7e-6])


def test_overrides_reach_every_kind_of_value():
    cfg = recipes.load(
        "digits",
        [
            "train.beta=0",
            "model.backbone=wrn-28-10",
            'sampler.name="noise_injected"',
            "generative.schedule=step",
            "generative.decay_epochs=[3, 5]",
            "generative.flip=true",
            "generative.lr = 1e-5",
        ],
    )
    assert cfg.train.beta == 0.0
    assert isinstance(cfg.train.beta, float)
    assert cfg.model.backbone == "wrn-28-10"
    assert cfg.sampler.name == "noise_injected"
    assert cfg.generative.decay_epochs == (3, 5)
    assert cfg.generative.flip is True
    assert cfg.generative.lr == 1e-5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.betta=1", r"unknown key 'betta' in \[train\]; did you mean 'beta'\?"),
        ("trian.beta=1", r"unknown section \[trian\]; did you mean 'train'\?"),
        ("train.qqqq=1", r"unknown key 'qqqq' in \[train\]; known are algorithm, batch_size, beta"),
        ("train.batch_size=2.5", "train.batch_size must be a whole number, got 2.5"),
        ("train.batch_size=true", "train.batch_size must be a whole number, got True"),
        ("train.batch_size=0", "train.batch_size must be at least 1, got 0"),
        ("train.beta=.5", "train.beta must be a number, got '.5'"),
        ("train.beta=nan", "train.beta must be finite, got nan"),
        ("generative.lr=inf", "generative.lr must be finite, got inf"),
        ("generative.lr=0", "generative.lr must be above 0, got 0"),
        ("generative.flip=1", "generative.flip must be true or false, got 1"),
        ("generative.decay_epochs=3", "generative.decay_epochs must be a list, got 3"),
        ("generative.decay_epochs=[0]", "generative.decay_epochs must be at least 1, got 0"),
        ("generative.decay_epochs=[9]", "must be empty with a cosine schedule"),
        ("train.beta=" + "9" * 400, "train.beta must be finite, got inf"),
        (
            "sampler.name=hmc",
            "sampler.name must be one of staged, noise_injected, sgld, sgld_jem, heun, got 'hmc'",
        ),
        ("data.valid=1", "data.valid must be at most 0.9, got 1"),
        ("data.name=3", "data.name must be a string, got 3"),
        ("train.batch_size=1" + "0" * 400, "train.batch_size must be at most 1e\\+06, got 1000"),
        ("train.batch_size=0x" + "f" * 5000, "train.batch_size must be at most .* 20000 bits"),
        ("train.ramp=1" + "0" * 400, "train.ramp must be at most .*, got 1000"),
        ("train.seed=" + "[" * 2000, r"train.seed must be a whole number, got '\[\["),
        ("train.seed=" + "[" * 100_000, r"train.seed must be a whole number, got '\[\["),
        ("train.seed=" + "[" * 20 + "]" * 20, r"train.seed must be a whole number, got \[\["),
        ("train.seed=" + ".".join("a" * 100_000), "train.seed must be a whole number, got 'a.a"),
        ("train.seed='" + "x" * 100_000 + "'", "train.seed must be a whole number, got 'xxx"),
        ("sampler.name=" + "x" * 100_000, "sampler.name must be one of .*, got 'xxx"),
        ("generative.decay_epochs=" + "x" * 100_000, "generative.decay_epochs must be a list, got 'xxx"),
        ("x" * 100_000, "section.key=value, got 'xxx"),
        ("x" * 100_000 + "=1", "section.key=value, got the key 'xxx"),
        ("x" * 100_000 + ".y=1", r"unknown section \[xxx"),
        ("train." + "x" * 100_000 + "=1", "unknown key 'xxx"),
        ("train.\x1b[2J=1", r"unknown key '\\x1b\[2J'"),
        ("\x1b[2J.a=1", r"unknown section \[\\x1b\[2J\]"),
        ("beta=1", "an override must look like section.key=value, got the key 'beta'"),
        ("train.beta", "an override must look like section.key=value"),
        ("buffer.size=10", "buffer.size must be at least the chains of an update, 64, got buffer.size=10"),
        ("buffer.chains=65", "buffer.chains must be at most train.batch_size=64, got buffer.chains=65"),
    ],
)
def test_bad_values_are_refused_in_one_line(override, message):
    with pytest.raises(InputError, match=message) as caught:
        recipes.load("digits", [override])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_run_that_never_samples_asks_nothing_of_the_buffer():
    assert recipes.load("digits", ["train.beta=0", "buffer.size=10"]).buffer.size == 10


def test_values_given_in_python_are_checked_too():
    with pytest.raises(InputError, match="batch_size must be at least 1, got -1"):
        TrainConfig(batch_size=-1)


def test_a_recipe_without_epochs_is_refused():
    with pytest.raises(InputError, match="at least 1, got 0"):
        Config()


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match=r"no recipe file 'nowhere'.*digits"):
        recipes.load("nowhere")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train\n")
    with pytest.raises(InputError, match="not valid TOML"):
        recipes.load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not valid TOML"):
        recipes.load(bad)
    bad.write_text("train = 3\n[generative]\nepochs = 1\n")
    with pytest.raises(InputError, match=r"\[train\] must be a table, got 3"):
        recipes.load(bad, ["train.beta=1"])
    for depth in (2000, 100_000):
        bad.write_text("a = " + "[" * depth + "]" * depth)
        with pytest.raises(InputError, match="not valid TOML"):
            recipes.load(bad)
    bad.write_text("train = [" + "1, " * 100_000 + "]")
    with pytest.raises(InputError, match=r"\[train\] must be a table, got \[1, ") as caught:
        recipes.load(bad)
    assert len(str(caught.value)) < 500
    bad.unlink()
    bad.mkdir()
    with pytest.raises(InputError, match="regular file"):
        recipes.read_toml(bad)


def test_differences_name_the_keys_and_both_values():
    old, new = recipes.load("digits"), recipes.load("digits", ["train.beta=0.25", "model.backbone=wrn-10-1"])
    assert recipes.differences(old, old) == []
    assert recipes.differences(old, new) == [
        'model.backbone: "small_cnn", now "wrn-10-1"',
        "train.beta: 0.75, now 0.25",
    ]
    long = recipes.load("digits", ["data.name=" + "x" * 100_000])
    assert all(len(line) < 300 for line in recipes.differences(old, long))


@pytest.mark.parametrize("name", ["\x7f", "\0", "\x1b[2J", "a\nb", "\u2028", '"', "\\", "😀"])
def test_any_text_survives_the_round_trip(name):
    cfg = tiny_config(data={"name": name})
    assert recipes.from_text(recipes.to_toml(cfg)) == cfg


def test_text_that_a_file_cannot_hold_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"data\.name must be text in UTF-8, got 'photos\\udcff'"):
        tiny_config(data={"name": "photos\udcff"})
    (tmp_path / "\udcff" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "\udcff")
    with pytest.raises(InputError, match=r"data\.name must be text in UTF-8"):
        sources.located(DataConfig(name="photos"))


def test_what_is_written_is_plain_toml():
    text = recipes.to_toml(recipes.load("digits", ['data.name="a \\"b\\" c"']))
    assert tomllib.loads(text)["data"]["name"] == 'a "b" c'


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["objective.name=split"], "objective.name must be one of gmmc, balanced, got 'split'"),
        (["model.norm=batch_then_frozen", "discriminative.epochs=0"], "needs discriminative.epochs"),
        (["train.ema=1"], "train.ema must be at most 0.999999, got 1"),
    ],
)
def test_values_that_contradict_each_other_are_refused(overrides, message):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        recipes.load("digits", overrides)
    assert "\n" not in str(caught.value)


def test_keys_of_place_make_no_other_run():
    here = recipes.load("digits")
    there = recipes.load("digits", ["train.devices=4", "train.device=cuda", "train.precision=bf16"])
    assert recipes.differences(here, there) == []
    assert recipes.differences(here, recipes.load("digits", ["train.seed=5"])) != []
