"""requirements.lock and requirements-dev.lock fit pyproject.toml; every requirement has a lowest version."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12")
LOCKS = ("requirements.lock", "requirements-dev.lock")
CUDA = re.compile(r"torch$|triton|nvidia-|cuda-")  # come with the build of torch, never from a lock


def entries(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Each locked requirement with its hashes."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    parts = [line.split("--hash=") for line in text.splitlines() if line and not line.startswith("#")]
    return [(Requirement(first), [value.strip() for value in hashes]) for first, *hashes in parts]


def locked(lock: str, python: str) -> dict[str, str]:
    """Version of each package that a Linux machine with this Python gets."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    versions: dict[str, str] = {}
    for requirement, _ in entries(lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in versions, f"{name} twice on Python {python}"
            versions[name] = str(requirement.specifier).removeprefix("==")
    return versions


def required(extras: list[str]) -> list[Requirement]:
    """Requirements of the build backend, of gmmc and of these extras."""
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = tree["project"]
    optional = [text for extra in extras for text in project["optional-dependencies"][extra]]
    texts = [*tree["build-system"]["requires"], *project["dependencies"], *optional]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    names = {Requirement(text).name for text in texts}
    texts += [pin for pin in pins if Requirement(pin).name in names]
    return [Requirement(text) for text in texts if not text.startswith(("gmmc[", "torch>", "torch="))]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("lock", "extras"), [(LOCKS[0], []), (LOCKS[1], ["onnx", "tensorboard", "dev"])])
def test_a_lock_has_every_requirement_in_its_range(lock, extras, python):
    versions = locked(lock, python)
    wrong = {
        str(requirement): versions.get(canonicalize_name(requirement.name))
        for requirement in required(extras)
        if canonicalize_name(requirement.name) not in versions
        or versions[canonicalize_name(requirement.name)] not in requirement.specifier
    }
    assert not wrong


@pytest.mark.parametrize("lock", LOCKS)
def test_every_entry_has_one_version_and_hashes(lock):
    found = entries(lock)
    assert len(found) > 30
    for requirement, hashes in found:
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_no_address_no_option_and_no_torch(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE)
    assert not [requirement.name for requirement, _ in entries(lock) if CUDA.match(requirement.name)]


@pytest.mark.parametrize("python", PYTHONS)
def test_both_locks_have_the_same_versions(python):
    product, dev = (locked(lock, python) for lock in LOCKS)
    assert product.items() <= dev.items()


def test_every_requirement_has_a_lowest_version():
    spec = importlib.util.spec_from_file_location("oldest", ROOT / ".ci" / "oldest.py")
    assert spec
    assert spec.loader
    oldest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oldest)
    lines = [oldest.lowest(requirement) for requirement in oldest.requirements()]
    assert "scikit-learn==1.6" in lines
    assert "torch" in lines
    loose = [
        line for line in lines if line not in oldest.pinned() and not re.fullmatch(r"[\w-]+==[\d.]+", line)
    ]
    assert not loose
