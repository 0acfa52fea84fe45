"""The same sampler steps and updates, faster on a GPU: CUDA graphs, compiled code, bf16 weights to sample by.

A step of a small network is hundreds of kernels of a few microseconds each: launched one by one from Python
they leave the GPU idle most of the time. A CUDA graph launches them all at once. The plain way stays, as the
reference and for everything that cannot be captured.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc.backbones import batch_norms
from gmmc.errors import InputError
from gmmc.ranks import is_leader
from gmmc.sampling import PlainMover, Walk, stepped

# Compiling takes half a minute; it pays from about here on (docs/log.md).
COMPILE_FROM_STEPS = 50_000  # of the sampler
COMPILE_FROM_UPDATES = 20_000
PLAIN_CALLS = 3  # before a capture: libraries choose their kernels and take their memory


@dataclass(frozen=True)
class Engine:
    """How a kind of work is run."""

    graph: bool
    compile: bool

    @property
    def name(self) -> str:
        return "compiled, CUDA graph" if self.compile else "CUDA graph" if self.graph else "plain"


PLAIN = Engine(graph=False, compile=False)


def choose(asked: str, device: torch.device, *, compile: bool) -> Engine:
    """The way that `train.engine` asks for; `compile` says whether there is enough work for it to pay."""
    if device.type != "cuda":
        if asked in ("graph", "compiled"):
            raise InputError(f"train.engine={asked} needs a GPU, got {device.type}; auto takes what there is")
        return PLAIN
    return {
        "auto": Engine(graph=True, compile=compile),
        "compiled": Engine(graph=True, compile=True),
        "graph": Engine(graph=True, compile=False),
        "plain": PLAIN,
    }[asked]


def resolve_precision(asked: str, device: torch.device) -> str:
    """What `train.precision=auto` is on this device."""
    if asked != "auto":
        return asked
    return "bf16" if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"


# --- capturing ---


class Captured:
    """A function of tensors that is replayed from a CUDA graph after a few plain calls.

    These are real calls, so the function may have effects. Whatever it uses beside its arguments is fixed at
    the capture, or read from memory that does not move. What it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., Any], *, compiled: Callable[..., Any] | None, what: str):
        self.function = compiled or function
        self._uncompiled = function if compiled else None  # kept until the first call has worked
        self.what = what
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._stream: torch.cuda.Stream | None = None

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
        if not self._inputs:
            self._inputs = [tensor.detach().clone() for tensor in given]
            self._stream = torch.cuda.Stream() if given[0].is_cuda else None
            return
        for mine, tensor in zip(self._inputs, given, strict=True):
            if tensor is not mine:
                mine.copy_(tensor)

    def _plainly(self) -> Any:
        if self._uncompiled is None:
            return self.function(*self._inputs)
        fallback, self._uncompiled = self._uncompiled, None
        try:
            return self.function(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            # Compilers fail in many ways: none of them is a reason to stop.
            say(f"{self.what} is not compiled: {first_line(error)}")
            self.function = fallback
            return self.function(*self._inputs)

    def _capture(self, stream: torch.cuda.Stream) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=stream):
                self._outputs = self.function(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            say(f"{self.what} runs without a CUDA graph: {first_line(error)}")
            self._stream = None
            return self.function(*self._inputs)
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


class FastMover:
    """Sampler steps by a frozen copy of the network, captured.

    The copy has no gradients for its weights, its channels last, and by default bf16 weights; batch norm
    keeps float32. `refresh` makes it equal to the network again, in place.
    """

    def __init__(self, network: nn.Module, engine: Engine, precision: str):
        self.engine = engine
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._network = network
        self._copy = copy.deepcopy(network).requires_grad_(False).eval()
        self._copy.to(dtype=self.dtype, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        for norm in batch_norms(self._copy):
            norm.float()
        self._steps: dict[tuple, Captured] = {}
        self._alpha = torch.zeros((), device=next(network.parameters()).device)
        self._alpha_now = 0.0
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        mine, theirs = ([t for t in values(n) if t.is_floating_point()] for n in (self._copy, self._network))
        torch._foreach_copy_(mine, theirs)  # pyright: ignore[reportPrivateImportUsage]

    def features(self, x: Tensor) -> Tensor:
        return self._copy(x.to(self.dtype, memory_format=torch.channels_last))

    def __call__(self, walk: Walk, x: Tensor, goal: Tensor, alpha: float, noise: Tensor | None) -> Tensor:
        key = (walk.energy, walk.bounds, x.shape, goal.shape, noise is None)
        if key not in self._steps:
            self._steps[key] = self._new_step(walk)
        if alpha != self._alpha_now:
            self._alpha.fill_(alpha)
            self._alpha_now = alpha
        return self._steps[key](x, goal, *([] if noise is None else [noise]))

    def _new_step(self, walk: Walk) -> Captured:
        def energy(x: Tensor, goal: Tensor) -> Tensor:
            return walk.energy(self.features(x), goal).sum()

        def step_by(energy: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
            def step(x: Tensor, goal: Tensor, noise: Tensor | None = None) -> Tensor:
                at = x.detach().requires_grad_(True)
                (gradient,) = torch.autograd.grad(energy(at, goal), at)
                return x.copy_(stepped(x, gradient, self._alpha, noise, walk.bounds))

            return step

        compiled = step_by(torch.compile(energy, dynamic=False)) if self.engine.compile else None
        return Captured(step_by(energy), compiled=compiled, what="the sampler")


def values(network: nn.Module) -> list[Tensor]:
    return [*network.parameters(), *network.buffers()]


def mover(network: nn.Module, engine: Engine, precision: str) -> PlainMover | FastMover:
    return FastMover(network, engine, precision) if engine.graph else PlainMover(network)
