"""The same gradients and updates, faster on a GPU: CUDA graphs, compiled code, bf16 weights to sample by.

A gradient of a small network is hundreds of kernels of a few microseconds each: launched one by one they
leave the GPU idle most of the time. A CUDA graph launches them all at once. The plain way stays, as the
reference and for everything that cannot be captured.
"""

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.base.leader import is_leader
from gmmc.base.precision import cpu_traps_bf16
from gmmc.base.progress import is_quiet
from gmmc.base.text import print_line
from gmmc.errors import InputError
from gmmc.networks.backbones import LAYOUT, batch_norms, frozen_statistics
from gmmc.sampling.samplers import Energy, input_gradient

# Compiling takes 10 to 30 seconds; it pays from about here on (docs/log.md).
COMPILE_FROM_STEPS = 20_000  # of the sampler
COMPILE_FROM_UPDATES = 10_000
TRAPPED = (  # and the remedy
    "this CPU reports AMX but traps its instructions; "
    "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 for bf16 without AMX"
)
MOST_CAPTURES = 16  # of kinds of gradients
PLAIN_CALLS = 3  # before a capture: libraries choose their kernels and take their memory


@dataclass(frozen=True)
class Engine:
    """How a kind of work is run."""

    copy: bool = True  # sample by a frozen copy of the network, in the precision of the training
    graph: bool = False
    compile: bool = False
    fused: bool = False  # our own kernels, where they can do it
    repeatable: bool = False  # the same bits in every process; else whatever is fastest there


PLAIN = Engine(copy=False)


def choose(asked: str, device: torch.device, *, compile: bool) -> Engine:
    """The way that `train.engine` asks for; `compile` says whether there is enough work for it to pay."""
    if device.type != "cuda":
        if asked in ("graph", "compiled"):
            raise InputError(f"train.engine={asked} needs a GPU, got {device.type}; auto takes what there is")
        return PLAIN if asked == "plain" else Engine()
    compile = asked == "compiled" or (asked == "auto" and compile)
    return PLAIN if asked == "plain" else Engine(graph=True, compile=compile, fused=compile)


def choose_for_samples(asked: str, device: torch.device) -> Engine:
    """Of fresh samples a seed is to mean the same image, however many are drawn and whoever draws them."""
    on_gpu = device.type == "cuda"
    return PLAIN if asked == "plain" else Engine(graph=on_gpu, fused=on_gpu, repeatable=True)


def resolve_precision(asked: str, device: torch.device) -> str:
    """Return fp32 or bf16 for `train.precision`; auto is bf16 where its arithmetic is built in."""
    if asked == "auto":
        return "bf16" if _has_bf16(device) else "fp32"
    if asked == "bf16" and device.type == "cpu" and cpu_traps_bf16():
        raise InputError(f"train.precision=bf16 would end this process: {TRAPPED}, or train.precision=fp32")
    return asked


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return False
    if cpu_traps_bf16():
        _warn_of_trapped_bf16()
        return False
    return True


@functools.cache
def _warn_of_trapped_bf16() -> None:
    """Print one line per process."""
    say(f"computing in fp32: {TRAPPED}")


# --- capturing ---

Way = tuple[str, Callable[..., Any]]  # a name for people, and the function
Autocast = Callable[[], AbstractContextManager[Any]]


class Captured:
    """A function of tensors that is replayed from a CUDA graph after a few plain calls; on a CPU it never is.

    `ways` compute the same, the fastest first: where one cannot be compiled, the next is taken. The plain
    calls are real ones, so the function may have effects. Whatever it uses beside its arguments is fixed at
    the capture, or read from memory that does not move. What it returns is overwritten by the next call.
    """

    def __init__(self, ways: Sequence[Way], device: torch.device, *, what: str, repeatable: bool = False):
        self._ways = list(ways)
        self._what, self._repeatable = what, repeatable
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor | None] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._capturable = True

    @property
    def how(self) -> str:
        """Backend in use."""
        name = self._ways[0][0]
        return name if self._graph is None else f"{name}, CUDA graph" if name != "plain" else "CUDA graph"

    def __call__(self, *given: Tensor | None) -> Any:
        self._take(given)
        if self._graph is not None:
            self._graph.replay()
            return self._outputs
        self._calls += 1
        if self._stream is None:
            return self._plainly()
        # Not on the default stream: the capture must find nothing there that it would have to wait for.
        side, main = self._stream, torch.cuda.current_stream(self._stream.device)
        side.wait_stream(main)
        with torch.cuda.stream(side), convolutions(repeatable=self._repeatable):
            ready = self._capturable and self._calls > PLAIN_CALLS
            outputs = self._capture(side) if ready else self._plainly()
        main.wait_stream(side)
        if self._graph is not None:
            self._graph.replay()
        return outputs

    def _take(self, given: tuple[Tensor | None, ...]) -> None:
        """Into the memory that the graph reads."""
        if self._inputs is None:
            self._inputs = [None if tensor is None else tensor.detach().clone() for tensor in given]
            return
        for mine, tensor in zip(self._inputs, given, strict=True):
            if mine is not None and tensor is not None and tensor is not mine:
                assert mine.shape == tensor.shape  # copy_ would stretch it
                mine.copy_(tensor)

    def _compute(self) -> Any:
        return self._ways[0][1](*self._inputs or ())

    def _plainly(self) -> Any:
        while self._calls == 1 and len(self._ways) > 1:
            name, _ = self._ways[0]
            say_once(f"preparing {self._what} ({name}): some ten seconds, less the next time")
            try:
                return self._compute()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                # Compilers fail in many ways: none of them is a reason to stop.
                say(f"{self._what} runs without that: {first_line(error)}")
                del self._ways[0]
        return self._compute()

    def _capture(self, stream: torch.cuda.Stream) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, as NCCL's, may go on with what they do.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._outputs = self._compute()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            say(f"{self._what} runs without a CUDA graph: {first_line(error)}")
            self._capturable = False
            return self._compute()
        self._graph = graph
        return self._outputs


@contextmanager
def convolutions(*, repeatable: bool) -> Iterator[None]:
    """Let cuDNN measure which algorithm is fastest, or take the same ones always; a capture keeps them."""
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.deterministic
    cudnn.benchmark, cudnn.deterministic = not repeatable, repeatable
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.deterministic = before


def say(line: str) -> None:
    if is_leader():
        print_line(line, file=sys.stderr)


@functools.cache
def say_once(line: str) -> None:
    """In this process: who draws image after image has heard it."""
    if not is_quiet():
        say(line)


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


# --- the sampler ---


class FrozenCopy:
    """A network for sampling alone: no gradients for its weights, which are in the given precision.

    Batch norm keeps float32, and what it has learned.
    """

    def __init__(self, network: nn.Module, dtype: torch.dtype):
        self.dtype = dtype
        self.network = copy.deepcopy(network).requires_grad_(False).eval()
        self.network.to(dtype=dtype, memory_format=LAYOUT)  # pyright: ignore[reportCallIssue]
        for norm in batch_norms(self.network):
            norm.float()
        self._mine, self._theirs = (
            [tensor for tensor in [*n.parameters(), *n.buffers()] if tensor.is_floating_point()]
            for n in (self.network, network)
        )

    @torch.no_grad()
    def refresh(self) -> None:
        """Equal to the network again, in place."""
        torch._foreach_copy_(self._mine, self._theirs)  # pyright: ignore[reportPrivateImportUsage]

    def gradient(self, energy: Energy, x: Tensor, goal: Tensor) -> Tensor:
        return input_gradient(functools.partial(self.total, energy), x, goal)

    def compiled_gradient(self, energy: Energy) -> Callable[[Tensor, Tensor], Tensor]:
        total = torch.compile(functools.partial(self.total, energy), dynamic=False)
        return functools.partial(input_gradient, total)

    def total(self, energy: Energy, x: Tensor, goal: Tensor) -> Tensor:
        return energy(self.network(x.to(self.dtype, memory_format=LAYOUT)), goal).sum()


class PlainGradient:
    """The gradient by the network itself; the reference for any faster way."""

    how = "plain"

    def __init__(self, network: nn.Module, autocast: Autocast = contextlib.nullcontext):
        self.network, self._autocast = network, autocast

    def refresh(self) -> None:
        """Do nothing: the weights are the network's own."""

    def __call__(self, energy: Energy, x: Tensor, goal: Tensor) -> Tensor:
        def total(x: Tensor, goal: Tensor) -> Tensor:
            return energy(self.network(x), goal).sum()

        with self._autocast(), frozen_statistics(self.network):
            return input_gradient(total, x, goal)


class FastGradient:
    """The gradient by weights copied from the network, which `refresh` copies again; on a GPU captured.

    One capture per energy, shape of images and shape of goals. An energy that is another object in every call
    would be captured in every call: beyond `MOST_CAPTURES` gradients are computed without, with a warning.
    """

    def __init__(self, network: nn.Module, engine: Engine, precision: str):
        self.engine, self.precision = engine, precision
        self.device = next(network.parameters()).device
        self._copy = FrozenCopy(network, torch.bfloat16 if precision == "bf16" else torch.float32)
        self._fused = None
        if engine.fused and precision == "bf16":
            from gmmc.sampling.hopper.fused import FusedNetwork  # of no use without a GPU

            if FusedNetwork.supports(network, self.device):
                self._fused = FusedNetwork(network)
        self._captured: dict[tuple, Captured] = {}
        refreshed = [part.refresh for part in (self._copy, self._fused) if part is not None]
        self.refresh = Captured(
            [("plain", lambda: [refresh() for refresh in refreshed])], self.device, what="copying weights"
        )

    @property
    def how(self) -> str:
        """Backend in use for the last kind of gradient."""
        last = next(reversed(self._captured.values()), None)
        return f"{last.how if last else 'not yet'}, {self.precision}"

    def __call__(self, energy: Energy, x: Tensor, goal: Tensor) -> Tensor:
        key = (energy, x.shape, goal.shape)
        if key not in self._captured:
            if len(self._captured) == MOST_CAPTURES:
                say_once(f"the sampler runs without captures: more than {MOST_CAPTURES} kinds of gradients")
                return self._copy.gradient(energy, x, goal)
            self._captured[key] = Captured(
                list(self._ways(energy, x.shape)),
                self.device,
                what="the sampler",
                repeatable=self.engine.repeatable,
            )
        return self._captured[key](x, goal)

    def _ways(self, energy: Energy, shape: torch.Size) -> Iterator[Way]:
        if self._fused is not None and self._fused.fits(shape):
            yield "fused kernels", functools.partial(self._fused.gradient, energy)
        if self.engine.compile:
            yield "compiled", self._copy.compiled_gradient(energy)
        yield "plain", functools.partial(self._copy.gradient, energy)


def new_gradient(
    network: nn.Module, engine: Engine, precision: str, autocast: Autocast = contextlib.nullcontext
) -> PlainGradient | FastGradient:
    """The gradient of energies of this network; `autocast` is the precision of the plain way."""
    if engine.copy:
        return FastGradient(network, engine, precision)
    return PlainGradient(network, autocast)
