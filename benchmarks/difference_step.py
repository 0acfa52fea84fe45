"""How far finite-difference score matching is from the exact gradient, by step h, noise level and precision.

    python benchmarks/difference_step.py RUN --data DIR --out results/difference-step.json

For each σ: the gradient of ‖F − t‖²/n in the weights by a gradient of a gradient in float64, and the finite
difference of train/denoising.py with the same images and noise. Printed: the cosine between both, over all
weights. In float64 it shows the error of the difference alone. In bf16 it is what training on a GPU computes:
the residual by a bf16 copy of the network, the update under autocast.

RUN is one of denoising_small.py, as runs/denoising-small/gaussian. Its validation images are looked at; no
update is made.
"""

import argparse
import contextlib
import copy
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from denoising_runs import noisy
from denoising_small import load_data
from torch import Tensor, nn

import gmmc
from gmmc import noise
from gmmc.base import provenance
from gmmc.base.atomic import write_atomic
from gmmc.classifier.model import Classifier
from gmmc.networks import threads
from gmmc.pixels import to_signed
from gmmc.sampling.engine import FrozenCopy
from gmmc.sampling.samplers import force, goals

SIGMAS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.5, 5.0, 20.0)
STEPS = (0.01, 0.05, 0.1, 0.2, 0.4)
IMAGES = 64


class Batch:
    """Noisy validation images at one σ, and the Gaussian part of the residual, in float64."""

    def __init__(self, model: Classifier, clean: Tensor, labels: Tensor, sigma: float):
        assert model.denoising is not None
        sigma_data = model.denoising.sigma_data
        self.level = noise.per_image(sigma, clean)
        x, scales = noisy(clean, sigma), noise.scales(self.level, sigma_data)
        self.u, self.goal = scales.into * x, goals(labels, self.level, sigma_data, 0.0)
        self.target = noise.target(clean, x, scales)
        if model.gaussian:
            self.target = self.target - model.gaussian.force(self.u, self.level)

    def energy(self, network: nn.Module, head: Any, u: Tensor) -> Tensor:
        features = network(noise.network_input(u, self.level.to(u)))
        return head.guided_energy(features, self.goal.to(u))


def exact(model: Classifier, batch: Batch) -> tuple[Tensor, Tensor]:
    """(gradient in the weights, residual F − t), by a gradient of a gradient in float64."""
    network, head = (
        copy.deepcopy(model.backbone).double().requires_grad_(),
        copy.deepcopy(model.head).double(),
    )
    u = batch.u.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(batch.energy(network, head, u).sum(), u, create_graph=True)
    residual = -gradient - batch.target
    return flat(torch.autograd.grad(residual.square().mean(), [*network.parameters()])), residual.detach()


def by_difference(
    model: Classifier,
    batch: Batch,
    residual: Tensor,
    h: float,
    context: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Tensor:
    """Gradient of the mean of [e(u − h·r) − e(u + h·r)]/(n·h), in the precision of the residual."""
    dtype = residual.dtype
    network, head = (
        copy.deepcopy(model.backbone).to(dtype).requires_grad_(),
        copy.deepcopy(model.head).to(dtype),
    )
    u = batch.u.to(dtype)
    with context():
        lower = batch.energy(network, head, u - h * residual)
        higher = batch.energy(network, head, u + h * residual)
    loss = (lower - higher).mean() / (h * u[0].numel())
    return flat(torch.autograd.grad(loss, [*network.parameters()]))


def bf16_residual(model: Classifier, batch: Batch) -> Tensor:
    copied, u = FrozenCopy(model.backbone, torch.bfloat16), batch.u.float()
    level, goal = batch.level.float(), batch.goal.float()
    return force(copied.gradient, model.head.guided_energy, u, level, goal, None) - batch.target.float()


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([gradient.double().flatten() for gradient in gradients])


def cosine(a: Tensor, b: Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder of denoising_small.py")
    parser.add_argument("--data", type=Path, help="folder with cifar10/; default $GMMC_DATA")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    model = gmmc.load(arguments.run)
    valid = load_data(arguments.data, 0, rehearse=False).valid[:IMAGES]
    found: dict[str, dict[str, dict[str, float]]] = {"float64": {}, "bf16": {}}
    with threads.using(1):
        for sigma in SIGMAS:
            batch = Batch(model, to_signed(valid.images).double(), valid.labels, sigma)
            gradient, residual = exact(model, batch)
            rounded = bf16_residual(model, batch)

            def autocast() -> AbstractContextManager[Any]:
                return torch.autocast("cpu", torch.bfloat16)

            for name, r, context in (
                ("float64", residual, contextlib.nullcontext),
                ("bf16", rounded, autocast),
            ):
                found[name][f"{sigma:g}"] = {
                    f"{h:g}": cosine(gradient, by_difference(model, batch, r, h, context)) for h in STEPS
                }
                row = "  ".join(f"{value:.4f}" for value in found[name][f"{sigma:g}"].values())
                print(f"{name:8s} σ = {sigma:<5g} {row}", flush=True)
    content = {
        "cosines": found,
        "images": IMAGES,
        "model": {"run": arguments.run.name, "trained": model.trained},
        "conditions": {
            "hardware": provenance.hardware(torch.device("cpu")),
            "torch": torch.__version__,
            "gmmc": gmmc.__version__,
            "commit": provenance.commit(),
        },
    }
    write_atomic(arguments.out, f"{json.dumps(content, indent=1, ensure_ascii=False)}\n".encode())


if __name__ == "__main__":
    main()
