"""Under which conditions a number was measured, in words."""

from collections.abc import Sequence
from typing import Any

from gmmc.base.tables import MISSING
from gmmc.report.numbers import plain
from gmmc.report.reading import Run

COMMIT_LENGTH = 10  # enough to find it


def conditions(name: str, runs: Sequence[Run]) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Of each run: the facts, and apart from them the settings."""
    told = []
    for run in runs:
        if name in run.results and run.results[name].conditions:
            facts = dict(run.results[name].conditions)
            settings = facts.pop("settings", {})
            told.append((run.name, described(facts), flat(settings) if isinstance(settings, dict) else {}))
    return told


def described(facts: dict[str, Any], about: str = "") -> dict[str, str]:
    """A line per fact; those about the training, which are of all kinds, keep a line each."""
    lines: dict[str, str] = {}
    for key, fact in facts.items():
        if key == "trained" and isinstance(fact, dict):
            lines |= described(fact, "training: ")
        elif key == "commit":
            lines[f"{about}gmmc commit"] = short_commit(str(fact or "")) or MISSING
        else:
            lines[about + key.replace("_", " ")] = in_words(fact)
    return lines


def in_words(fact: Any) -> str:
    """{"noise": 359} → noise 359; a list of sentences with semicolons; nothing is a dash."""
    if fact is None or fact == "" or fact == [] or fact == {}:
        return MISSING
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, (int, float)):
        return plain(fact)
    if isinstance(fact, dict):
        return ", ".join(f"{str(key).replace('_', ' ')} {in_words(part)}" for key, part in fact.items())
    if isinstance(fact, (list, tuple)):
        separator = "; " if any(isinstance(part, str) for part in fact) else ", "
        return separator.join(map(in_words, fact))
    return str(fact)


def short_commit(commit: str) -> str:
    """The first digits; a mark of changes, as in 0123…-dirty, must stay."""
    digits, dash, mark = commit.partition("-")
    return digits[:COMMIT_LENGTH] + dash + mark


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested tables as one, as a recipe writes them: {"train": {"seed": 0}} → {"train.seed": "0"}."""
    lines: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            lines |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            lines[f"{prefix}{key}"] = str(value).lower()
        elif isinstance(value, (list, tuple)):
            lines[f"{prefix}{key}"] = ", ".join(map(str, value)) or MISSING
        else:
            lines[f"{prefix}{key}"] = MISSING if value in (None, "") else str(value)
    return lines
