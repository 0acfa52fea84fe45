"""`gmmc sample`: draw images of chosen classes into a folder or a file."""

from collections.abc import Sequence
from pathlib import Path

import torch

from gmmc import generate
from gmmc.base.limits import LONG_SHOWN
from gmmc.base.outputs import check_writable
from gmmc.base.progress import Progress
from gmmc.base.text import cut, shortened
from gmmc.classifier.image_files import check_images
from gmmc.classifier.model import Classifier
from gmmc.errors import InputError


def draw(
    model: Classifier, out: Path, *, number: int, class_names: Sequence[str], seed: int, steps: int | None
) -> str:
    """Draw `number` images into a folder, or into a file if `out` has its ending; return a line about them.

    With class names, the images go through them in turn; without, classes are drawn from the priors.
    """
    check_images(model)
    drawer = model.drawer()  # refuses a model that cannot draw
    in_file = is_image_file(out)
    if class_names:
        chosen = torch.tensor([class_index(model, name) for name in class_names])
        labels = chosen[torch.arange(number) % len(chosen)]
    else:
        labels = drawer.labels(number, seed)
    check_writable(out.parent if in_file else out, "--out")
    to_place = generate.to_file if in_file else generate.to_folder
    with Progress("sampling", number) as bar:
        there = to_place(model, labels, seed, out, steps=steps, on_progress=bar.update)
    before = f", {'all' if there == number else there} of them drawn before" if there else ""
    line = f"{number} images in {out}{before}"
    if in_file:
        return line
    others = len(list(out.glob("*_seed*.png"))) - number
    if others > 0:
        line += f" (and {others} others of earlier draws)"
    shown = "all at once" if number <= generate.IN_GRID else f"the first {generate.IN_GRID}"
    return f"{line}; {shown}: {out / 'grid.png'}"


def is_image_file(out: Path) -> bool:
    """Whether images go into one file. Numbers after a dot are no ending: a folder may be called v1.2."""
    ending = out.suffix.lower()
    if out.is_dir() or not ending[1:2].isalpha():
        return False
    if ending not in generate.FILES:
        endings = " or ".join(generate.FILES)
        raise InputError(
            f"--out must be a folder or a file that ends in {endings}, got {shortened(str(out), LONG_SHOWN)}"
        )
    return True


def class_index(model: Classifier, name: str) -> int:
    """Find a class by its name, by its name in another case, or by its index."""
    names = model.class_names
    if name in names:
        return names.index(name)
    alike = [index for index, known in enumerate(names) if known.casefold() == name.casefold()]
    if len(alike) > 1:
        either = cut(" or ".join(names[index] for index in alike), LONG_SHOWN)
        raise InputError(f"--label must name one class, got {shortened(name)}, which may be {either}")
    if alike:
        return alike[0]
    if name in map(str, range(len(names))):
        return int(name)
    allowed = cut(", ".join(names), LONG_SHOWN)
    rule = f"--label must be one of {allowed}, or an index up to {len(names) - 1}"
    raise InputError(f"{rule}, got {shortened(name)}")
