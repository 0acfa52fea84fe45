"""The hand-written gradient is autograd's; the kernels are what plain torch says they should be."""

import copy
import importlib.util
import os
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.core import unit_energy
from gmmc.errors import InputError
from gmmc.networks.backbones import Parts, leaky_relu, small_cnn, wide_resnet
from gmmc.sampling.hopper.fused import FusedNetwork, PackedConvolution, recognised

GPU = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
needs_kernels = pytest.mark.skipif(not GPU and not INTERPRETED, reason="needs a GPU or TRITON_INTERPRET=1")
DEVICE = "cuda" if GPU else "cpu"

LEAKY = Parts(leaky_relu, batch_norm=False)


# --- a stand-in for the kernels, in plain torch ---


def convolve(x: Tensor, weight: Tensor, *, epilogue: str, bias=None, residual=None, activation=None):
    cin, cout = x.shape[3], weight.shape[0]
    taps = weight.view(cout, 3, 3, cin).permute(0, 3, 1, 2)
    c = F.conv2d(x.permute(0, 3, 1, 2), taps, padding=1).permute(0, 2, 3, 1).contiguous()
    if epilogue == "activate":
        return F.leaky_relu(c + bias, 0.2)
    if epilogue == "join":
        return join(c, bias, residual)
    c = masked(c, activation)
    return c if epilogue == "mask" else c + residual


def join(u: Tensor, bias: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
    s = u + bias + (0 if v is None else v)
    return s, F.leaky_relu(s, 0.2)


def masked(g: Tensor, activation: Tensor) -> Tensor:
    return torch.where(activation > 0, g, 0.2 * g)


def supported(cin: int, cout: int, height: int, width: int, batch: int) -> bool:
    return height == width


STAND_IN = SimpleNamespace(convolve=convolve, join=join, masked=masked, supported=supported)


# --- the network, on any device ---


def network_of(depth=10, width=1, *, channels=3, dim=0, parts=LEAKY, seed=0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return wide_resnet(depth, width, shape=(channels, 32, 32), dim=dim, parts=parts)


def task(network: nn.Module, *shape: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Images, and a goal near their features."""
    source = torch.Generator().manual_seed(1)
    x = (2 * torch.rand(shape, generator=source) - 1).to(like)
    with torch.no_grad():
        features = network(x)
    return x, features + torch.randn(features.shape, generator=source).to(like)


def by_autograd(network: nn.Module, x: Tensor, goal: Tensor) -> Tensor:
    network = copy.deepcopy(network).double()
    at = x.double().requires_grad_(True)
    (gradient,) = torch.autograd.grad(unit_energy(network(at), goal.double()).sum(), at)
    return gradient


@pytest.mark.parametrize("dim", [0, 7])
@pytest.mark.parametrize(
    ("depth", "width", "shape"),
    [(10, 1, (3, 3, 8, 8)), (10, 1, (1, 1, 16, 16)), (16, 2, (2, 3, 8, 8)), (16, 2, (2, 1, 8, 8))],
)
def test_the_gradient_is_that_of_autograd(depth, width, shape, dim):
    network = network_of(depth, width, channels=shape[1], dim=dim).double()
    x, goal = task(network, *shape, like=torch.zeros((), dtype=torch.float64))
    gradient = FusedNetwork(network, kernels=STAND_IN, dtype=torch.float64).gradient(unit_energy, x, goal)
    assert gradient.is_contiguous()
    torch.testing.assert_close(gradient, by_autograd(network, x, goal), rtol=1e-9, atol=1e-9)


def test_images_and_features_are_float32_whatever_is_between():
    network = network_of(dim=5).bfloat16().float()
    x, goal = task(network, 2, 3, 8, 8, like=torch.zeros(()))
    seen = []

    def energy(features: Tensor, goal: Tensor) -> Tensor:
        seen.append(features.dtype)
        return unit_energy(features, goal)

    in_bf16 = SimpleNamespace(**{**vars(STAND_IN), "convolve": lowered(convolve), "join": lowered(join)})
    gradient = FusedNetwork(network, kernels=in_bf16).gradient(energy, x, goal)
    assert (gradient.dtype, seen) == (torch.float32, [torch.float32])
    assert_near(gradient, by_autograd(network, x, goal), error=0.15)


def lowered(function):
    """The function with what it gives in bf16, as the kernels do."""

    def call(x, second, *others, **given):
        wide = [t if t is None else t.float() for t in (x, second, *others)]
        out = function(*wide, **{k: v.float() if isinstance(v, Tensor) else v for k, v in given.items()})
        return tuple(t.bfloat16() for t in out) if isinstance(out, tuple) else out.bfloat16()

    return call


def assert_near(found: Tensor, expected: Tensor, *, error: float):
    """Relative to the whole tensor.

    In bf16, activations near 0 round to the other sign, where LeakyReLU′ is another: autograd through a bf16
    network is 2 to 8% away from float32 too.
    """
    assert (found - expected).norm() < error * expected.norm()


def test_refresh_takes_the_new_weights_and_moves_no_memory():
    network, other = (network_of(dim=4, seed=seed).double() for seed in (0, 1))
    x, goal = task(network, 2, 3, 8, 8, like=torch.zeros((), dtype=torch.float64))
    fused = FusedNetwork(network, kernels=STAND_IN, dtype=torch.float64)
    addresses = [tensor.data_ptr() for tensor in tensors_of(fused)]
    assert len(addresses) > 20
    stale = fused.gradient(unit_energy, x, goal)
    network.load_state_dict(other.state_dict())
    torch.testing.assert_close(fused.gradient(unit_energy, x, goal), stale, rtol=0, atol=0)
    fused.refresh()
    torch.testing.assert_close(
        fused.gradient(unit_energy, x, goal), by_autograd(network, x, goal), rtol=1e-9, atol=1e-9
    )
    assert [tensor.data_ptr() for tensor in tensors_of(fused)] == addresses


def tensors_of(part) -> list[Tensor]:
    """The tensors that a fused network holds, its parts' included, the live network's not."""
    if isinstance(part, nn.Module):
        return []
    if isinstance(part, Tensor):
        return [part]
    parts = part if isinstance(part, list) else vars(part).values() if hasattr(part, "__dict__") else []
    return [tensor for inner in parts if inner is not STAND_IN for tensor in tensors_of(inner)]


def test_packed_weights_give_a_convolution_and_its_transpose():
    conv = nn.Conv2d(2, 5, 3, padding=1, bias=False).double()
    packed = PackedConvolution(conv, torch.float64)
    with torch.no_grad():
        packed.refresh()
    x = torch.randn(1, 4, 4, 2, dtype=torch.float64, requires_grad=True)
    g = torch.randn(1, 4, 4, 5, dtype=torch.float64)
    y = conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    (expected,) = torch.autograd.grad(y, x, g)
    ones, zeros = torch.ones(1, 4, 4, 2).double(), torch.zeros(5).double()
    torch.testing.assert_close(convolve(x, packed.forward, epilogue="join", bias=zeros)[0], y)
    torch.testing.assert_close(convolve(g, packed.backward, epilogue="mask", activation=ones), expected)


def test_what_is_recognised():
    for channels, dim, depth, width in ((3, 0, 10, 1), (1, 5, 16, 2)):
        assert recognised(network_of(depth, width, channels=channels, dim=dim))
    assert not recognised(small_cnn(shape=(3, 32, 32), dim=0, parts=LEAKY))
    assert not recognised(network_of(parts=Parts(nn.SiLU, batch_norm=False)))
    assert not recognised(network_of(parts=Parts(leaky_relu, batch_norm=True)))
    assert not recognised(nn.Sequential(*network_of(), nn.Tanh()))
    assert not recognised(nn.Linear(3, 3))
    for where in ("4", "2.before2.0"):
        network = network_of()
        network.get_submodule(where).negative_slope = 0.1
        assert not recognised(network)


def test_a_cpu_is_not_supported():
    assert not FusedNetwork.supports(network_of(), torch.device("cpu"))


def test_bad_input_is_named():
    with pytest.raises(InputError, match="network must be a wide ResNet"):
        FusedNetwork(small_cnn(shape=(3, 32, 32), dim=0, parts=LEAKY), kernels=STAND_IN)
    fused = FusedNetwork(network_of(), kernels=STAND_IN, dtype=torch.float32)
    assert fused.fits((2, 3, 8, 8))
    assert not fused.fits((2, 3, 8, 12))
    with pytest.raises(InputError, match="x must have a shape"):
        fused.gradient(unit_energy, torch.zeros(2, 3, 8, 12), torch.zeros(2, 64))


# --- the kernels ---

NEEDS = {
    **{"activate": ["bias"], "join": ["bias", "residual"]},
    **{"mask": ["activation"], "mask_add": ["activation", "residual"]},
}


def check_convolve(batch: int, size: int, cin: int, cout: int, epilogue: str) -> None:
    from gmmc.sampling.hopper import kernels

    source = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source, device=DEVICE)

    x = random(batch, size, size, cin).bfloat16()
    weight = (random(cout, 9 * cin) / (9 * cin) ** 0.5).bfloat16()
    side = random(batch, size, size, cout).bfloat16()
    every = {"bias": random(cout), "residual": side, "activation": side.roll(1, 0).flip(1)}
    given = {name: every[name] for name in NEEDS[epilogue]}
    found = kernels.convolve(x, weight, epilogue=epilogue, **given)
    wide = {name: tensor.double() for name, tensor in given.items()}
    expected = convolve(x.double(), weight.double(), epilogue=epilogue, **wide)
    pairs = zip(found, expected, strict=True) if epilogue == "join" else [(found, expected)]
    for one, other in pairs:
        # bf16 keeps 8 bits; the interpreter cuts them off where the GPU rounds
        torch.testing.assert_close(one.double(), other, rtol=2**-7, atol=2**-7)


@needs_kernels
@pytest.mark.parametrize("epilogue", NEEDS)
@pytest.mark.parametrize(
    ("size", "cin", "cout"),
    [(8, 16, 64), (4, 64, 16), (8, 48, 128), (4, 16, 160), (8, 32, 320), (2, 16, 192)],
)
def test_small_convolutions(size, cin, cout, epilogue):
    check_convolve(5, size, cin, cout, epilogue)


# What the blocks of WRN-28-4 and WRN-28-10 ask for: size, channels in, channels out, epilogue.
STAGES = [(32, 16, 64), (32, 64, 128), (16, 128, 256), (32, 16, 160), (32, 160, 320), (16, 320, 640)]
WITHIN = [(32, 64), (16, 128), (8, 256), (32, 160), (16, 320), (8, 640)]
ASKED = [
    *[(size, width, width, epilogue) for size, width in WITHIN for epilogue in NEEDS],
    *[(size, low, high, "activate") for size, low, high in STAGES],
    *[(size, high, low, "mask_add") for size, low, high in STAGES],
]


@needs_gpu
@pytest.mark.parametrize("batch", [3, 64])
@pytest.mark.parametrize(("size", "cin", "cout", "epilogue"), ASKED)
def test_convolutions_of_wide_resnets(size, cin, cout, epilogue, batch):
    check_convolve(batch, size, cin, cout, epilogue)


@needs_kernels
def test_small_batches_are_cut_finer():
    from gmmc.sampling.hopper.kernels import chosen_tile, tile_count

    for size, width in ((8, 256), (16, 320), (8, 640)):
        many, few = (chosen_tile((batch, size, size, width), width, "join", 132) for batch in (256, 8))
        assert tile_count(few, (8, size, size, width), width) == 2 * tile_count(
            many, (8, size, size, width), width
        )


@needs_kernels
def test_elementwise_kernels():
    from gmmc.sampling.hopper import kernels

    source = torch.Generator().manual_seed(0)
    u, v, bias = (
        torch.randn(*shape, generator=source).to(DEVICE) for shape in ((3, 5, 5, 48),) * 2 + ((48,),)
    )
    u, v = u.bfloat16(), v.bfloat16()
    for other in (v, None):
        wide = None if other is None else other.float()
        for found, expected in zip(kernels.join(u, bias, other), join(u.float(), bias, wide), strict=True):
            torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=2**-7)
    torch.testing.assert_close(kernels.masked(u, v).float(), masked(u.float(), v), rtol=2**-7, atol=0)


@needs_kernels
def test_what_the_kernels_refuse():
    from gmmc.sampling.hopper import kernels

    assert kernels.supported(64, 128, 32, 32, 1)
    assert not kernels.supported(64, 64, 28, 28, 64)
    assert not kernels.supported(3, 16, 32, 32, 64)
    assert not kernels.supported(640, 640, 64, 64, 1000)
    x, weight = (torch.zeros(shape, device=DEVICE).bfloat16() for shape in ((1, 8, 8, 16), (16, 144)))
    for epilogue, given, message in (
        ("relu", {}, "epilogue must be one of activate, join, mask, mask_add, got 'relu'"),
        ("mask", {}, r"mask must have \['activation'\], got \[\]"),
        ("mask", {"activation": x[:, :7]}, "activation must be contiguous and"),
        ("mask", {"activation": x.transpose(1, 2)}, "activation must be contiguous and"),
    ):
        with pytest.raises(InputError, match=message):
            kernels.convolve(x, weight, epilogue=epilogue, **given)
    with pytest.raises(InputError, match="x must have a shape"):
        kernels.convolve(x[:, :7, :7], weight, epilogue="mask", activation=x)


# --- the network of the kernels ---


def check_gradient(depth: int, width: int, batch: int, size: int, dim: int = 0) -> None:
    network = network_of(depth, width, dim=dim).to(DEVICE)
    x, goal = task(network, batch, 3, size, size, like=torch.zeros((), device=DEVICE))
    gradient = FusedNetwork(network).gradient(unit_energy, x, goal)
    assert gradient.is_contiguous()
    assert_near(gradient, by_autograd(network, x, goal), error=0.1)


@needs_kernels
@pytest.mark.parametrize("dim", [0, 4])
def test_the_gradient_by_the_kernels(dim):
    check_gradient(10, 1, batch=5, size=8, dim=dim)


@needs_gpu
@pytest.mark.parametrize(("depth", "width", "batch"), [(28, 4, 16), (10, 10, 3)])
def test_the_gradient_of_wide_resnets(depth, width, batch):
    assert FusedNetwork.supports(network_of(), torch.device("cuda"))
    check_gradient(depth, width, batch, size=32)


@needs_gpu
def test_a_cuda_graph_follows_refresh():
    network, other = (network_of(seed=seed).cuda() for seed in (0, 1))
    x, goal = task(network, 4, 3, 16, 16, like=torch.zeros((), device="cuda"))
    fused = FusedNetwork(network)

    def refreshed() -> Tensor:
        fused.refresh()
        return fused.gradient(unit_energy, x, goal)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        refreshed()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        gradient = refreshed()
    network.load_state_dict(other.state_dict())
    graph.replay()
    torch.testing.assert_close(gradient, refreshed(), rtol=0.02, atol=0.02 * gradient.abs().max().item())
    assert_near(gradient, by_autograd(network, x, goal), error=0.1)
