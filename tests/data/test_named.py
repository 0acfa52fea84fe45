"""Named data sets: found where they lie, or fetched, or a line that says what to put where."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils import filter_repo_objects

from gmmc import data
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.data.named import NAMED
from gmmc.errors import InputError
from image_files import pictures, write_shard
from processes import python


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Nothing is fetched in tests; what was asked for is recorded."""
    asked = []

    def fetch(repo, **options):
        asked.append((repo, options))
        raise LocalEntryNotFoundError("cannot reach the Hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.delenv("GMMC_DATA", raising=False)
    monkeypatch.setenv("GMMC_CACHE", str(tmp_path / "cache"))
    return asked


def write_set(folder: Path, *splits: str, seed: int = 0) -> Path:
    for i, split in enumerate(splits or ("train", "test")):
        images = pictures(12, seed=10 * seed + i)
        write_shard(folder / f"{split}-00000-of-00001.parquet", images, [0, 1, 2] * 4, ("a", "b", "c"))
    return folder


def load(name, root=""):
    return sources.load(DataConfig(name=name, root=str(root)), seed=0)


@pytest.mark.parametrize(
    ("name", "folder"), [(name, folder) for name, known in NAMED.items() for folder in known.folders]
)
def test_every_set_is_found_under_the_root_and_under_the_variable(tmp_path, monkeypatch, name, folder):
    write_set(tmp_path / folder)
    by_root = load(name, tmp_path)
    assert by_root.name == name
    assert by_root.root == str(tmp_path)
    monkeypatch.setenv("GMMC_DATA", str(tmp_path))
    assert load(name).fingerprint == by_root.fingerprint


def test_the_root_comes_first_and_may_have_moved(tmp_path, monkeypatch):
    here = write_set(tmp_path / "here" / "cifar10", seed=1).parent
    there = write_set(tmp_path / "there" / "cifar10", seed=2).parent
    monkeypatch.setenv("GMMC_DATA", str(there))
    assert load("cifar10", here).fingerprint != load("cifar10").fingerprint
    assert load("cifar10", tmp_path / "moved").fingerprint == load("cifar10").fingerprint


def test_of_svhn_the_cropped_digits_are_meant_without_the_extra_ones(tmp_path):
    write_set(tmp_path / "svhn" / "cropped_digits", "train", "test", "extra", seed=1)
    write_set(tmp_path / "svhn" / "full_numbers", seed=2)
    write_set(tmp_path / "plain" / "svhn", seed=1)
    got = load("svhn", tmp_path)
    assert got.fingerprint == load("svhn", tmp_path / "plain").fingerprint
    assert got.notes == ("svhn: not used: extra-00000-of-00001.parquet",)


def test_a_set_without_the_needed_split_says_which_files_go_where(tmp_path, monkeypatch, no_network):
    write_set(tmp_path / "svhn", "test")
    with pytest.raises(
        InputError, match=r"^svhn in .*svhn has no train-\*.parquet; put those of ufldl-stanford/svhn"
    ):
        load("svhn", tmp_path)
    assert no_network == []
    write_set(tmp_path / "whole" / "svhn")  # elsewhere it is complete
    monkeypatch.setenv("GMMC_DATA", str(tmp_path / "whole"))
    assert len(load("svhn", tmp_path).test) == 12


def test_without_a_network_one_line_says_what_to_do():
    with pytest.raises(InputError) as refusal:
        load("cifar10")
    assert str(refusal.value) == (
        "no cifar10 under data.root or $GMMC_DATA and it cannot be downloaded (no network); put "
        "train-*.parquet and test-*.parquet of uoft-cs/cifar10 into DIR/cifar10 and set GMMC_DATA=DIR"
    )


def test_any_other_trouble_of_the_client_is_one_line_too(monkeypatch):
    class Strange(Exception):
        pass

    def fetch(*_, **__):
        raise Strange("first line\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(
        InputError, match=r"cannot be downloaded \(Strange: first line second line\); put train"
    ):
        load("cifar100")


# The files of the repositories, as far as they matter here.
REPOSITORIES = {
    "cifar10": ["plain_text/train-00000-of-00001.parquet", "plain_text/test-00000-of-00001.parquet"],
    "cifar100": ["cifar100/train-00000-of-00001.parquet", "cifar100/test-00000-of-00001.parquet"],
    "svhn": ["cropped_digits/train-00000-of-00001.parquet", "cropped_digits/test-00000-of-00001.parquet"],
    "celeba": [
        "img_align+identity+attr/train-00000-of-00001.parquet",
        "img_align+identity+attr/valid-00000-of-00001.parquet",
        "img_align+identity+attr/test-00000-of-00001.parquet",
    ],
    "fashion_mnist": [
        "fashion_mnist/train-00000-of-00001.parquet",
        "fashion_mnist/test-00000-of-00001.parquet",
    ],
}
UNWANTED = [
    "README.md",
    "cropped_digits/extra-00000-of-00002.parquet",
    "full_numbers/extra-00000-of-00001.parquet",
]


@pytest.mark.parametrize("name", NAMED)
def test_only_the_wanted_splits_are_fetched_and_read(tmp_path, monkeypatch, name):
    offered = REPOSITORIES[name] + UNWANTED
    if name == "svhn":
        offered = [*offered, "full_numbers/train-00000-of-00001.parquet"]
    fetched = []

    def fetch(repo, *, repo_type, allow_patterns):
        assert (repo, repo_type) == (NAMED[name].repo, "dataset")
        fetched.append(list(filter_repo_objects(offered, allow_patterns=allow_patterns)))
        for path in fetched[-1]:
            images = pictures(12, seed=offered.index(path))
            write_shard(tmp_path / path, images, [0, 1, 2] * 4, ("a", "b", "c"))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    got = load(name)
    assert fetched == [REPOSITORIES[name]]
    assert len(got.valid) == (12 if name == "celeba" else 1)
    assert data.outside(name, got).shape == (12, 3, 4, 4)
    assert fetched[1] == [path for path in REPOSITORIES[name] if "/test-" in path]


def test_a_download_without_the_needed_files_is_said_so(tmp_path, monkeypatch):
    """Without a network the client gives what it has from before: perhaps the test images only."""
    write_set(tmp_path / "plain_text", "test")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(
        InputError, match=r"cannot be downloaded \(it came without train-\*.parquet\); put train"
    ):
        load("cifar10")


def test_the_readers_are_imported_when_they_are_needed():
    code = "import sys, gmmc.data; print({'pyarrow', 'huggingface_hub', 'sklearn'} & sys.modules.keys())"
    assert python(code).stdout.strip() == "set()"
