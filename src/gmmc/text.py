"""Text from files and command lines, made safe to print."""

import unicodedata
from typing import Any

from gmmc.limits import SHOWN

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
