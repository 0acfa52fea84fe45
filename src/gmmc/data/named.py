"""Data sets known by name: looked for on disk, else downloaded from the Hugging Face Hub."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gmmc.base.inputs import expanded
from gmmc.base.leader import is_leader
from gmmc.config.sections import DataConfig
from gmmc.data import local
from gmmc.data.layout import SPLITS
from gmmc.data.splits import Parts
from gmmc.errors import InputError


@dataclass(frozen=True)
class NamedSet:
    repo: str  # on the Hub
    folders: tuple[str, ...]  # what its folder may be called on disk
    part: str = ""  # the folder of the repository that is meant, where it has several


NAMED = {
    "cifar10": NamedSet("uoft-cs/cifar10", ("cifar10",)),
    "cifar100": NamedSet("uoft-cs/cifar100", ("cifar100",)),
    "svhn": NamedSet("ufldl-stanford/svhn", ("svhn",), "cropped_digits"),
    "celeba": NamedSet("flwrlabs/celeba", ("celeba", "celeba64")),
    "fashion_mnist": NamedSet("zalando-datasets/fashion_mnist", ("fashion_mnist", "fashion-mnist")),
}


def load(name: str, cfg: DataConfig) -> Parts:
    return local.load(find(name, cfg.root, ("train", "test")), cfg, name)


def find(name: str, root: str, needed: Sequence[str] = ()) -> Path:
    """The folder of a named set with the needed splits; without any, a folder that has images at all."""
    folders = list(_folders(name, root))
    lacking = [_lacking(folder, needed) for folder in folders]
    for folder, splits in zip(folders, lacking, strict=True):
        if not splits:
            return folder
    if folders:
        files = _files(lacking[0])
        raise InputError(f"{name} in {folders[0]} has no {files}; put those of {NAMED[name].repo} there")
    return _download(name, needed)


def _folders(name: str, root: str) -> Iterator[Path]:
    """Where the set lies, `data.root` first."""
    known = NAMED[name]
    for place in filter(None, (root, os.environ.get("GMMC_DATA"))):
        for called in known.folders:
            folder = expanded(place) / called
            if folder.is_dir():
                yield folder / known.part if (folder / known.part).is_dir() else folder


def _lacking(folder: Path, needed: Sequence[str]) -> list[str]:
    splits = local.find(folder, labelled=False).splits
    return [split for split in needed if split not in splits]


def _files(splits: Sequence[str]) -> str:
    return " and ".join(f"{split}-*.parquet" for split in splits)


def _download(name: str, needed: Sequence[str]) -> Path:
    """The needed splits from the Hub. Without any, the test images: the rest would be a long download."""
    known = NAMED[name]
    folder, trouble = _fetch(known, tuple(SPLITS) if needed else ("test",))
    needed = needed or ("test",)
    if folder:
        missing = _lacking(folder, needed) if any(folder.rglob("*.parquet")) else needed
        if not missing:
            return folder
        trouble = f"it came without {_files(missing)}"
    raise InputError(
        f"no {name} under data.root or $GMMC_DATA and it cannot be downloaded ({trouble}); put "
        f"{_files(needed)} of {known.repo} into DIR/{known.folders[0]} and set GMMC_DATA=DIR"
    )


def _fetch(known: NamedSet, starts: Sequence[str]) -> tuple[Path | None, str]:
    """(a folder with the files of the splits, or none, and then what went wrong).

    Without a network it is what the client kept from before, if anything.
    """
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    if not is_leader():
        disable_progress_bars()
    patterns = [f"{known.part or '*'}/{start}-*.parquet" for start in starts]
    try:
        folder = huggingface_hub.snapshot_download(known.repo, repo_type="dataset", allow_patterns=patterns)
        return Path(folder) / known.part, ""
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError):
        return None, "no network"
    except Exception as error:  # the errors below the client differ from one version to the next
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
