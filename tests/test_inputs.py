"""Files that others wrote are regular and of bounded size; their text has no effect on a terminal."""

import os
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmmc.errors import InputError
from gmmc.inputs import open_regular, parse_json, parse_toml, read_bytes
from gmmc.limits import SHOWN
from gmmc.text import printable, shortened

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def test_a_regular_file_is_read_whole(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "link", 5) == b"12345"


def test_a_larger_file_is_refused_by_the_name_of_the_bound(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    with pytest.raises(OSError, match=r"5 bytes.*limits\.ENCODED_BYTES"):
        read_bytes(tmp_path / "file", 4, "ENCODED_BYTES")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


@pytest.mark.parametrize(("parse", "start"), [(parse_json, ""), (parse_toml, "a = ")])
def test_documents_fail_in_one_line(parse, start):
    digits = start + "1" * 5000
    for text in (start + "[" * 100_000, start + "[1", digits, start + '"\x1b[2J'):
        with pytest.raises(InputError, match="notes") as caught:
            parse(text, "notes")
        line = str(caught.value)
        assert len(line) < 300
        assert printable(line) == line


@given(st.text())
def test_printable_text_has_no_control_characters(text):
    assert not any(unicodedata.category(character) in UNSAFE for character in printable(text))
    printable(text).encode()  # no surrogates


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_printable_text_keeps_what_can_be_seen(text):
    assert printable(text) == text


@given(st.recursive(st.integers() | st.text() | st.floats() | st.binary(), st.lists))
def test_shortened_values_are_short(value):
    assert len(shortened(value)) <= SHOWN + 2
    assert shortened(value).isprintable()


def test_shortened_values_that_python_cannot_write():
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert "whole number" in shortened(10**5000)
    assert "nested" in shortened(nested)
    assert shortened([10**5000]) == "a huge number"
    assert shortened("short") == "'short'"
    while nested:  # else freeing it would overflow the stack of Python 3.11
        nested = nested.pop()
