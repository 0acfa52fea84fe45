"""Comparisons by `gmmc report` and `gmmc compare`, on run folders that no training wrote."""

import io
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from gmmc.cli import app
from gmmc.config import recipes
from gmmc.errors import InputError
from gmmc.report.compare.comparison import compare, show
from gmmc.report.compare.picture import spread
from gmmc.report.compare.section import written
from gmmc.report.page import write_report
from gmmc.runs import shipped
from processes import python
from report_runs import Page, accuracy_entry, being_trained, entry, make_run, page_of

COMMIT = "0123456789abcdef"


def evaluated(accuracy=0.92, fid=60.0, trained=None, **conditions):
    """What `gmmc evaluate RUN validation` leaves."""
    told = {
        "split": "validation",
        "images": 5000,
        "generated": 10_000,
        "steps": 200,
        "hardware": "NVIDIA H200",
    }
    values = {"top1": accuracy, "fresh/fid": fid, "fresh/kid": fid / 1500, "buffer/fid": 0.9 * fid}
    intervals = {"top1": [accuracy - 0.007, accuracy + 0.007]}
    facts = {"updates": 40, "seconds": 200.0, "rollbacks": 0, "commit": COMMIT, **(trained or {})}
    return {"validation": entry(values, intervals, **{**told, "trained": facts, **conditions})}


def lines(seconds=200.0, epochs=4, **last):
    """Two lines per epoch; FID is watched at the end of each second one."""
    told = []
    for step in range(1, 2 * epochs + 1):
        line = {"step": 5 * step, "epoch": (step + 1) // 2, "seconds": seconds * step / (2 * epochs)}
        line |= {
            "real_energy": 10.0 - step,
            "sampled_energy": 12.0 - step,
            "force_ratio": 0.7,
            "bounded": 0.25,
        }
        line |= {"valid_accuracy": 0.9 - 0.5 / step} if step % 2 == 0 else {}
        line |= {"buffer_fid": 50 + 200 / step} if step % 4 == 0 else {}
        told.append(line)
    return [*told[:-1], {**told[-1], **last}]


def search_run(folder: Path, results=None, metrics=None, *, finished=True, **sections) -> Path:
    """A run of the base recipe with some keys replaced."""
    make_run(folder, results, lines() if metrics is None else metrics, finished=finished)
    base = {"data": {"name": "cifar10"}, "generative": {"epochs": 30}, "train": {"start": "runs/dis"}}
    tree = {name: {**base.get(name, {}), **sections.get(name, {})} for name in base.keys() | sections.keys()}
    (folder / "config.toml").write_text(recipes.to_toml(recipes.from_dict(tree)))
    return folder


@pytest.fixture
def base(tmp_path):
    return search_run(tmp_path / "base", evaluated())


def saved(out: Path) -> dict:
    return json.loads((out / "results.json").read_text())["comparison"]


def changes(found: dict, run: str) -> list[str]:
    return found["conditions"]["runs"][run]["changes"]


def printed_rows(found: dict, capsys) -> dict[str, str]:
    capsys.readouterr()
    show(found)
    return {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}


# --- what differs ---------------------------------------------------------------------------------


def test_what_a_run_changed_is_named_and_epochs_go_last(base, tmp_path):
    other = search_run(
        tmp_path / "other",
        generative={"epochs": 17, "decay_epochs": [5, 9], "schedule": "step", "flip": True},
        train={"beta": 0.25, "start": ""},
        sampler={"name": "noise_injected"},
    )
    found = compare([base, other], tmp_path / "out")
    assert changes(found, "base") == []
    assert changes(found, "other")[-1] == "generative.epochs 17"
    assert set(changes(found, "other")) == {
        "train.start none",
        "train.beta 0.25",
        "generative.flip true",
        "generative.decay_epochs [5, 9]",
        "sampler.name noise_injected",
        "generative.epochs 17",
    }


def test_where_a_run_was_computed_and_how_it_is_evaluated_is_no_change(base, tmp_path):
    other = search_run(
        tmp_path / "other",
        train={"precision": "fp32", "engine": "plain", "device": "cpu", "memory": 3.0, "fid_every": 2},
        evaluate={"generated": 100},
        data={"root": "/data"},
    )
    assert changes(compare([base, other], tmp_path / "out"), "other") == []


def test_a_recipe_of_an_older_version_has_the_defaults(base, tmp_path):
    other = search_run(tmp_path / "other")
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(text.replace("beta = 0.5\n", "").replace("seed = 0\n", ""))
    assert changes(compare([base, other], tmp_path / "out"), "other") == []


# --- the numbers ----------------------------------------------------------------------------------


def test_every_number_is_in_its_place(base, tmp_path):
    out = tmp_path / "out"
    found = compare([base], out)
    assert found["values"] == {
        "base/valid_accuracy": 0.92,
        "base/fresh_fid": 60.0,
        "base/buffer_fid": 54.0,
        "base/real_energy": 2.5,  # the mean of the last epoch's two lines
        "base/sampled_energy": 4.5,
        "base/force_ratio": 0.7,
        "base/bounded": 0.25,
        "base/rollbacks": 0,
        "base/updates": 40,
        "base/seconds": 200.0,
    }
    assert found["intervals"] == {"base/valid_accuracy": [0.913, 0.927]}
    assert found["curves"]["base"] == {
        "seconds": [50.0, 100.0, 150.0, 200.0],
        "valid_accuracy": [0.9 - 0.5 / step for step in (2, 4, 6, 8)],
        "fid_seconds": [100.0, 200.0],
        "buffer_fid": [100.0, 75.0],
        "updates": [5, 10, 15, 20, 25, 30, 35, 40],
        "real_energy": [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0],
        "sampled_energy": [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0],
    }
    assert saved(out) == json.loads(json.dumps(found))
    assert saved(out).keys() == entry({}).keys()


def test_a_training_by_denoising_has_its_loss_and_skipped_updates(tmp_path):
    metrics = [
        {"step": step, "epoch": 1, "seconds": 1.0 * step, "loss": 2.0 / step, "skipped": 0.05 * step}
        for step in (1, 2)
    ]
    run = search_run(tmp_path / "run", evaluated(), [{**line, "class_loss": 0.5} for line in metrics])
    found = compare([run], tmp_path / "out")
    values = {name: found["values"][f"run/{name}"] for name in ("loss", "skipped")}
    assert values == {"loss": 1.5, "skipped": pytest.approx(0.075)}
    assert found["curves"]["run"]["loss"] == [2.0, 1.0]
    assert found["curves"]["run"]["class_loss"] == [0.5, 0.5]
    assert [written(column, values[column]) for column in values] == ["1.500", "7.5%"]


def test_a_line_counts_for_its_updates_and_not_what_was_undone(base, tmp_path):
    told = [
        {"step": 10, "epoch": 1, "real_energy": 9.0, "seconds": 1.0},
        {"step": 20, "epoch": 2, "real_energy": 500.0, "seconds": 2.0},
        {"step": 20, "epoch": 2, "event": "rollback", "to": 10, "real_energy": 500.0, "seconds": 3.0},
        {"step": 16, "epoch": 2, "real_energy": 4.0, "seconds": 4.0},
        {"step": 18, "epoch": 2, "real_energy": 8.0, "seconds": 5.0},
    ]
    other = search_run(tmp_path / "other", evaluated(), told)
    found = compare([base, other], tmp_path / "out")["values"]
    assert found["other/real_energy"] == pytest.approx((6 * 4.0 + 2 * 8.0) / 8)


def test_what_is_not_the_same_for_all_is_told_of_each(base, tmp_path):
    other = search_run(tmp_path / "other", evaluated(start="uniform noise", alpha=0.001))
    without = search_run(tmp_path / "without", evaluated(generated=0))
    found = compare([base, other, without], tmp_path / "out")
    told = found["conditions"]
    assert told["steps"] == 200
    assert told["generated"] == 10_000  # of those that draw
    assert "start" in told  # one alone says it
    third = search_run(tmp_path / "third", evaluated(start="Gaussian", alpha=0.015))
    found = compare([base, other, third], tmp_path / "out")
    assert "start" not in found["conditions"]
    assert found["conditions"]["runs"]["other"]["evaluated"] == {"start": "uniform noise", "alpha": 0.001}
    assert any(flag.startswith("not the same for all runs: step of the sampler") for flag in found["flags"])


def test_a_run_that_trains_again_is_not_finished(base, tmp_path):
    again = search_run(tmp_path / "again", evaluated(), finished=False)
    assert compare([base, again], tmp_path / "out")["conditions"]["runs"]["again"]["state"] == "finished"
    with being_trained(again):
        found = compare([base, again], tmp_path / "out")
    assert found["conditions"]["runs"]["again"]["state"] == "in progress"


def test_other_weights_under_the_same_path_are_told(base, tmp_path):
    one, other = (
        search_run(tmp_path / name, evaluated(trained={"start": {"sha256": 40 * name}}))
        for name in ("a", "b")
    )
    found = compare([one, other], tmp_path / "out")
    assert found["conditions"]["noise"].startswith("not known")
    assert (
        f"not the same for all runs: weights at the start: {10 * 'a'} (a); {10 * 'b'} (b)" in found["flags"]
    )


def test_starts_in_other_folders_are_other_starts(tmp_path):
    one, other = (
        search_run(tmp_path / name, evaluated(), train={"start": f"/{name}/start"}) for name in ("a", "b")
    )
    found = compare([one, other], tmp_path / "out")
    assert changes(found, "b") == ["train.start start"]
    assert "/b/" not in json.dumps(found)


def test_the_definition_of_the_numbers_is_told_once(base, tmp_path):
    told = compare([base], tmp_path / "out")["conditions"]
    wanted = {"data": "cifar10", "images": 5000, "generated": 10_000, "steps": 200, "baseline": "base"}
    assert wanted.items() <= told.items()
    assert told["hardware"] == ["NVIDIA H200"]
    assert told["commits"] == [COMMIT[:10]]
    assert told["settings"]["train"]["beta"] == 0.5
    assert "evaluate" not in told["settings"]
    assert "root" not in told["settings"]["data"]


def test_rollbacks_are_counted_and_what_is_not_finite_left_out(tmp_path):
    metrics = lines(real_energy=float("nan"), sampled_energy=float("inf"), rollbacks=2)
    metrics.insert(5, {**metrics[4], "event": "rollback", "rollbacks": 2, "real_energy": 1e20})
    found = compare([search_run(tmp_path / "base", evaluated(), metrics)], tmp_path / "out")
    assert found["values"]["base/rollbacks"] == 2
    assert found["values"]["base/real_energy"] == 3.0
    assert found["values"]["base/updates"] == 40


def test_what_is_missing_is_a_dash_and_the_state_is_told(base, tmp_path, capsys):
    metrics = lines()
    fallen = search_run(
        tmp_path / "fallen",
        None,
        [*metrics, {**metrics[-1], "event": "diverged", "reason": "R"}],
        finished=False,
    )
    begun = search_run(tmp_path / "begun", finished=False)
    (begun / "metrics.jsonl").unlink()
    unmeasured = search_run(tmp_path / "unmeasured")
    plain = evaluated()
    plain["validation"]["values"] = {"top1": 0.95}  # trained without samples
    plain["validation"]["conditions"]["generated"] = 0
    plain_run = search_run(tmp_path / "plain", plain, train={"beta": 0.0})
    with being_trained(begun):
        found = compare([base, fallen, begun, unmeasured, plain_run], tmp_path / "out")
    rows = printed_rows(found, capsys)
    assert "nothing (diverged)" in rows["fallen"]
    assert rows["fallen"].split().count("–") == 3
    assert "nothing (in progress)" in rows["begun"]
    assert rows["begun"].split().count("–") == 10
    assert "nothing (finished but not evaluated)" in rows["unmeasured"]
    assert "95.0%" in rows["plain"]
    assert rows["plain"].split().count("–") == 2
    assert "the baseline" in rows["base"]
    assert "–" not in rows["base"].split()
    assert not found["flags"]  # that a model draws no samples is no other number of them


def test_without_metrics_the_evaluation_remembers_the_training(tmp_path):
    run = search_run(tmp_path / "base", evaluated())
    (run / "metrics.jsonl").unlink()
    values = compare([run], tmp_path / "out")["values"]
    assert [values[f"base/{key}"] for key in ("updates", "seconds", "rollbacks")] == [40, 200.0, 0]


# --- may they be compared? ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"generated": 5000}, "number of fresh chains: 10\u202f000 (base); 5\u202f000 (other)"),
        ({"features": "small"}, "feature network: inception (base); small (other)"),
        ({"hardware": "NVIDIA A100"}, "hardware: NVIDIA H200 (base); NVIDIA A100 (other)"),
        ({"commit": COMMIT + "-dirty"}, "commit that measured: 0123456789 (base); 0123456789-dirty (other)"),
        ({"trained": {"commit": "f" * 40}}, "commit that trained: 0123456789 (base); ffffffffff (other)"),
        ({"buffer": {"chains": 50, "step": 9}}, "number of buffer images: 90 (base); 50 (other)"),
    ],
)
def test_other_conditions_are_told(tmp_path, told, words):
    base = search_run(tmp_path / "base", evaluated(features="inception", buffer={"chains": 90, "step": 7}))
    same = {"features": "inception", "buffer": {"chains": 90, "step": 8}}
    other = search_run(tmp_path / "other", evaluated(**{**same, **told}))
    assert compare([base, other], tmp_path / "out")["flags"] == [f"not the same for all runs: {words}"]


def test_equal_conditions_raise_no_doubt(base, tmp_path):
    other = search_run(tmp_path / "other", evaluated(0.8, 90.0), lines(209.0), sample={"steps": 400})
    assert compare([base, other], tmp_path / "out")["flags"] == []


def test_unequal_times_and_curves_of_other_numbers_of_images_are_told(base, tmp_path):
    """An older version had another number of images for each FID."""
    other = search_run(tmp_path / "other", evaluated(), lines(230.0))
    text = (other / "config.toml").read_text()
    (other / "config.toml").write_text(text.replace("[train]", "[train]\nfid_images = 500"))
    assert compare([base, other], tmp_path / "out")["flags"] == [
        "not the same for all runs: buffer images of a point of the FID curve: "
        "10\u202f000 (base); 500 (other)",
        "not at equal time: base 200 s, other 230 s",
    ]


def test_noise_is_the_spread_between_runs_of_one_recipe(base, tmp_path):
    seeds = [
        search_run(tmp_path / f"seed-{seed}", evaluated(0.92 + 0.002 * seed, 60 - seed), train={"seed": seed})
        for seed in (1, 2)
    ]
    better = search_run(tmp_path / "better", evaluated(0.99, 3.0), train={"beta": 0.25, "seed": 1})
    told = compare([base, *seeds, better], tmp_path / "out")["conditions"]["noise"]
    words = "base, seed-1 and seed-2 differ in the seed alone"
    own = "(each ±0.7% by its number of images)"
    assert told == f"{words}: accuracy 0.4% {own}, FID fresh 2.00, FID buffer 1.80"
    again = search_run(tmp_path / "again", evaluated())
    told = compare([base, again], tmp_path / "out")["conditions"]["noise"]
    words = "base and again differ in nothing"
    assert told == f"{words}: accuracy 0.0% {own}, FID fresh 0.00, FID buffer 0.00"
    told = compare([base, better], tmp_path / "out")["conditions"]["noise"]
    assert told == "not known: no other run has the recipe of base, but for the seed"


def test_noise_is_told_with_the_widest_interval_of_its_runs(base, tmp_path):
    rough = evaluated(0.93, 61.0)
    rough["validation"]["intervals"]["top1"] = [0.90, 0.96]
    other = search_run(tmp_path / "seed-1", rough, train={"seed": 1})
    told = compare([base, other], tmp_path / "out")["conditions"]["noise"]
    assert "(each ±3.0% by its number of images)" in told


def test_another_seed_begins_with_weights_of_its_own(base, tmp_path):
    own = search_run(tmp_path / "own", evaluated(0.93, 61.0), train={"seed": 1, "start": "start-1"})
    told = compare([base, own], tmp_path / "out")["conditions"]["noise"]
    assert told.startswith("base and own differ in the seed alone: accuracy 1.0%")
    other = search_run(tmp_path / "other", evaluated(), train={"start": "start-1"})
    assert compare([base, other], tmp_path / "out")["conditions"]["noise"].startswith("not known")


# --- which runs -----------------------------------------------------------------------------------


def test_the_command_as_a_shell_expands_it(base, tmp_path, capsys):
    """`base *`: the baseline twice, and from the second time on the folder of the comparison, too."""
    search_run(tmp_path / "a-first", evaluated(), train={"beta": 0.25})
    out = tmp_path / "compared"
    for _ in range(2):
        folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
        with pytest.raises(SystemExit) as stop:
            app.main(["compare", str(base), *map(str, folders), "--out", str(out)])
        assert not stop.value.code
        printed = capsys.readouterr()
        (warning,) = printed.err.splitlines()
        assert "deprecated" in warning
        assert "gmmc report RUN" in warning
        told = printed.out.splitlines()
        assert [line.split()[0] for line in told[:3]] == ["run", "base", "a-first"]
        assert told[-1] == f"All of it: {out / 'results.json'}   to look at: gmmc report {out}"
        assert list(saved(out)["conditions"]["runs"]) == ["base", "a-first"]


def test_many_changes_take_several_lines_and_none_is_broken(base, tmp_path, capsys):
    train = {"beta": 0.25, "ema": 0.999, "clip": 1.0, "batch_size": 128, "ramp": 500, "seed": 3}
    other = search_run(tmp_path / "other", train=train)
    show(compare([base, other], tmp_path / "out"))
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert len(table) > 3
    words = " ".join(line[len("other  ") :].split("   ")[0].strip() for line in table[2:])
    assert words == ", ".join(changes(saved(tmp_path / "out"), "other")) + " (finished but not evaluated)"
    assert all(len(line) == len(line.rstrip()) for line in table)


def test_other_entries_of_the_folder_are_kept(base, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text('{"bench": {"values": {}}}')
    compare([base], out)
    assert json.loads((out / "results.json").read_text()).keys() == {"bench", "comparison"}


@pytest.mark.parametrize("start", ["/home/someone/runs/dis-2", "runs/dis-2"])
def test_no_absolute_path_is_kept(base, tmp_path, start):
    other = search_run(
        tmp_path / "other", evaluated(), train={"start": start}, data={"name": "/home/someone/cifar10"}
    )
    out = tmp_path / "out"
    for runs in ([base, other], [other, base]):
        compare(runs, out)
        text = (out / "results.json").read_text()
        assert "/home" not in text
        assert str(tmp_path) not in text
    shown = start.removeprefix("/home/someone/runs/")
    assert f"train.start {shown}" in changes(compare([base, other], out), "other")


def test_bad_input_is_refused_in_one_line(base, tmp_path):
    empty, results = tmp_path / "empty", tmp_path / "results"
    empty.mkdir()
    results.mkdir()
    (results / "results.json").write_text("{}")
    file = tmp_path / "file"
    file.write_text("precious")
    broken = search_run(tmp_path / "broken")
    (broken / "config.toml").write_text("[train]\nbetta = 1\n")
    out = tmp_path / "out"
    for runs, place, words in (
        ([], out, "RUN must be at least one run folder, got none"),
        ([out], out, "RUN must be at least one run folder, got none"),
        (
            [base, empty],
            out,
            f"RUN must be a run folder, with a config.toml in it, got '{empty}', which has none"
            f"{shipped.listed('; models that ship with gmmc')}",
        ),
        ([base, results], out, f"RUN must be a run folder, with a config.toml in it, got '{results}'"),
        (
            [base, broken],
            out,
            f"{broken / 'config.toml'}: unknown key 'betta' in [train]; did you mean 'beta'?",
        ),
        ([base], base, f"--out must be a folder of its own, got '{base}', in a run folder"),
        ([base], base / "cmp", f"--out must be a folder of its own, got '{base / 'cmp'}', in a run folder"),
        ([base], tmp_path, f"--out must be a folder of its own, got '{tmp_path}', which holds the runs"),
        ([base], file, f"--out must be a folder, got the file '{file}'"),
        ([base], Path(), "--out must be a folder of its own, got the current one"),
    ):
        with pytest.raises(InputError) as refused:
            compare(runs, place)
        assert str(refused.value) == words
    assert file.read_text() == "precious"
    assert not out.exists()


# --- what is shown --------------------------------------------------------------------------------


def test_the_report_shows_it(base, tmp_path):
    other = search_run(tmp_path / "other", evaluated(0.93, generated=500), train={"beta": 0.25})
    unmeasured = search_run(tmp_path / "unmeasured", train={"ema": 0.9})
    out = tmp_path / "out"
    compare([base, other, unmeasured], out)
    page = page_of(out, out=tmp_path / "page.html")
    assert "comparison" in {attributes.get("id") for attributes in page.all("section")}
    words = page.words.replace("\u202f", " ")
    assert "base: the baseline 200 92.0% 91.3–92.7%" in words
    assert "other: train.beta 0.25 200 93.0% 92.3–93.7% 60.0 54.0 2.500 4.500 0.700 25.0% 0 40" in words
    assert "unmeasured: train.ema 0.9 (finished but not evaluated) 200 – – – 2.500" in words
    assert "number of fresh chains: 10 000 (base); 500 (other)" in words
    assert "Chance: not known" in words
    assert any("data:image/" in image["src"] for image in page.all("img"))
    assert "test accuracy" not in words


def test_the_picture_is_white_and_wide_enough_to_read(base, tmp_path):
    out = tmp_path / "out"
    found = compare([base, search_run(tmp_path / "a $x$ run", evaluated())], out)
    assert found["files"] == ["comparison.png"]
    with Image.open(io.BytesIO((out / "comparison.png").read_bytes())) as picture:
        assert picture.width > 1000
        assert {picture.convert("RGBA").getpixel((x, 0)) for x in range(picture.width)} == {
            (255, 255, 255, 255)
        }


def test_nothing_to_draw_is_no_picture(tmp_path):
    run = search_run(tmp_path / "base", None, [{"step": 1}], finished=False)
    out = tmp_path / "out"
    assert compare([run], out)["files"] == []
    assert not (out / "comparison.png").exists()


def test_labels_keep_their_distance_and_their_order():
    draw = random.Random(0)
    for count in (1, 2, 9, 30):
        wanted = [draw.choice([0, 50, 50.5, 100, draw.uniform(0, 100)]) for _ in range(count)]
        places = spread(wanted, 10, 100)
        gap = min(10, 100 / max(count - 1, 1))
        ordered = sorted(places)
        assert all(b - a >= gap - 1e-9 for a, b in pairwise(ordered))
        assert -1e-9 <= ordered[0] <= ordered[-1] <= 100 + 1e-9
        assert all(
            places[i] <= places[j] for i in range(count) for j in range(count) if wanted[i] < wanted[j]
        )
    assert spread([10, 90, 50], 10, 100) == [10, 90, 50]  # where there is room, all are where they want to be
    assert spread([50, 50], 10, 100) == [45, 55]


def test_comparing_needs_no_torch():
    code = "import sys, gmmc.report.compare.comparison; print('torch' in sys.modules)"
    assert python(code).stdout.strip() == "False"


# --- as a part of the report ----------------------------------------------------------------------


def gmmc(*arguments, capsys) -> tuple[int, str, str]:
    """(exit status, standard output, standard error without progress) of the command."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        app.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if not line.startswith("report ")]
    return int(stop.value.code or 0), out, "\n".join(told)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def sections_of(page: Page) -> list[str | None]:
    return [attributes.get("id") for attributes in page.all("section")]


def test_a_report_of_several_runs_gives_what_compare_gives(tmp_path, capsys):
    """`base *`, as a shell expands it; the second time `*` also names the page and the folder."""
    runs = tmp_path / "runs"
    base, page = search_run(runs / "base", evaluated()), runs / "all.html"
    search_run(runs / "a-first", evaluated(0.93, generated=500), train={"beta": 0.25})
    search_run(runs / "unmeasured", train={"ema": 0.9})
    status, compared, _ = gmmc(
        "compare", base, *sorted(runs.iterdir()), "--out", tmp_path / "cmp", capsys=capsys
    )
    assert status == 0
    for _ in range(2):
        status, out, err = gmmc("report", base, *sorted(runs.iterdir()), "--out", page, capsys=capsys)
        assert (status, err) == (0, "")
        assert out.splitlines()[-1] == str(page)
        assert out.splitlines()[:-2] == compared.splitlines()[:-1]
        assert str(runs / "comparison" / "results.json") in out.splitlines()[-2]
        assert files_below(runs / "comparison") == files_below(tmp_path / "cmp")
        shown = Page(page.read_text())
        pictures = [image for image in shown.all("img") if "a line per run" in image["alt"]]
        assert [image["src"].partition("/")[0] for image in pictures] == ["data:image"]
    assert sections_of(shown)[-3:] == ["validation", "comparison", "training"]
    words = shown.words.replace("\u202f", " ")
    assert "base: the baseline 200 92.0% 91.3–92.7%" in words
    assert "a-first: train.beta 0.25 200 93.0%" in words
    assert "number of fresh chains: 10 000 (base); 500 (a-first)" in words
    assert "No validation results of unmeasured; to add them: gmmc evaluate RUN validation" in words


def test_a_report_compares_in_the_folder_of_its_page(base, tmp_path, capsys):
    other = search_run(tmp_path / "other", evaluated())
    before = files_below(base)
    assert gmmc("report", base, other, capsys=capsys)[0] == 0
    new = files_below(base).keys() - before.keys() - {"comparison/.results.lock"}
    assert new == {"report.html", "comparison/results.json", "comparison/comparison.png"}
    assert files_below(base).items() >= before.items()
    assert not (other / "comparison").exists()
    # What it wrote is a folder that can be reported by itself, and one that a later report may replace.
    assert "comparison" in sections_of(page_of(base / "comparison", out=tmp_path / "page.html"))
    assert gmmc("report", base, other, capsys=capsys)[0] == 0


def test_without_validation_results_a_report_says_how_to_get_them(tmp_path, capsys):
    runs = [search_run(tmp_path / name, {"accuracy": accuracy_entry()}) for name in ("one", "two")]
    status, out, err = gmmc("report", *runs, capsys=capsys)
    assert (status, out) == (0, f"{runs[0] / 'report.html'}\n")
    (line,) = err.splitlines()
    assert all(words in line for words in ("one, two", "gmmc evaluate RUN validation"))
    assert "comparison" not in sections_of(Page((runs[0] / "report.html").read_text()))
    assert not (runs[0] / "comparison").exists()


def test_what_is_no_run_is_not_compared(base, tmp_path, capsys):
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "results.json").write_text(json.dumps({"accuracy": accuracy_entry()}))
    page = tmp_path / "page.html"
    for runs in ([base], [base, base], [base, measured]):
        assert gmmc("report", *runs, "--out", page, capsys=capsys) == (0, f"{page}\n", "")
        assert not (tmp_path / "comparison").exists()
    other = search_run(tmp_path / "other", evaluated())
    assert gmmc("report", base, measured, other, "--out", page, capsys=capsys)[0] == 0
    assert list(saved(tmp_path / "comparison")["conditions"]["runs"]) == ["base", "other"]


def test_a_recipe_that_cannot_be_read_is_left_out_of_the_comparison_only(base, tmp_path, capsys):
    broken = search_run(tmp_path / "broken", evaluated())
    (broken / "config.toml").write_text('[data]\nname = "cifar10"\n[train]\nbetta = 1\n')
    page = tmp_path / "page.html"
    status, out, err = gmmc("report", base, broken, "--out", page, capsys=capsys)
    assert (status, out) == (0, f"{page}\n")
    (line,) = err.splitlines()
    assert all(words in line for words in ("broken", "'betta'", "[train]"))
    other = search_run(tmp_path / "other", evaluated())
    assert gmmc("report", base, broken, other, "--out", page, capsys=capsys)[2] == line
    assert list(saved(tmp_path / "comparison")["conditions"]["runs"]) == ["base", "other"]


def test_an_earlier_comparison_is_shown_below_the_new_one(base, tmp_path):
    other = search_run(tmp_path / "other", evaluated(), train={"beta": 0.25})
    compare([base], tmp_path / "earlier")
    page = page_of(base, other, tmp_path / "earlier", out=tmp_path / "page.html")
    assert sections_of(page).count("comparison") == 1
    section = page.html[page.html.index('<section id="comparison"') :]
    assert (
        section.index(">comparison</h3>") < section.index("train.beta 0.25") < section.index(">earlier</h3>")
    )
    assert section.count("base: the baseline") == 2


@pytest.mark.parametrize(
    "damage",
    [
        {"intervals": {"top1": [1]}},
        {"intervals": {"top1": 3}},
        {"intervals": {"top1": [float("nan"), 1]}},
        {"conditions": {"trained": [1]}},
    ],
    ids=["one end", "no ends", "no number", "a list"],
)
def test_results_of_another_form_end_in_one_line(base, tmp_path, damage):
    results = evaluated()
    results["validation"] |= damage
    other = search_run(tmp_path / "other", results)
    before = files_below(tmp_path)
    for refused in (lambda: compare([base, other], tmp_path / "cmp"), lambda: write_report([base, other])):
        with pytest.raises(InputError, match=r"'validation'") as error:
            refused()
        assert str(other / "results.json") in str(error.value)
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("theirs", ["results.json", "comparison.png", "file", "link"])
def test_a_comparison_of_a_report_replaces_nothing_else(base, tmp_path, monkeypatch, theirs):
    other = search_run(tmp_path / "other", evaluated())
    folder = base / "comparison"
    if theirs == "file":
        folder.write_text("mine")
    elif theirs == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        (folder / theirs).write_text('{"my": "results"}')
    before = files_below(tmp_path)
    monkeypatch.setattr("gmmc.report.compare.comparison.rows_of", lambda runs: pytest.fail("the work began"))
    with pytest.raises(InputError, match="comparison"):
        write_report([base, other])
    assert files_below(tmp_path) == before
    write_report([base])  # one run alone has no comparison
