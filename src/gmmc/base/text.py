"""Text from files and command lines, made safe to print."""

import difflib
import unicodedata
from collections.abc import Collection
from typing import Any, TextIO

from gmmc.base.limits import LONG_SHOWN, SHOWN

ALIKE = 0.7  # least similarity, by difflib, of a word and the name it was meant to be

# Invisible parts of ordinary words and of emoji: soft hyphen, joiners, marks of direction (not the embeddings
# and overrides, which reorder what follows them), tags of regional flags.
INVISIBLE = {"\u00ad", "\u061c", "\u200c", "\u200d", "\u200e", "\u200f", *map(chr, range(0xE0020, 0xE0080))}


def printable(text: str) -> str:
    """Return the text on one line, with each character that a terminal could act on as an escape: \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        character if _is_harmless(character) else character.encode("unicode_escape").decode()
        for character in text
    )


def _is_harmless(character: str) -> bool:
    is_space = unicodedata.category(character) == "Zs"  # of any width
    return character.isprintable() or is_space or character in INVISIBLE


def print_line(line: str, file: TextIO | None = None) -> None:
    """Print one line, on standard output unless `file` is given; names in it cannot act on a terminal."""
    print(printable(line), file=file)


def shortened(value: Any, most: int = SHOWN) -> str:
    """Return `repr(value)` for an error: printable and at most `most` characters long."""
    if isinstance(value, str):
        value = cut(value, most)
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        text = f"a whole number of {value.bit_length()} bits" if isinstance(value, int) else "a huge number"
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return cut(printable(text), most + 2)


def cut(text: str, most: int) -> str:
    """Return the first characters of the text, `most` with the ellipsis that stands for the others."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def nearest(word: str, names: Collection[str]) -> list[str]:
    """Return the three shortest names that begin with the word, else the one most like it, if any is."""
    by_lower = {name.lower(): name for name in names}
    begun = [name for lower, name in by_lower.items() if word and lower.startswith(word.lower())]
    alike = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=ALIKE)
    return sorted(begun, key=len)[:3] or [by_lower[lower] for lower in alike]


def suggestion(word: str, names: Collection[str], otherwise: str = "known are") -> str:
    """Return "did you mean 'beta'?" for an unknown word, or all names if none is alike."""
    if near := nearest(word, names):
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"{otherwise} {cut(', '.join(names), LONG_SHOWN)}"
