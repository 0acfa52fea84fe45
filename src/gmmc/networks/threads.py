"""How many CPU threads a network computes with: by its size, so that one seed gives the same bits again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from gmmc.config.schema import Config
from gmmc.config.sections import ModelConfig
from gmmc.networks.backbones import build_backbone
from gmmc.pixels import Shape

# Multiply-adds per image up to which one thread is best. Sampler steps on two busy cores (load 8): with a
# second thread they took 2 to 16 times as long from 0.5M (small_cnn, 8×8) to 73M (WRN-10-2, 32×32), and twice
# as long at 500M (WRN-16-4) and 1,000M (WRN-28-4). On idle cores a second thread at best halves the time.
SMALL = 200_000_000


def choose(cfg: Config, shape: Shape, device: torch.device) -> int:
    """Return `train.threads`; where that is 0, one for a small network on a CPU, else as many as torch has.

    torch has one per core, unless the caller or OMP_NUM_THREADS sets another number. No choice depends on the
    load.
    """
    if cfg.train.threads:
        return cfg.train.threads
    small = device.type == "cpu" and multiply_adds(cfg.model, shape) <= SMALL
    return 1 if small else torch.get_num_threads()


@torch.no_grad()
def multiply_adds(cfg: ModelConfig, shape: Shape) -> int:
    """Multiply-adds of the backbone's convolutions and linear layers for one image.

    Nothing is computed: those layers only return tensors of the right shape, for a batch of no images. A
    forward pass on the meta device would import torch._dynamo and sympy, which takes more than a second.
    """
    with torch.device("meta"):  # shapes without memory
        network = build_backbone(cfg, shape).eval()
    counts = []

    def counting(layer: nn.Conv2d | nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            output = x.new_empty(*x.shape[:1], *_output_shape(layer, x))
            counts.append(layer.weight.numel() * output.shape[1:].numel() // len(layer.weight))
            return output

        return forward

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.forward = counting(layer)  # pyright: ignore[reportAttributeAccessIssue]
    others = {  # of batch norm
        name: torch.zeros(tensor.shape, dtype=tensor.dtype)
        for name, tensor in (*network.named_parameters(), *network.named_buffers())
        if tensor.dim() <= 1
    }
    functional_call(network, others, torch.empty(0, *shape))
    return sum(counts)


def _output_shape(layer: nn.Conv2d | nn.Linear, x: Tensor) -> tuple[int, ...]:
    if isinstance(layer, nn.Linear):
        return (layer.out_features,)
    ends = zip(x.shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
    sides = (
        (side + 2 * int(pad) - dilation * (kernel - 1) - 1) // stride + 1
        for side, kernel, stride, pad, dilation in ends
    )
    return (layer.out_channels, *sides)


@contextmanager
def using(count: int) -> Iterator[None]:
    """Compute with `count` threads, and give the caller its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
