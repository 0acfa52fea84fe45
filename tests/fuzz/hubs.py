"""Folders in the layout of the Hugging Face Hub."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fuzz.material import Material
from fuzz.models import repacked, use
from fuzz.mutating import TEXTS, mutated, mutated_bytes, mutated_text, replace_file
from gmmc.export import hub
from gmmc.export.hub import DESCRIPTION, FILES, README
from gmmc.runs.layout import MODEL


def command(
    draw: random.Random, folder: Path, given: Material
) -> tuple[list[str] | Callable[[], object], Any]:
    """Change a file of an exported folder; load it, use it, or export to it again."""
    place = given.hub(folder)
    for _ in range(draw.choice([0, 1, 1, 1, 2])):
        change(draw, place, given)
    kind = draw.randrange(8)
    if kind < 3:
        return lambda: answer(place), None
    if kind < 5:
        return ["export", str(given.root / "run"), str(place)], lambda _: answer(place)
    if kind == 5:
        return ["export", str(place), str(folder / "again")], lambda _: answer(folder / "again")
    return use(draw, folder, place)


def change(draw: random.Random, place: Path, given: Material) -> None:
    """Change one file of the folder, or add one."""
    kind, description = draw.randrange(8), place / DESCRIPTION
    whole = (given.root / "hub" / DESCRIPTION).read_text()
    if kind < 3 and description.is_file():
        description.write_text(json.dumps(mutated(draw, json.loads(whole))))
    elif kind == 3 and description.is_file():
        description.write_bytes(mutated_text(draw, whole))
    elif kind == 4 and (place / README).is_file():
        (place / README).write_bytes(mutated_bytes(draw, (place / README).read_bytes()))
    elif kind == 5:
        (place / MODEL).unlink(missing_ok=True)
        (place / MODEL).write_bytes(repacked(draw, *given.model()))
    elif kind == 6:
        replace_file(draw, place / draw.choice(FILES))
    else:
        name = draw.choice(
            [name for name in TEXTS if name not in ("", ".", "..") and not {"/", "\0"} & set(name)]
        )
        (place / name[:100]).write_bytes(b"of the user")


def answer(place: Path) -> None:
    """Load a folder and ask its model."""
    model = hub.from_pretrained(place)
    assert model.predict_proba(torch.zeros(1, *model.shape)).isfinite().all()
