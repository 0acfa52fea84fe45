"""Run folders as the program writes them, and a page as its elements: what the tests of the report share."""

import fcntl
import json
import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from PIL import Image

from gmmc.base.names import SCORES
from gmmc.config import recipes
from gmmc.report.page import write_report

CLASSES = ["plane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
TEMPERATURES = ("paper", "unit", "fitted")
OLDER_SCORES = ("log_density", "max_posterior", "gradient_norm")


def entry(values, intervals=None, curves=None, files=(), flags=(), **conditions):
    """One evaluation of results.json."""
    told = {"data": "cifar10", "split": "test", "images": 10_000, "commit": "0123456789abcdef", **conditions}
    return {
        "values": values,
        "intervals": intervals or {},
        "curves": curves or {},
        "files": list(files),
        "flags": list(flags),
        "conditions": {**told, "settings": {"train": {"seed": 0}}},
    }


def accuracy_entry(classes=CLASSES, **changes):
    n = len(classes)
    # The first class is named without an error.
    counts = [[900 if i == j else 3 * ((i * 7 + j) % 5) * (i > 0) for j in range(n)] for i in range(n)]
    curves = {
        "top1_per_class": [row[i] / sum(row) for i, row in enumerate(counts)],
        "confusion": counts,
        "class_names": list(classes),
    }
    values = {"top1": 0.94083, "nll": 0.2471, "brier": 0.0931, "errors": 592}
    return entry(values, {"top1": [0.9360, 0.9453]}, curves, **{"temperature": "the fitted γ²", **changes})


def calibration_entry(temperatures=TEMPERATURES):
    values, curves = {}, {}
    for t, sharp in zip(temperatures, (40, 12, 5), strict=False):
        counts = [int(10_000 * math.exp(-(19 - i) * sharp / 20)) for i in range(20)]
        middle = [(i + 0.5) / 20 for i in range(20)]
        values |= {f"{t}/gamma2": 0.31 * sharp, f"{t}/ece": 0.002 * sharp, f"{t}/ece_if_perfect": 0.0041}
        values |= {f"{t}/adaptive_ece": 0.0021 * sharp, f"{t}/nll": 0.21 + sharp / 100, f"{t}/brier": 0.09}
        values |= {f"{t}/saturated": 0.02 * sharp, f"{t}/ece_if_perfect_95": 0.0072}
        curves[t] = {
            "confidence": [m if c else None for m, c in zip(middle, counts, strict=True)],
            "accuracy": [
                max(0, m - 0.004 * sharp) if c else None for m, c in zip(middle, counts, strict=True)
            ],
            "count": counts,
        }
    return entry(values, curves=curves, flags=["saturated: 80% of the confidences are 1 with the paper's γ²"])


def ood_entry(sets=("svhn", "interp", "cifar100", "celeba", "noise", "constant"), *, older=False):
    """`older`: all scores at all temperatures, and nothing of the acceptance."""
    values, intervals, curves = {}, {}, {}
    draw = np.random.default_rng(0)
    for i, s in enumerate(() if older else ("test images", *sets)):
        values |= {f"{s}/accepted": 0.95 - 0.1 * i, f"{s}/energy_in_span": 1.1, f"{s}/energy_outside_span": 5}
        intervals[f"{s}/accepted"] = [0.945 - 0.1 * i, 0.955 - 0.1 * i]
    rule = {"score": "span_density", "tpr": 0.95, "below": -7.25}
    for i, s in enumerate(sets):
        for j, score in enumerate(OLDER_SCORES if older else SCORES):
            for k, t in enumerate(TEMPERATURES):
                if not (older or score == "max_posterior" or t == "unit"):
                    continue
                name = f"{s}/{score}/{t}"
                auroc = 0.95 - 0.05 * i - 0.02 * j - 0.01 * k
                values |= {f"{name}/auroc": auroc, f"{name}/aupr": auroc - 0.02, f"{name}/fpr95": 1 - auroc}
                intervals[f"{name}/auroc"] = [auroc - 0.004, auroc + 0.004]
                edges = np.linspace(-60, 0, 41)
                inside, _ = np.histogram(draw.normal(-12, 4, 10_000), edges)
                outside, _ = np.histogram(draw.normal(-30 + 3 * i, 7, 8000), edges)
                curves[name] = {
                    "edges": edges.tolist(),
                    "inside": inside.tolist(),
                    "outside": outside.tolist(),
                }
    told = {} if older else {"abstains": rule}
    return entry(values, intervals, curves, positive="in-distribution", **told)


def latent_entry(classes=CLASSES, points=2000):
    draw = np.random.default_rng(1)
    labels = np.arange(points) % len(classes)
    angle = 2 * np.pi * labels / len(classes)
    x, y = (40 * f(angle) + draw.normal(0, 7, points) for f in (np.cos, np.sin))
    map_of_features = {"x": x.tolist(), "y": y.tolist(), "label": labels.tolist()}
    values = {
        "silhouette": 0.412,
        "knn_accuracy": 0.9391,
        "nearest_mean_accuracy": 0.9402,
        "between_within": 3.91,
    }
    return entry(values, curves={"tsne": map_of_features, "class_names": list(classes)})


def samples_entry(files=("samples/by_class.png",)):
    values = {"svc_agreement": 0.871, "svc_test_accuracy": 0.547, "diversity": 0.94}
    doubts = ["the judge itself is weak on real test images: read svc_agreement with care"]
    curves = {"svc_agreement_per_class": [0.9999, 1.0, *[0.8] * 8]}
    return entry(values, {"svc_agreement": [0.85, 0.89]}, curves, files=files, flags=doubts)


LINF, L2 = (1, 2, 4, 8, 16, 32, 64), (0.25, 0.5, 1)
# How fast accuracy falls with ε: what a masked model would show.
ATTACKS = {
    "paper_pgd": 0.002,
    "margin": 0.16,
    "pull": 0.19,
    "temperatures": 0.14,
    "features": 0.1,
    "apgd_ce": 0.05,
    "apgd_t": 0.21,
    "fab_t": 0.12,
    "square": 0.08,
    "autoattack": 0.24,
    "transfer": 0.03,
    "restarts": 0.25,
    "worst_case": 0.27,
}


def robustness_entry(attacks=ATTACKS, files=(), **changes):
    values, intervals = {"clean": 0.914, "zero_gradient_share": 0.434}, {"clean": [0.873, 0.942]}
    for attack in attacks:
        fall = ATTACKS.get(attack, 0.07)
        threats = {f"linf_{eps}": eps for eps in LINF if attack not in ("fab_t", "transfer") or eps == 8}
        threats |= {f"l2_{eps}": 12 * eps for eps in L2 if attack != "paper_pgd"}
        for threat, eps in threats.items():
            accuracy = 0.914 * math.exp(-fall * eps)
            if attack == "paper_pgd":
                accuracy = 0.56 + 0.35 * math.exp(-eps) - fall * eps
            half = 1.96 * math.sqrt(accuracy * (1 - accuracy) / 256)
            values[f"{threat}/{attack}/accuracy"] = accuracy
            intervals[f"{threat}/{attack}/accuracy"] = [max(accuracy - half, 0), accuracy + half]
    values |= {"linf_8/pgd_10/accuracy": 0.58, "linf_8/pgd_200/accuracy": 0.531}
    for mode, share, distance in (("untargeted", 1.0, 0.21), ("targeted", 0.98, 0.34)):
        values |= {f"cw/{mode}/success_rate": share, f"cw/{mode}/l2_mean": distance}
        values[f"cw/{mode}/l2_median"] = 0.9 * distance
    curves = {"steps": {"steps": [10, 40, 200], "accuracy": [0.58, 0.544, 0.531]}}
    doubts = ["43% of the gradients are exactly zero: PGD on cross-entropy says little"]
    told = {"images": 256, "preset": "quick", "flags": doubts, "files": files, **changes}
    return entry(values, intervals, curves, **told)


def autoattack_entry(**changes):
    values, intervals = {"clean": 0.914}, {"clean": [0.873, 0.942]}
    for pixels, whole in ((4, 0.352), (8, 0.031)):
        parts = {"apgd_ce": 0.9, "apgd_t": 1.2 * whole, "fab_t": whole, "square": 0.5, "autoattack": whole}
        for attack, accuracy in parts.items():
            values[f"linf_{pixels}/{attack}/accuracy"] = accuracy
            intervals[f"linf_{pixels}/{attack}/accuracy"] = [0.8 * accuracy, 1.1 * accuracy]
    return entry(values, intervals, **{"images": 256, **changes})


def generation_entry(files=(), **changes):
    values, intervals = {}, {}
    for protocol, fid in (("fresh", 67.64), ("buffer", 56.02), ("paper", 48.1), ("test", 3.153)):
        values |= {f"{protocol}/fid": fid, f"{protocol}/kid": fid / 1500 - 0.0022}
        values |= {f"{protocol}/precision": 0.612, f"{protocol}/recall": 0.431}
        values |= {f"{protocol}/density": 0.573, f"{protocol}/coverage": 0.488}
        intervals[f"{protocol}/kid"] = [fid / 1500 - 0.003, fid / 1500 - 0.0014]
    values |= {"start/fid": 141.2, "start/kid": 0.121}
    lengths = {100: 82.3, 200: 69.9, 400: 66.2}
    values |= {f"steps_{n}/fid": fid for n, fid in lengths.items()}
    values |= {f"steps_{n}/kid": fid / 1500 for n, fid in lengths.items()}
    values |= {"memorisation/closer_share": 0.013, "memorisation/sample_distance": 9.87}
    values |= {"memorisation/test_distance": 10.12}
    intervals["memorisation/closer_share"] = [0.0109, 0.0154]
    bins = [(i + 0.5) / 30 for i in range(30)]
    bells = {"samples": 0.5, "test": 0.55}
    nearest = {key: [math.exp(-(((b - at) / 0.12) ** 2)) / 6.4 for b in bins] for key, at in bells.items()}
    curves = {
        "steps": {"steps": list(lengths), "fid": list(lengths.values())},
        "nearest": {"edges": [5 + i / 3 for i in range(31)], **nearest},
    }
    told = {
        "images": {"fresh": 50_000, "start": 50_000, "buffer": 10_000, "paper": 9000, "test": 10_000}
        | {f"steps_{n}": 10_000 for n in lengths},
        "features": "Inception 2015-12-05 trunk, sha256 7ff4a85c3a",
        "reference": "50,000 training images",
        "inception_score": "not measured: the packaged trunk has no class head",
        "files": files,
    }
    return entry(values, intervals, curves, **{**told, **changes})


def denoising_entry(sigmas=(0.03, 0.3, 3.0)):
    curves = {"loss": [0.7, 0.4, 1.1], "zero_loss": [1.03, 1.5, 2.8], "slope": [1.1, 0.97, None]}
    curves["top1"] = [0.98, 0.9, 0.2]
    values = {
        f"sigma_{sigma:.3g}/{name}": numbers[i]
        for name, numbers in curves.items()
        for i, sigma in enumerate(sigmas)
        if numbers[i] is not None
    }
    ranges = {key: [value - 0.02, value + 0.02] for key, value in values.items()}
    return entry(values, ranges, {"sigma": list(sigmas), **curves})


def likelihood_entry(classes=CLASSES, bits=3.512):
    values = {"bits_per_dim": bits, "standard_error": 0.02, "bits_half_steps": bits + 0.01}
    histogram = {"edges": [bits + i / 10 for i in range(-3, 4)], "images": [1, 20, 60, 50, 15, 2]}
    curves = {
        "histogram": histogram,
        "bits_per_class": [bits + i / 10 if i else None for i in range(len(classes))],
        "class_names": list(classes),
        "chosen": {"sigma": [0.002, 0.02], "bits_per_dim": [bits, bits + 0.4]},
    }
    return entry(values, {"bits_per_dim": [bits - 0.04, bits + 0.04]}, curves, sigma_min=0.002)


def full_results():
    return {
        "accuracy": accuracy_entry(),
        "calibration": calibration_entry(),
        "ood": ood_entry(),
        "robustness": robustness_entry(),
        "autoattack": autoattack_entry(),
        "latent": latent_entry(),
        "samples": samples_entry(),
        "generation": generation_entry(),
    }


def training_lines(updates=1000, every=20):
    noise = random.Random(0)
    lines = []
    for step in range(every, updates + 1, every):
        line = {"step": step, "epoch": 1 + step // 100, "lr": 1e-6, "beta": 0.5, "seconds": step * 0.8}
        line |= {"real_energy": 4 + 300 * math.exp(-step / 90), "accuracy": 1 - math.exp(-step / 300)}
        line |= {"sampled_energy": 5 + 40 * math.exp(-step / 200) + noise.random(), "force_ratio": 0.7}
        if step % 100 == 0:
            line["valid_accuracy"] = line["accuracy"] - 0.02
        lines.append(line)
    return lines


def make_run(folder: Path, results=None, lines=(), data="cifar10", *, finished=True) -> Path:
    folder.mkdir(parents=True)
    recipe = recipes.from_dict({"data": {"name": data}, "generative": {"epochs": 1}})
    (folder / "config.toml").write_text(recipes.to_toml(recipe))
    if lines:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if results is not None:
        for entry in results.values():
            if isinstance(entry, dict):
                entry.get("conditions", {})["data"] = data
        (folder / "results.json").write_text(json.dumps(results))
    if finished:
        (folder / "model.safetensors").write_bytes(b"never opened")
    return folder


@contextmanager
def being_trained(run: Path) -> Iterator[None]:
    """Hold the folder as a training does."""
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def save_picture(path: Path, size=(120, 80), seed=0) -> None:
    path.parent.mkdir(exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


class Page(HTMLParser):
    """A page as its elements; void elements aside, every one must be closed in order."""

    VOID = frozenset({"meta", "img", "br", "hr", "input", "link"})

    def __init__(self, html: str):
        super().__init__()
        self.html, self.elements, self.open, self.text = html, [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)

    def all(self, *tags):
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(*runs: Path, out: Path) -> Page:
    return Page(write_report(runs, out).page.read_text())


def table_rows(page: Page) -> dict[str, list[str]]:
    """The lines of the first table by their label; a foot note's number is left out."""
    table = page.html[page.html.index("<table") : page.html.index("</table>")]
    rows = {}
    for row in re.findall(r"<tr class=\"ours\">(.*?)</tr>", table, re.DOTALL):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", re.sub(r"<sup>.*?</sup>", "", row), re.DOTALL)
        label, *numbers = [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in cells]
        rows[label] = numbers
    return rows
