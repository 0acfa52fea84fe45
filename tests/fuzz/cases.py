"""All surfaces, and the case of a name."""

import random
from pathlib import Path

from fuzz import estimators, hubs, images, models, recipes, records, tables
from fuzz.checking import Case
from fuzz.material import Material

SURFACES = {
    "recipes": recipes.command,
    "models": models.command,
    "records": records.command,
    "images": images.command,
    "tables": tables.command,
    "hub": hubs.command,
    "estimator": estimators.command,
}


def make(name: str, folder: Path, given: Material) -> Case:
    """Write the files of the case `surface/seed` to a new folder."""
    surface, _, seed = name.partition("/")
    if surface not in SURFACES or not seed.isdecimal():
        raise SystemExit(f"a case must be one of {', '.join(SURFACES)}, a slash and a seed, got {name!r}")
    folder.mkdir(parents=True)
    call, verify = SURFACES[surface](random.Random(name), folder, given)
    return Case(name, folder, call, verify)
