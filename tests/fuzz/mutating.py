"""Changes of documents, bytes and files: small ones, so that most of a file stays valid."""

import json
import math
import os
import random
import shutil
from pathlib import Path
from typing import Any

COPIED = 10**6  # bytes; a larger file is not put in place of another
NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    10**30,
    -0.0,
    0.5,
    1.5,
    -0.5,
    1e-320,
    1e-30,
]
NUMBERS += [1e38, -1e38, 1e300, math.nan, math.inf, -math.inf]
TEXTS = [
    "",
    " ",
    "a",
    "auto",
    "0",
    "nan",
    "é",
    "😀",
    "\0",
    "\x1b[2J",
    "a\nb",
    "\u202ea",
    "\u200b",
    "x" * 300,
    "..",
    ".",
]
TEXTS += [
    "/dev/zero",
    "<b>",
    "{{ 7 * 7 }}",
    "%s",
    "#",
    "'",
    '"',
    "a.b.c",
    "--help",
    "[x](y)",
    "|",
    "~",
    "~nobody/x",
]
FILES = ["empty", "folder", "loop", "dangling", "zeros", "pipe", "missing", "sparse", "copy"]


def deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def odd_value(draw: random.Random) -> Any:
    """Draw a value of any type."""
    kind = draw.randrange(6)
    if kind < 2:
        return draw.choice(NUMBERS)
    if kind < 4:
        return draw.choice(TEXTS)
    if kind == 4:
        return draw.choice([None, True, False])
    return draw.choice(
        [[], {}, [1, 2], ["a"], [[]], {"a": 1}, [None], [math.nan], deep(20), deep(40), {"a": {"b": []}}]
    )


def places(tree: Any, found: list | None = None) -> list[tuple[Any, Any]]:
    """List all (holder, key) pairs of a tree of dictionaries and lists."""
    found = [] if found is None else found
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        found.append((tree, key))
        places(tree[key], found)
    return found


def mutated(draw: random.Random, tree: Any) -> Any:
    """Return a copy of a JSON-like tree with one to three changes."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw.choice([1, 1, 2, 3])):
        spots = places(tree)
        if not spots or draw.random() < 0.02:
            return odd_value(draw)
        change_at(draw, *draw.choice(spots), spots)
    return tree


def change_at(draw: random.Random, holder: Any, key: Any, spots: list) -> None:
    """Change the value of one key, or the key."""
    value, kind = holder[key], draw.randrange(9)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind < 3:
        holder[key] = odd_value(draw)
    elif kind == 3:
        del holder[key]
    elif kind == 4 and is_number:
        holder[key] = draw.choice([-value, value + 1, value * 1.5, value * 10**9, float(value), str(value)])
    elif kind == 5 and isinstance(value, str):
        holder[key] = value + draw.choice(TEXTS)
    elif kind == 6:
        holder[key] = draw.choice([[value], {"a": value}, [value] * 3])
    elif kind == 7:
        other, name = draw.choice(spots)
        inside = name in other if isinstance(other, dict) else name < len(other)
        holder[key] = json.loads(json.dumps(other[name])) if inside else None
    elif isinstance(holder, dict):
        holder[draw.choice([*TEXTS, f"{key}s"])] = value
    else:
        holder.insert(key, odd_value(draw))


def mutated_bytes(draw: random.Random, content: bytes) -> bytes:
    """Return the bytes with one to four flips, cuts, repeats or insertions."""
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, length = draw.randrange(len(data) + 1), draw.choice([1, 1, 2, 8, 64])
        kind = draw.randrange(7)
        if kind < 2 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + length]
        elif kind == 4:
            data[at:at] = draw.randbytes(length)
        elif kind == 5:
            data[at : at + length] = draw.choice([b"\0", b"\xff"]) * length
        else:
            data += data[at : at + length]
    return bytes(data)


def mutated_text(draw: random.Random, text: str) -> bytes:
    """Return the text with a damaged line or damaged bytes."""
    lines = text.splitlines(keepends=True) or [""]
    at, kind = draw.randrange(len(lines)), draw.randrange(5)
    if kind == 0:
        lines[at : at + 1] = lines[at : at + 1] * 2
    elif kind == 1:
        lines.insert(
            at,
            draw.choice(
                ["[", "]", "= 1\n", "a" * 5000, "{" * 2000, ".".join(["a"] * 50) + " = 1\n", "9" * 5000]
            ),
        )
    elif kind == 2:
        draw.shuffle(lines)
    elif kind == 3:
        lines[at] = lines[at].replace("=", draw.choice(["", ":", "= =", "=["]), 1)
    else:
        return mutated_bytes(draw, text.encode())
    return "".join(lines).encode()


def replace_file(draw: random.Random, path: Path) -> None:
    """Put something else where a file is: a folder, a link, a pipe, another file, nothing."""
    others = [
        other
        for other in sorted(path.parent.iterdir())
        if other != path and other.is_file() and other.stat().st_size < COPIED
    ]
    remove(path)
    kind = draw.choice(FILES)
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, draw.choice([2**20, 2**28, 2**36]))
    elif kind == "copy" and others:
        shutil.copy(draw.choice(others), path)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def toml(tree: dict[str, Any]) -> str:
    """Write a tree as TOML, also what is not allowed in it."""
    lines = [
        f"{json.dumps(key)} = {toml_value(value)}"
        for key, value in tree.items()
        if not isinstance(value, dict)
    ]
    for key, table in tree.items():
        if isinstance(table, dict):
            lines += ["", f"[{json.dumps(key)}]"]
            lines += [f"{json.dumps(name)} = {toml_value(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value)
