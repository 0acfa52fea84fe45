"""Decoded splits on disk: the second time nothing is decoded. An entry that cannot be used is no error."""

import hashlib
import json
import os
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from gmmc.base.atomic import write_atomic
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.data.decode_many import Reading, Wanted
from gmmc.data.layout import SplitFiles
from gmmc.data.messages import say

FORMAT = 1  # another number where decoding changes: older entries are not looked at
WORTH_KEEPING = 2000  # images; fewer are decoded in a moment
ABANDONED = 3600  # seconds after which nobody writes on a temporary file any more


class Entry:
    """The place of one split, read in one way, in the state its files are in now."""

    def __init__(self, files: SplitFiles, split: str, wanted: Wanted):
        stats = [(path, path.stat()) for path in files.paths]
        state = [(str(path.relative_to(files.root)), s.st_size, s.st_mtime_ns) for path, s in stats]
        self.source = _hash(str(files.root.resolve()), split)
        self.state = _hash(FORMAT, state)
        self.name = f"{self.source}-{self.state}-{_hash(asdict(wanted))}.safetensors"

    def read(self) -> Reading | None:
        try:
            path = folder() / self.name
            if not path.exists():
                return None
            tensors, info, _ = unpack(path)
            classes, conversions = tuple(info.pop("classes")), info.pop("conversions")
            tally = Counter({(was, done): count for was, done, count in conversions})
            return Reading(**tensors, classes=classes, conversions=tally, **info)
        except (Damaged, OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
            say(f"cannot use the decoded images of last time ({error}); decoding them anew")
            return None

    def write(self, reading: Reading) -> None:
        if len(reading.images) <= WORTH_KEEPING:
            return
        conversions = [(was, done, count) for (was, done), count in reading.conversions.items()]
        info = {"classes": reading.classes, "named": reading.named, "grey": reading.grey}
        content, _ = pack(
            {"images": reading.images, "labels": reading.labels}, {**info, "conversions": conversions}
        )
        try:
            place = folder()
            place.mkdir(parents=True, exist_ok=True)
            write_atomic(place / self.name, content)
            self._remove_older(place)
        except (OSError, RuntimeError) as error:
            say(f"cannot keep the decoded images for next time ({error}); GMMC_CACHE may name another folder")

    def _remove_older(self, place: Path) -> None:
        """Entries of earlier states of the same files, and what a killed process left half written."""
        for path in place.glob(f"{self.source}-*"):
            if not path.name.startswith(f"{self.source}-{self.state}-"):
                path.unlink(missing_ok=True)
        for path in place.glob(f".{self.source}-*.tmp"):
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink(missing_ok=True)


def folder() -> Path:
    """$GMMC_CACHE, else $XDG_CACHE_HOME/gmmc, else ~/.cache/gmmc (RuntimeError where there is no home)."""
    if chosen := os.environ.get("GMMC_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "gmmc"


def _hash(*parts) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
