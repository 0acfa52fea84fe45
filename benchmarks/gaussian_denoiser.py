"""The loss by noise level that a network must beat: Gaussian denoisers of CIFAR-10, on validation images.

    python benchmarks/gaussian_denoiser.py --data DIR --out results/gaussian-denoiser.json

DIR holds cifar10/ as parquet files. The images and their noise are those of `denoising_runs.py --levels`, so
that its losses ‖F − t‖²/n can be compared with these, of

- `isotropic`: F = 0, the Gaussian with the variance σ_d² in all directions;
- `fitted`: F = G·u, the Gaussian term of denoising.gaussian=fitted without a network (gaussian_term.py);
- `full`: the posterior mean of one Gaussian with mean and full covariance of the training images.
"""

import argparse
import json
from pathlib import Path

import torch
from denoising_runs import LEVELS, noisy
from torch import Tensor

import gmmc
from gmmc import noise
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.config import recipes
from gmmc.config.sections import DataConfig
from gmmc.data import sources
from gmmc.networks.gaussian_term import GaussianTerm
from gmmc.pixels import to_signed

RECIPE = "cifar10"


class GaussianDenoiser:
    """Posterior mean of clean images under one Gaussian with full covariance, fitted to training images."""

    def __init__(self, images: Tensor):
        x = to_signed(images).flatten(1).double()
        self.mean = x.mean(0)
        self.variances, self.directions = torch.linalg.eigh((x - self.mean).T.cov(correction=0))

    def __call__(self, x: Tensor, sigma: float) -> Tensor:
        along = (x.flatten(1).double() - self.mean) @ self.directions
        share = self.variances / (self.variances + sigma**2)
        return (self.mean + (along * share) @ self.directions.T).view_as(x).float()


def losses(train: Tensor, valid: Tensor, sigma_data: float) -> dict[str, dict[str, float]]:
    """‖D − x₀‖²/(n·c_out²) = ‖F − t‖²/n of each denoiser, by σ."""
    clean, full = to_signed(valid), GaussianDenoiser(train)
    term = GaussianTerm((clean.shape[1], clean.shape[2], clean.shape[3]), sigma_data)
    term.fit(train)
    found: dict[str, dict[str, float]] = {"isotropic": {}, "fitted": {}, "full": {}}
    for sigma in LEVELS:
        level, x = noise.per_image(sigma, clean), noisy(clean, sigma)
        scales = noise.scales(level, sigma_data)
        denoised = {
            "isotropic": scales.skip * x,
            "fitted": scales.skip * x + scales.out * term.force(scales.into * x, level),
            "full": full(x, sigma),
        }
        for name, estimate in denoised.items():
            found[name][f"{sigma:g}"] = ((estimate - clean) / scales.out).square().mean().item()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with cifar10/; default $GMMC_DATA")
    parser.add_argument("--images", type=int, default=200, help="validation images")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    cfg = recipes.load(RECIPE)
    data = sources.load(DataConfig(cfg.data.name, str(arguments.data or ""), valid=cfg.data.valid), 0)
    valid = data.valid.images[: arguments.images]
    content = {
        "losses": losses(data.train.images, valid, cfg.denoising.sigma_data),
        "images": len(valid),
        "conditions": {
            "sigma_data": cfg.denoising.sigma_data,
            "data_sha256": data.fingerprint,
            "torch": torch.__version__,
            "gmmc": gmmc.__version__,
            "commit": provenance.commit(),
        },
    }
    write_atomic(arguments.out, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())
    for sigma in content["losses"]["full"]:
        print(f"σ = {sigma:5s}", {name: round(row[sigma], 4) for name, row in content["losses"].items()})


if __name__ == "__main__":
    main()
