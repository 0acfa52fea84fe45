"""Models in the layout of the Hugging Face Hub: weights, config.json and a model card in one folder."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmmc import __version__
from gmmc.base.atomic import write_atomic
from gmmc.base.inputs import parse_json, read_bytes
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.outputs import check_replaceable, check_writable, has_mark, removed_on_failure
from gmmc.base.text import printable, shortened
from gmmc.classifier.build import recipe_of
from gmmc.classifier.model import Classifier
from gmmc.config import recipes
from gmmc.errors import InputError
from gmmc.runs import model_file, shipped
from gmmc.runs.layout import CONFIG, DESCRIPTION, MODEL, RESULTS

if TYPE_CHECKING:
    from gmmc.report.reading import Run

README = "README.md"
FILES = (DESCRIPTION, MODEL, README)
MARK = "gmmc"  # in the description: the version that wrote it
CARD_HASH = "card_sha256"  # in the description: an edited card is its editor's
CARD_MARK = b"library_name: gmmc"  # in the front matter of the card; older versions kept no hash of it
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def save_pretrained(
    source: Classifier | str | Path,
    folder: str | Path,
    *,
    results: Mapping[str, Any] | None = None,
    licence: str | None = None,
) -> Path:
    """Write a model, or that of a run, as a folder that `from_pretrained` reads and the Hub shows.

    The card has the numbers of the run's results.json and the words of its card.toml; of a model in memory
    those of `results`, as `gmmc.evaluate` gives them. `licence`: an identifier as the Hub knows it; without,
    the first word of the card's licence if that is one, else "unknown".
    """
    from gmmc.export import card  # with the report, which takes a moment to import

    if not isinstance(source, Classifier | str | Path):
        kind = type(source).__name__
        raise InputError(
            f"source must be a run or a gmmc.Classifier (of an estimator its model_), got {kind}"
        )
    folder = Path(folder)
    _check_place(folder)
    model = source if isinstance(source, Classifier) else model_file.load(source)
    told = card.read(
        None if isinstance(source, Classifier) else _folder_of(source), folder, recipe_of(model), results
    )
    with removed_on_failure(folder):
        _write(model, told, folder, licence)
    return folder


def _write(model: Classifier, told: "Run", folder: Path, licence: str | None) -> None:
    """Write the three files; a refusal on the way leaves none of them behind."""
    from gmmc.export import card

    new = folder / f".{MODEL}.tmp"
    try:
        model_file.save_model(new, model)
        stored = model_file.load(new)  # described is what a reader gets: weights and scores may be rounded
        text = card.render(told, stored, folder.resolve().name, licence).encode()
        facts = described(stored) | {CARD_HASH: hashlib.sha256(text).hexdigest()}
        description = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False)
        # After a kill, the old card beside the new hash would pass for an edited one.
        (folder / README).unlink(missing_ok=True)
        # The description goes first: by it the folder is ours, and what a kill left is written again.
        write_atomic(folder / DESCRIPTION, f"{description}\n".encode())
        new.replace(folder / MODEL)
        write_atomic(folder / README, text)
    finally:
        new.unlink(missing_ok=True)


def from_pretrained(source: str | Path, *, device: str = "cpu", revision: str | None = None) -> Classifier:
    """The model of a folder that `save_pretrained` wrote, or of a repository user/name on the Hub.

    A folder needs no network. `revision`: a branch, tag or commit of the repository.
    """
    folder = Path(source)
    if folder.is_dir():
        if revision is not None:
            shown = shortened(str(source), LONG_SHOWN)
            raise InputError(f"revision is for a repository on the Hub, got the folder {shown}")
    else:
        folder = _downloaded(str(source), revision)
    for name in (DESCRIPTION, MODEL):
        if not (folder / name).is_file():
            other = "; gmmc.load reads run folders" if (folder / MODEL).is_file() else ""
            raise InputError(f"{source} was not written by save_pretrained: it has no {name}{other}")
    model = model_file.load(folder, device)
    _check_description(folder / DESCRIPTION, model)
    return model


# --- config.json ----------------------------------------------------------------------------------


def described(model: Classifier) -> dict[str, Any]:
    """What can be known of a model without its weights; the recipe is whole."""
    recipe, reference, abstain = recipe_of(model), model.reference, model.abstain
    facts: dict[str, Any] = {
        MARK: __version__,
        "backbone": recipe.model.backbone,
        "head": recipe.model.head,
        "dim": model.dim,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shape": list(model.shape),
        "class_names": list(model.class_names),
        "gamma2_stored": model.head.gamma2.item(),
    }
    if reference:
        facts["gamma2_fitted"] = reference.gamma2
    if reference and model.abstains_by in reference.scores:  # an older file may lack it
        threshold = reference.threshold(model.abstains_by, abstain.tpr)
        facts |= {"score": model.abstains_by, "tpr": abstain.tpr, "threshold": threshold}
    return facts | {"recipe": json.loads(json.dumps(dataclasses.asdict(recipe)))}


def _check_description(file: Path, model: Classifier) -> None:
    """Whoever reads config.json must not be told of another model; keys we do not know are let be."""
    told = _read_description(file)
    if told is None:
        raise InputError(f"{file} must be a JSON object with the key {MARK!r}, as save_pretrained writes it")
    own = described(model)
    try:  # with the defaults of what was not there when it was written
        recipe = told.get("recipe", {})
        cfg = recipes.stored(recipe)[0] if isinstance(recipe, dict) else recipes.from_dict(recipe)
        told["recipe"] = json.loads(json.dumps(dataclasses.asdict(cfg)))
    except InputError as error:
        raise InputError(f"the recipe in {file} is not one of this version of gmmc: {error}") from None
    said_of = dict(_flat(told))
    for key, value in _flat(own):
        said = said_of.get(key, value)
        if said != value and key != MARK:
            rule = f"{key} must be {shortened(value)} as in {MODEL}"
            raise InputError(f"{file} is of another model: {rule}, got {shortened(said)}")


def _read_description(file: Path) -> dict[str, Any] | None:
    """None where it is not one of ours."""
    try:
        told = parse_json(read_bytes(file), str(file))
    except (OSError, InputError):
        return None
    return told if isinstance(told, dict) and MARK in told else None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# --- places ---------------------------------------------------------------------------------------


def _check_place(folder: Path) -> None:
    """An empty folder or one of ours; hidden files, such as those of git, are not looked at."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"a model is saved to a folder, got the file {shortened(str(folder), LONG_SHOWN)}")
    check_writable(folder, "folder")
    if not folder.exists():
        return
    there = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    foreign = [name for name in there if name not in FILES]
    description = _read_description(folder / DESCRIPTION)
    if description is None:
        foreign = foreign or there
    if foreign:
        raise InputError(
            f"{folder} must be empty or hold what gmmc export wrote there before, "
            f"got one with {printable(foreign[0])}"
        )
    check_replaceable(folder / README, "folder", lambda card: _is_unedited(card, description or {}))


def _is_unedited(card: Path, description: Mapping[str, Any]) -> bool:
    """Whether the card is as gmmc wrote it; of a version that kept no hash, whether it has our mark."""
    if CARD_HASH not in description:
        return has_mark(card, CARD_MARK)
    try:
        return hashlib.sha256(read_bytes(card)).hexdigest() == description[CARD_HASH]
    except OSError:
        return False


def _folder_of(source: str | Path) -> Path | None:
    """Where results.json and card.toml of a run are; none of a file that is not a run's finished model."""
    place = shipped.newest(source)
    folder = place.parent if place.name == MODEL else place
    return folder if (folder / CONFIG).is_file() or (folder / RESULTS).is_file() else None


def _downloaded(repository: str, revision: str | None) -> Path:
    """The two files that are needed, from the Hub or from what its client kept of them."""
    if not REPOSITORY.fullmatch(repository):
        hint = f'; gmmc.load("{repository}") reads it' if repository in shipped.names() else ""
        raise InputError(
            "a model must be a folder, or a repository on the Hub (user/name), "
            f"got {shortened(repository)}{hint}"
        )
    import huggingface_hub
    from huggingface_hub import errors

    where = f"no folder {shortened(repository)} here, and "
    at = f" at revision {shortened(revision)}" if revision else ""
    try:
        found = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=[DESCRIPTION, MODEL], library_name="gmmc"
        )
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
        raise InputError(f"{where}the repository{at} cannot be downloaded: no network") from None
    except Exception as error:  # the errors below the client differ from one version to the next
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}the Hub gives no such repository{at} ({type(error).__name__}: {reason})"
        ) from None
    return Path(found)
