"""The newest checkpoint of a training as a model in small files, while the training goes on, and back again.

    python benchmarks/model_parts.py runs/cifar10 --data DIR --out parts    # parts/STEP-1-of-2.part, …
    python benchmarks/model_parts.py --join parts --out cifar10.safetensors

For a GPU from which only files of a limited size come back. The model has the averaged weights and is
calibrated (write_model_so_far); a finished training gives its own model. Parts carry the SHA-256 of the whole
in their names: parts of two checkpoints do not mix.
"""

import argparse
import hashlib
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import gmmc
from gmmc.base.atomic import write_atomic
from gmmc.config import recipes
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.errors import InputError
from gmmc.runs.layout import CONFIG, MODEL
from gmmc.train.so_far import write_model_so_far

MEGABYTE = 2**20
PART = re.compile(r"(?P<step>\d+)-(?P<digest>[0-9a-f]{16})-(?P<number>\d+)-of-(?P<count>\d+)\.part")


def current_model(run: Path, root: Path | None) -> tuple[int, bytes]:
    """(updates, bytes) of the finished model, or of the newest checkpoint."""
    if (run / MODEL).exists():
        return gmmc.load(run).trained["updates"], (run / MODEL).read_bytes()
    cfg = recipes.load(run / CONFIG)
    data = (
        sources.load(DataConfig(cfg.data.name, str(root), valid=cfg.data.valid), cfg.train.seed)
        if root
        else None
    )
    with TemporaryDirectory() as folder:
        model = write_model_so_far(run, Path(folder) / "model", data)
        return model.trained["updates"], (Path(folder) / "model" / MODEL).read_bytes()


def split(content: bytes, step: int, out: Path, size: int) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    digest, count = hashlib.sha256(content).hexdigest()[:16], -(-len(content) // size)
    places = []
    for i in range(count):
        places.append(out / f"{step}-{digest}-{i + 1}-of-{count}.part")
        write_atomic(places[-1], content[i * size : (i + 1) * size])
    return places


def join(folder: Path) -> bytes:
    """The model of the newest checkpoint of which all parts are there."""
    found: dict[tuple[int, str, int], dict[int, Path]] = {}
    for place in folder.iterdir():
        if match := PART.fullmatch(place.name):
            key = int(match["step"]), match["digest"], int(match["count"])
            found.setdefault(key, {})[int(match["number"])] = place
    whole = [key for key, parts in found.items() if sorted(parts) == [*range(1, key[2] + 1)]]
    if not whole:
        raise InputError(f"--join {folder} must hold all parts of a model, got {len(found)} incomplete ones")
    _, digest, count = newest = max(whole)
    content = b"".join(found[newest][number].read_bytes() for number in range(1, count + 1))
    if hashlib.sha256(content).hexdigest()[:16] != digest:
        raise InputError(
            f"--join {folder}: a part is damaged, the SHA-256 of the whole does not begin with {digest}"
        )
    return content


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path, help="a run folder")
    parser.add_argument("--data", type=Path, help="folder with the data, if the recipe's place is another")
    parser.add_argument("--join", type=Path, metavar="DIR", help="put the parts in DIR together")
    parser.add_argument("--out", type=Path, required=True, help="folder of the parts, or the joined file")
    parser.add_argument("--megabytes", type=float, default=15.0, help="most of a part")
    arguments = parser.parse_args()
    if (arguments.run is None) == (arguments.join is None):
        parser.error("give either a run folder or --join DIR")
    if arguments.join:
        write_atomic(arguments.out, join(arguments.join))
        print(arguments.out)
        return
    step, content = current_model(arguments.run, arguments.data)
    for place in split(content, step, arguments.out, int(arguments.megabytes * MEGABYTE)):
        print(f"{place} {place.stat().st_size / MEGABYTE:.1f} MB")


if __name__ == "__main__":
    main()
