"""Decoded images that are kept: the same bits, never stale, never a reason to fail."""

import os
import sys
import time
from contextlib import ExitStack
from subprocess import PIPE

import pytest
import torch

from conftest import tiny_data
from gmmc import data
from gmmc.base import leader
from gmmc.config.sections import DataConfig
from gmmc.data import cache, decode_many, sources
from gmmc.errors import InputError
from image_files import pictures, png, write_folder, write_shard, write_table
from processes import ended, started

LABELS = [i % 2 for i in range(20)]
CLASSES = [("cat", "dog")[label] for label in LABELS]


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of the cache, where sets of ten images are already worth keeping."""
    monkeypatch.setenv("GMMC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 9)
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    """Grey and colour, one split in a folder."""
    root = write_folder(tmp_path / "photos", pictures(20), CLASSES)
    (root / "cat" / "000.png").write_bytes(png(pictures(1, channels=1)[0]))
    return root


def load(path, **options):
    return sources.load(DataConfig(name=str(path), **options), seed=0)


def entries(kept):
    return sorted(path.name for path in kept.iterdir())


def same(a, b):
    parts = ("train", "valid", "test")
    return (a.class_names, a.notes) == (b.class_names, b.notes) and all(
        torch.equal(getattr(a, part).images, getattr(b, part).images)
        and torch.equal(getattr(a, part).labels, getattr(b, part).labels)
        for part in parts
    )


@pytest.fixture
def no_decoding(monkeypatch):
    """Call it, and from then on nothing can be decoded."""

    def refuse(*_):
        raise AssertionError("decoded again")

    return lambda: monkeypatch.setattr(decode_many, "decode", refuse)


def test_the_second_time_nothing_is_decoded_and_all_is_the_same(photos, no_decoding, capsys):
    first = load(photos)
    said = capsys.readouterr().err
    assert "reading photos" in said
    no_decoding()
    assert same(load(photos), first)
    again = capsys.readouterr().err
    assert "photos: 1 grey image converted to RGB" in again
    assert "reading photos" not in again


def test_each_split_of_parquet_files_has_its_entry(tmp_path, kept, no_decoding):
    write_shard(tmp_path / "set" / "train.parquet", pictures(20), LABELS, ("a", "b"))
    write_shard(tmp_path / "set" / "test.parquet", pictures(10, seed=1), LABELS[:10], ("a", "b"))
    first = load(tmp_path / "set")
    assert len(entries(kept)) == 2
    no_decoding()
    assert same(load(tmp_path / "set"), first)


def test_changed_files_are_decoded_and_replace_the_old_entry(photos, kept):
    load(photos)
    (old,) = entries(kept)
    (photos / "dog" / "new.png").write_bytes(png(pictures(1, seed=8)[0]))
    more = load(photos)
    assert len(more.train) + len(more.valid) + len(more.test) == 21
    (new,) = entries(kept)
    assert new != old
    path = photos / "dog" / "new.png"
    path.write_bytes(png(pictures(1, seed=9)[0]))  # as large as before: only the time tells
    os.utime(path, ns=(0, 1))
    load(photos)
    (newer,) = entries(kept)
    assert newer != new
    path.write_bytes(path.read_bytes() + b"\0")  # at the same time: only the size tells
    os.utime(path, ns=(0, 1))
    load(photos)
    assert newer not in entries(kept)
    assert len(entries(kept)) == 1


def test_other_options_have_entries_of_their_own(photos, kept, no_decoding):
    at_eight, as_it_is = load(photos, size=8), load(photos)
    assert at_eight.shape == (3, 8, 8)
    assert len(entries(kept)) == 2
    no_decoding()
    assert same(load(photos, size=8), at_eight)
    assert same(load(photos), as_it_is)


def test_other_labels_and_channels_have_entries_of_their_own(tmp_path, kept):
    cells = {"img": [png(image) for image in pictures(20)], "kind": LABELS, "turned": LABELS[::-1]}
    path = write_table(tmp_path / "all.parquet", cells)
    for _ in range(2):  # decoded, then from the cache
        for column in ("kind", "turned"):
            got = load(path, label=column)
            wanted = dict(zip(map(bytes_of, pictures(20)), cells[column], strict=True))
            assert all(
                wanted[image.numpy().tobytes()] == label
                for image, label in zip(got.train.images, got.train.labels.tolist(), strict=True)
            )
    assert len(entries(kept)) == 2
    shapes = [data.outside(str(path), tiny_data(channels=channels)).shape[1:] for channels in (1, 3, 1)]
    assert shapes == [(1, 8, 8), (3, 8, 8), (1, 8, 8)]


def bytes_of(picture):
    """As a tensor of the image holds it, channels first."""
    return picture.transpose(2, 0, 1).tobytes()


def test_two_files_of_one_folder_do_not_push_each_other_out(tmp_path, kept):
    for seed in (1, 2):
        load(write_shard(tmp_path / f"{seed}.parquet", pictures(20, seed=seed), LABELS))
    assert len(entries(kept)) == 2


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:-9] + b"\0" * 9, lambda _: b""])
def test_a_damaged_entry_is_decoded_anew_and_mended(photos, kept, damage, capsys, no_decoding):
    first = load(photos)
    (name,) = entries(kept)
    (kept / name).write_bytes(damage((kept / name).read_bytes()))
    assert same(load(photos), first)
    assert "cannot use the decoded images of last time" in capsys.readouterr().err
    no_decoding()
    assert same(load(photos), first)


def test_a_folder_that_cannot_be_written_is_no_error(photos, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GMMC_CACHE", str(tmp_path / "file" / "cache"))
    assert len(load(photos).train) > 0
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "cannot keep the decoded images" in line
    ]
    assert len(lines) == 1


def test_what_is_refused_is_not_kept(photos, kept):
    (photos / "dog" / "001.png").write_bytes(b"broken")
    for _ in range(2):
        with pytest.raises(InputError, match=r"cannot read .*001\.png"):
            load(photos)
    assert not kept.exists()


def test_small_sets_are_not_kept(photos, kept, monkeypatch):
    monkeypatch.undo()  # the real threshold
    monkeypatch.setenv("GMMC_CACHE", str(kept))
    load(photos)
    assert not kept.exists()
    assert cache.WORTH_KEEPING == 2000


def test_what_a_killed_process_left_is_cleaned_away(photos, kept):
    load(photos)
    (name,) = entries(kept)
    old, fresh = kept / f".{name}.1.tmp", kept / f".{name}.{os.getppid()}.tmp"  # both are alive
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    (kept / name).unlink()
    load(photos)
    assert entries(kept) == sorted([fresh.name, name])


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"GMMC_CACHE": "{}/a", "XDG_CACHE_HOME": "{}/b", "HOME": "{}/c"}, "a"),
        ({"GMMC_CACHE": "", "XDG_CACHE_HOME": "{}/b", "HOME": "{}/c"}, "b/gmmc"),
        ({"GMMC_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "{}/c"}, "c/.cache/gmmc"),
    ],
)
def test_where_the_cache_is(photos, tmp_path, monkeypatch, variables, place):
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    load(photos)
    assert len(entries(tmp_path / place)) == 1


def test_only_the_leader_speaks(photos, monkeypatch, capsys):
    monkeypatch.setattr(leader, "_several", True)
    monkeypatch.setenv("RANK", "1")
    load(photos)
    assert capsys.readouterr().err == ""


def test_several_processes_at_once(photos, kept, no_decoding):
    """They start together, decode, write the same entry and end with the same images."""
    code = (
        "import sys; from gmmc.data import cache, load; from gmmc.config.sections import DataConfig\n"
        "cache.WORTH_KEEPING = 9; print(load(DataConfig(name=sys.argv[1]), 0).fingerprint)"
    )
    command = [sys.executable, "-c", code, photos]
    with ExitStack() as stack:
        both = [stack.enter_context(started(command, stdout=PIPE, text=True)) for _ in range(2)]
        prints = {ended(process).stdout.strip() for process in both}
    assert len(entries(kept)) == 1
    no_decoding()
    assert prints == {load(photos).fingerprint}
