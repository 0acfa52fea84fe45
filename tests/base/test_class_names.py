"""Class names that cannot be printed, stored or told apart are refused in one line."""

import pytest

from gmmc.base.class_names import check_class_names
from gmmc.base.limits import CLASS_NAME, CLASSES
from gmmc.errors import InputError


@pytest.mark.parametrize(
    "names",
    [
        ["cat"],
        ("cat", "dog"),
        [
            "Käuzchen",
            "猫",
            "🦉 owl",
            " a b ",
            "می\u200cخواهم",
            "क्\u200dष",
            "👩\u200d🔬",
            "Donau\u00addampfer",
            "שלום\u200f",
        ],
        ["🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "a"],
        ["x" * CLASS_NAME],
    ],
)
def test_ordinary_names_are_kept(names):
    assert check_class_names(names, "class_names") == tuple(names)


@pytest.mark.parametrize(
    ("names", "fact"),
    [
        (None, "None"),
        ("cat", "'cat'"),
        ({"cat": 1}, "cat"),
        ([], "0"),
        (["cat", 5], "5"),
        (["cat", b"dog"], "b'dog'"),
        (["cat", ["dog"]], "dog"),
        (["cat", ""], "''"),
        (["cat", "\u200d \u200c"], r"\\u200d"),
        (["cat", " \t"], r"' \\t'"),
        (["cat", "d\0g"], r"'d\\x00g'"),
        (["cat", "\x1b[2J"], r"\\x1b"),
        (["cat", "d\ng"], r"'d\\ng'"),
        (["cat", "\ud800"], r"'\\ud800'"),
        (["cat", "\u202edog"], r"\\u202e"),
        (["cat", "x" * (CLASS_NAME + 1)], r"limits\.CLASS_NAME"),
        (["dog", "cat", "cat"], "'cat' twice"),
    ],
)
def test_unusable_names_are_refused_in_one_line(names, fact):
    with pytest.raises(InputError, match=f"^class_names of it .*{fact}") as caught:
        check_class_names(names, "class_names of it")
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 250


def test_the_number_of_names_is_bounded():
    most = [str(i) for i in range(CLASSES)]
    assert len(check_class_names(most, "names")) == CLASSES
    with pytest.raises(InputError, match=r"limits\.CLASSES.*100,001"):
        check_class_names([*most, "one more"], "names")


def test_equal_names_among_many_are_found_at_once():
    """Comparing each with each would take minutes."""
    with pytest.raises(InputError, match="'last' twice"):
        check_class_names([*map(str, range(CLASSES - 2)), "last", "last"], "names")
