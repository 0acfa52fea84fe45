"""Files that others wrote are regular and of bounded size; their text has no effect on a terminal."""

import json
import os
import tomllib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmmc.base import inputs
from gmmc.base.inputs import open_regular, parse_json, parse_toml, read_bytes
from gmmc.base.limits import NESTING, SHOWN, TOML_CHARACTERS, WHOLE_NUMBER
from gmmc.base.text import INVISIBLE, printable, shortened
from gmmc.errors import InputError

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


@pytest.mark.parametrize(("parse", "start"), [(parse_json, ""), (parse_toml, "a = ")])
def test_nesting_is_bounded(parse, start):
    parse(start + "[" * (NESTING - 1) + "]" * (NESTING - 1), "notes")
    for depth in (NESTING + 2, 900, 2000):
        with pytest.raises(InputError, match="nested"):
            parse(start + "[" * depth + "]" * depth, "notes")


@pytest.mark.parametrize("part", ["a", '"a, b"', "'a b'", '"\\""', "ä-_9"])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "a = {{ {} = 1 }}"])
def test_a_key_of_many_parts_is_refused_before_it_takes_all_memory(part, form):
    with pytest.raises(InputError, match=r"limits\.NESTING"):
        parse_toml(form.format(" . ".join([part] * 100_000)), "notes")


def test_dots_that_are_no_keys():
    text = "floats = [" + "1.5," * 100 + "]\nwords = '" + "One sentence. " * 100 + "." * 100 + "'\na.b.c = 1"
    assert len(parse_toml(text, "notes")["floats"]) == 100


SENTENCES = "x. " * (2 * NESTING)


@pytest.mark.parametrize(
    "text",
    [
        f'about = "{SENTENCES}"',
        f"about = '{SENTENCES}'",
        f'about = "see, {SENTENCES} [{SENTENCES}] {{{SENTENCES}"',
        f'about = """\n{SENTENCES}\n \\""" {SENTENCES} "" {SENTENCES}"""""',
        f"about = '''\n{SENTENCES}\n{SENTENCES} '' {SENTENCES}''''",
        f"# {SENTENCES}\nabout = 1 # , {SENTENCES}",
        f'"{SENTENCES}".about = 1',
    ],
)
def test_sentences_of_one_word_are_no_keys(text):
    assert parse_toml(text, "notes") == tomllib.loads(text)


@pytest.mark.parametrize(
    "before",
    [
        'a = """b"""""\n',
        "a = '''b'''''\n",
        'a = "b\\""\n',
        "a = '\\'\n",
        'a = ["""#""", \'"\', "\'"]\n',
        "a = '#'\n",
        '# \'\n# """\n',
        '"#" = ""\n',
        "a = { b = '', ",
        'a = [{ b = """c"""", ',
    ],
)
def test_a_long_key_is_found_after_any_string_and_comment(before):
    with pytest.raises(InputError, match=r"limits\.NESTING"):
        parse_toml(before + ".".join(["a"] * 1000) + " = 1", "notes")


def test_shallow_documents_are_not_searched_for_depths_that_they_lack():
    assert not inputs._is_deeper({"a": [1]}, 10**15)


def test_the_json_decoder_is_built_once(monkeypatch):
    monkeypatch.setattr(json, "JSONDecoder", None)
    assert parse_json("[1]", "notes") == [1]


def test_the_search_for_long_keys_takes_linear_time():
    """It would take minutes if it took quadratic time."""
    units = ("a", '"', "'", '"\\', "'a", "a.", '"".', '"""\\', "'''a", "a\n.", '"\n', "-'", '"" ')
    for text in (unit * (300_000 // len(unit)) for unit in units):
        with pytest.raises(InputError):
            parse_toml(text, "notes")


def test_a_large_toml_document_is_refused():
    with pytest.raises(InputError, match=r"limits\.TOML_CHARACTERS"):
        parse_toml("#" * (TOML_CHARACTERS + 1), "notes")


def test_whole_numbers_in_json_fit_64_bits():
    assert parse_json(f"[{WHOLE_NUMBER}, -{WHOLE_NUMBER}]", "notes") == [WHOLE_NUMBER, -WHOLE_NUMBER]
    for number in (WHOLE_NUMBER + 1, -(10**400)):
        with pytest.raises(InputError, match=r"limits\.WHOLE_NUMBER"):
            parse_json(f"[{number}]", "notes")


def test_half_characters_are_refused():
    assert parse_json(r'"\ud83d\ude00"', "notes") == "😀"
    for content in (r'{"\ud83d": 1}', rb'["\ud83d"]', b'"\xed\xa0\xbd"'):
        with pytest.raises(InputError, match="notes"):
            parse_json(content, "notes")


@given(st.text())
def test_printable_text_has_no_control_characters(text):
    acting = set(printable(text)) - INVISIBLE
    assert not any(unicodedata.category(character) in UNSAFE for character in acting)
    printable(text).encode()  # no surrogates


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_printable_text_keeps_what_can_be_seen(text):
    assert printable(text) == text


def test_printable_text_keeps_invisible_parts_of_words_and_escapes_what_reorders_text():
    for word in ("می\u200cخواهم", "क्\u200dष", "👩\u200d🔬", "Donau\u00addampfer", "שלום\u200f"):
        assert printable(word) == word
    assert printable("a\u200bb\u202e\u2060") == r"a\u200bb\u202e\u2060"
    reordering = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
    assert not reordering & INVISIBLE


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
