"""Smooth wide ResNets."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gmmc.config.sections import ModelConfig
from gmmc.errors import InputError
from gmmc.networks.backbones import build_backbone, feature_dim, split_last
from gmmc.networks.smooth import FINER, HEAD_WIDTH, SPATIAL, Attention, GroupNorm, SmoothBlock, WithSpatial


def build(backbone="smooth-10-1", shape=(3, 32, 32), dim=24, norm="none", noise_level=False):
    cfg = ModelConfig(backbone=backbone, dim=dim, norm=norm)
    return build_backbone(cfg, shape, noise_level=noise_level)


@pytest.mark.parametrize("width", [3, 16, 64, 144, 256])
def test_group_norm_is_torch_s(width):
    ours = GroupNorm(width)
    with torch.no_grad():
        ours.weight.normal_()
        ours.bias.normal_()
    theirs = nn.GroupNorm(ours.groups, width)
    theirs.load_state_dict(ours.state_dict())
    x = 3 + 2 * torch.randn(2, width, 5, 4)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


def test_its_statistics_are_float32():
    """In bf16 the squares of large numbers would leave no digits for the variance."""
    x = (100 + torch.randn(2, 16, 8, 8)).bfloat16()
    found = GroupNorm(16)(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), GroupNorm(16)(x.float()), rtol=0.02, atol=0.02)


def test_features_are_pooled_then_spatial():
    network = build()
    features = network(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 24 + SPATIAL * 8 * 8)
    assert feature_dim(network) == 24
    odd = build(shape=(3, 15, 22))
    assert odd(torch.randn(2, 3, 15, 22)).shape[1] == 24 + SPATIAL * 3 * 5
    assert feature_dim(build(dim=0)) == 64
    shifted = network(torch.full((2, 3, 32, 32), 0.3))  # all places alike: so are their features inside
    spatial = shifted[:, 24:].unflatten(1, (SPATIAL, 8, 8))[:, :, 3:5, 3:5]
    torch.testing.assert_close(spatial, spatial[:, :, :1, :1].expand_as(spatial), rtol=1e-3, atol=1e-4)


class TestThreeScales:
    """smooth-DEPTH-WIDTH-scales3."""

    def test_finer_features_follow_those_of_the_last_map(self):
        network = build("smooth-10-1-scales3")
        x = torch.randn(2, 3, 32, 32, requires_grad=True)
        features = network(x)
        ends = [24 + SPATIAL * 8 * 8, FINER[1] * 16 * 16, FINER[0] * 32 * 32]
        assert features.shape == (2, sum(ends))
        assert feature_dim(network) == 24
        last, second, first = features.split(ends, 1)
        # One feature sees few pixels of the image where its map is fine, but for the group norm.
        for part, sides in ((first, 32), (second, 16)):
            middle = part.unflatten(1, (-1, sides, sides))[0, 0, sides // 2, sides // 2]
            (seen,) = torch.autograd.grad(middle, x, retain_graph=True)
            shares = seen[0].square().sum(0)
            reach = 8 * 32 // sides
            near = shares[16 - reach : 16 + reach, 16 - reach : 16 + reach]
            assert near.sum() > 0.95 * shares.sum()
        assert last.shape[1] == ends[0]

    def test_of_one_scale_it_is_the_same_network(self):
        """The same random weights give the same first features."""
        fine, coarse = build("smooth-10-1-scales3"), build("smooth-10-1")
        theirs = list(coarse.parameters())
        finer = {id(p) for m in fine.modules() if isinstance(m, WithSpatial) for p in m.spatial.parameters()}
        ours = [p for p in fine.parameters() if id(p) not in finer]
        with torch.no_grad():
            for a, b in zip(ours, theirs, strict=True):
                a.copy_(b)
        x = torch.randn(2, 3, 32, 32)
        expected = coarse(x)
        torch.testing.assert_close(fine(x)[:, : expected.shape[1]], expected)

    def test_all_features_have_a_gradient_at_the_start(self):
        network = build("smooth-10-1-scales3")
        network(torch.randn(2, 3, 32, 32)).square().sum().backward()
        for part in network.modules():
            if isinstance(part, WithSpatial):
                assert all(p.grad.abs().max() > 0 for p in part.spatial.parameters())


class TestAttention:
    """smooth-DEPTH-WIDTH-attention."""

    @pytest.mark.parametrize("width", [16, 128, 192])
    def test_it_is_torch_s(self, width):
        ours = Attention(width)
        nn.init.normal_(ours.out.weight)
        theirs = nn.MultiheadAttention(width, max(1, width // HEAD_WIDTH), batch_first=True)
        with torch.no_grad():
            theirs.in_proj_weight.copy_(ours.query_key_value.weight.flatten(1))
            theirs.in_proj_bias.copy_(ours.query_key_value.bias)
            theirs.out_proj.weight.copy_(ours.out.weight.flatten(1))
            theirs.out_proj.bias.copy_(ours.out.bias)
        x = torch.randn(2, width, 5, 3)
        places = ours.norm(x).flatten(2).mT
        expected, _ = theirs(places, places, places)
        found = (ours(x) - x).flatten(2).mT
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())

    def test_heads_are_64_channels_wide(self):
        assert (Attention(192).heads, Attention(64).heads, Attention(16).heads) == (3, 1, 1)

    def test_a_permutation_of_places_permutes_the_outputs(self):
        attention, x = Attention(16), torch.randn(2, 16, 4, 4)
        nn.init.normal_(attention.out.weight)
        order = torch.randperm(16)
        found = attention(x.flatten(2)[..., order].unflatten(2, (4, 4)))
        expected = attention(x).flatten(2)[..., order].unflatten(2, (4, 4))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    def test_it_begins_as_the_network_without_it(self):
        """The same random weights give the same features; its outputs have a gradient at once."""
        ours, theirs = build("smooth-16-1-attention"), build("smooth-16-1")
        parts = [m for m in ours.modules() if isinstance(m, Attention)]
        assert len(parts) == 2
        new = {id(p) for part in parts for p in part.parameters()}
        own = [p for p in ours.parameters() if id(p) not in new]
        with torch.no_grad():
            for a, b in zip(own, theirs.parameters(), strict=True):
                a.copy_(b)
        x = torch.randn(2, 3, 32, 32)
        torch.testing.assert_close(ours(x), theirs(x))
        ours(x).square().sum().backward()
        assert all(part.out.weight.grad.abs().max() > 0 for part in parts)


def test_the_noise_level_is_one_more_channel():
    assert build(noise_level=True)(torch.randn(2, 4, 32, 32)).shape[0] == 2
    mlp = build("smooth-mlp-1-8", shape=(5, 1, 1), noise_level=True)
    assert mlp(torch.randn(2, 6, 1, 1)).shape == (2, 24)


@pytest.mark.parametrize("pool", [False, True])
def test_a_block_begins_as_its_shortcut_and_a_bias(pool):
    x, block = torch.randn(2, 8, 6, 6), SmoothBlock(8, 8, pool=pool)
    shortcut = F.avg_pool2d(x, 2) if pool else x
    assert torch.equal(block(x), shortcut + block.conv2.bias[:, None, None])
    assert SmoothBlock(8, 16, pool=pool)(x).shape == (2, 16, *([3, 3] if pool else [6, 6]))


def test_features_of_an_image_do_not_depend_on_the_others_of_its_batch():
    network, x = build().eval(), torch.randn(5, 3, 32, 32)
    torch.testing.assert_close(network(x)[2:3], network(x[2:3]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "backbone", ["smooth-10-1", "smooth-10-1-scales3", "smooth-10-1-attention", "smooth-mlp-2-16"]
)
def test_its_gradient_is_smooth(backbone):
    """Twice differentiable: the change of the gradient falls with the step."""
    network, x = build(backbone, shape=(1, 8, 8)).double(), torch.randn(1, 1, 8, 8, dtype=torch.float64)
    direction = torch.randn_like(x)

    def gradient(x):
        x = x.requires_grad_(True)
        return torch.autograd.grad(network(x).square().sum(), x)[0]

    changes = [(gradient(x + h * direction) - gradient(x)).norm() / h for h in (1e-4, 1e-5)]
    assert changes[0] / changes[1] == pytest.approx(1, rel=1e-2)


def test_what_it_cannot_be_is_refused():
    for name in ("smooth-11-1", "smooth-10-101"):
        with pytest.raises(InputError, match="wide ResNet"):
            build(name)
    with pytest.raises(InputError, match="norm"):
        build(norm="batch")
    with pytest.raises(InputError, match="channels"):
        build(shape=(2, 32, 32))


def test_its_last_layer_is_not_one_linear_layer():
    assert not list(split_last(build())[1].parameters())
