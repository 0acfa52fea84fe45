"""bf16 on CPUs that report instructions which they trap."""

import sys

import pytest
import torch

from gmmc.base.precision import cpu_traps_bf16


@pytest.fixture(autouse=True)
def amx(monkeypatch):
    """A CPU that reports AMX, in a process that has not looked yet."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpu_traps_bf16.cache_clear()
    yield
    cpu_traps_bf16.cache_clear()


@pytest.fixture
def python_that(tmp_path, monkeypatch):
    """Put a shell command in the place of Python; return how often it ran."""

    def replace(command: str):
        script, calls = tmp_path / "python", tmp_path / "calls"
        script.write_text(f"#!/bin/sh\necho >> '{calls}'\n{command}\n")
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return lambda: len(calls.read_text()) if calls.exists() else 0

    return replace


def test_a_trap_is_noticed_once(python_that):
    calls = python_that("kill -ILL $$")
    assert [cpu_traps_bf16(), cpu_traps_bf16()] == [True, True]
    assert calls() == 1


@pytest.mark.parametrize("end", ["exit 0", "exit 1", "kill -KILL $$"])
def test_any_other_end_is_no_trap(python_that, end):
    """A machine without memory may end the child as well."""
    python_that(end)
    assert not cpu_traps_bf16()


def test_the_real_child(monkeypatch, tmp_path):
    """The real child, where bf16 works; a torch.py in the current folder is not run."""
    (tmp_path / "torch.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # the child's; below it counts as not set
    monkeypatch.setattr("gmmc.base.precision.os", type("os", (), {"environ": {}}))
    assert not cpu_traps_bf16()


@pytest.mark.parametrize("decided", ["no AMX", "ONEDNN_MAX_CPU_ISA"])
def test_nothing_is_tried_where_amx_is_not_used(python_that, monkeypatch, decided):
    calls = python_that("kill -ILL $$")
    if decided == "no AMX":
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    else:
        monkeypatch.setenv(decided, "AVX512_CORE_FP16")
    assert not cpu_traps_bf16()
    assert calls() == 0
