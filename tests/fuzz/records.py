"""Records of a run: results.json, metrics.jsonl, config.toml and card.toml."""

import json
import random
from pathlib import Path
from typing import Any

from fuzz.material import Material, results
from fuzz.mutating import mutated, mutated_text, odd_value, replace_file, toml
from gmmc.base.inputs import parse_toml
from gmmc.export.hub import README
from gmmc.runs.layout import CONFIG, METRICS, RESULTS

CARD = "card.toml"
FILES = [RESULTS, RESULTS, METRICS, CONFIG, CARD]


def command(draw: random.Random, folder: Path, given: Material) -> tuple[list[str], Any]:
    """Change one record of a run, and read the run."""
    run = given.run(folder)
    (run / RESULTS).write_text(json.dumps(some_results(draw)))
    for name in dict.fromkeys(draw.sample(FILES, draw.choice([1, 1, 2]))):
        place, kind = run / name, draw.randrange(8)
        if kind == 0:
            replace_file(draw, place)
        elif kind == 1 and place.is_file():
            place.write_bytes(mutated_text(draw, place.read_text()))
        elif place.is_file():
            place.write_text(changed(draw, name, place.read_text()))
    return use(draw, folder, run, given)


def some_results(draw: random.Random) -> dict[str, Any]:
    """Draw a few entries of results.json: a page of all takes a second."""
    entries = results()
    return {name: entries[name] for name in draw.sample(sorted(entries), draw.choice([1, 1, 2, 3]))}


def changed(draw: random.Random, name: str, text: str) -> str:
    """Change the structure of a document, which stays valid JSON or TOML."""
    if name == RESULTS:
        entries = json.loads(text)
        chosen = draw.choice(sorted(entries))
        entries[chosen] = mutated(draw, entries[chosen])
        tree: Any = mutated(draw, entries) if draw.random() < 0.2 else entries
        return json.dumps(tree, ensure_ascii=draw.random() < 0.5)
    if name == METRICS:
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        line = mutated(draw, json.loads(lines[at])) if draw.random() < 0.9 else odd_value(draw)
        return "\n".join([*lines[:at], json.dumps(line), *lines[at + 1 :], ""])
    tree = mutated(draw, parse_toml(text, name))
    return toml(tree) if isinstance(tree, dict) else str(tree)


def use(draw: random.Random, folder: Path, run: Path, given: Material) -> tuple[list[str], Any]:
    """Draw a command that reads records."""
    kind, out = draw.randrange(12), folder / "out"
    if kind < 3:
        return ["report", str(run), "--out", f"{out}.html"], lambda _: verify_page(folder / "out.html")
    if kind == 3:
        runs = [str(run), str(baseline(folder, given))]
        draw.shuffle(runs)
        return ["report", *runs, "--out", f"{out}.html"], lambda _: verify_page(folder / "out.html")
    if kind == 4:
        return ["compare", str(run), str(run), "--out", str(out)], None
    if kind < 9:
        return ["export", str(run), str(out)], lambda _: verify_card(out / README)
    if kind == 9:
        return ["evaluate", str(run), "accuracy"], None
    if kind == 10:
        return ["calibrate", str(run)], None
    return ["train", str(run / CONFIG), "--out", str(run)], None


def baseline(folder: Path, given: Material) -> Path:
    """Copy the run with its validation results alone, to compare another with."""
    run = given.run(folder / "baseline")
    (run / RESULTS).write_text(json.dumps({"validation": results()["validation"]}))
    return run


def verify_page(page: Path) -> None:
    """The page is whole, and nothing of a record is markup in it."""
    text = page.read_text()
    assert text.rstrip().endswith("</html>")
    assert "<b>a" not in text
    assert not {"\0", "\x1b", "\u202e"} & set(text)


def verify_card(card: Path) -> None:
    """The card begins with its front matter, and holds no control characters."""
    text = card.read_text()
    assert text.startswith("---\n")
    assert not {"\0", "\x1b", "\u202e"} & set(text)
