"""The list of faults can be read, and its runner tells faults that tests notice from others."""

import importlib.util
from pathlib import Path

import pytest

PLACE = Path(__file__).parent / "mutants" / "__main__.py"
CHECKOUT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("mutants", PLACE)
mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)

SOURCE = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
TESTS = "from toy import double\n\n\ndef test_double():\n    assert double(3) == 6\n"


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "toy.py").write_text(SOURCE)
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "test_toy.py").write_text(TESTS)
    return tmp_path


def mutant(find, replace, tests=("test_toy.py",)):
    return mutants.Mutant("a fault", find, replace, tests, "toy")


def test_the_list_is_long_and_every_fault_can_be_applied():
    """Otherwise the list would decay unnoticed, since the faults themselves are tried out by hand."""
    listed = mutants.load()
    assert len(listed) >= 60
    mutants.check_all_apply(listed, CHECKOUT)
    for each in listed:
        assert each.find != each.replace
        assert each.tests, each.name
        assert len(mutants.test_files(each.tests, CHECKOUT)) == len(each.tests), each.name


@pytest.mark.parametrize(("text", "where"), [("3 * x", "none"), ("return", "2 in toy.py")])
def test_a_text_that_is_not_found_once_is_an_error(checkout, text, where):
    with pytest.raises(mutants.BadMutant, match=f"found once under src/, got {where}"):
        mutant(text, "x").apply(mutants.read_sources(checkout))


@pytest.mark.slow
def test_a_fault_is_killed_survives_or_is_none_and_the_source_stays(checkout):
    killed = mutants.try_out(mutant("2 * x", "3 * x"), checkout)
    assert killed.failures == ("deep/test_toy.py::test_double",)
    assert mutants.try_out(mutant("2 * x", "3 * x"), checkout, stop_early=True).killed
    assert not mutants.try_out(mutant("x / 2", "x / 3"), checkout).killed
    broken = mutants.try_out(mutant("2 * x", "2 *"), checkout)
    assert (broken.killed, broken.broken[:10]) == (False, "pytest end")
    assert (checkout / "src" / "toy.py").read_text() == SOURCE
