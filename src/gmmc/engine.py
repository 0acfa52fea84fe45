"""The same sampler steps and updates, faster on a GPU: CUDA graphs, compiled code, bf16 weights to sample by.

A step of a small network is hundreds of kernels of a few microseconds each: launched one by one from Python
they leave the GPU idle most of the time. A CUDA graph launches them all at once. The plain way stays, as the
reference and for everything that cannot be captured.
"""

import copy
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.backbones import LAYOUT, batch_norms
from gmmc.errors import InputError
from gmmc.fused import FusedNetwork
from gmmc.ranks import is_leader
from gmmc.sampling import Energy, PlainMover, Walk, input_gradient, stepped

# Compiling takes 10 to 20 seconds; it pays from about here on (docs/log.md).
COMPILE_FROM_STEPS = 20_000  # of the sampler
COMPILE_FROM_UPDATES = 10_000
PLAIN_CALLS = 3  # before a capture: libraries choose their kernels and take their memory


@dataclass(frozen=True)
class Engine:
    """How a kind of work is run."""

    copy: bool = True  # sample by a frozen copy of the network, in the precision of the training
    graph: bool = False
    compile: bool = False

    @property
    def name(self) -> str:
        return "compiled, CUDA graph" if self.compile else "CUDA graph" if self.graph else "plain"


PLAIN = Engine(copy=False)


def choose(asked: str, device: torch.device, *, compile: bool) -> Engine:
    """The way that `train.engine` asks for; `compile` says whether there is enough work for it to pay."""
    if device.type != "cuda":
        if asked in ("graph", "compiled"):
            raise InputError(f"train.engine={asked} needs a GPU, got {device.type}; auto takes what there is")
        return PLAIN if asked == "plain" else Engine()
    return {
        "auto": Engine(graph=True, compile=compile),
        "compiled": Engine(graph=True, compile=True),
        "graph": Engine(graph=True, compile=False),
        "plain": PLAIN,
    }[asked]


def resolve_precision(asked: str, device: torch.device) -> str:
    """What `train.precision=auto` is on this device: bf16 where its arithmetic is built in."""
    if asked != "auto":
        return asked
    if device.type == "cuda":
        built_in = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        built_in = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bf16" if built_in else "fp32"


# --- capturing ---


class Captured:
    """A function of tensors that is replayed from a CUDA graph after a few plain calls; on a CPU it never is.

    These are real calls, so the function may have effects. Whatever it uses beside its arguments is fixed at
    the capture, or read from memory that does not move. What it returns is overwritten by the next call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: torch.device,
        *,
        what: str,
        compiled: Callable[..., Any] | None = None,
    ):
        self.function = compiled or function
        self._uncompiled = function if compiled else None  # kept until the first call has worked
        self.what = what
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, *given: Tensor) -> Any:
        self._take(given)
        if self._graph is not None:
            self._graph.replay()
            return self._outputs
        if self._stream is None:
            return self._plainly()
        self._calls += 1
        # Not on the default stream: the capture must find nothing there that it would have to wait for.
        side, main = self._stream, torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side), fastest_convolutions():
            outputs = self._plainly() if self._calls <= PLAIN_CALLS else self._capture(side)
        main.wait_stream(side)
        if self._graph is not None:
            self._graph.replay()
        return outputs

    def _take(self, given: tuple[Tensor, ...]) -> None:
        """Into the memory that the graph reads."""
        if self._inputs is None:
            self._inputs = [tensor.detach().clone() for tensor in given]
            return
        for mine, tensor in zip(self._inputs, given, strict=True):
            if tensor is not mine:
                mine.copy_(tensor)

    def _plainly(self) -> Any:
        if self._uncompiled is None:
            return self.function(*self._inputs or ())
        fallback, self._uncompiled = self._uncompiled, None
        say(f"compiling {self.what}: up to a minute")
        try:
            return self.function(*self._inputs or ())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Compilers fail in many ways: none of them is a reason to stop.
            say(f"{self.what} is not compiled: {first_line(error)}")
            self.function = fallback
            return self.function(*self._inputs or ())

    def _capture(self, stream: torch.cuda.Stream) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self._outputs = self.function(*self._inputs or ())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            say(f"{self.what} runs without a CUDA graph: {first_line(error)}")
            self._stream = None
            return self.function(*self._inputs or ())
        self._graph = graph
        return self._outputs


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms: a capture keeps what it chose."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def say(line: str) -> None:
    if is_leader():
        print(line, file=sys.stderr)


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


class FastMover:
    """Sampler steps by weights copied from the network, which `refresh` copies again; on a GPU captured."""

    def __init__(self, network: nn.Module, engine: Engine, precision: str):
        self.engine, self.precision = engine, precision
        self.device = next(network.parameters()).device
        self._copy = FrozenCopy(network, torch.bfloat16 if precision == "bf16" else torch.float32)
        fused = engine.compile and precision == "bf16" and FusedNetwork.supports(network, self.device)
        self._fused = FusedNetwork(network) if fused else None
        self._steps: dict[tuple, Captured] = {}
        self._alpha = torch.zeros((), device=self.device)
        self._alpha_now = 0.0
        self.refresh = Captured(self._refresh, self.device, what="copying weights")

    def _refresh(self) -> None:
        self._copy.refresh()
        if self._fused is not None:
            self._fused.refresh()

    def __call__(self, walk: Walk, x: Tensor, goal: Tensor, alpha: float, noise: Tensor | None) -> Tensor:
        key = (walk.energy, walk.bounds, x.shape, goal.shape, noise is None)
        if key not in self._steps:
            self._steps[key] = self._new_step(walk, x.shape)
        if alpha != self._alpha_now:
            self._alpha.fill_(alpha)
            self._alpha_now = alpha
        return self._steps[key](x, goal, *([] if noise is None else [noise]))

    def _new_step(self, walk: Walk, shape: torch.Size) -> Captured:
        def step_by(gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
            def step(x: Tensor, goal: Tensor, noise: Tensor | None = None) -> Tensor:
                return x.copy_(stepped(x, gradient(x, goal), self._alpha, noise, walk.bounds))

            return step

        plain = step_by(functools.partial(self._copy.gradient, walk.energy))
        compiled = step_by(self._compiled_gradient(walk.energy, shape)) if self.engine.compile else None
        return Captured(plain, self.device, compiled=compiled, what="the sampler")

    def _compiled_gradient(self, energy: Energy, shape: torch.Size) -> Callable[[Tensor, Tensor], Tensor]:
        if self._fused is not None and self._fused.fits(shape):
            return functools.partial(self._fused.gradient, energy)
        return self._copy.compiled_gradient(energy)


def new_mover(network: nn.Module, engine: Engine, precision: str) -> PlainMover | FastMover:
    return FastMover(network, engine, precision) if engine.copy else PlainMover(network)
