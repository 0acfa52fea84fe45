"""Print the lowest version of each requirement in pyproject.toml, one line each.

Requirements that constraints.txt pins are printed without a version: the pin applies.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pinned() -> set[str]:
    """Names in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {line.partition("==")[0] for line in lines if not line.startswith("#")}


def requirements() -> list[str]:
    """All requirements: build backend, dependencies and extras, except for references to gmmc itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    lists = [project["build-system"]["requires"], project["project"]["dependencies"], *extras]
    return [requirement for each in lists for requirement in each if not requirement.startswith("gmmc[")]


def lowest(requirement: str) -> str:
    """`name==x` for `name>=x`, or only the name where constraints.txt pins it."""
    name = requirement.partition(">=")[0]
    return name if name in pinned() else requirement.replace(">=", "==")


if __name__ == "__main__":
    print(*map(lowest, requirements()), sep="\n")
