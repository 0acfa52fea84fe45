"""φ of a wide ResNet without normalisation and ∂E/∂x, by hand: a few fused kernels per block (kernels.py).

A sampler step needs the gradient with respect to the images only, so the backward pass keeps nothing but
the activations: LeakyReLU′ is their sign. With a = lrelu(x), an identity block and its gradient are

    b = lrelu(conv1(a) + β₁)            gh = conv2ᵀ(gy) · lrelu′(b)
    y = conv2(b) + β₂ + x               gx = conv1ᵀ(gh) · lrelu′(a) + gy

which is four kernels, as a convolution does what follows it before it stores; lrelu(y) comes with y. The
stem, the convolutions of stride 2 and the 1×1 shortcuts are the library's. Everything between the layers is
(N, H, W, channels), contiguous.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.errors import InputError
from gmmc.networks.backbones import SLOPE, Block


class Kernels(Protocol):
    """Kernels that the network is built of: gmmc.sampling.hopper.kernels, or a stand-in."""

    def supported(self, cin: int, cout: int, height: int, width: int, batch: int) -> bool: ...
    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        *,
        epilogue: str,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        activation: Tensor | None = None,
    ) -> Any: ...
    def join(self, u: Tensor, bias: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
    def masked(self, g: Tensor, activation: Tensor) -> Tensor: ...


def recognised(network: nn.Module) -> bool:
    """Whether this is a wide ResNet with LeakyReLU(0.2) and without normalisation, and nothing else."""
    if type(network) is not nn.Sequential:
        return False
    kinds = [type(layer) for layer in network]
    blocks = kinds.count(Block)
    frame = [nn.Conv2d, *[Block] * blocks, nn.LeakyReLU, nn.AdaptiveAvgPool2d, nn.Flatten]
    if blocks == 0 or kinds not in (frame, [*frame, nn.Linear]):
        return False
    inside = [
        part for layer in network if isinstance(layer, Block) for part in (layer.before1, layer.before2)
    ]
    activations = [network[blocks + 1], *(part for before in inside for part in before)]
    convolutions = [part for part in network.modules() if isinstance(part, nn.Conv2d)]
    return (
        all(len(before) == 1 for before in inside)
        and all(type(part) is nn.LeakyReLU and part.negative_slope == SLOPE for part in activations)
        and all(type(part) is nn.Conv2d and part.bias is not None for part in convolutions)
    )


def can_run(device: torch.device) -> bool:
    """Whether the kernels run here: Triton, and a GPU with their copy engine and shared memory."""
    if device.type != "cuda" or not has_triton():
        return False
    return torch.cuda.get_device_capability(device)[0] == 9  # Hopper: others were never tried


def has_triton() -> bool:
    try:
        return importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
    except ImportError:
        return False


def triton_kernels() -> Kernels:
    from gmmc.sampling.hopper import kernels  # here, as there is no Triton without a GPU

    return kernels


class PackedConvolution:
    """The weights of a 3×3 convolution of stride 1 for `convolve`, and those of its transpose."""

    def __init__(self, source: nn.Conv2d, dtype: torch.dtype):
        self.source = source
        cout, cin = source.out_channels, source.in_channels
        self.forward = source.weight.new_empty((cout, 9 * cin), dtype=dtype)
        self.backward = source.weight.new_empty((cin, 9 * cout), dtype=dtype)

    def refresh(self) -> None:
        weight = self.source.weight
        cout, cin = weight.shape[:2]
        self.forward.view(cout, 3, 3, cin).copy_(weight.permute(0, 2, 3, 1))
        self.backward.view(cin, 3, 3, cout).copy_(weight.flip(2, 3).permute(1, 2, 3, 0))


class LibraryConvolution:
    """Any convolution, by the library; the bias is left to whoever sums."""

    def __init__(self, source: nn.Conv2d, dtype: torch.dtype):
        self.source = source
        self._weight = torch.empty_like(source.weight, dtype=dtype, memory_format=torch.channels_last)

    def refresh(self) -> None:
        self._weight.copy_(self.source.weight)

    def __call__(self, x: Tensor) -> Tensor:
        y = F.conv2d(channels_second(x), self._weight, None, self.source.stride, self.source.padding)
        return channels_last(y)

    def transposed(self, g: Tensor, like: Tensor) -> Tensor:
        """The gradient with respect to an input of the shape of `like`."""
        one, zero, only_input = [1, 1], [0, 0], [True, False, False]
        geometry = (self.source.stride, self.source.padding, one, False, zero, 1)
        gradient, _, _ = torch.ops.aten.convolution_backward(
            channels_second(g), channels_second(like), self._weight, None, *geometry, only_input
        )
        return channels_last(gradient)


class FusedBlock:
    """A residual block, forward and backward. What the backward pass needs is the caller's to keep."""

    def __init__(self, source: Block, kernels: Kernels, dtype: torch.dtype):
        self._kernels = kernels
        self.conv1 = PackedConvolution(source.conv1, dtype)
        same_size = source.conv2.stride == (1, 1)
        self.conv2 = (PackedConvolution if same_size else LibraryConvolution)(source.conv2, dtype)
        shortcut = source.shortcut
        self.shortcut = LibraryConvolution(shortcut, dtype) if isinstance(shortcut, nn.Conv2d) else None
        self._bias1, self._bias2 = (
            torch.empty_like(bias_of(conv), dtype=widened(dtype)) for conv in (source.conv1, source.conv2)
        )

    def refresh(self) -> None:
        self.conv1.refresh()
        self.conv2.refresh()
        self._bias1.copy_(bias_of(self.conv1.source))
        self._bias2.copy_(bias_of(self.conv2.source))
        if self.shortcut is not None:
            self.shortcut.refresh()
            self._bias2.add_(bias_of(self.shortcut.source))

    def forward(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x and a = lrelu(x) → y, lrelu(y), and b = lrelu(conv1(a)) for the backward pass."""
        b = self._kernels.convolve(a, self.conv1.forward, epilogue="activate", bias=self._bias1)
        beside = x if self.shortcut is None else self.shortcut(x)
        if isinstance(self.conv2, LibraryConvolution):
            return *self._kernels.join(self.conv2(b), self._bias2, beside), b
        weight = self.conv2.forward
        y, a = self._kernels.convolve(b, weight, epilogue="join", bias=self._bias2, residual=beside)
        return y, a, b

    def backward(self, gy: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """∂/∂y → ∂/∂x."""
        if isinstance(self.conv2, LibraryConvolution):
            gh = self._kernels.masked(self.conv2.transposed(gy, like=b), b)
        else:
            gh = self._kernels.convolve(gy, self.conv2.backward, epilogue="mask", activation=b)
        beside = gy if self.shortcut is None else self.shortcut.transposed(gy, like=a)
        weight = self.conv1.backward
        return self._kernels.convolve(gh, weight, epilogue="mask_add", activation=a, residual=beside)

    def fits(self, batch: int, height: int, width: int) -> bool:
        """Whether the kernels can do it at the size of the block's input."""
        packed = [conv for conv in (self.conv1, self.conv2) if isinstance(conv, PackedConvolution)]
        pairs = [(conv.source.in_channels, conv.source.out_channels) for conv in packed]
        both_ways = [*pairs, *((cout, cin) for cin, cout in pairs)]
        return all(self._kernels.supported(cin, cout, height, width, batch) for cin, cout in both_ways)


class FusedNetwork:
    """The gradient of an energy of φ, by weights copied from a network; `refresh` copies them again.

    Their memory never moves, so a CUDA graph of `gradient` follows them; `refresh` can be captured too.
    """

    def __init__(
        self, network: nn.Module, *, kernels: Kernels | None = None, dtype: torch.dtype = torch.bfloat16
    ):
        if not recognised(network):
            raise InputError(
                f"network must be a wide ResNet without normalisation, got {type(network).__name__}"
            )
        self.dtype = dtype
        self._kernels = kernels = kernels or triton_kernels()
        stem, *layers = network.children()
        assert isinstance(stem, nn.Conv2d)
        self._stem = LibraryConvolution(stem, dtype)
        self._stem_bias = torch.empty_like(bias_of(stem), dtype=widened(dtype))
        self._blocks = [FusedBlock(layer, kernels, dtype) for layer in layers if isinstance(layer, Block)]
        self._source = layers[-1] if isinstance(layers[-1], nn.Linear) else None
        linear = self._source.parameters() if self._source else ()
        self._linear = [torch.empty_like(value, dtype=widened(dtype)) for value in linear]
        self.refresh()

    @staticmethod
    def supports(network: nn.Module, device: torch.device) -> bool:
        """Whether the network can be built of the Triton kernels on this device."""
        return recognised(network) and can_run(device)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether images of this shape, (B, channels, H, W), can be given to `gradient`."""
        batch, _, height, width = shape
        for block in self._blocks:
            if not block.fits(batch, height, width):
                return False
            if isinstance(block.conv2, LibraryConvolution):
                height, width = (height + 1) // 2, (width + 1) // 2
        return True

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the weights from the network as they are now."""
        self._stem.refresh()
        self._stem_bias.copy_(bias_of(self._stem.source))
        for block in self._blocks:
            block.refresh()
        for mine, theirs in zip(self._linear, self._source.parameters() if self._source else (), strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def gradient(self, energy: Callable[[Tensor, Tensor], Tensor], x: Tensor, goal: Tensor) -> Tensor:
        """∂ Σ energy(φ(x), goal) / ∂x."""
        if not self.fits(x.shape):
            raise InputError(f"x must have a shape that the kernels can do, got {tuple(x.shape)}")
        pixels = channels_last(x.to(self.dtype, memory_format=torch.channels_last))
        y, a = self._kernels.join(self._stem(pixels), self._stem_bias)
        kept = []
        for block in self._blocks:
            before = a
            y, a, b = block.forward(y, a)
            kept.append((before, b))
        g = self._kernels.masked(self._pooled_gradient(energy, a, goal), a)
        for block, (before, b) in zip(reversed(self._blocks), reversed(kept), strict=True):
            g = block.backward(g, before, b)
        g = channels_second(self._stem.transposed(g, like=pixels))
        return g.to(x.dtype, memory_format=torch.contiguous_format)

    def _pooled_gradient(self, energy: Callable[[Tensor, Tensor], Tensor], a: Tensor, goal: Tensor) -> Tensor:
        """∂/∂a, through the mean over the pixels and what follows it: small enough for autograd."""
        pooled = a.mean((1, 2), dtype=widened(self.dtype)).requires_grad_(True)
        with torch.enable_grad():
            features = F.linear(pooled, *self._linear) if self._linear else pooled
            (g,) = torch.autograd.grad(energy(features, goal).sum(), pooled)
        g = g / (a.shape[1] * a.shape[2])
        return g.to(self.dtype)[:, None, None, :].expand_as(a).contiguous()


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) → (N, H, W, C), contiguous; no copy if the channels are last in memory already."""
    return x.permute(0, 2, 3, 1).contiguous()


def channels_second(x: Tensor) -> Tensor:
    """(N, H, W, C) → (N, C, H, W), the same memory."""
    return x.permute(0, 3, 1, 2)


def widened(dtype: torch.dtype) -> torch.dtype:
    """Of biases, features and what is done with them: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def bias_of(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None  # `recognised` says so
    return convolution.bias
