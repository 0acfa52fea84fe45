"""Features of real images on disk, by content: the same images in the same network are looked at once.

Inception takes hours for CIFAR-10 on a CPU. All features are kept (400 MB for 50,000 images), for neighbours
need every one of them. An entry that cannot be used is no error; entries may be deleted at any time.
"""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from gmmc.base.atomic import write_atomic
from gmmc.base.progress import Progress
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.data import cache
from gmmc.data.splits import Dataset
from gmmc.fid.features import FeatureNetwork

FORMAT = 1  # another number where features change: older entries are not looked at
FOLDER = "features"


def known_features(network: FeatureNetwork, images: Tensor, what: str) -> Tensor:
    """Those of `network.features`, kept where the network is worth it.

    The images of an entry are sorted by their hashes: in another order they are the same set.
    """
    if not network.key:
        return network.features(images, what)
    digests = [hashlib.sha256(image.tobytes()).digest() for image in images.contiguous().numpy()]
    order = torch.tensor(sorted(range(len(digests)), key=digests.__getitem__), dtype=torch.long)
    name = hashlib.sha256(repr((FORMAT, network.key, tuple(images.shape[1:]))).encode())
    for place in order:
        name.update(digests[place])
    entry = f"{name.hexdigest()[:32]}.safetensors"
    found = _read(entry, (len(images), network.dim))
    if found is None:
        found = network.features(images[order], what).cpu()
        _write(entry, found, network.name)
    unsorted = torch.empty_like(found)
    unsorted[order] = found
    return unsorted.to(network.device)


def training_features(network: FeatureNetwork, data: Dataset) -> tuple[Tensor, Tensor]:
    """Of the training and of the validation images; together they are what FID is measured against."""
    train = known_features(network, data.train.images, "training images")
    return train, known_features(network, data.valid.images, "validation images")


def _folder() -> Path:
    return cache.folder() / FOLDER


def _read(entry: str, shape: tuple[int, int]) -> Tensor | None:
    try:
        path = _folder() / entry
        if not path.exists():
            return None
        found = unpack(path)[0]["features"]
        if found.shape != shape or found.dtype != torch.float32:
            raise Damaged(f"{path} holds {tuple(found.shape)} numbers of {found.dtype}")
        return found
    except (Damaged, OSError, RuntimeError, KeyError) as error:
        _say(f"cannot use the features of last time ({error}); they are made anew")
        return None


def _write(entry: str, found: Tensor, name: str) -> None:
    try:
        _folder().mkdir(parents=True, exist_ok=True)
        write_atomic(_folder() / entry, pack({"features": found}, {"network": name})[0])
    except (OSError, RuntimeError) as error:
        _say(f"cannot keep the features for next time ({error}); GMMC_CACHE may name another folder")


def _say(line: str) -> None:
    Progress("", 0).say(line)
