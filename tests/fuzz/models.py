"""Model files: damaged bytes, and hostile content whose hash fits."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from fuzz.material import Material
from fuzz.mutating import change_at, mutated, mutated_bytes, odd_value, places, replace_file, toml
from gmmc.base.inputs import parse_toml
from gmmc.base.tensorfile import pack
from gmmc.runs.layout import MODEL

DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.uint8]
DTYPES += [torch.float8_e4m3fn, torch.complex64, torch.uint16]
EXTREMES = [0.0, -1.0, 1e-45, 1e-30, 1e10, 1e30, 3e38, -3e38, float("nan"), float("inf"), float("-inf")]
SIDE = 64  # larger images are allowed and take memory, see docs/safety.md


def command(draw: random.Random, folder: Path, given: Material) -> tuple[list[str], Any]:
    """Change a model file and use it."""
    place, kind = folder / "model" / MODEL, draw.randrange(10)
    place.parent.mkdir()
    content = (given.root / "run" / MODEL).read_bytes()
    if kind < 2:
        content = mutated_bytes(draw, content)
    elif kind == 2:
        content = mutated_header(draw, content)
    elif kind < 9:
        content = repacked(draw, *given.model())
    else:
        place.write_bytes(content)
        replace_file(draw, place)
    if kind < 9:
        place.write_bytes(content)
    return use(draw, folder, place.parent)


def use(draw: random.Random, folder: Path, model: Path) -> tuple[list[str], Any]:
    """Draw a command that reads a model."""
    Image.new("L", (8, 8), draw.randrange(256)).save(folder / "grey.png")
    kind = draw.randrange(12)
    if kind == 0:
        return ["export", str(model), str(folder / "exported")], None
    if kind == 1:
        return ["sample", str(model), "-n", "2", "--steps", "2", "--out", str(folder / "drawn")], None
    if kind == 2:
        return ["evaluate", str(model), draw.choice(["accuracy", "calibration"])], None
    options = draw.choice(
        [[], [], [], ["--tpr", "0.5"], ["--score", "neighbours"], ["--score", "gradient_norm"]]
    )
    resize = draw.choice([[], ["--resize"]])
    return ["predict", str(model), str(folder / "grey.png"), "--json", *options, *resize], verify_predictions


def verify_predictions(output: str) -> None:
    """All numbers of the answers are finite, and the confidences are probabilities."""
    rows = [json.loads(line, parse_constant=lambda word: 1 / 0) for line in output.splitlines()]
    assert rows
    assert all(0 <= row["confidence"] <= 1 for row in rows)


def repacked(draw: random.Random, tensors: dict[str, Tensor], info: dict[str, Any]) -> bytes:
    """Change the header, the recipe in it or a tensor, and pack all with a hash that fits."""
    kind = draw.randrange(8)
    if kind < 2:
        info = mutated(draw, info)
    elif kind == 2:
        key = draw.choice(["shape", "class_names", "trained", "density_gamma2", "gmmc"])
        info[key] = draw.choice([odd_value(draw), mutated(draw, info[key])])
    elif kind < 5:
        recipe = mutated(draw, parse_toml(info["config"], "recipe"))
        info["config"] = toml(recipe) if isinstance(recipe, dict) else str(recipe)
    else:
        for _ in range(draw.choice([1, 1, 2, 3])):
            change_tensor(draw, tensors)
    return pack(tensors, small(info))[0]


def small(info: Any) -> Any:
    """Keep images small enough for the memory of a test, or too large to be allowed."""
    shape = info.get("shape") if isinstance(info, dict) else None
    if isinstance(shape, list):
        info["shape"] = [min(n, SIDE) if type(n) is int and n < 10**5 else n for n in shape]
    return info


def change_tensor(draw: random.Random, tensors: dict[str, Tensor]) -> None:
    """Change the values, the shape, the type or the name of a tensor."""
    name, kind = draw.choice(sorted(tensors)), draw.randrange(22)
    tensor = tensors[name].clone()
    if kind < 3 and tensor.numel():
        tensor.view(-1)[draw.randrange(tensor.numel())] = torch.tensor(draw.choice(EXTREMES)).to(tensor.dtype)
    elif kind == 3:
        tensor = torch.full(tensor.shape, draw.choice(EXTREMES), dtype=torch.float64).to(tensor.dtype)
    elif kind == 4:
        tensor = tensor * draw.choice([-1.0, 1e-20, 1e20, 1e38])
    elif kind == 5:
        tensor = tensor.to(draw.choice(DTYPES))
    elif kind == 6:
        tensor = draw.choice(
            [tensor[None], tensor.reshape(-1), tensor.reshape(-1)[:0], tensor.reshape(-1)[:1]]
        )
    elif kind == 7:
        tensor = (
            tensor.transpose(0, -1).contiguous()
            if tensor.dim() > 1
            else tensor.flip(0)
            if tensor.dim()
            else tensor
        )
    elif kind == 8:
        tensor = tensors[draw.choice(sorted(tensors))].clone()
    elif kind == 9:
        del tensors[name]
        name = draw.choice(
            [f"{name}s", "reference.residual", "neighbours.features", "extra", "", "é", "reference."]
        )
    elif kind == 10:
        del tensors[name]
        return
    elif tensor.is_floating_point():
        tensor = tensor * draw.uniform(0.5, 2)
    tensors[name] = tensor


def mutated_header(draw: random.Random, content: bytes) -> bytes:
    """Change the JSON of a safetensors file: offsets, types, shapes and metadata that lie."""
    length = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    if draw.random() < 0.3:
        inner = json.loads(header["__metadata__"]["gmmc"])
        header["__metadata__"]["gmmc"] = json.dumps(mutated(draw, inner))
    else:
        spots = [spot for spot in places(header) if spot[1] != "gmmc"]
        change_at(draw, *draw.choice(spots), spots)
    text = json.dumps(header).encode()
    claimed = draw.choice([len(text)] * 6 + [0, 2**40, 2**63, len(text) - 1])
    return claimed.to_bytes(8, "little") + text + rest
