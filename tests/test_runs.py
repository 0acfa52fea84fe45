import json
import pickle

import pytest
import safetensors.torch
import torch

from conftest import make_model, tiny_config
from gmmc import runs
from gmmc.errors import InputError
from gmmc.runs import Damaged, RunFolder, State, pack, unpack, write_atomic


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

    monkeypatch.setattr(runs.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


class TestStates:
    def folder(self, tmp_path, steps=(1, 2, 3)):
        folder = RunFolder(tmp_path)
        with folder.opened_for(tiny_config()):
            for step in steps:
                folder.save_state(State(step, {"x": torch.full((2,), step)}, {"step": step}))
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
            self.files(tmp_path)[0].replace(newest)  # the state of step 2 under the name of step 3
            folder.save_state(State(1, {"x": torch.ones(2)}, {}))
        state, (complaint,) = folder.load_state()
        assert state.step == (1 if damage == "rename" else 2)
        assert newest.name in complaint
        folder.save_state(State(4, {"x": torch.ones(2)}, {}))
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


class TestFolder:
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
            pytest.raises(InputError, match=r"config.toml is damaged: .* not valid TOML"),
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


class TestLoad:
    def test_a_model_survives_the_disk(self, tmp_path):
        model = make_model()
        model.head.gamma2.fill_(0.5)
        runs.save_model(tmp_path / "model.safetensors", model)
        for source in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
            again = runs.load(source)
            assert again.class_names == model.class_names
            assert again.cfg == model.cfg
            assert all(torch.equal(again.state_dict()[k], v) for k, v in model.state_dict().items())
        assert not again.training

    def test_what_is_no_model_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"no run folder or model file .*nowhere"):
            runs.load(tmp_path / "nowhere")
        with pytest.raises(InputError, match="is not a run folder"):
            runs.load(tmp_path)
        (tmp_path / "config.toml").touch()
        with pytest.raises(InputError, match="holds no finished model"):
            runs.load(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"1234")
        with pytest.raises(InputError, match=r"model.safetensors is not a whole gmmc file"):
            runs.load(tmp_path)

    def test_a_model_of_another_version_is_refused_in_one_line(self, tmp_path):
        content, _ = pack({"w": torch.ones(1)}, {"gmmc": "9.9"})
        (tmp_path / "m.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="is not a model of this version of gmmc"):
            runs.load(tmp_path / "m.safetensors")
        model = make_model()
        runs.save_model(tmp_path / "n.safetensors", model)
        tensors, info, _ = unpack(tmp_path / "n.safetensors")
        tensors.pop("head.gamma2")
        (tmp_path / "n.safetensors").write_bytes(pack(tensors, info)[0])
        with pytest.raises(InputError, match=r"gamma2") as caught:
            runs.load(tmp_path / "n.safetensors")
        assert "\n" not in str(caught.value)

    def test_the_header_is_plain_json(self, tmp_path):
        runs.save_model(tmp_path / "m.safetensors", make_model())
        raw = (tmp_path / "m.safetensors").read_bytes()
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        assert json.loads(json.loads(header["__metadata__"]["gmmc"])["info"])["weights"] == "last"
