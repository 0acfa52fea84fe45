"""Imports point down only, and `import gmmc` stays cheap."""

import ast
import re
import tomllib
from pathlib import Path

from PIL import Image

import gmmc
from gmmc.cli.app import COMMANDS
from gmmc.networks.heads import HEADS
from gmmc.sampling.samplers import SAMPLERS
from gmmc.train.objectives import OBJECTIVES, SHAPES
from processes import python

SOURCE = Path(gmmc.__file__).parent

# Lowest first. A package imports from itself and from the layers before it; see docs/architecture.md.
LAYERS = [
    {"errors"},
    {"base"},
    {"config", "core", "noise", "pixels"},
    {"data", "networks", "pictures"},
    {"sampling"},
    {"classifier"},
    {"runs"},
    {"fid", "generate"},
    {"evaluations", "train", "report"},
    {"bench", "estimator", "export"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports_of(path: Path):
    """The top-level parts of gmmc that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "gmmc" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


def test_imports_point_down():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        for other in imports_of(path):
            if other != part and LEVEL[other] >= LEVEL[part]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not wrong


def test_nothing_of_the_dev_extra_is_imported():
    """Users do not have it."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[\[<>=]", line)[0] for line in project["optional-dependencies"]["dev"]} - {"gmmc"}
    assert "pyautoattack" in names
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported = [alias.name for alias in node.names]
                modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else imported
                assert not {module.split(".")[0] for module in modules} & names, path


def test_every_module_has_a_layer():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert parts - {"__init__", "__main__"} == LEVEL.keys()


def test_importing_gmmc_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'sklearn', 'rich.progress', 'lightning_fabric'}"
    code = f"import sys, gmmc, gmmc.cli; print({heavy} & sys.modules.keys())"
    assert python(code).stdout.strip() == "set()"


def loaded(code: str, *arguments: object) -> set[str]:
    """Modules that a process has imported after this code."""
    shown = "import sys\n" + code + "\nprint('\\nMODULES', *sys.modules)"
    line = python(shown, *map(str, arguments)).stdout.splitlines()[-1]
    return set(line.split()) - {"MODULES"}


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "gmmc"}


COMMAND = """
from gmmc.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
"""


def test_loading_a_model_imports_no_training_data_or_evaluation(run):
    modules = ours(loaded("import gmmc; gmmc.load(sys.argv[1])", run))
    parts = {name.split(".")[1] for name in modules if "." in name}
    assert not parts & {"cli", "data", "evaluations", "fid", "generate", "report", "train"}
    assert len(modules) <= 50, sorted(modules)


def test_predicting_imports_what_it_needs(run, tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    modules = loaded(COMMAND, "predict", run, tmp_path / "image.png")
    parts = {name.split(".")[1] for name in ours(modules) if "." in name}
    assert not parts & {"bench", "evaluations", "fid", "generate", "report", "train"}
    assert not {"gmmc.data.parquet", "gmmc.data.sources", "sklearn", "pyarrow"} & modules
    assert len(ours(modules)) <= 66, sorted(ours(modules))
    assert not {"torch._dynamo", "sympy"} & (modules - loaded("import torch"))  # they take a second


def test_training_imports_no_evaluation():
    modules = loaded("import gmmc.train")
    assert not [name for name in modules if name.startswith("gmmc.evaluations")]
    assert not {"sklearn.svm", "gmmc.report", "gmmc.estimator"} & modules


HELP_OF_EACH = """
import os, sys
from gmmc.cli.app import COMMANDS, main
for command in COMMANDS:
    if os.fork() == 0:
        try:
            main([command, "--help"])
        except SystemExit:
            print("\\nMODULES", command, *sys.modules, flush=True)
            os._exit(0)
    os.wait()
"""


def test_the_help_of_a_command_imports_no_other_command():
    printed = python(HELP_OF_EACH).stdout.splitlines()
    lines = [line.split() for line in printed if line.startswith("MODULES")]
    assert [line[1] for line in lines] == list(COMMANDS)
    for _, command, *modules in lines:
        assert {f"gmmc.cli.{name}" for name in COMMANDS} & {*modules} == {f"gmmc.cli.{command}"}
        assert "torch" not in modules


def test_packages_only_re_export():
    """Logic has a file with a name. The two lazy ones import at first use."""
    for path in SOURCE.rglob("__init__.py"):
        if path.parent in (SOURCE, SOURCE / "data"):
            continue
        for node in ast.parse(path.read_text()).body:
            names_only = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            assert isinstance(node, (ast.Expr, ast.ImportFrom)) or names_only, path


def test_parts_are_there_without_another_import():
    code = "import gmmc; gmmc.core.simplex_means(3, 2, 10.0); assert not hasattr(gmmc, 'nothing')"
    python(code)


def test_every_public_name_is_there():
    for name in gmmc.__all__:
        assert getattr(gmmc, name) is not None


def test_nothing_unpickles():
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "joblib", "dill", "cloudpickle", "shelve", "marshal"}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}, path


MAP = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()


def test_the_map_has_the_layers_of_this_test():
    block = MAP.split("## Layers")[1].split("## ")[0]
    rows = [set(line.split()) for line in block.splitlines() if line.startswith("    ")]
    assert rows == LAYERS[::-1]


def test_the_map_has_a_line_per_folder_and_names_files_that_exist():
    files = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", MAP.split("## Four walks")[1])
    assert len(files) > 30
    assert not [file for file in files if not (SOURCE / file).is_file()]
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*re.findall(r"^\| `([a-z_]+)/`", MAP, re.MULTILINE)}


def test_no_module_compares_the_names_of_objectives_heads_or_samplers():
    """What they are stands beside their functions, as data."""
    names = {*OBJECTIVES, *SHAPES, *HEADS, *SAMPLERS} - {
        "linear",
        "raw",
    }  # which are names of other things too
    settings = ("objective.name", "objective.shape", "sampler.name", "model.head")
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not (
                isinstance(node, ast.Compare) or (is_call and node.func.attr in ("startswith", "endswith"))
            ):
                continue
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            code = ast.unparse(node)
            assert not names & {text for text in texts if isinstance(text, str)}, f"{path.name}: {code}"
            assert not any(f"cfg.{setting}" in code for setting in settings), f"{path.name}: {code}"
