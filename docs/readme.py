"""Fill the results in README.md and docs/log.md from results/*.json. `--check` only compares."""

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import denoising_tables
from markdown import ROOT, results, table

from gmmc.base.names import AUTOATTACK_PARTS, SCORES
from gmmc.report import published
from gmmc.report.attacks import preset_of, worst_case
from gmmc.report.compare.section import COLUMNS, columns_of, differences, written
from gmmc.report.ood import SETS
from gmmc.report.reading import Entry


def percent(entry: dict[str, Any], name: str, digits: int = 1) -> str:
    low, high = entry["intervals"][name]
    return f"**{entry['values'][name]:.{digits}%}** [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"


def digits_table() -> str:
    found = results("digits")
    accuracy, samples, calibration, ood, attacks = (
        found[name] for name in ("accuracy", "samples", "calibration", "ood", "robustness")
    )
    fits, drawn, chains = calibration["values"], samples["values"], samples["conditions"]
    sets = ood["conditions"]["outside"]
    density, confidence = (
        ", ".join(f"{name} {ood['values'][f'{name}/{place}/auroc']:.2f}" for name in sets)
        for place in ("log_density/unit", "max_posterior/fitted")
    )
    rows = [
        [
            "test accuracy",
            percent(accuracy, "top1"),
            f"{accuracy['conditions']['images']} images it never saw",
        ],
        [
            "NLL, ECE",
            f"**{fits['fitted/nll']:.2f}**, {fits['fitted/ece']:.1%}",
            f"γ² fitted on validation images; with the paper's γ² {fits['paper/nll']:.2f}, "
            f"{fits['paper/ece']:.1%}",
        ],
        ["AUROC of log p(x)", f"**{density}**", "test digits against other images, γ = 1"],
        ["AUROC of max p(y\\|x)", confidence, "the same, by confidence alone, γ² fitted"],
        [
            "samples an independent SVC recognises",
            percent(samples, "svc_agreement"),
            f"{chains['samples']} fresh chains of {chains['steps']} steps from noise, none left out",
        ],
        [
            "their variety, real digits = 1",
            f"**{drawn['diversity']:.2f}**",
            "mean distance of two of a class",
        ],
        [
            "accuracy under attack, L∞ 32/255",
            percent(attacks, "linf_32/worst_case/accuracy"),
            f"{worst_case([Entry(**attacks)])}, {attacks['conditions']['images']}; PGD-40 by the paper's "
            "protocol says "
            f"{attacks['values']['linf_32/paper_pgd/accuracy']:.0%}",
        ],
        ["training", f"{chains['trained']['seconds']:.0f} s", chains["hardware"]],
    ]
    told = f"One seed, commit {chains['commit'][:10]}; 95% intervals in brackets; settings and conditions in"
    return f"{table(['', 'measured', 'on'], rows)}\n{told} [results/digits.json](results/digits.json).\n"


def cifar10_table() -> str:
    runs = [results(name) for name in ("cifar10-dis", "cifar10-dis-bn", "cifar10-softmax-bn")]
    paper = {row.model: row.numbers for row in published.find("cifar10", "hybrid")}
    auroc = {row.model: row.numbers for row in published.find("cifar10", "ood/log_density")}["GMMC (Gen)"]
    top1 = [f"*{paper[model]['top1']:%}*" for model in ("GMMC (Dis)", "GMMC (Gen)")]
    rows = [["test accuracy", *(percent(run["accuracy"], "top1") for run in runs), *top1]]
    for name, words in (("fitted", "γ² fitted"), ("unit", "γ = 1"), ("paper", "the paper's γ²")):
        found = [run["calibration"]["values"].get(f"{name}/ece") for run in runs]
        rows.append([f"ECE, {words}", *("–" if x is None else f"{x:.2%}" for x in found), "–", "–"])
    ece = {row.model: row.numbers for row in published.find("cifar10", "calibration")}["GMMC (Gen)"]["ece"]
    rows.append(["ECE, γ² not stated", "–", "–", "–", "–", f"*{ece:%}*"])
    outside = runs[0]["ood"]["conditions"]["outside"]
    for name in outside:
        place = f"{name}/log_density/unit/auroc"
        found = [f"{run['ood']['values'][place]:.3f}" for run in runs]
        other = f"*{auroc[name]}*" if name in auroc else "–"
        rows.append([f"AUROC of log p(x): {SETS.get(name, name)}", *found, "–", other])
    trained = [run["accuracy"]["conditions"]["trained"] for run in runs]
    rows.append(["rollbacks in training", *(str(facts["rollbacks"]) for facts in trained), "–", "–"])
    rows.append(
        ["minutes, four such at once", *(f"{facts['seconds'] / 60:.0f}" for facts in trained), "–", "–"]
    )
    header = ["", "GMMC (Dis)", "with batch norm", "softmax, batch norm", "*GMMC (Dis)*", "*GMMC (Gen)*"]
    conditions = runs[0]["calibration"]["conditions"]
    sets = ", ".join(f"{SETS.get(name, name)} {count:,}" for name, count in outside.items())
    told = (
        f"WRN-28-4, {trained[0]['updates']:,} updates at β = 0 on one {conditions['hardware']}, one seed "
        f"each, commit {conditions['commit'][:10]}. log p(x) at γ = 1, γ² fitted on "
        f"{conditions['fitted_on']}. Images: test {conditions['images']:,}, {sets}. "
        "*In italics*: published for a WRN-28-10 after 150 epochs, not measured by us. Conditions and "
        "intervals: [results/](results/cifar10-dis.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


def shipped_table() -> str:
    found = results("cifar10")
    accuracy, fits, ood, drawn, attacks = (
        found[name] for name in ("accuracy", "calibration", "ood", "generation", "robustness")
    )
    paper = {row.model: row.numbers for row in published.find("cifar10", "hybrid")}["GMMC (Gen)"]
    ece = {row.model: row.numbers for row in published.find("cifar10", "calibration")}["GMMC (Gen)"]["ece"]
    pgd = {row.model: row.numbers for row in published.find("cifar10", "pgd")}["GMMC (Gen)"]["linf_8_255"]
    shares = " / ".join(f"{fits['values'][f'{name}/ece']:.1%}" for name in ("fitted", "unit", "paper"))
    rows = [
        ["test accuracy", percent(accuracy, "top1"), f"*{paper['top1']:%}*"],
        ["ECE: γ² fitted / γ = 1 / the paper's γ²", shares, f"*{ece:%}*, γ² not stated"],
    ]
    sets = ", ".join(SETS.get(name, name) for name in PAPER_SETS)
    for place, words in (
        ("log_density/unit", "log p(x)"),
        ("span_density/unit", "log p(x) in the span of the means"),
        ("neighbours/unit", "distance to training features"),
        ("max_posterior/fitted", "max p(y\\|x)"),
    ):
        rule = (
            " (**by which it abstains**)"
            if place.startswith(f"{ood['conditions']['abstains']['score']}/")
            else ""
        )
        theirs = {row.model: row.numbers for row in published.find("cifar10", f"ood/{place.split('/')[0]}")}
        published_ones = (
            ", ".join(f"*{theirs['GMMC (Gen)'][name]}*" for name in PAPER_SETS) if theirs else "–"
        )
        ours = ", ".join(f"{ood['values'][f'{name}/{place}/auroc']:.2f}" for name in PAPER_SETS)
        rows.append([f"AUROC of {words}{rule}: {sets}", ours, published_ones])
    accepted = ", ".join(f"{ood['values'][f'{name}/accepted']:.0%}" for name in PAPER_SETS)
    inside = f"{ood['values']['test images/accepted']:.1%}"
    rows.append([f"accepted of these sets, and of test images {inside}", accepted, "–"])
    values, told = drawn["values"], drawn["conditions"]
    again = results("cifar10-generation")["generation"]  # of the same model later, without its buffer
    low, high = drawn["intervals"]["fresh/kid"]
    count, kept = told["images"]["fresh"], told["images"]["paper"]
    rows += [
        [
            f"FID of {count:,} fresh chains, none left out (real test images: {values['test/fid']:.2f})",
            f"**{values['fresh/fid']:.1f}**",
            "–",
        ],
        start_row(again),
        [
            f"FID by the paper's protocol, {kept:,} selected chains of the buffer",
            f"{values['paper/fid']:.1f}",
            f"*{paper['fid']}*",
        ],
        [
            "KID × 1000 of the fresh chains",
            f"**{1000 * values['fresh/kid']:.1f}** [{1000 * low:.1f}, {1000 * high:.1f}]",
            "–",
        ],
    ]
    share = attacks["values"]["linf_8/paper_pgd/accuracy"]
    rows.append(["accuracy under PGD-40, L∞ 8/255", f"{share:.1%}", f"*{pgd:%}*"])
    quoted = worst_case([Entry(**attacks)])
    for threat, words in (("linf_8", "L∞ 8/255"), ("l2_0.5", "L2 0.5")):
        rows.append([f"**{quoted}**, {words}", percent(attacks, f"{threat}/worst_case/accuracy"), "–"])
    rows.append(autoattack_row(found["autoattack"]))
    trained = accuracy["conditions"]["trained"]
    text = (
        f"{accuracy['conditions']['images']:,} test images; 95% intervals in brackets; densities at γ = 1, "
        f"confidences at γ² fitted on {fits['conditions']['fitted_on']}. Chains of {told['steps']} steps "
        f"from the {told['start']}; reference {told['reference'].split(';')[0]}.{by_steps(again)} Attacks: "
        f"{attack_limits(attacks)}. Trained for "
        f"{trained['seconds'] / 60:.0f} min on one {accuracy['conditions']['hardware']}, one seed, commit "
        f"{trained['commit'][:10]}. *In italics*: published for a WRN-28-10 after 150 epochs, not measured "
        "by us. Conditions: [results/](results/cifar10.json), start and steps "
        "[here](results/cifar10-generation.json)."
    )
    header = ["", "the shipped model", "*GMMC (Gen)*"]
    return f"{table(header, rows)}\n{text}\n"


def start_row(drawn: dict[str, Any]) -> list[str]:
    """What the chains themselves bring can be read against it."""
    start = drawn["conditions"]["start"].split(",")[0]
    return [
        f"FID of their start alone ({start}), before any step",
        f"{drawn['values']['start/fid']:.1f}",
        "–",
    ]


def autoattack_row(entry: dict[str, Any]) -> list[str]:
    count = entry["conditions"]["images"].split()[0]
    shares = [percent(entry, f"linf_{pixels}/autoattack/accuracy") for pixels in (4, 8)]
    return [f"**AutoAttack**, four parts, {count} images: L∞ 4/255, 8/255", ", ".join(shares), "–"]


def by_steps(drawn: dict[str, Any]) -> str:
    """FID of the same chains, shorter and longer."""
    curve = drawn["curves"]["steps"]
    count = drawn["conditions"]["images"][f"steps_{curve['steps'][0]}"]
    pairs = zip(curve["steps"], curve["fid"], strict=True)
    told = ", ".join(f"{fid:.1f} after {steps} steps" for steps, fid in pairs)
    return f" FID of {count:,} such chains: {told} (`gmmc sample cifar10 --steps N`)."


def attack_limits(attacks: dict[str, Any]) -> str:
    """The preset, and where its attacks are weaker than their standard."""
    told = attacks["conditions"]
    wagner = told["attacks"]["cw_untargeted"]["images"]
    square = told["attacks"]["square"].split(",")[0]
    return (
        f"preset {preset_of(Entry(**attacks))}, Square of {square}, C&W on {wagner} images; {told['images']}"
    )


PAPER_SETS = ("svhn", "interp", "cifar100", "celeba")


def joint_table() -> str:
    found = results("cifar10-joint")
    attacks, drawn = found["robustness"], found["generation"]
    values, fids = attacks["values"], drawn["values"]
    published_pgd = {row.model: row.numbers for row in published.find("cifar10", "pgd")}["GMMC (Gen)"]
    published_fid = {row.model: row.numbers for row in published.find("cifar10", "hybrid")}["GMMC (Gen)"][
        "fid"
    ]
    threats = [f"linf_{pixels}" for pixels in (4, 8, 16, 32)]
    preset = preset_of(Entry(**attacks))
    rows = [
        [
            words.format(preset=preset),
            *(shown(values.get(f"{threat}/{attack}/accuracy")) for threat in threats),
        ]
        for attack, words in ATTACKS.items()
    ]
    paper = [f"*{published_pgd[f'{threat}_255']:%}*" for threat in threats]
    rows.insert(1, ["*PGD-40, GMMC (Gen), published*", *paper])
    header = ["accuracy under attack, L∞", *(f"{threat.removeprefix('linf_')}/255" for threat in threats)]
    conditions, trained = attacks["conditions"], attacks["conditions"]["trained"]
    most = attacks["intervals"]["linf_8/worst_case/accuracy"][1]
    told = (
        f"{conditions['images']}, clean {percent(attacks, 'clean')}; the worst case at 8/255 is at most "
        f"{most:.1%} by its 95% interval. At L2 0.5 it is {values['l2_0.5/worst_case/accuracy']:.1%}; C&W "
        f"succeeds in {values['cw/untargeted/success_rate']:.0%}, with a mean L2 of "
        f"{values['cw/untargeted/l2_mean']:.2f} untargeted and {values['cw/targeted/l2_mean']:.2f} targeted. "
        f"{values['zero_gradient_share']:.1%} of the images have a gradient of exactly zero. Test accuracy "
        f"{percent(found['accuracy'], 'top1')}. FID of {drawn['conditions']['images']['fresh']:,} fresh "
        f"chains **{fids['fresh/fid']:.1f}**, of the buffer {fids['buffer/fid']:.1f}, the paper's protocol "
        f"{fids['paper/fid']:.1f} (*published {published_fid}*), of real test images {fids['test/fid']:.2f}. "
        f"{trained['updates']:,} updates, {trained['seconds'] / 60:.0f} minutes on one "
        f"{conditions['hardware']}, one seed, not tuned, commit {conditions['commit'][:10]}. *In italics*: "
        "not measured by us. Conditions: [results/](results/cifar10-joint.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


ATTACKS = {
    "paper_pgd": "PGD-40, the paper's protocol",
    "margin": "logit margin",
    "pull": "pull to each other mean",
    "square": "Square, sees no gradient",
    "autoattack": "AutoAttack",
    "worst_case": "**worst case of preset {preset}, per image**",
}


def shown(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def ratio_range(ranges: dict[str, list[float]], place: str) -> str:
    ours, other = (ranges[f"{place}/{side}_ms"] for side in ("ours", "reference"))
    return f"[{other[0] / ours[1]:.1f}, {other[1] / ours[0]:.1f}]"


def bench_table() -> str:
    found = results("bench-h200")["bench"]
    values, conditions = found["values"], found["conditions"]
    places = [key.removesuffix("/ours_ms") for key in values if key.endswith("/ours_ms")]
    rows = []
    for place in places:
        network, batch, phase = place.split("/")
        of = {name: values.get(f"{place}/{name}") for name in ("ours_ms", "reference_ms", "ratio", "tflops")}
        share, epoch = values.get(f"{place}/share_of_matmul"), values.get(f"{place}/epoch_seconds")
        rows.append(
            [
                f"{network.upper()}, {batch}",
                {"sampling": "sampling step"}.get(phase, f"{phase} update"),
                f"**{of['ours_ms']:.3g} ms**",
                f"{of['reference_ms']:.3g} ms",
                f"**{of['ratio']:.1f}×** {ratio_range(found['intervals'], place)}",
                f"{of['tflops']:.0f} ({share:.0%})",
                f"{epoch:.3g} s" if epoch else "–",
            ]
        )
    header = [
        "network, batch",
        "",
        "gmmc",
        "plain loop",
        "",
        "TFLOP/s (of the matrix rate)",
        "CIFAR-10 epoch",
    ]
    doubts = f" Doubts: {'; '.join(found['flags'])}" if found["flags"] else ""
    told = (
        f"One {conditions['hardware']}, torch {conditions['torch']}, commit {conditions['commit'][:10]}, "
        f"{conditions['steps']} sampler steps per update; the matrix rate is {values['matmul_tflops']:.0f} "
        f"TFLOP/s in the same run.{doubts} Ranges and conditions: [results/](results/bench-h200.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


def cpu_table() -> str:
    found = results("bench-cpu")["bench"]
    values, conditions = found["values"], found["conditions"]
    ratios = {
        name: [values[f"{cell}/{phase}/ratio"] for phase in ("sampling", "generative", "discriminative")]
        for name, cell in (("WRN-10-1, 16", "wrn-10-1/16"), ("small CNN on 8×8, 64", "small_cnn/64"))
    }
    rows = [[name, *(f"{x:.1f}×" for x in of)] for name, of in ratios.items()]
    header = ["against the plain loop", "sampling step", "generative update", "discriminative update"]
    doubts = f" Doubts: {'; '.join(found['flags'])}" if found["flags"] else ""
    precision = "bf16" if all("bf16" in how for how in conditions["engine"].values()) else "fp32"
    told = (
        f"{conditions['hardware']}, in {precision}, commit {conditions['commit'][:10]}; ours with "
        "augmentation and metrics, which a tiny network feels."
        f"{doubts} Conditions: [results/](results/bench-cpu.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


def search_table() -> str:
    found = results("cifar10-search")["comparison"]
    conditions, values = found["conditions"], found["values"]
    columns = columns_of(values)
    rows = [
        [
            f"**{name}**" if name == conditions["baseline"] else name,
            differences(name, conditions),
            *(written(column, values.get(f"{name}/{column}")) for column in columns),
        ]
        for name in conditions["runs"]
    ]
    header = ["run", "what differs", *(COLUMNS[column][0] for column in columns)]
    told = (
        f"Accuracy on {conditions['images']:,} validation images; FID of {conditions['generated']:,} fresh "
        f"chains of {conditions['steps']} steps and of {conditions['buffer']:,} buffer images, both against "
        f"{conditions['reference']}. {', '.join(conditions['hardware'])}, commits "
        f"{' and '.join(conditions['commits'])}. {conditions['energies']}. Doubts: "
        f"{'; '.join(found['flags'])}. All of it: "
        "[results/cifar10-search.json](../results/cifar10-search.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


def search_summary() -> str:
    found = results("cifar10-search")["comparison"]
    values, conditions = found["values"], found["conditions"]

    def told(run: str) -> str:
        fid, top1, seconds = (values[f"{run}/{name}"] for name in ("fresh_fid", "valid_accuracy", "seconds"))
        return f"FID {fid:.1f}, {top1:.1%}, {seconds:.0f} s"

    return (
        f"FID of {conditions['generated']:,} fresh chains of {conditions['steps']} steps, accuracy on the "
        f"{conditions['images']:,} validation images, and time, one {conditions['hardware'][0]}: β = 0.25 "
        f"**{told('beta-0.25')}**; β = 0.5 {told('seed-1')}, and with another seed and a separate "
        f"start {told('base')}; from random weights {told('scratch')}; near the paper's settings "
        f"{told('paper')}. "
        "[All of it](results/cifar10-search.json).\n"
    )


# Of docs/tables.md: what is shown, and how it is written.
OF_TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "accuracy": lambda found: f"{found['accuracy']:.1%}",
    "log loss": lambda found: f"{found['log_loss']:.2f}",
    "ECE (by chance)": lambda found: f"{found['ece']:.1%} ({found['ece_by_chance']:.1%})",
    "AUROC of novelty": lambda found: f"{found['novelty_auroc']:.2f}",
    "seconds to fit": lambda found: f"{found['seconds']:.2g}",
}


def tables_table() -> str:
    found = results("tables")
    conditions = found["conditions"]
    methods = list(next(iter(found["tables"].values()))["methods"])
    rows = []
    for words, written_as in OF_TABLES.items():
        for name, entry in found["tables"].items():
            rows.append([f"{words}: {name}", *(written_as(entry["methods"][method]) for method in methods)])
    sizes = ", ".join(
        f"{name} {entry['rows']}×{entry['columns']}, {entry['classes']} classes"
        for name, entry in found["tables"].items()
    )
    widths = [
        high - low
        for entry in found["tables"].values()
        for low, high in (entry["methods"][method]["accuracy_interval"] for method in methods)
    ]
    told = (
        f"{sizes}. {conditions['protocol']} ECE: {conditions['ece']}; in brackets, that of a method "
        "that is right exactly as often as it says. The 95% interval of an accuracy is "
        f"{100 * min(widths):.0f} to {100 * max(widths):.0f} points wide: most differences are within it. "
        f"One seed, {conditions['hardware']}, commit {conditions['commit'][:10]}. All of it: "
        "[results/tables.json](../results/tables.json), by [benchmarks/tables.py](../benchmarks/tables.py)."
    )
    return f"{table(['', *methods], rows)}\n{told}\n"


def photos_table() -> str:
    found = results("photos")
    rows = []
    for count, entry in found["photos"].items():
        values, ranges = entry["values"], entry["intervals"]
        aurocs = [
            f"{values[place]:.2f} [{ranges[place][0]:.2f}, {ranges[place][1]:.2f}]"
            for score in ("log_density/unit", "neighbours/unit", "max_posterior/fitted")
            for place in (f"ood/other/{score}/auroc",)
        ]
        low, high = ranges["accuracy/top1"]
        chance = values["calibration/fitted/ece_if_perfect_95"]
        rows.append(
            [
                f"{int(count):,}",
                f"{values['accuracy/top1']:.0%} [{100 * low:.0f}, {100 * high:.0f}]",
                f"{values['calibration/fitted/ece']:.0%} ({chance:.0%})",
                *aurocs,
                f"{values['ood/other/accepted']:.0%}, {values['ood/test images/accepted']:.0%}",
                str(entry["validation_images"]),
            ]
        )
    header = [
        "photos",
        "test accuracy",
        "ECE fitted (by chance, up to)",
        "`other`: AUROC of log p(x)",
        "of the distance to training features",
        "of max p(y\\|x)",
        "accepted of `other`, of test images",
        "validation images behind the threshold",
    ]
    told = (
        f"{found['conditions']['protocol']} One seed, {found['conditions']['hardware']}, commit "
        f"{found['conditions']['commit'][:10]}. All of it: [results/photos.json](../results/photos.json), by "
        "[benchmarks/photos.py](../benchmarks/photos.py)."
    )
    return f"{table(header, rows)}\n{told}\n"


WAYS = {
    "random": "random weights, `train.start=`",
    "frozen": "the last layer alone, `transfer.epochs=0`",
    "fine-3-3e-5": "**the default**: then 3 epochs of all layers at 3e-5",
    "fine-10-3e-5": "10 epochs of all layers, `transfer.epochs=10`",
    "fine-30-3e-5": "30 epochs of all layers",
}


def transfer_table(shown: Sequence[str] = tuple(WAYS)) -> str:
    """Means over triples and seeds, and the gain over random weights, pair by pair."""
    found = [entry for entry in results("transfer").values() if entry["conditions"]["arm"] in shown]

    def of(arm: str, key: str) -> dict[tuple[int, int], float]:
        here = [(entry["conditions"], entry["values"]) for entry in found]
        return {(c["triple"], c["seed"]): values[key] for c, values in here if c["arm"] == arm}

    rows = []
    for arm in shown:
        row = [WAYS.get(arm, f"`{arm}`")]
        for key in ("valid_accuracy", "test_accuracy"):
            mine, random = of(arm, key), of("random", key)
            gains = [mine[place] - random[place] for place in mine]
            error = statistics.stdev(gains) / len(gains) ** 0.5
            gain = "" if arm == "random" else f" ({100 * statistics.mean(gains):+.1f} ± {100 * error:.1f})"
            row.append(f"{statistics.mean(mine.values()):.1%}{gain}")
        rows.append([*row, f"{statistics.mean(of(arm, 'test_nll').values()):.2f}"])
    header = [
        "training",
        "validation accuracy (points over random weights ± s.e.)",
        "test accuracy",
        "test NLL",
    ]
    conditions = found[0]["conditions"]
    counts = conditions["images"]
    told = (
        "Means of nine runs: three triples of CIFAR-100 classes, three seeds; "
        f"{counts['train']} training, {counts['valid']} validation and {counts['test']} test images each; "
        f"fp32 on one {conditions['hardware']}, commit {conditions['commit'][:10]}. All of it: "
        "[results/transfer.json](../results/transfer.json), by "
        "[benchmarks/transfer.py](../benchmarks/transfer.py)."
    )
    return f"{table(header, rows)}\n{told}\n"


def transfer_ood_table() -> str:
    """AUROCs of the score that photos abstains by and of two others, mean over triples and seeds."""
    found = results("transfer-ood").values()
    scores = {"log_density": "log p(x)", "max_posterior": "max p(y\\|x)", "neighbours": "neighbours"}
    places = [(name, score) for name in ("others", "noise") for score in scores]
    rows = []
    for arm in ("random", "frozen", "fine-3-3e-5", "fine-10-3e-5"):
        runs = [entry["values"] for entry in found if entry["conditions"]["arm"] == arm]
        means = (statistics.mean(run[f"{name}/{score}/auroc"] for run in runs) for name, score in places)
        rows.append([WAYS[arm], *(f"{mean:.2f}" for mean in means)])
    header = ["training", *(f"{name}: {scores[score]}" for name, score in places)]
    told = (
        "AUROC of validation images against 300 images of other CIFAR-100 classes and against uniform noise; "
        "means of nine runs as above, in another run of the same script: "
        "[results/transfer-ood.json](../results/transfer-ood.json)."
    )
    return f"{table(header, rows)}\n{told}\n"


def all_transfers() -> str:
    return transfer_table(list(dict.fromkeys(e["conditions"]["arm"] for e in results("transfer").values())))


def autoattack_table() -> str:
    found = results("autoattack")
    conditions = found["conditions"]
    threats = {"linf_4": "L∞ 4/255", "linf_8": "L∞ 8/255", "l2_0.5": "L2 0.5"}
    rows = [
        [
            threats[row["threat"]],
            AUTOATTACK_PARTS[row["part"].replace("-", "_")],
            f"{row['broken']:.1%}",
            f"{row['broken_by_reference']:.1%}",
            f"{row['only_ours']}, {row['only_reference']}",
            f"{row['seconds']:.1f} s, {row['seconds_of_reference']:.1f} s",
        ]
        for row in found["parts"]
    ]
    header = [
        "",
        "part",
        "broken",
        "by the authors' code",
        "images only ours, only theirs broke",
        "time, theirs",
    ]
    caption = (
        f"Shipped model at the fitted temperature, the {conditions['attacked']} of {conditions['images']} "
        "test images that it names right, each part on all of them, Square with "
        f"{conditions['queries']:,} queries; "
        f"reference {conditions['reference']}. One run, {conditions['hardware']}, commit "
        f"{conditions['commit'][:10]}: [results/autoattack.json](../results/autoattack.json), by "
        "[benchmarks/autoattack.py](../benchmarks/autoattack.py)."
    )
    return f"{table(header, rows)}\n{caption}\n"


def startup_table() -> str:
    found = results("startup")
    conditions = found["conditions"]
    commits = conditions["checkouts"]

    def cells(command: str) -> list[str]:
        runs = [found["commands"][command][commit] for commit in reversed(commits)]
        times = [f"{run['seconds']:.2f} s [{run['range'][0]:.2f}, {run['range'][1]:.2f}]" for run in runs]
        return [f"`{command}`", *times, ", ".join(str(run["modules"]) for run in runs)]

    header = ["", *(f"at {commit}" for commit in reversed(commits)), "modules of gmmc"]
    caption = (
        f"Medians and ranges of {conditions['repeats']} calls, {conditions['order']}; "
        f"{conditions['hardware']}, torch {conditions['torch']}: "
        "[results/startup.json](../results/startup.json), by "
        "[benchmarks/startup.py](../benchmarks/startup.py)."
    )
    return f"{table(header, [cells(command) for command in found['commands']])}\n{caption}\n"


def denoising_cpu_table() -> str:
    """Denoising beside Algorithm 1 at equal CPU time."""
    measured = results("denoising-cpu")
    header = ["", "denoising", "Algorithm 1", "reference"]

    def cells(value: str, written: str, of: dict[str, Any]) -> list[str]:
        return [
            f"{of[name][value]['mean']:{written}} [{of[name][value]['min']:{written}}, "
            f"{of[name][value]['max']:{written}}]"
            for name in header[1:3]
        ]

    rows = []
    for title, entry in measured["moons"]["values"].items():
        summary = {name: values["summary"] for name, values in entry.items()}

        svc, kde, true = summary["SVC"]["accuracy"], summary["KDE"], summary["true density"]
        nats = f"KDE {kde['log_density']['mean']:.3f}, true {true['log_density']['mean']:.3f}"
        place = f"moons, {title}"
        rows += [
            [f"{place}: test accuracy", *cells("accuracy", ".2%", summary), f"SVC {svc['mean']:.2%}"],
            [f"{place}: log p(x) of test rows, nats", *cells("log_density", ".3f", summary), nats],
            [
                f"{place}: samples that an SVC recognises",
                *cells("svc_agreement", ".1%", summary),
                f"test rows {svc['mean']:.1%}",
            ],
            [
                f"{place}: true log p(x\\|y) of samples",
                *cells("true_log_density", ".2f", summary),
                f"test rows {summary['test rows']['true_log_density']['mean']:.2f}",
            ],
            [f"{place}: training, s", *cells("cpu_seconds", ".1f", summary), ""],
        ]
    digits = {name: values["summary"] for name, values in measured["digits"]["values"].items()}
    real = digits["denoising"]
    rows += [
        ["digits: test accuracy", *cells("accuracy", ".1%", digits), ""],
        [
            "digits: samples that an SVC recognises",
            *cells("svc_agreement", ".1%", digits),
            f"test images {real['svc_test_accuracy']['mean']:.1%}",
        ],
        ["digits: diversity of samples", *cells("diversity", ".2f", digits), "real images 1"],
        [
            "digits: FID by a small CNN",
            *cells("fid", ".3f", digits),
            f"test images {real['fid_of_test_images']['mean']:.3f}",
        ],
        ["digits: training, s", *cells("cpu_seconds", ".0f", digits), ""],
    ]
    moons, images = measured["moons"]["conditions"], measured["digits"]["conditions"]
    seeds = [", ".join(map(str, one["seeds"])) for one in (moons, images)]
    caption = (
        f"Means and ranges of three seeds (moons {seeds[0]}; digits {seeds[1]}, drawn with other "
        "sampling seeds than those that `digits-denoising` was chosen with; the same 359 test "
        "images), at equal CPU time on one thread: a recipe trained by denoising runs at its own "
        "length, the one trained by Algorithm 1 for as many epochs as take that time. log p(x) is per "
        "row, normalised over a grid. An SVC trained on the training rows names the class of 1,000 "
        "samples a run. Samples whose true log p(x|y) is below that of test rows lie off the moons, "
        "those above are too much alike. "
        f"{moons['hardware']}, commits {moons['commit'][:10]} and {images['commit'][:10]}. All conditions: "
        "[results/denoising-cpu.json](../results/denoising-cpu.json), by "
        "[benchmarks/denoising.py](../benchmarks/denoising.py)."
    )
    return f"{table(header, rows)}\n{caption}\n"


STABILISERS = {
    "group": "group norm",
    "unit": "magnitude-preserving layers, pixel norm",
    "std": "scaled weight standardisation",
}


def stabiliser_table() -> str:
    """Speed, loss, accuracy and FID of the runs on CIFAR-10."""
    measured = results("cifar10-denoising")
    rows = []
    for name, run in measured["runs"].items():
        kind = STABILISERS[next(part for part in name.split("-") if part in STABILISERS)]
        validation = run.get("validation")
        accuracy, fid = "–", "–"
        if validation:
            accuracy, fid = f"{validation['values']['top1']:.1%}", f"{validation['values']['fresh/fid']:.1f}"
        elif run["valid_accuracy"]:
            accuracy = f"{[*run['valid_accuracy'].values()][-1]:.1%}"
        rows.append(
            [
                kind,
                f"{run['seconds']:.0f} s",
                f"{run['images_per_second']:,.0f}",
                f"{run['images'] / 1e6:.2f} M",
                f"{run['loss']:.4f}",
                accuracy,
                fid,
                f"{run['rollbacks']}",
            ]
        )
    header = [
        "stabiliser",
        "training",
        "images per second",
        "images seen",
        "loss",
        "validation accuracy",
        "FID",
        "rollbacks",
    ]
    trained = measured["trained"]
    caption = (
        "The first row is a checkpoint in the middle of the second run, the third one of another run; "
        "runs of 50 seconds are speed trials. Loss: ‖F − t‖²/n, with n numbers per image. Accuracy on 5,000 "
        "validation images (of speed trials the last one measured), FID of 10,000 fresh images from normal "
        "noise, 18 Heun steps. One run each, one seed. "
        f"{trained['hardware'].replace('one', 'One', 1)}; {trained['training']}. All of it: "
        "[results/cifar10-denoising.json](../results/cifar10-denoising.json), by "
        "[benchmarks/denoising_runs.py](../benchmarks/denoising_runs.py)."
    )
    return f"{table(header, rows)}\n{caption}\n"


def levels_table() -> str:
    """The runs, and how well the denoiser is calibrated at each noise level."""
    levels = results("cifar10-denoising")["levels"]
    rows = [
        [f"{sigma}", *(f"{values[name]:.3f}" for name in ("loss", "power", "slope"))]
        for sigma, values in levels["values"].items()
    ]
    header = ["σ", "loss ‖F − t‖²/n", "power ‖F‖²/n", "slope ⟨F, t⟩/‖F‖²"]
    caption = (
        f"A model with group norm (`{levels['model']}` in that file), {levels['images']} validation images. "
        "The slope is that of the regression of t on F: 1 of a calibrated denoiser, below 1 of an "
        "overconfident one."
    )
    return f"{stabiliser_table()}\n{table(header, rows)}\n{caption}\n"


def by_score(entry: dict[str, Any]) -> str:
    """AUROC of every score, at its first temperature, on every set; then the shares that are accepted."""
    values, sets = entry["values"], [*entry["conditions"]["outside"]]
    places = [key.split("/") for key in values if key.endswith("/auroc") and key.startswith(f"{sets[0]}/")]
    first: dict[str, str] = {}
    for _, score, at, _ in places:
        first.setdefault(score, at)
    rows = [
        [SCORES[score].replace("|", "\\|"), *(f"{values[f'{s}/{score}/{at}/auroc']:.3f}" for s in sets)]
        for score, at in first.items()
    ]
    rule = entry["conditions"]["abstains"]
    accepted = [f"{values[f'{s}/accepted']:.0%}" for s in sets]
    inside = f"{values['test images/accepted']:.1%}"
    rows.append([f"accepted by {SCORES[rule['score']]}; test images {inside}", *accepted])
    return table(["AUROC", *(SETS.get(s, s) for s in sets)], rows)


def of_images(entry: dict[str, Any]) -> str:
    """Conditions of an OOD result in a sentence."""
    told = entry["conditions"]
    sets = ", ".join(f"{SETS.get(name, name)} {count:,}" for name, count in told["outside"].items())
    return f"{told['inside']}; {sets}. {told['hardware']}, commit {told['commit'][:10]}"


def shipped_scores() -> str:
    entry = results("cifar10-ood")["ood"]
    told = (
        f"The shipped model: {of_images(entry)}. Combined: {entry['conditions']['combined']}. All of it: "
        "[results/cifar10-ood.json](../results/cifar10-ood.json), by `gmmc evaluate cifar10 ood`."
    )
    return f"{by_score(entry)}\n{told}\n"


def small_denoiser_scores() -> str:
    found = results("cifar10-denoising-small")
    entry, accuracy = found["ood"], found["accuracy"]
    trained = entry["conditions"]["trained"]
    told = (
        f"A small denoiser of CIFAR-10 (smooth-10-1, settings in that file): {trained['parameters']:,} "
        f"parameters, {trained['updates']:,} updates of 128 images in {trained['seconds'] / 60:.0f} minutes "
        f"of one busy CPU thread, seed 0; test accuracy {accuracy['values']['top1']:.1%}. "
        f"{of_images(entry)}. "
        "All of it: "
        "[results/cifar10-denoising-small.json](../results/cifar10-denoising-small.json)."
    )
    return f"{by_score(entry)}\n{told}\n"


def digits_scores() -> str:
    entry = results("digits-denoising")["ood"]
    levels = ", ".join(f"{sigma:.2g}" for sigma in entry["conditions"]["noise_levels"])
    told = (
        f"`digits-denoising`, one training, seed 0: {of_images(entry)}. Levels σ: {levels}. All of it: "
        "[results/digits-denoising.json](../results/digits-denoising.json), by "
        "`gmmc evaluate runs/digits-denoising ood`."
    )
    return f"{by_score(entry)}\n{told}\n"


def shown_auroc(auroc: float | None) -> str:
    return "–" if auroc is None else f"{auroc:.2f}"


def table_scores() -> str:
    """AUROC of novelty on tables by every score, of both ways to train."""
    found, parts = results("scores"), []
    for place, words in (("tables", "by Langevin chains"), ("by_denoising", "by denoising")):
        tables = found[place]
        scores = [score for score in SCORES if any(score in entry["auroc"] for entry in tables.values())]
        rows = [
            [
                SCORES[score].replace("|", "\\|"),
                *(shown_auroc(entry["auroc"].get(score)) for entry in tables.values()),
            ]
            for score in scores
        ]
        parts.append(table([f"AUROC, trained {words}", *tables], rows))
    conditions = found["conditions"]
    told = (
        f"{conditions['protocol']} Seed {conditions['seed']}, {conditions['hardware']}, commit "
        f"{conditions['commit'][:10]}: [results/scores.json](../results/scores.json), by "
        "[benchmarks/scores.py](../benchmarks/scores.py)."
    )
    return "\n".join([*parts, f"{told}\n"])


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "digits": digits_table,
        "cifar10": shipped_table,
        "cifar10-dis": cifar10_table,
        "cifar10-joint": joint_table,
        "cifar10-search": search_summary,
        "bench-h200": bench_table,
        "bench-cpu": cpu_table,
    },
    "docs/log.md": {
        "cifar10-search": search_table,
        "cifar10-denoising": levels_table,
        "denoising-small": denoising_tables.small_table,
        "gaussian-denoiser": denoising_tables.gaussian_table,
        "difference-step": denoising_tables.step_table,
        "denoising-update": denoising_tables.update_table,
        "autoattack": autoattack_table,
        "startup": startup_table,
        "transfer": all_transfers,
        "cifar10-ood": shipped_scores,
        "digits-denoising": digits_scores,
        "cifar10-denoising-small": small_denoiser_scores,
        "scores": table_scores,
    },
    "docs/tables.md": {"tables": tables_table},
    "docs/denoising.md": {"denoising-cpu": denoising_cpu_table, "cifar10-denoising": stabiliser_table},
    "docs/own-images.md": {
        "transfer": transfer_table,
        "transfer-ood": transfer_ood_table,
        "photos": photos_table,
    },
}


def filled(name: str, text: str) -> str:
    """The page with its blocks made anew."""
    for block, make in PAGES[name].items():
        before, mark, rest = text.partition(f"<!-- results/{block}.json -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (mark and end):
            sys.exit(f"{name} must have a block for results/{block}.json")
        text = before + mark + make() + end + after
    return text


def main() -> None:
    for name in PAGES:
        page = ROOT / name
        old = page.read_text()
        new = filled(name, old)
        if "--check" not in sys.argv:
            page.write_text(new)
        elif new != old:
            sys.exit(f"{name} is not what results/ says: run `make readme`")


if __name__ == "__main__":
    main()
