"""`gmmc evaluate`."""

from typing import Annotated

import typer

from gmmc.base.text import print_line
from gmmc.cli import printing
from gmmc.cli.options import OR_SHIPPED, Device, Quiet, Threads, complete_run
from gmmc.runs import shipped
from gmmc.runs.results import outside_sets, read_results

EXAMPLE = (
    "gmmc evaluate runs/demo ood --ood noise --ood ~/holiday-photos   or   "
    "gmmc evaluate runs/demo robustness --attacks full --attacked 500"
)

Ood = Annotated[
    list[str] | None,
    typer.Option(
        help="ood: a set of other images: noise, constant, interp, inverted, rotated, cutout, a named set, a "
        "folder or a parquet file; repeat for several. Default: the recipe's."
    ),
]
Attacks = Annotated[
    str | None,
    typer.Option(help="robustness: quick (100 images) or full (1,000 images, all of AutoAttack)."),
]
Attacked = Annotated[
    int | None,
    typer.Option(help="robustness, autoattack: test images to attack; default: the preset's, 256.", min=1),
]
Surrogate = Annotated[
    str | None, typer.Option(help="robustness: a run whose adversarial images are tried too.")
]
Sigma = Annotated[
    float | None,
    typer.Option(
        help="Noise level of a model trained by denoising, for all but samples and generation; default: that "
        "of its predictions. No temperature is fitted for another one, but by calibration. Results stand "
        "beside the others, as robustness@0.25."
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        help="generation, validation: inception, small (a CNN trained here) or a TorchScript file; "
        "default: inception for colour images from 32 pixels, else small."
    ),
]
Generated = Annotated[
    int | None,
    typer.Option(help="generation, validation: fresh chains for FID; default: the recipe's.", min=2),
]
LikelihoodImages = Annotated[
    int | None, typer.Option(help="likelihood: test images; default: 1000, or all if fewer.", min=2)
]


def evaluate(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help=f"A run folder with a finished model{OR_SHIPPED}.",
            autocompletion=complete_run,
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="accuracy, calibration, ood, latent, samples, denoising (default: those that the model "
            "allows), robustness, autoattack, generation, likelihood, validation (no test image is looked "
            "at). denoising and likelihood need a model trained by denoising.",
        ),
    ] = None,
    ood: Ood = None,
    samples: Annotated[
        int | None, typer.Option(help="samples: chains to draw; default: the recipe's.", min=1)
    ] = None,
    attacks: Attacks = None,
    attacked: Attacked = None,
    surrogate: Surrogate = None,
    sigma: Sigma = None,
    features: Features = None,
    generated: Generated = None,
    likelihood_images: LikelihoodImages = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the first chain, of noise, and of the choice of images.", min=0),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure a finished run on its test images.

    With `validation`, on validation images alone. Writes the numbers with their conditions to results.json,
    and pictures, in the run folder; for a shipped model, in a copy of it in runs/NAME. robustness,
    autoattack, generation, likelihood and validation may take minutes, longer on a CPU; interrupted, the same
    command goes on.
    """
    from gmmc.evaluations.run import evaluate_run

    changes = {"ood": tuple(ood) if ood else None, "samples": samples, "seed": seed, "attacks": attacks}
    changes |= {"attacked": attacked, "surrogate": surrogate, "features": features, "generated": generated}
    changes |= {"likelihood_images": likelihood_images, "sigma": sigma}
    place, results = shipped.workplace(run), read_results(shipped.newest(run))
    before = outside_sets(results)
    for name, result in evaluate_run(run, names or [], device, threads, **changes):
        printing.print_result(name, result, place)
        lost = before - set(result.conditions.get("outside", before))
        if name == "ood" and lost:
            print_line(f"  (replaces the earlier results for {', '.join(sorted(lost))})")
    print()
    print_line(f"All of it: {place / 'results.json'}   to look at: gmmc report {place}")
