"""Imports point down only, and `import gmmc` stays cheap."""

import ast
import re
import tomllib
from pathlib import Path

import gmmc
from processes import python

SOURCE = Path(gmmc.__file__).parent

# Lowest first. A package imports from itself and from the layers before it.
LAYERS = [
    {"errors"},
    {"base"},
    {"config", "core", "pixels"},
    {"data", "networks", "pictures"},
    {"sampling"},
    {"classifier"},
    {"runs"},
    {"fid", "generate"},
    {"evaluations", "train", "report"},
    {"bench", "estimator", "export"},
    {"cli"},
]
UPWARDS = {"cli.printing", "evaluations.buffer_images"}  # imports that remain to be cut
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
            if parts[0] != "gmmc" or len(parts) == 1 or ".".join(parts[1:3]) in {"__version__", *UPWARDS}:
                continue
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
                modules = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                assert not {module.split(".")[0] for module in modules} & names, path


def test_every_module_has_a_layer():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in SOURCE.rglob("*.py")}
    assert parts - {"__init__", "__main__"} == LEVEL.keys()


def test_importing_gmmc_loads_nothing_heavy():
    heavy = "{'torch', 'numpy', 'sklearn', 'rich.progress', 'lightning_fabric'}"
    code = f"import sys, gmmc, gmmc.cli; print({heavy} & sys.modules.keys())"
    assert python(code).stdout.strip() == "set()"


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
