import json
import os
import pickle

import pytest
import safetensors.torch
import torch

from conftest import make_model, tiny_config
from gmmc.base.atomic import write_atomic
from gmmc.base.tensorfile import Damaged, pack, unpack
from gmmc.errors import InputError
from gmmc.runs import layout, model_file
from gmmc.runs.folder import RunFolder
from gmmc.runs.resume import State


def packed(tmp_path, name="file.safetensors"):
    tensors = {
        "a": torch.randn(3, 4),
        "b": torch.arange(5),
        "half": torch.rand(7).half(),
        "zero": torch.ones(()),
    }
    content, digest = pack(tensors, {"step": 7, "text": "φ"})
    path = tmp_path / name
    path.write_bytes(content)
    return path, tensors, digest


def test_pack_and_unpack(tmp_path):
    path, tensors, digest = packed(tmp_path)
    again, info, digest_again = unpack(path)
    assert info == {"step": 7, "text": "φ"}
    assert digest_again == digest
    assert all(
        torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype
        for name, tensor in tensors.items()
    )


def test_tensors_come_in_the_order_of_their_names(tmp_path):
    """The order of safetensors is random in each process."""
    names = [f"tensor {number:02}" for number in range(30)]
    content, _ = pack({name: torch.zeros(1) for name in reversed(names)}, {})
    path = tmp_path / "many.safetensors"
    path.write_bytes(content)
    assert list(unpack(path)[0]) == names


def test_every_altered_byte_is_noticed(tmp_path):
    path, *_ = packed(tmp_path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        altered = bytearray(whole)
        altered[position] ^= 0x10
        path.write_bytes(bytes(altered))
        with pytest.raises(Damaged, match=r"file\.safetensors"):
            unpack(path)


def test_every_truncation_is_noticed(tmp_path):
    path, *_ = packed(tmp_path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 11), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged):
            unpack(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(Damaged):
        unpack(path)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "foreign"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(Damaged):
        unpack(path)
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}))
    with pytest.raises(Damaged):
        unpack(path)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def moment(step, processes=1, shard=None):
    return State(step, {"x": torch.full((2,), step)}, shard or {}, {"processes": processes})


class TestStates:
    def folder(self, tmp_path, steps=(1, 2, 3)):
        folder = RunFolder(tmp_path)
        with folder.opened_for(tiny_config()):
            for step in steps:
                folder.save_state(moment(step))
        return folder

    def files(self, tmp_path):
        return sorted((tmp_path / "resume").glob("step-*.safetensors"))

    def test_two_are_kept_and_the_newest_is_taken(self, tmp_path):
        folder = self.folder(tmp_path)
        assert [path.name[:14] for path in self.files(tmp_path)] == ["step-000000002", "step-000000003"]
        state, complaints = folder.load_state()
        assert state.step == 3
        assert state.tensors["x"].tolist() == [3, 3]
        assert complaints == []

    def test_states_to_roll_back_to_are_kept(self, tmp_path):
        folder = self.folder(tmp_path, steps=range(1, 4))
        for step in range(4, 8):
            state = moment(step)
            state.info["good"] = [2, 3]
            folder.save_state(state)
        assert [path.name[:14] for path in self.files(tmp_path)] == [
            f"step-00000000{s}" for s in (2, 3, 6, 7)
        ]
        newest, _ = folder.load_state()
        states, complaints = folder.load_good(newest)
        assert [state.tensors["x"].tolist() for state in states] == [[2, 2], [3, 3]]
        assert complaints == []
        self.files(tmp_path)[0].write_bytes(b"damaged")
        (state,), (complaint,) = folder.load_good(newest)
        assert state.step == 3
        assert "step-000000002" in complaint

    @pytest.mark.parametrize("damage", ["truncate", "alter", "empty", "rename"])
    def test_a_damaged_one_is_named_and_the_one_before_is_taken(self, tmp_path, damage):
        folder = self.folder(tmp_path)
        newest = self.files(tmp_path)[-1]
        content = newest.read_bytes()
        if damage == "truncate":
            newest.write_bytes(content[:-3])
        elif damage == "alter":
            newest.write_bytes(content[:-1] + b"\x01")
        elif damage == "empty":
            newest.write_bytes(b"")
        else:
            newest.write_bytes(self.files(tmp_path)[0].read_bytes())  # step 2 under the name of step 3
        state, (complaint,) = folder.load_state()
        assert state.step == 2
        assert newest.name in complaint
        folder.save_state(moment(4))
        assert folder.load_state()[0].step == 4

    def test_a_state_under_the_name_of_a_later_step_is_not_believed(self, tmp_path):
        folder = self.folder(tmp_path)
        newest = self.files(tmp_path)[-1]
        newest.rename(newest.with_name(newest.name.replace("000000003", "000000009")))
        state, (complaint,) = folder.load_state()
        assert state.step == 2
        assert "does not match its name" in complaint

    def test_nothing_intact_is_never_a_silent_restart(self, tmp_path):
        folder = self.folder(tmp_path)
        for path in self.files(tmp_path):
            path.write_bytes(b"broken")
        for _ in range(2):  # not the second time either
            with pytest.raises(InputError, match=r"no intact state is left .* to train from the start"):
                folder.load_state()

    def test_metrics_without_states_are_no_fresh_run(self, tmp_path):
        folder = self.folder(tmp_path, steps=())
        assert folder.load_state() == (None, [])
        folder.append_metrics({"step": 1})
        with pytest.raises(InputError, match="no intact state is left"):
            folder.load_state()

    def test_of_one_moment_the_last_written_is_kept(self, tmp_path):
        """After a rollback the same update is saved twice."""
        folder = self.folder(tmp_path)
        folder.save_state(State(3, {"x": torch.tensor([7, 7])}, {}, {"processes": 1}))
        assert [path.name[:14] for path in self.files(tmp_path)] == ["step-000000002", "step-000000003"]
        assert folder.load_state()[0].tensors["x"].tolist() == [7, 7]

    @pytest.mark.parametrize(
        ("tensors", "info"),
        [({"x": torch.ones(2)}, {}), ({"model.start.rest": torch.ones(2, 64)}, {"processes": 1})],
    )
    def test_a_state_of_an_older_version_is_refused(self, tmp_path, tensors, info):
        folder = self.folder(tmp_path, steps=())
        folder.save_state(State(5, tensors, {}, info))
        with pytest.raises(InputError, match="was written by an older gmmc"):
            folder.load_state()


class TestSharedStates:
    """Several processes: one file each, rank 0's last."""

    def rows(self, rank, count=4, processes=2):
        """Row i of a process is row i·processes + rank of the whole."""
        return {"buffer.labels": torch.arange(count) * processes + rank}

    def folder(self, tmp_path, steps=(1, 2, 3), processes=2):
        folder = RunFolder(tmp_path)
        with folder.opened_for(tiny_config()):
            for step in steps:
                for rank in reversed(range(processes)):
                    shard = self.rows(rank, 8 // processes, processes)
                    folder.save_state(moment(step, processes, shard), rank)
        return folder

    def files(self, tmp_path):
        return sorted(path.name[:21] for path in (tmp_path / "resume").glob("step-*.safetensors"))

    def test_every_process_finds_its_own(self, tmp_path):
        folder = self.folder(tmp_path)
        assert self.files(tmp_path) == [f"step-00000000{s}-rank-{r}" for s in (2, 3) for r in (0, 1)]
        for rank in (0, 1):
            state, _ = folder.load_state(rank, 2)
            assert state.step == 3
            assert state.tensors["x"].tolist() == [3, 3]
            assert torch.equal(state.shard["buffer.labels"], self.rows(rank)["buffer.labels"])

    @pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4), (4, 2), (1, 8)])
    def test_another_number_of_processes_deals_the_rows_out_anew(self, tmp_path, before, after):
        folder = self.folder(tmp_path, processes=before)
        parts = [folder.load_state(rank, after)[0].shard["buffer.labels"] for rank in range(after)]
        assert sorted(torch.cat(parts).tolist()) == list(range(8))
        assert [part.tolist() for part in parts] == [list(range(rank, 8, after)) for rank in range(after)]

    @pytest.mark.parametrize("damage", ["missing", "altered"])
    def test_a_moment_counts_only_when_all_its_files_are_intact(self, tmp_path, damage):
        folder = self.folder(tmp_path)
        (part,) = (tmp_path / "resume").glob("step-000000003-rank-1-*")
        if damage == "missing":
            part.unlink()
        else:
            part.write_bytes(part.read_bytes()[:-1] + b"\x55")
        state, complaints = folder.load_state(0, 2)
        assert state.step == 2
        assert len(complaints) == 1
        assert folder.load_state(1, 2)[0].step == 2

    def test_a_part_of_another_course_is_not_taken(self, tmp_path):
        """Step 3 again after a rollback, killed when only rank 1 had written."""
        folder = self.folder(tmp_path)
        again = moment(3, 2, {"buffer.labels": torch.zeros(4, dtype=torch.long)})
        again.info["rollbacks"] = 1
        folder.save_state(again, 1)
        state, complaints = folder.load_state(0, 2)
        assert state.step == 2
        assert "lacks the part of process 1" in complaints[0]

    def test_an_unfinished_rollback_leaves_the_states_before_it(self, tmp_path):
        """Killed when rank 1 had written the state to go back to, and rank 0 had not."""

        def killed():
            raise KeyboardInterrupt

        folder = self.folder(tmp_path)
        again = moment(1, 2, self.rows(1))
        again.info["rollbacks"] = 1
        with pytest.raises(KeyboardInterrupt):
            folder.save_state(again, 1, killed)
        for rank in (0, 1):
            state, complaints = folder.load_state(rank, 2)
            assert (state.step, complaints) == (3, [])

    def test_parts_without_the_first_are_not_there_yet(self, tmp_path):
        folder = self.folder(tmp_path)
        folder.save_state(moment(4, 2, self.rows(1)), 1)  # killed before rank 0 wrote
        assert folder.load_state(0, 2)[0].step == 3
        for rank in (1, 0):
            folder.save_state(moment(5, 2, self.rows(rank)), rank)
        assert self.files(tmp_path) == [f"step-00000000{s}-rank-{r}" for s in (3, 5) for r in (0, 1)]


class TestFolder:
    def test_where_a_run_is_computed_may_change(self, tmp_path):
        with RunFolder(tmp_path).opened_for(tiny_config()):
            pass
        elsewhere = tiny_config(train={"devices": 4, "checkpoint_seconds": 7.0})
        with RunFolder(tmp_path).opened_for(elsewhere):
            pass
        assert "devices = 4" in (tmp_path / "config.toml").read_text()

    def test_another_configuration_is_refused_with_the_differing_keys(self, tmp_path):
        with RunFolder(tmp_path).opened_for(tiny_config()):
            pass
        other = tiny_config(train={"beta": 0.25}, buffer={"size": 41})
        with (
            pytest.raises(InputError, match=r"train.beta: 0.5, now 0.25; buffer.size: 40, now 41"),
            RunFolder(tmp_path).opened_for(other),
        ):
            pass

    def test_a_folder_of_something_else_is_left_alone(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("…")
        with (
            pytest.raises(InputError, match=r"holds files but no config.toml"),
            RunFolder(tmp_path).opened_for(tiny_config()),
        ):
            pass
        assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]

    def test_what_a_killed_start_left_is_no_obstacle(self, tmp_path):
        (tmp_path / "resume").mkdir()
        (tmp_path / ".lock").touch()
        (tmp_path / ".config.toml.123.tmp").write_text("[tr")
        with RunFolder(tmp_path).opened_for(tiny_config()):
            assert not (tmp_path / ".config.toml.123.tmp").exists()

    def test_two_trainings_in_one_folder_are_refused(self, tmp_path):
        with (
            RunFolder(tmp_path).opened_for(tiny_config()),
            pytest.raises(InputError, match="another process is training"),
            RunFolder(tmp_path).opened_for(tiny_config()),
        ):
            pass

    def test_an_unwritable_place_is_named(self, tmp_path):
        (tmp_path / "file").touch()
        with (
            pytest.raises(InputError, match=r"cannot write to --out .*file.run: Not a directory"),
            RunFolder(tmp_path / "file" / "run").opened_for(tiny_config()),
        ):
            pass

    def test_a_damaged_configuration_is_named(self, tmp_path):
        (tmp_path / "config.toml").write_text("[train")
        with (
            pytest.raises(InputError, match=r"config.toml is damaged.* not valid TOML"),
            RunFolder(tmp_path).opened_for(tiny_config()),
        ):
            pass

    def test_metrics_rewind_and_forget_a_line_cut_short(self, tmp_path):
        folder = RunFolder(tmp_path)
        for step in (1, 2, 3):
            folder.append_metrics({"step": step})
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "rea')
        assert [line["step"] for line in folder.metrics()] == [1, 2, 3]
        folder.rewind_metrics(2)
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'

    @pytest.mark.parametrize("line", [b"[1]", b"3", b'{"a": 1}', b'{"step": null}', b"\xff\xfe", b"garbage"])
    def test_a_damaged_line_of_metrics_is_named(self, tmp_path, line):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
        with pytest.raises(InputError, match=r"metrics.jsonl is damaged in line 2"):
            RunFolder(tmp_path).metrics()

    def test_results_of_one_evaluation_leave_the_others(self, tmp_path):
        folder = RunFolder(tmp_path)
        folder.save_results({"accuracy": {"values": {"top1": 0.5}}})
        folder.save_results({"samples": {"values": {}}})
        assert folder.results().keys() == {"accuracy", "samples"}
        with pytest.raises(ValueError, match="Out of range"):
            folder.save_results({"bad": float("nan")})
        (tmp_path / "results.json").write_text("{")
        with pytest.raises(InputError, match=r"results.json is damaged"):
            folder.results()


def test_a_folder_knows_whether_it_is_being_trained_in(tmp_path):
    run = tmp_path / "run"
    assert not layout.is_training(run)
    with RunFolder(run).opened_for(tiny_config()):
        assert layout.is_training(run)
        with pytest.raises(InputError, match="is still being trained"):
            model_file.load(run)
    assert not layout.is_training(run)
    with pytest.raises(InputError, match="run the same `gmmc train` command again"):
        model_file.load(run)


class TestLoad:
    def test_a_model_survives_the_disk(self, tmp_path):
        model = make_model()
        model.head.gamma2.fill_(0.5)
        model_file.save_model(tmp_path / "model.safetensors", model)
        for source in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
            again = model_file.load(source)
            assert again.class_names == model.class_names
            assert again.cfg == model.cfg
            assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
        assert not again.training

    def test_what_is_no_model_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"no run folder or model file .*nowhere"):
            model_file.load(tmp_path / "nowhere")
        with pytest.raises(InputError, match="is not a run folder"):
            model_file.load(tmp_path)
        (tmp_path / "config.toml").touch()
        with pytest.raises(InputError, match="holds no finished model"):
            model_file.load(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"1234")
        with pytest.raises(InputError, match=r"model.safetensors is not a whole gmmc file"):
            model_file.load(tmp_path)

    def test_a_model_of_another_version_is_refused_in_one_line(self, tmp_path):
        content, _ = pack({"w": torch.ones(1)}, {"gmmc": "9.9"})
        (tmp_path / "m.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="is not a model of this version of gmmc"):
            model_file.load(tmp_path / "m.safetensors")
        model = make_model()
        model_file.save_model(tmp_path / "n.safetensors", model)
        tensors, info, _ = unpack(tmp_path / "n.safetensors")
        tensors.pop("head.gamma2")
        (tmp_path / "n.safetensors").write_bytes(pack(tensors, info)[0])
        with pytest.raises(InputError, match=r"gamma2") as caught:
            model_file.load(tmp_path / "n.safetensors")
        assert "\n" not in str(caught.value)

    def test_the_header_is_plain_json(self, tmp_path):
        model_file.save_model(tmp_path / "m.safetensors", make_model())
        raw = (tmp_path / "m.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        assert json.loads(json.loads(header["__metadata__"]["gmmc"])["info"])["class_names"] == [
            "class 0",
            "class 1",
            "class 2",
        ]
