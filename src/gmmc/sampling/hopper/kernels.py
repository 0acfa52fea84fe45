"""3×3 convolutions with the layers around them in one kernel each, for NVIDIA Hopper; needs Triton.

Images are (N, H, W, channels), contiguous, in bf16. The weights of a convolution (stride 1, padding 1) are
(channels out, 9·channels in), tap by tap. A convolution is a product of matrices, pixels by 9·channels; the
pixel operand is never built: for each tap the copy engine (TMA) fetches a shifted box of the images, with
zeros for what lies outside, which is the padding. Sums are in float32.

    epilogue    needs                  gives, with c the convolution and lrelu the LeakyReLU(0.2)
    activate    bias                   lrelu(c + bias)
    join        bias, residual         s = c + bias + residual, and lrelu(s)
    mask        activation             c · lrelu′
    mask_add    activation, residual   c · lrelu′ + residual

lrelu′ is read off the sign of the activation that the forward pass kept.
"""

# The type checker sees neither Triton, where it is not installed, nor what its decorators make of functions.
# pyright: reportMissingImports=false, reportPossiblyUnboundVariable=false, reportIndexIssue=false

import os
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from gmmc.errors import InputError
from gmmc.networks import backbones

NEEDS = {
    "activate": {"bias"},
    "join": {"bias", "residual"},
    "mask": {"activation"},
    "mask_add": {"activation", "residual"},
}
SLOPE = tl.constexpr(backbones.SLOPE)
# Triton's interpreter, which runs the kernels on a CPU for tests, cannot multiply bf16.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
ELEMENTS = 1024  # of a program of the elementwise kernels
MAX_ELEMENTS = 2**31  # offsets are 32-bit


# --- on the device ---


@triton.jit
def _lrelu(v):
    return tl.where(v > 0, v, v * SLOPE)


@triton.jit
def _dot(a, b, total):
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        return tl.dot(a, b, total)


@triton.jit
def _finish(
    c, pixels, channels, bias, residual, activation, out, out2, COUNT,
    COUT: tl.constexpr, EPILOGUE: tl.constexpr, RAGGED: tl.constexpr,
):  # fmt: skip
    """The epilogue of c, (pixels, channels); RAGGED: some of these channels may not exist."""
    at = pixels[:, None] * COUT + channels[None, :]
    inside = pixels[:, None] < COUNT
    if RAGGED:
        inside = inside & (channels[None, :] < COUT)
    if EPILOGUE == "activate" or EPILOGUE == "join":
        c += tl.load(bias + channels, mask=channels < COUT, other=0.0).to(tl.float32)[None, :]
    else:
        kept = tl.load(activation + at, mask=inside, other=0.0).to(tl.float32)
        c = tl.where(kept > 0, c, c * SLOPE)
    if EPILOGUE == "join" or EPILOGUE == "mask_add":
        c += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if EPILOGUE == "activate":
        c = _lrelu(c)
    tl.store(out + at, c.to(out.dtype.element_ty), mask=inside)
    if EPILOGUE == "join":
        tl.store(out2 + at, _lrelu(c).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _finish_transposed(
    c, first, channels, bias, residual, activation, out, out2, COUNT,
    COUT: tl.constexpr, EPILOGUE: tl.constexpr, RAGGED: tl.constexpr,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """The epilogue of c, (channels, pixels); one half of the pixels after the other spares registers."""
    if HALVES:
        low, high = c.reshape(CHANNELS, 2, PIXELS // 2).permute(0, 2, 1).split()
        pixels = first + tl.arange(0, PIXELS // 2)
        _finish(low.T, pixels, channels, bias, residual, activation, out, out2, COUNT, COUT, EPILOGUE, RAGGED)
        pixels += PIXELS // 2
        _finish(
            high.T, pixels, channels, bias, residual, activation, out, out2, COUNT, COUT, EPILOGUE, RAGGED
        )
    else:
        pixels = first + tl.arange(0, PIXELS)
        _finish(c.T, pixels, channels, bias, residual, activation, out, out2, COUNT, COUT, EPILOGUE, RAGGED)


@triton.jit
def _convolve_tile(
    tile, x, w1, w2, bias, residual, activation, out, out2, COUNT, H,
    CIN: tl.constexpr, COUT: tl.constexpr, EPILOGUE: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    CHANNELS: tl.constexpr, MORE: tl.constexpr, DEPTH: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """One box of pixels by CHANNELS + MORE channels (two accumulators, as 320 is no power of two).

    The product is transposed: as its second operand the pixels go from shared memory to the tensor cores,
    as its first they would pass through registers.
    """
    PIXELS: tl.constexpr = BOX_N * BOX_H * BOX_W
    ACROSS: tl.constexpr = (COUT + CHANNELS + MORE - 1) // (CHANNELS + MORE)
    RAGGED: tl.constexpr = COUT % (CHANNELS + MORE) != 0
    SLICES: tl.constexpr = CIN // DEPTH
    box = tile // ACROSS
    channel = (tile % ACROSS) * (CHANNELS + MORE)
    n = (box // (H // BOX_H)) * BOX_N
    h = (box % (H // BOX_H)) * BOX_H
    c1 = tl.zeros((CHANNELS, PIXELS), tl.float32)
    if MORE > 0:
        c2 = tl.zeros((MORE, PIXELS), tl.float32)
    for k in range(9 * SLICES):
        tap = k // SLICES
        depth = (k - tap * SLICES) * DEPTH
        pixels = x.load([n, h + tap // 3 - 1, tap % 3 - 1, depth]).reshape(PIXELS, DEPTH).T
        c1 = _dot(w1.load([channel, k * DEPTH]), pixels, c1)
        if MORE > 0:
            c2 = _dot(w2.load([channel + CHANNELS, k * DEPTH]), pixels, c2)
    _finish_transposed(
        c1, box * PIXELS, channel + tl.arange(0, CHANNELS), bias, residual, activation, out, out2, COUNT,
        COUT, EPILOGUE, RAGGED, CHANNELS, PIXELS, HALVES,
    )  # fmt: skip
    if MORE > 0:
        _finish_transposed(
            c2, box * PIXELS, channel + CHANNELS + tl.arange(0, MORE), bias, residual, activation, out, out2,
            COUNT, COUT, EPILOGUE, RAGGED, MORE, PIXELS, HALVES,
        )  # fmt: skip


@triton.jit
def _convolve(
    x, w1, w2, bias, residual, activation, out, out2, COUNT, H, TILES,
    CIN: tl.constexpr, COUT: tl.constexpr, EPILOGUE: tl.constexpr,
    BOX_N: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
    CHANNELS: tl.constexpr, MORE: tl.constexpr, DEPTH: tl.constexpr, HALVES: tl.constexpr,
    PERSISTENT: tl.constexpr,
):  # fmt: skip
    """A program per tile; or only as many as run at once, which fetch the next while they store the last."""
    if PERSISTENT:
        for tile in tl.range(tl.program_id(0), TILES, tl.num_programs(0), flatten=True):
            _convolve_tile(
                tile, x, w1, w2, bias, residual, activation, out, out2, COUNT, H,
                CIN, COUT, EPILOGUE, BOX_N, BOX_H, BOX_W, CHANNELS, MORE, DEPTH, HALVES,
            )  # fmt: skip
    else:
        _convolve_tile(
            tl.program_id(0), x, w1, w2, bias, residual, activation, out, out2, COUNT, H,
            CIN, COUT, EPILOGUE, BOX_N, BOX_H, BOX_W, CHANNELS, MORE, DEPTH, HALVES,
        )  # fmt: skip


@triton.jit
def _join(u, bias, v, out, out2, COUNT, C: tl.constexpr, TWO: tl.constexpr, ELEMENTS: tl.constexpr):
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < COUNT
    s = tl.load(u + at, mask=inside).to(tl.float32) + tl.load(bias + at % C, mask=inside).to(tl.float32)
    if TWO:
        s += tl.load(v + at, mask=inside).to(tl.float32)
    tl.store(out + at, s.to(out.dtype.element_ty), mask=inside)
    tl.store(out2 + at, _lrelu(s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _masked(g, activation, out, COUNT, ELEMENTS: tl.constexpr):
    at = tl.program_id(0) * ELEMENTS + tl.arange(0, ELEMENTS)
    inside = at < COUNT
    kept = tl.load(activation + at, mask=inside).to(tl.float32)
    v = tl.load(g + at, mask=inside).to(tl.float32)
    tl.store(out + at, tl.where(kept > 0, v, v * SLOPE).to(out.dtype.element_ty), mask=inside)


# --- how a convolution is cut ---


class Tile(NamedTuple):
    """What a program computes at a time; `stages` of 64 input channels are on their way meanwhile."""

    pixels: int
    channels: int
    more: int
    warps: int
    stages: int
    persistent: bool = False


# By channels out: the fastest of about ten each, measured on an H200 at the shapes of WRN-28-4 and WRN-28-10.
TILES = {
    128: Tile(128, 128, 0, 4, 3),
    160: Tile(256, 128, 64, 8, 3),
    256: Tile(128, 128, 0, 8, 4),
    320: Tile(128, 256, 64, 8, 3),
    640: Tile(128, 256, 64, 8, 3),
}
# Where twice as many tiles still run at once.
FINER = {
    128: Tile(128, 64, 0, 4, 4),
    256: Tile(128, 64, 0, 4, 4),
    320: Tile(64, 256, 64, 8, 3),
    640: Tile(64, 256, 64, 8, 3),
}
NARROW = Tile(128, 64, 0, 4, 4)  # up to 64 channels out: the tensor cores take no fewer
NARROW_PERSISTENT = Tile(128, 64, 0, 4, 4, persistent=True)
NARROW_LIGHT = Tile(256, 64, 0, 8, 4, persistent=True)  # epilogues that move little memory
WIDE = TILES[128]


def chosen_tile(shape: tuple[int, ...], cout: int, epilogue: str, processors: int) -> Tile:
    if cout < 64:
        return NARROW
    if cout == 64:
        return NARROW_LIGHT if epilogue in ("activate", "mask") else NARROW_PERSISTENT
    tile = TILES.get(cout, WIDE)
    finer = FINER.get(cout)
    if finer and box_of(finer.pixels, shape) and 2 * tile_count(tile, shape, cout) <= processors:
        return finer
    return tile


def box_of(pixels: int, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(images, rows, columns) of a box of so many pixels: whole rows, and whole images if several."""
    _, height, width, _ = shape
    rows, rest = divmod(pixels, width)
    if rest:
        return None
    if rows <= height:
        return None if height % rows else (1, rows, width)
    return None if rows % height else (rows // height, height, width)


def tile_count(tile: Tile, shape: tuple[int, ...], cout: int) -> int:
    box = box_of(tile.pixels, shape)
    assert box is not None  # `supported` says so
    count, height, _, _ = shape
    return -(-count // box[0]) * (height // box[1]) * -(-cout // (tile.channels + tile.more))


def depth_of(cin: int) -> int | None:
    """Input channels per product: the deeper the better."""
    return next((depth for depth in (64, 32, 16) if cin % depth == 0), None)


def supported(cin: int, cout: int, height: int, width: int, batch: int) -> bool:
    """Whether `convolve` can do it, with any epilogue."""
    if depth_of(cin) is None or cout % 16 or height < 1 or width < 1 or width & (width - 1) or batch < 1:
        return False
    tiles = [TILES.get(cout, WIDE)] if cout > 64 else [NARROW] if cout < 64 else [NARROW, NARROW_LIGHT]
    small = batch * height * width * max(cin, cout) < MAX_ELEMENTS
    return small and all(box_of(tile.pixels, (batch, height, width, cin)) for tile in tiles)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


# --- what the network calls ---


def convolve(
    x: Tensor,
    weight: Tensor,
    *,
    epilogue: str,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The convolution of x and its epilogue, as in the table at the top; "join" gives two tensors."""
    cin, cout = x.shape[3], weight.shape[0]
    given = {"bias": bias, "residual": residual, "activation": activation}
    check(x, weight, epilogue, {name: tensor for name, tensor in given.items() if tensor is not None})
    processors = multiprocessors(x.device)
    tile = chosen_tile(x.shape, cout, epilogue, processors)
    box, depth = box_of(tile.pixels, x.shape), depth_of(cin)
    assert box is not None  # checked
    assert depth is not None
    out = x.new_empty(*x.shape[:3], cout)
    out2 = torch.empty_like(out) if epilogue == "join" else None
    w1 = described(weight, (tile.channels, depth))
    w2 = described(weight, (tile.more, depth)) if tile.more else w1
    tiles = tile_count(tile, x.shape, cout)
    at_once = processors * (8 // tile.warps)
    _convolve[(min(tiles, at_once) if tile.persistent else tiles,)](
        *(described(x, (*box, depth)), w1, w2),
        # A pointer that the epilogue does not read may be any.
        *(out if tensor is None else tensor for tensor in (bias, residual, activation, out, out2)),
        *(out.numel() // cout, x.shape[1], tiles),
        *(cin, cout, epilogue, *box, tile.channels, tile.more, depth),
        HALVES=tile.pixels * tile.channels >= 128 * 32 * tile.warps,
        PERSISTENT=tile.persistent,
        num_warps=tile.warps,
        num_stages=min(6, tile.stages * 64 // depth),
    )
    return out if out2 is None else (out, out2)


def described(tensor: Tensor, block: tuple[int, ...]) -> TensorDescriptor:
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


def check(x: Tensor, weight: Tensor, epilogue: str, given: dict[str, Tensor]) -> None:
    """A kernel would read beyond a tensor that is smaller than it should be."""
    if epilogue not in NEEDS:
        raise InputError(f"epilogue must be one of {', '.join(NEEDS)}, got {epilogue!r}")
    if given.keys() != NEEDS[epilogue]:
        raise InputError(f"{epilogue} must have {sorted(NEEDS[epilogue])}, got {sorted(given)}")
    (batch, height, width, cin), cout = x.shape, weight.shape[0]
    if not supported(cin, cout, height, width, batch):
        raise InputError(f"x must have a shape that `supported` accepts, got {tuple(x.shape)}")
    for name, tensor in {"x": x, "weight": weight, **given}.items():
        due = {"x": x.shape, "weight": (cout, 9 * cin), "bias": (cout,)}.get(
            name, (batch, height, width, cout)
        )
        if tensor.shape != due or not tensor.is_contiguous():
            raise InputError(f"{name} must be contiguous and {tuple(due)}, got {tuple(tensor.shape)}")


def join(u: Tensor, bias: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """s = u + bias + v, and lrelu(s)."""
    out, out2 = torch.empty_like(u), torch.empty_like(u)
    grid = (triton.cdiv(u.numel(), ELEMENTS),)
    second = u if v is None else v  # not read if there is none
    _join[grid](u, bias, second, out, out2, u.numel(), u.shape[-1], TWO=v is not None, ELEMENTS=ELEMENTS)
    return out, out2


def masked(g: Tensor, activation: Tensor) -> Tensor:
    """g · lrelu′."""
    out = torch.empty_like(g)
    _masked[(triton.cdiv(g.numel(), ELEMENTS),)](g, activation, out, g.numel(), ELEMENTS=ELEMENTS)
    return out
