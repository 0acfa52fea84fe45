"""`gmmc examples`."""

import shlex

from gmmc.base.text import print_line
from gmmc.cli.options import Run

EXAMPLE = "gmmc examples runs/demo   or   gmmc examples cifar10"


def examples(run: Run) -> None:
    """Write images to try gmmc predict on.

    Chosen by a rule that never asks the model. PNG files in examples/ of the run: the first test image in
    stored order, the same turned by 90°, and uniform noise. For a model that ships with gmmc: images that it
    drew instead of a test image, in runs/NAME/examples.
    """
    from gmmc.generate.examples import write_examples

    written = write_examples(run)
    for path, shown in written.items():
        print_line(f"{path}: {shown.words}")
    print_line(f"Next: {shlex.join(['gmmc', 'predict', run, str(next(iter(written)).parent)])}")
