"""Draw docs/images/denoising-gaussian.png: denoising losses over σ beside the best Gaussian denoiser."""

import matplotlib.pyplot as plt
from markdown import ROOT, results

PLACE = ROOT / "docs" / "images" / "denoising-gaussian.png"
LINES = {
    "long-base": ("isotropic Gaussian term", "#0072b2", "-"),
    "long-gaussian": ("fitted Gaussian term", "#d55e00", "-"),
}


def main() -> None:
    figure, (large, small) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    levels, gaussian = (
        results("cifar10-denoising")["levels"]["values"],
        results("gaussian-denoiser")["losses"],
    )
    best = gaussian["full"]
    sigmas = [float(sigma) for sigma in levels]
    ratios = [values["loss"] / best[sigma] for sigma, values in levels.items()]
    large.plot(sigmas, ratios, "o-", color="#0072b2", markersize=4, label="network, isotropic term")
    fitted = [gaussian["fitted"][sigma] / best[sigma] for sigma in levels]
    large.plot(sigmas, fitted, "--", color="#d55e00", label="fitted term alone")
    large.set_title("CIFAR-10, ten minutes of an H200", fontsize=10)
    runs = results("denoising-small")["runs"]
    for name, (label, colour, style) in LINES.items():
        levels = runs[name]["levels"]
        ratios = [values["loss"] / values["gaussian_loss"] for values in levels.values()]
        small.plot([float(s) for s in levels], ratios, f"o{style}", color=colour, markersize=4, label=label)
    small.set_title("16×16, small networks, 16,872 updates", fontsize=10)
    for axes in (large, small):
        axes.axhline(1, color="k", linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xlabel("σ")
        axes.set_ylim(0.6, 1.3)
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    large.set_ylabel("loss / loss of the best Gaussian")
    figure.tight_layout()
    figure.savefig(PLACE, dpi=110)


if __name__ == "__main__":
    main()
