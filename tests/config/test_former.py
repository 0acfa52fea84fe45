"""Recipes with keys of earlier versions: those of stored runs, and those that users write."""

import dataclasses
import json
import shutil
import tomllib
from pathlib import Path

import pytest

from conftest import interrupted_at, make_model, tiny_config, tiny_data
from gmmc.classifier.model import Classifier
from gmmc.config import former, recipes
from gmmc.config.schema import Config
from gmmc.errors import InputError
from gmmc.evaluations import latent
from gmmc.runs import model_file
from gmmc.runs.folder import RunFolder
from gmmc.runs.layout import CONFIG
from gmmc.train import buffer_fid, initialize, rollback, schedule
from gmmc.train.loop import train

SHIPPED = Path(__file__).parents[2] / "src" / "gmmc" / "shipped"
# Every key where it matters: phases with epochs, shifts and decays.
PHASE = {"epochs": 2, "shift": 1, "decay_epochs": [1]}
WHOLE = {
    "objective": {"name": "balanced"},
    "discriminative": PHASE,
    "generative": PHASE,
    "contrast": {"shift": 1},
    "transfer": {"frozen_epochs": 1, "epochs": 1},
}
OTHERS = {
    "model.activation": "leaky_relu",
    "train.fid_images": 500,
    "guard.slower": 0.7,
    "discriminative.fill": "edge",
    "discriminative.optimizer": "sgd",
    "discriminative.decay": 0.1,
    "generative.fill": "black",
    "generative.optimizer": "sgd",
    "generative.decay": 1.0,
    "contrast.fill": "edge",
    **{f"{section}.optimizer": "sgd" for section in ("frozen", "finetune")},
    **{f"{section}.schedule": "step" for section in ("frozen", "finetune")},
    **{f"{section}.weight_decay": 0.1 for section in ("frozen", "finetune")},
    **{f"{section}.warmup": 7 for section in ("frozen", "finetune")},
    **{f"{section}.shift": 3 for section in ("frozen", "finetune")},
    **{f"{section}.flip": True for section in ("frozen", "finetune")},
    **{f"{section}.cutout": 3 for section in ("frozen", "finetune")},
    **{f"{section}.noise": 0.3 for section in ("frozen", "finetune")},
    "finetune.fill": "edge",
    "evaluate.seed": 3,
    "evaluate.latent": 12,
    "evaluate.attacks": "full",
    "evaluate.attacked": 9,
    "evaluate.surrogate": "runs/other",
    "evaluate.features": "small",
}
# Keys that others make meaningless: Adam has no momentum, a cosine no decay.
MEANINGLESS = {
    "discriminative.momentum": 0.5,
    "generative.momentum": 0.5,
    "frozen.fill": "edge",
    **{f"{section}.momentum": 0.5 for section in ("frozen", "finetune")},
    **{f"{section}.decay": 0.1 for section in ("frozen", "finetune")},
    **{f"{section}.decay_epochs": [1] for section in ("frozen", "finetune")},
}


def tree_with(key: str = "", value: object = None, **sections) -> dict:
    """Tables of the whole recipe of this version, and a key of an earlier one."""
    tree = json.loads(json.dumps(dataclasses.asdict(tiny_config(**(sections or WHOLE)))))
    if key:
        section, name = key.split(".")
        tree.setdefault(section, {})[name] = value
    return tree


def old_form(cfg: Config) -> str:
    """The config.toml that the version before wrote of a recipe."""
    tree = dataclasses.asdict(cfg)
    transfer = tree.pop("transfer")
    for section in ("discriminative", "generative", "contrast", "denoising"):
        del tree[section]["colour"]
    phase = {"optimizer": "adam", "momentum": 0.9, "decay": 0.3, "fill": "reflect"}
    plain = {"shift": 0, "flip": False, "cutout": 0, "noise": 0.0, "weight_decay": 0.0, "warmup": 0}
    plain |= {"schedule": "step", "decay_epochs": [], "epochs": 0, "lr": 1e-4, **phase}
    tree |= {"frozen": plain, "finetune": plain}
    if cfg.has_transfer:
        frozen = {"epochs": transfer["frozen_epochs"], "lr": transfer["frozen_lr"], "warmup": 50}
        flip = tree["discriminative"]["flip"]
        tree["frozen"] = plain | frozen | {"schedule": "cosine", "flip": flip}
        tree["finetune"] = tree["discriminative"] | phase
    tree["discriminative"] |= phase
    tree["generative"] |= phase
    tree["contrast"]["fill"] = "reflect"
    tree["model"]["activation"] = "default"
    tree["train"]["fid_images"] = 10_000
    tree["guard"]["slower"] = 0.5
    tree["evaluate"] |= {"seed": 0, "latent": 2000, "attacks": "quick", "attacked": 0}
    tree["evaluate"] |= {"surrogate": "", "features": "auto"}
    lines = []
    for section, table in tree.items():
        lines += [f"[{section}]", *(f"{key} = {recipes._toml_value(value)}" for key, value in table.items())]
    return "\n".join(lines)


def test_every_removed_key_is_tried():
    assert OTHERS.keys() | MEANINGLESS.keys() == former.REMOVED.keys()
    assert not OTHERS.keys() & MEANINGLESS.keys()
    today = {f"{name}.{key}" for name, table in tree_with().items() for key in table}
    assert not today & (former.REMOVED.keys() | former.RENAMED.keys())
    assert set(former.RENAMED.values()) <= today


def test_built_in_values_are_those_of_the_code():
    values = {key: removed.built_in({}) for key, removed in former.REMOVED.items()}
    assert values["guard.slower"] == rollback.SLOWER
    assert values["train.fid_images"] == buffer_fid.IMAGES
    assert values["generative.decay"] == values["discriminative.decay"] == schedule.DECAY
    assert values["frozen.warmup"] == schedule.FROZEN_WARMUP
    assert values["evaluate.latent"] == latent.IMAGES
    assert values["evaluate.features"] == buffer_fid.FEATURES


# --- stored recipes -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", former.REMOVED)
def test_a_stored_key_with_the_built_in_value_is_dropped_silently(key, capsys):
    tree = tree_with()
    old = tree_with(key, former.REMOVED[key].built_in(tree))
    assert recipes.stored(old) == (recipes.from_dict(tree), [])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("key", OTHERS)
def test_a_stored_key_with_another_value_is_named(key, capsys):
    old = tree_with(key, OTHERS[key])
    if former.REMOVED[key].stored == "refused":
        with pytest.raises(InputError) as refusal:
            recipes.stored(old)
        line = str(refusal.value)
        assert str(former.REMOVED[key].built_in(tree_with())) in line
    else:
        cfg, notes = recipes.stored(old)
        assert cfg == recipes.from_dict(tree_with())
        if key == "train.fid_images":  # of models that ship, too
            assert notes == []
            return
        (line,) = notes
    assert f"{key}={OTHERS[key]!r}" in line
    assert "\n" not in line
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("key", MEANINGLESS)
def test_a_stored_key_that_meant_nothing_is_dropped(key):
    assert recipes.stored(tree_with(key, MEANINGLESS[key])) == (recipes.from_dict(tree_with()), [])


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("generative.optimizer", {"generative": {"epochs": 0}}),
        ("generative.fill", {"generative": {"epochs": 0, "shift": 1}}),
        ("generative.fill", {}),  # no shift brings anything in
        ("generative.decay", {"generative": {"epochs": 0, "decay_epochs": [1]}}),
        ("generative.decay", {"generative": {"schedule": "cosine"}}),
        ("generative.decay", {}),
        ("contrast.fill", {"objective": {"name": "balanced"}}),
        ("frozen.warmup", {"transfer": {"epochs": 2}}),
        ("finetune.schedule", {"transfer": {"frozen_epochs": 2}}),
        ("finetune.shift", {}),
    ],
)
def test_a_stored_key_of_a_phase_that_does_not_use_it_is_dropped(key, sections):
    sections = sections or {"train": {"seed": 0}}
    assert recipes.stored(tree_with(key, OTHERS[key], **sections)) == (tiny_config(**sections), [])


def test_an_activation_that_is_the_backbone_s_own_is_dropped():
    for backbone, own in (("small_cnn", "silu"), ("wrn-10-1", "leaky_relu"), ("mlp-2-8", "leaky_relu")):
        tree = tree_with("model.activation", own, model={"backbone": backbone})
        assert recipes.stored(tree) == (tiny_config(model={"backbone": backbone}), [])


def test_an_objective_that_is_gone_is_named():
    with pytest.raises(InputError, match=r"objective\.name .*gmmc.*balanced.*'split'"):
        recipes.stored(tree_with("objective.name", "split"))


@pytest.mark.parametrize("file", sorted(SHIPPED.glob(f"*/{CONFIG}")), ids=lambda file: file.parent.name)
def test_shipped_recipes_load_silently(file, capsys):
    assert recipes.stored(recipes.read_toml(file))[1] == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"generative": {"epochs": 0}},
        WHOLE,
        {"transfer": {"frozen_epochs": 2}},
        {"transfer": {"epochs": 2}},
    ],
)
def test_a_run_of_the_version_before_has_the_same_recipe(sections, capsys):
    cfg = tiny_config(**sections)
    trained = initialize.transferred(cfg, cfg.model)
    assert recipes.stored(tomllib.loads(old_form(trained))) == (trained, [])
    assert capsys.readouterr() == ("", "")


def test_the_last_layer_alone_keeps_its_mirror_images():
    """The version before stored no [finetune] then, and so a [discriminative] without flip."""
    tree = tree_with(generative={"epochs": 0}, discriminative={"epochs": 0}, transfer={"epochs": 1})
    del tree["transfer"]
    tree["frozen"] = {"epochs": 3, "lr": 0.1, "schedule": "cosine", "warmup": 50, "flip": True}
    cfg, notes = recipes.stored(tree)
    assert (cfg.transfer.frozen_epochs, cfg.transfer.frozen_lr, cfg.discriminative.flip) == (3, 0.1, True)
    assert notes == []


@pytest.mark.parametrize("section", ["frozen", "finetune"])
@pytest.mark.parametrize("missing", ["schedule", "warmup"])
def test_a_section_of_the_version_before_has_its_defaults(section, missing):
    whole = {"epochs": 2, "schedule": "cosine", "warmup": 50 if section == "frozen" else 0, "shift": 0}
    tree = tree_with(discriminative={"shift": 0})
    del tree["transfer"]
    tree[section] = {key: value for key, value in whole.items() if key != missing}
    if (section, missing) == ("finetune", "warmup"):
        assert recipes.stored(tree)[0].transfer.epochs == 2
        return
    with pytest.raises(InputError, match=rf"{section}\.{missing}="):
        recipes.stored(tree)


@pytest.mark.parametrize(
    ("section", "table"),
    [
        ("frozen", 3),
        ("frozen", {"speed": 1}),
        ("finetune", {"epochs": "many"}),
        ("frozen", {"epochs": -1}),
        ("frozen", {"epochs": [[]], "flip": {"a": []}}),
        ("generative", 3),
        ("generative", {"epochs": "x", "decay": "y", "shift": {}, "fill": 3}),
        ("transfer", 3),
        ("guard", {"slower": float("nan")}),
        ("model", {"activation": {}}),
    ],
)
def test_nonsense_is_refused_in_one_line(section, table):
    for read in (recipes.stored, recipes.from_dict):
        with pytest.raises(InputError) as refusal:
            read(tree_with() | {"frozen": {"lr": 0.1}, section: table})
        assert "\n" not in str(refusal.value)


def test_a_run_of_the_version_before_is_resumed(tmp_path, capsys):
    """A transfer, interrupted in its first phase and its second."""
    start, data = tmp_path / "start.safetensors", tiny_data(classes=4)
    model_file.save_model(start, make_model())
    sections = {
        "train": {"start": str(start), "beta": 0.0, "checkpoint_seconds": 0.0},
        "transfer": {"frozen_epochs": 2, "frozen_lr": 1e-2, "epochs": 2, "lr": 1e-3},
        "discriminative": {"epochs": 7, "flip": True},
        "generative": {"epochs": 0},
        "guard": {"every": 1},
    }
    cfg = tiny_config(**sections)
    whole = train(cfg, tmp_path / "whole", data)
    for step in (3, 11):
        with interrupted_at(step):
            train(cfg, tmp_path / "cut", data)
        stored = RunFolder(tmp_path / "cut").recipe()
        (tmp_path / "cut" / CONFIG).write_text(old_form(stored))
        assert "[transfer]" not in (tmp_path / "cut" / CONFIG).read_text()
        assert RunFolder(tmp_path / "cut").recipe() == stored
        capsys.readouterr()
        resumed = train(cfg, tmp_path / "cut", data)
        assert "deprecated" not in capsys.readouterr().err
        assert_same(resumed, whole)
        shutil.rmtree(tmp_path / "cut")


def assert_same(first: Classifier, second: Classifier) -> None:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(a.equal(b) for a, b in pairs)


def test_a_run_that_cannot_be_resumed_names_the_key(tmp_path):
    train(tiny_config(), tmp_path / "run", tiny_data())
    place = tmp_path / "run" / CONFIG
    place.write_text(place.read_text().replace("[guard]", "[guard]\nslower = 0.7"))
    with pytest.raises(InputError, match=r"guard\.slower=0\.7.*0\.5") as refusal:
        train(tiny_config(), tmp_path / "run", tiny_data())
    assert str(place) in str(refusal.value)


# --- recipes and overrides of users ---------------------------------------------------------------


def read_as(kind: str, tree: dict, key: str, value: object, folder: Path) -> Config:
    """Give a key to gmmc in a file, as an override, in Python."""
    section, name = key.split(".")
    if kind == "mapping":
        return recipes.from_dict(tree | {section: {**tree.get(section, {}), name: value}})
    file = folder / "recipe.toml"
    file.write_text(recipes.to_toml(recipes.from_dict(tree)))
    if kind == "override":
        return recipes.load(file, [f"{key}={recipes._toml_value(value)}"])
    if kind == "settings":
        return recipes.load(file, {key: value})
    text = file.read_text()
    heading = f"[{section}]\n"
    text = text if heading in text else f"{heading}{text}"
    file.write_text(text.replace(heading, f"{heading}{name} = {recipes._toml_value(value)}\n"))
    return recipes.load(file)


KINDS = ["file", "override", "settings", "mapping"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["guard.slower", "generative.decay", "evaluate.seed", "finetune.schedule"])
def test_a_user_s_key_with_the_built_in_value_is_warned_of(tmp_path, capsys, kind, key):
    value = former.REMOVED[key].built_in(tree_with())
    assert read_as(kind, tree_with(), key, value, tmp_path) == recipes.from_dict(tree_with())
    err = capsys.readouterr().err
    assert key in err
    assert "leave out" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("key", former.REMOVED)
def test_every_key_with_the_built_in_value_is_warned_of(capsys, key):
    tree = tree_with()
    assert recipes.from_dict(tree_with(key, former.REMOVED[key].built_in(tree))) == recipes.from_dict(tree)
    assert key in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", OTHERS)
def test_a_user_s_key_with_another_value_is_refused(tmp_path, capsys, kind, key):
    with pytest.raises(InputError) as refusal:
        read_as(kind, tree_with(), key, OTHERS[key], tmp_path)
    line = str(refusal.value)
    assert f"{key}={OTHERS[key]!r}" in line
    assert "\n" not in line
    option = key.removeprefix("evaluate.")
    if key.startswith("evaluate.") and option != "latent":
        assert f"--{option}" in line
    else:
        assert str(former.REMOVED[key].built_in(tree_with())) in line


@pytest.mark.parametrize(("old", "new"), former.RENAMED.items())
@pytest.mark.parametrize("kind", ["override", "settings"])
def test_an_override_by_its_former_name_changes_the_recipe(tmp_path, capsys, kind, old, new):
    cfg = read_as(kind, tree_with(), old, 3, tmp_path)
    section, name = new.split(".")
    assert getattr(getattr(cfg, section), name) == 3
    err = capsys.readouterr().err
    assert old in err
    assert new in err
    assert err.count("\n") == 1


def test_a_file_of_the_version_before_is_translated_and_overridden(tmp_path, capsys):
    file = tmp_path / "photos.toml"
    phases = 'epochs = {}\nlr = 0.5\nschedule = "cosine"\nshift = {}\n'
    file.write_text(
        f"[discriminative]\n{phases.format(9, 2)}[frozen]\n{phases.format(5, 0)}warmup = 50\n"
        f"[finetune]\n{phases.format(6, 2)}"
    )
    cfg = recipes.load(file)
    assert (cfg.transfer.frozen_epochs, cfg.transfer.epochs, cfg.discriminative.epochs) == (5, 6, 9)
    assert capsys.readouterr().err.count("\n") == 1
    for override in ("transfer.epochs=1", "finetune.epochs=1"):
        assert recipes.load(file, [override]).transfer.epochs == 1
    with pytest.raises(InputError, match=r"finetune\.shift=2.*discriminative\.shift=3"):
        recipes.load(file, ["discriminative.shift=3"])


def test_both_names_at_once_are_refused():
    with pytest.raises(InputError, match=r"finetune\.lr .*transfer\.lr"):
        recipes.from_dict(tree_with("finetune.lr", 0.1))
    with pytest.raises(InputError, match=r"finetune\.lr .*transfer\.lr"):
        recipes.load("photos", {"finetune.lr": 0.1, "transfer.lr": 0.2})


def test_recipes_of_this_version_are_silent(capsys):
    for name in recipes.shipped_recipes():
        recipes.load(name)
    recipes.from_text(recipes.to_toml(tiny_config(**WHOLE)))
    assert capsys.readouterr() == ("", "")


def test_a_run_folder_s_old_recipe_makes_one_warning_of_modest_length(tmp_path, capsys):
    file = tmp_path / "recipe.toml"
    file.write_text(old_form(tiny_config()))
    assert recipes.load(file) == tiny_config()
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert len(err) < 600
