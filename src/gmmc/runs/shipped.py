"""Models that ship with gmmc: light run folders in `gmmc/shipped`, found by their names.

The installed package belongs to whoever installed it: what is made with such a model goes to runs/NAME.
"""

import filecmp
import shutil
from pathlib import Path

from gmmc.base.atomic import temporary_folder
from gmmc.errors import InputError
from gmmc.runs.layout import CONFIG, LAST_GOOD, MODEL, RESULTS

SHIPPED = Path(__file__).resolve().parents[1] / "shipped"
DRAWN = "drawn"  # images by `gmmc sample --balanced`: nothing of a data set ships, and no network is needed
MAKES_A_RUN = (MODEL, CONFIG, RESULTS, LAST_GOOD)  # any of these


def names() -> list[str]:
    return sorted(file.parent.name for file in SHIPPED.glob(f"*/{MODEL}"))


def listed(words: str) -> str:
    """The words and the names of the models; nothing where none ships."""
    return f"{words}: {', '.join(names())}" if names() else ""


def find(run: str | Path) -> Path:
    """A local run folder or model file, else the shipped model of that name, else the path as it is.

    A local folder that is no run, of data for example, does not hide a model of the same name.
    """
    path = Path(run)
    if path.is_file() or any((path / name).is_file() for name in MAKES_A_RUN) or _bare(run) not in names():
        return path
    return SHIPPED / path


def _bare(run: str | Path) -> str:
    """A name as it is typed; completed by a shell it ends in a slash, where a folder has it too."""
    return str(run).rstrip("/")


def is_shipped(run: str | Path) -> bool:
    """Whether a name or a path leads into the installed package."""
    return _folder(find(run)).resolve().parent == SHIPPED.resolve()


def workplace(run: str | Path) -> Path:
    """Where what is made with a run goes: its own folder, runs/NAME for a shipped model."""
    folder = _folder(find(run))
    if not is_shipped(run):
        return folder
    place = Path("runs") / folder.resolve().name
    if _is_other(place, folder):
        raise InputError(
            f"{place} is another run than the {place.name} that ships with gmmc; "
            "rename it, or call gmmc in another folder"
        )
    return place


def newest(run: str | Path) -> Path:
    """The folder to read results in: where a shipped model has been evaluated, they are in runs/NAME."""
    path = find(run)
    own = Path("runs") / path.name
    named = path != Path(run)  # not led to the package by a path, which means what it says
    return own if named and _same(MODEL, own, path) else path


def drawn_images(run: str | Path) -> list[Path]:
    """Images that come with a shipped model, which drew them; none for other runs."""
    return sorted((_folder(find(run)) / DRAWN).glob("*.png")) if is_shipped(run) else []


def own_copy(run: str | Path) -> Path:
    """A run folder that may be written to: of a shipped model runs/NAME, made where it is not there yet.

    Samples and reports, which may be there before, stay; the copy is whole once its model is there.
    """
    place, folder = workplace(run), _folder(find(run))
    if not is_shipped(run) or (place / MODEL).is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(place) as copy:
        # Not copytree: modes of an installed package may forbid to write.
        files = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
        for file in files:
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / file, copy / file)
        if not place.exists():
            return copy.rename(place)
        for file in sorted(files, key=lambda file: file == Path(MODEL)):  # the model last
            if not (place / file).exists():
                (place / file).parent.mkdir(parents=True, exist_ok=True)
                (copy / file).rename(place / file)
    return place


def _folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def _is_other(place: Path, folder: Path) -> bool:
    """Whether runs/NAME is something else than a copy of the model, whole or begun, or a place for one."""
    if (place / MODEL).is_file():
        return not _same(MODEL, place, folder)
    there = [name for name in MAKES_A_RUN if (place / name).is_file()]
    return place.is_file() or not all(_same(name, place, folder) for name in there)


def _same(name: str, place: Path, folder: Path) -> bool:
    files = place / name, folder / name
    return all(file.is_file() for file in files) and filecmp.cmp(*files, shallow=False)
