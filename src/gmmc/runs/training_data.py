"""The data that a run was trained on."""

from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.data import sources
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.runs import shipped


def load_data(model: Classifier, run: str) -> Dataset:
    """The data that a run was trained on."""
    out = str(shipped.workplace(run))
    python = f"in Python, gmmc.evaluate(gmmc.load({run!r}), data, out={out!r}) takes any data"
    recipe = recipe_of(model)
    if recipe.data.name == Dataset.name:
        raise InputError(f"{run} was trained on arrays, which are not on disk; {python}")
    data = sources.load(recipe.data, recipe.train.seed)
    if data.fingerprint != model.trained.get("data_sha256"):
        raise InputError(
            f"{run} was not trained on the {recipe.data.name} that data.name gives now; {python}"
        )
    return data
