"""Tables of the search for a recipe by denoising, from results/*.json."""

from typing import Any

from markdown import results, table

RUNS = {
    "base": "isotropic term",
    "base-seed-1": "the same, seed 1",
    "noise": "isotropic, ln σ ~ N(−.8, 1.4²)",
    "step": "isotropic, h = .05",
    "gaussian": "fitted term",
    "gaussian-seed-1": "the same, seed 1",
    "gaussian-noise": "… ln σ ~ N(−.8, 1.4²)",
    "gaussian-step": "… h = .05",
    "gaussian-attention": "… attention",
    "gaussian-class-.15": "… class_weight .15",
    "gaussian-class-.015": "… class_weight .015",
    "gaussian-scale-10": "… S = 10",
    "gaussian-lr": "… learning rate 4e-3",
    "long-base": "isotropic term, four times as long",
    "long-gaussian": "fitted term, four times as long",
}
SHOWN = ("0.05", "0.2", "0.8", "3", "12", "60")


def conditions_of(entries: list[dict[str, Any]]) -> str:
    commits = ", ".join(dict.fromkeys(entry["conditions"]["commit"][:10] for entry in entries))
    return f"commit {commits}"


def small_table() -> str:
    """Small networks on a CPU: loss by noise level, accuracy, FID."""
    runs = results("denoising-small")["runs"]
    rows = []
    for name, words in RUNS.items():
        if name not in runs:
            continue
        run = runs[name]
        fid = [f"{run['fid'][start]:.2f}" for start in ("normal, 80", "gaussian, 5")]
        losses = [f"{run['levels'][sigma]['loss']:.3f}" for sigma in SHOWN]
        rows.append([words, f"{run['mean_loss']:.4f}", *losses, f"{run['valid_accuracy']:.1%}", *fid])
    gaussian = [f"{runs['base']['levels'][sigma]['gaussian_loss']:.3f}" for sigma in SHOWN]
    rows.append(["best Gaussian denoiser", "–", *gaussian, "–", "–", "–"])
    header = [
        "run",
        "mean loss",
        *(f"σ = {sigma}" for sigma in SHOWN),
        "accuracy",
        "FID from σ = 80",
        "from 5",
    ]
    base = runs["base"]
    images = base["conditions"]["images"]
    caption = (
        f"CIFAR-10 at 16×16, {base['parameters']:,} parameters, {base['updates']:,} updates of 64 images "
        "(four times as many where the table says so), one CPU thread each; seed 0 unless named; … is the "
        f"fitted term with one change. Loss ‖F − t‖²/n of {images['levels']:,} validation images with "
        "their class; mean over ln σ ~ "
        f"N(−1.2, 1.2²). Accuracy of {images['valid']:,} validation images. FID of 1,000 fresh images, "
        "18 Heun "
        "steps, by a small CNN: for this table only. "
        f"{base['conditions']['hardware']}, {conditions_of(list(runs.values()))}. All of it: "
        "[results/denoising-small.json](../results/denoising-small.json), by "
        "[benchmarks/denoising_small.py](../benchmarks/denoising_small.py)."
    )
    return f"{table(header, rows)}\n{caption}\n"


def gaussian_table() -> str:
    """Gaussian denoisers beside the network of the ten-minute run."""
    found, levels = results("gaussian-denoiser"), results("cifar10-denoising")["levels"]
    rows = []
    for sigma, network in levels["values"].items():
        row = [found["losses"][name][sigma] for name in ("isotropic", "full", "fitted")]
        rows.append([sigma, f"{network['loss']:.3f}", *(f"{loss:.3f}" for loss in row)])
    header = ["σ", "network, ten minutes of an H200", "F = 0", "best Gaussian", "fitted term alone"]
    caption = (
        f"Loss ‖F − t‖²/n of the same {found['images']} validation images of CIFAR-10 with the same "
        "noise. The "
        "network is given the class, the Gaussians are not. Best Gaussian: full covariance of the "
        "training images. "
        "[results/gaussian-denoiser.json](../results/gaussian-denoiser.json), by "
        f"[benchmarks/gaussian_denoiser.py](../benchmarks/gaussian_denoiser.py), {conditions_of([found])}."
    )
    return f"{table(header, rows)}\n{caption}\n"


def step_table() -> str:
    """Cosine between finite difference and exact gradient."""
    found = results("difference-step")
    exact, rounded = found["cosines"]["float64"], found["cosines"]["bf16"]
    steps = [*next(iter(exact.values()))]
    rows = [
        [sigma, *(f"{exact[sigma][h]:.3f}" for h in steps), *(f"{rounded[sigma][h]:.3f}" for h in steps)]
        for sigma in exact
    ]
    header = ["σ", *(f"float64, h = {h}" for h in steps), *(f"bf16, h = {h}" for h in steps)]
    caption = (
        f"Cosine between the gradient by finite differences and the exact one, {found['images']} "
        "validation images "
        f"at 16×16, the small network `{found['model']['run']}` of the table above; "
        f"{found['conditions']['hardware']}, {conditions_of([found])}: "
        "[results/difference-step.json](../results/difference-step.json), by "
        "[benchmarks/difference_step.py](../benchmarks/difference_step.py)."
    )
    return f"{table(header, rows)}\n{caption}\n"


def update_table() -> str:
    """Arithmetic and memory traffic of an update by part."""
    found = results("denoising-update")
    base = found["cifar10"]["counts"]
    network = ("gradient in the images", "gradient in the weights")
    whole = {name: sum(part[name] for part in base.values()) for name in ("flop", "bytes")}
    rows = [
        [
            part,
            f"{numbers['flop'] / 1e9:.2f}",
            f"{numbers['bytes'] / 1e6:.1f}",
            f"{numbers['bytes'] / whole['bytes']:.1%}",
        ]
        for part, numbers in base.items()
    ]
    rows.append(["all", f"{whole['flop'] / 1e9:.1f}", f"{whole['bytes'] / 1e6:.0f}", "100%"])
    outside = sum(numbers["bytes"] for part, numbers in base.items() if part not in network) / whole["bytes"]
    ratios = []
    for name, entry in found.items():
        if name == "cifar10":
            continue
        sums = {key: sum(part[key] for part in entry["counts"].values()) for key in whole}
        ratios.append(
            f"`{name.removeprefix('cifar10 ')}` ×{sums['flop'] / whole['flop']:.2f} and "
            f"×{sums['bytes'] / whole['bytes']:.2f}"
        )
    caption = (
        "An update of `recipes/cifar10.toml`, per denoised image, 512 of them and 256 class images; "
        "traffic in fp32 with "
        f"each operation by itself. All but the network: {outside:.1%} of the traffic and no arithmetic "
        "to speak of. "
        f"Changes, arithmetic and traffic: {'; '.join(ratios)}. Counted, not timed "
        "([results/denoising-update.json](../results/denoising-update.json), by "
        "[benchmarks/denoising_update.py](../benchmarks/denoising_update.py), "
        f"{conditions_of([found['cifar10']])})."
    )
    return f"{table(['part', 'GFLOP', 'MB', 'share of MB'], rows)}\n{caption}\n"
