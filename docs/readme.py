"""Fill the README's results from results/*.json, so that nobody types a number. `--check` only compares."""

import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?<=<!-- results/digits\.json -->\n).*?(?=<!-- end -->)", re.DOTALL)


def digits_table() -> str:
    results = json.loads((ROOT / "results" / "digits.json").read_text())
    accuracy, samples = results["accuracy"], results["samples"]
    classes = len(accuracy["curves"]["top1_per_class"])
    chains, drawn = samples["conditions"], samples["values"]
    return (
        "| | measured | on |\n|---|---|---|\n"
        f"| test accuracy | **{accuracy['values']['top1']:.1%}** | "
        f"{accuracy['conditions']['images']} images it never saw |\n"
        f"| samples an independent SVC recognises | **{drawn['svc_agreement']:.1%}** | "
        f"{chains['samples']} fresh chains of {chains['steps']} steps from noise, none left out |\n"
        f"| their variety, real digits = 1 | **{drawn['diversity']:.2f}** | "
        "mean distance of two of a class |\n"
        f"| NLL of the test images | {accuracy['values']['nll']:.2f} | "
        f"with the paper's γ²; a uniform guess has {math.log(classes):.2f} |\n"
        f"| training | {chains['trained']['seconds']:.0f} s | {chains['hardware']} |\n"
        f"\nOne seed, commit {chains['commit'][:10]}; settings and conditions in "
        "[results/digits.json](results/digits.json).\n"
    )


def main() -> None:
    readme = ROOT / "README.md"
    old = readme.read_text()
    new = BLOCK.sub(lambda _: digits_table(), old)
    if "--check" in sys.argv:
        sys.exit(0 if new == old else "README.md is not what results/ says: run `make readme`")
    readme.write_text(new)


if __name__ == "__main__":
    main()
