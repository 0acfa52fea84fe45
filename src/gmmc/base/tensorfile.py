"""Tensors and JSON in one file with a hash of its content, never unpickled."""

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from gmmc.base.inputs import parse_json, read_bytes
from gmmc.base.text import shortened


class Damaged(ValueError):
    """A file that is not what was written."""


def pack(tensors: dict[str, Tensor], info: dict[str, Any]) -> tuple[bytes, str]:
    """Tensors and JSON → one safetensors file and the hash of its content, which its header holds too."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(info, sort_keys=True)
    digest = _content_hash(tensors, text)
    # One key: with two, their order in the file would be random, and equal runs would give unequal files.
    return safetensors.torch.save(tensors, {"gmmc": json.dumps({"sha256": digest, "info": text})}), digest


def unpack(
    path: Path, most: int | None = None, bound: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Return (tensors, sorted by name; info; hash) of a packed file; Damaged when it does not match its hash.

    With `most`, a larger file is an OSError that names the constant `bound` of `limits`.
    """
    raw = read_bytes(path, most, bound)
    try:
        loaded = safetensors.torch.load(raw)  # in random order
        tensors = {name: loaded[name] for name in sorted(loaded)}
        (length,) = struct.unpack("<Q", raw[:8])
        header = parse_json(parse_json(raw[8 : 8 + length], "header")["__metadata__"]["gmmc"], "header")
        text, digest = header["info"], header["sha256"]
        sound = _content_hash(tensors, text) == digest
        info = parse_json(text, "header") if sound else {}
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, struct.error) as error:
        raise Damaged(f"{path} is not a whole gmmc file ({shortened(str(error))})") from None
    if not sound:
        raise Damaged(f"{path} was altered: its content does not match its hash")
    return tensors, info, digest


def _content_hash(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"|{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
