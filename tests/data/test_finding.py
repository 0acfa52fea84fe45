"""Finding things: what ships with gmmc, suggestions, missing paths, completion, help that is whole."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gmmc
from conftest import make_model, tiny_data
from gmmc.base import extras
from gmmc.base.text import nearest, suggestion
from gmmc.cli import app, listing
from gmmc.config import recipes
from gmmc.data.ood_sets import outside
from gmmc.errors import InputError
from gmmc.generate.draw import class_index
from gmmc.runs import layout, results, shipped
from processes import finished, gmmc_command, python

ROOT = Path(__file__).parents[2]
WIDTH = 80  # columns of a terminal


def gmmc_says(*arguments, capsys):
    """(exit status, standard output, standard error) of the command, in this process."""
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    return stop.value.code, *capsys.readouterr()


# --- suggestions ----------------------------------------------------------------------------------

NAMES = ["noise", "constant", "digits", "cifar10", "cifar100", "fashion_mnist"]


@given(st.text(), st.lists(st.text(min_size=1), max_size=5))
def test_a_suggestion_is_one_of_the_names(word, names):
    near = nearest(word, names)
    assert set(near) <= set(names)
    assert len(near) <= 3


@given(st.lists(st.text("abcde", min_size=1), min_size=1, unique=True))
def test_a_name_is_nearest_to_itself(names):
    for name in names:
        assert nearest(name, names)[0] == name


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("digit", ["digits"]),
        ("DIGITS", ["digits"]),
        ("nosie", ["noise"]),
        ("cifar", ["cifar10", "cifar100"]),
        ("mnist", []),  # not noise, though three of its letters are in order
        ("", []),
    ],
)
def test_suggestions_are_alike(word, expected):
    assert nearest(word, NAMES) == expected
    assert all(repr(name) in suggestion(word, NAMES) for name in expected)


def test_without_a_suggestion_all_names_are_listed():
    assert all(name in suggestion("mnist", NAMES) for name in NAMES)


def test_an_unknown_set_of_other_images_is_not_taken_for_noise():
    with pytest.raises(InputError, match=r"'mnist' exists; known are .*fashion_mnist") as refusal:
        outside("mnist", tiny_data())
    assert "did you mean" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["train", "digit"], ["'digit'", "did you mean 'digits'"]),
        (["train", "recipes/digits.toml"], ["'recipes/digits.toml'", "does not exist", "'digits'"]),
        (["train", "cifar"], ["'cifar10'", "'cifar10-dis'", "'cifar10-gen'"]),
        (["train", "here"], ["'here'", "is a folder"]),
        (["train", "nowhere.toml"], ["'nowhere.toml'", "does not exist", "vectors"]),
        (["train", "photos"], ["'photos'", "does not exist", "data.name=FOLDER"]),
        (["train", "photos", "data.name=no/such"], ["'no/such'", "does not exist"]),
        (["train", "digits", "data.name=cifar-10"], ["'cifar-10'", "did you mean 'cifar10'?"]),
        (["train", "vectors"], ["'arrays'", "GMMCClassifier"]),
        (["evaluate", "nowhere"], ["'nowhere'", "does not exist", "cifar10"]),
        (["evaluate", "file.txt"], ["'file.txt'", "is a file"]),
        (["report", "nowhere"], ["'nowhere'", "does not exist", "cifar10"]),
        (["report", "here"], ["'here'", "config.toml", "has none"]),
        (["compare", "nowhere"], ["'nowhere'", "does not exist"]),
        (["calibrate", "nowhere"], ["'nowhere'", "does not exist"]),
        (["sample", "nowhere"], ["'nowhere'", "does not exist", "cifar10"]),
        (["export", "nowhere", "x.onnx"], ["'nowhere'", "does not exist"]),
        (["predict", "cifar10", "nowhere.png"], ["'nowhere.png'", "does not exist"]),
    ],
    ids=lambda value: " ".join(value) if "'" not in str(value[0]) else "",
)
def test_what_is_missing_is_said_not_to_exist(arguments, facts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file.txt").write_text("hello")
    status, out, err = gmmc_says(*arguments, capsys=capsys)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert [fact for fact in facts if fact not in err] == []


# --- classes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "label", "index"),
    [
        (("cat", "dog", "emu"), "dog", 1),
        (("cat", "dog", "emu"), "DOG", 1),
        (("cat", "Cat", "dog"), "Cat", 1),  # exactly
        (("cat", "dog", "emu"), "2", 2),
        (("3", "1", "2"), "1", 1),  # a name before an index
        (("3", "1", "2"), "0", 0),
    ],
)
def test_a_class_is_found_by_name_or_index(names, label, index):
    model = make_model()
    model.class_names = names
    assert class_index(model, label) == index


@pytest.mark.parametrize("label", ["CAT", "3", "-1", "1.0", "", "９", "9" * 5000])
def test_a_class_that_is_not_one_is_refused(label):
    model = make_model()
    model.class_names = ("cat", "Cat", "dog")
    with pytest.raises(InputError, match="--label must") as refusal:
        class_index(model, label)
    assert "\n" not in str(refusal.value)
    assert "cat" in str(refusal.value)


def test_labels_on_the_command_line(run, tmp_path, capsys):
    """The digits are named by numbers, which come before indices."""
    status, _, _ = gmmc_says("sample", run, "-n", 1, "--label", 3, "--out", tmp_path, capsys=capsys)
    assert (status, [path.name[:2] for path in tmp_path.glob("*_seed*")]) == (0, ["3_"])


# --- gmmc train --device --------------------------------------------------------------------------


@pytest.fixture
def recipes_trained(monkeypatch):
    """Recipes that `gmmc train` would train."""
    trained = []

    def train(cfg, *_, **__):
        trained.append(cfg)
        return make_model()

    monkeypatch.setattr("gmmc.train.loop.train", train)
    return trained


def test_train_takes_a_device_like_the_other_commands(recipes_trained, capsys):
    assert gmmc_says("train", "digits", capsys=capsys)[0] == 0
    assert gmmc_says("train", "digits", "--device", "cpu", "train.seed=1", capsys=capsys)[0] == 0
    assert gmmc_says("train", "digits", "train.device=cpu", capsys=capsys)[0] == 0
    default, option, override = recipes_trained
    assert [cfg.train.device for cfg in recipes_trained] == ["auto", "cpu", "cpu"]
    assert recipes.differences(default, override) == []
    assert option.train.seed == 1


def test_a_device_is_given_once(recipes_trained, capsys):
    status, _, err = gmmc_says("train", "digits", "train.device=cuda", "--device", "cpu", capsys=capsys)
    assert status == 2
    assert "--device 'cpu'" in err
    assert "'train.device=cuda'" in err
    assert recipes_trained == []


def test_a_device_that_is_none(tmp_path, capsys):
    status, _, err = gmmc_says(
        "train", "digits", "--device", "abacus", "--out", tmp_path / "run", capsys=capsys
    )
    assert (status, len(err.splitlines())) == (2, 1)
    assert "device must be" in err
    assert "abacus" in err


# --- gmmc models, gmmc recipes --------------------------------------------------------------------


def test_models_are_listed_with_size_and_results(capsys):
    status, out, _ = gmmc_says("models", capsys=capsys)
    assert status == 0
    for name in shipped.names():
        folder = shipped.SHIPPED / name
        accuracy = results.read_results(folder)["accuracy"]["values"]["top1"]
        assert out.splitlines()[0].startswith(f"{name}  ")
        assert f"{100 * accuracy:.1f}%" in out
        assert f"{(folder / layout.MODEL).stat().st_size / 1e6:.1f} MB" in out
    assert max(map(len, out.splitlines())) <= WIDTH


def test_a_model_without_card_and_results_is_listed(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "small").mkdir()
    for name in (layout.MODEL, layout.CONFIG):
        (tmp_path / "small" / name).write_bytes((run / name).read_bytes())
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path)
    status, out, _ = gmmc_says("models", capsys=capsys)
    assert status == 0
    assert "small  digits" in out
    assert "not evaluated" in out


def test_recipes_are_listed_with_their_first_line(capsys):
    status, out, _ = gmmc_says("recipes", capsys=capsys)
    assert status == 0
    names = sorted(file.stem for file in (ROOT / "recipes").glob("*.toml"))
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(names) + 1]] == names
    for name, line in zip(names, lines[1:], strict=False):
        assert listing.headline(ROOT / "recipes" / f"{name}.toml") in line
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("name", list(recipes.shipped_recipes()))
def test_the_first_line_of_a_recipe_is_a_sentence(name):
    line = listing.headline(recipes.shipped_recipes()[name])
    assert line.endswith(".")
    assert line[0].isupper()


def test_a_recipe_without_a_comment_has_no_headline(tmp_path):
    (tmp_path / "plain.toml").write_text("[data]\nname = 'digits'\n")
    assert listing.headline(tmp_path / "plain.toml") == ""


def test_lists_need_no_torch():
    code = "import sys; from gmmc.cli import listing; listing.print_models(); listing.print_recipes(); "
    assert python(code + "print('torch' in sys.modules)").stdout.splitlines()[-1] == "False"


# --- help and completion --------------------------------------------------------------------------


def test_help_is_not_clipped(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    _, out, _ = gmmc_says("--help", capsys=capsys)
    commands = out.partition("Commands:\n")[2].splitlines()
    assert len(commands) > 8
    for line in commands:
        assert line.endswith("."), line
        assert not line.endswith("..."), line
        assert len(line) <= WIDTH


def completions(words: str, tmp_path, new_word: bool = False) -> list[str]:
    """Completions that bash gets for the last word."""
    position = str(len(words.split()) - (not new_word))
    asked = {"_GMMC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": position}
    return finished(gmmc_command(), env=asked, cwd=tmp_path).stdout.split()


def test_completion(tmp_path):
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "runs" / "demo" / "config.toml").touch()
    (tmp_path / "runs" / "other").mkdir()  # not a run
    assert completions("gmmc pre", tmp_path) == ["predict"]
    assert completions("gmmc sample cifar10 --lab", tmp_path) == ["--label"]
    assert completions("gmmc train di", tmp_path) == ["digits", "digits-denoising"]
    assert completions("gmmc train ./", tmp_path) == []  # files are the shell's
    for command in ("predict", "sample", "evaluate", "report", "export"):
        expected = [*shipped.names(), "runs/demo"]
        assert completions(f"gmmc {command} ", tmp_path, new_word=True) == expected
    assert completions("gmmc predict ru", tmp_path) == ["runs/demo"]


def test_completion_imports_nothing_heavy():
    code = (
        "import sys; from gmmc.cli import options; options.complete_run(''); options.complete_recipe(''); "
        "print({'torch', 'numpy', 'sklearn', 'PIL'} & sys.modules.keys())"
    )
    assert python(code).stdout.strip() == "set()"


# --- the package ----------------------------------------------------------------------------------


def test_public_names_are_all_that_is_offered():
    offered = dir(gmmc)
    assert set(gmmc.__all__) <= set(offered)
    assert set(offered) - set(gmmc.__all__) == {"config", "data"}
    assert all(hasattr(gmmc, name) for name in offered)
    shown = python("import json, gmmc; print(json.dumps([dir(gmmc), dir(gmmc.data)]))").stdout
    assert json.loads(shown) == [offered, sorted(gmmc.data.__all__)]
    assert all(hasattr(gmmc.data, name) for name in (*gmmc.data.__all__, "named", "splits"))
    assert not hasattr(gmmc.data, "nothing")


def test_types_are_for_users_too():
    """PEP 561; hatch packs every file of the package."""
    assert (Path(gmmc.__file__).parent / "py.typed").is_file()


def test_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        extra: tuple(line.partition(">=")[0] for line in lines)
        for extra, lines in project["optional-dependencies"].items()
        if extra != "dev"
    }
    assert declared == extras.PACKAGES


def test_a_missing_extra_is_named_with_a_command_that_works():
    with pytest.raises(InputError, match=r"drawing needs the package no_such: pip install onnx ") as refusal:
        extras.import_extra("no_such", "onnx", "drawing")
    assert "gmmc[" not in str(refusal.value)  # which no index has
