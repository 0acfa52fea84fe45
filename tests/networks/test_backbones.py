import pytest
import torch
from torch import nn

from gmmc.config import former
from gmmc.config.sections import ModelConfig
from gmmc.errors import InputError
from gmmc.networks.backbones import (
    batch_norms,
    build_backbone,
    feature_dim,
    frozen_statistics,
    has_live_statistics,
    split_last,
    unrecorded_statistics,
)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 32, 32), (1, 9, 13)])
@pytest.mark.parametrize(
    ("name", "own_dim"), [("small_cnn", 64), ("wrn-10-1", 64), ("wrn-16-2", 128), ("mlp-2-32", 32)]
)
@pytest.mark.parametrize("dim", [0, 12])
@pytest.mark.parametrize("norm", ["none", "batch"])
def test_every_backbone_takes_every_shape(name, own_dim, shape, dim, norm):
    backbone = build_backbone(ModelConfig(name, dim=dim, norm=norm), shape)
    assert backbone(torch.rand(2, *shape)).shape == (2, dim or own_dim)
    assert feature_dim(backbone) == (dim or own_dim)
    assert bool(batch_norms(backbone)) == (norm == "batch")


@pytest.mark.parametrize("name", ["small_cnn", "wrn-10-1", "mlp-2-32"])
@pytest.mark.parametrize("dim", [0, 12])
def test_trunk_and_last_layer_make_the_backbone(name, dim):
    backbone, x = build_backbone(ModelConfig(name, dim=dim), (1, 8, 8)), torch.rand(2, 1, 8, 8)
    trunk, last = split_last(backbone)
    assert torch.equal(last(trunk(x)), backbone(x))
    assert not isinstance(trunk[-1], nn.Linear)
    assert {**trunk.state_dict(), **last.state_dict()}.keys() == backbone.state_dict().keys()


@pytest.mark.parametrize("name", ["small_cnn", "wrn-16-2", "mlp-2-32"])
def test_features_of_an_image_do_not_depend_on_its_batch(name):
    """No normalisation: nothing of a neighbour is in them."""
    backbone = build_backbone(ModelConfig(name), (1, 8, 8))
    x = torch.rand(6, 1, 8, 8)
    assert torch.allclose(backbone(x)[2:3], backbone(x[2:3]), atol=1e-6)
    assert not any("norm" in type(m).__name__.lower() for m in backbone.modules())
    assert not has_live_statistics(backbone)


@pytest.mark.parametrize(
    ("name", "kind"), [("small_cnn", nn.SiLU), ("wrn-16-2", nn.LeakyReLU), ("mlp-1-8", nn.LeakyReLU)]
)
def test_the_activations_are_those_of_the_paper_and_of_the_demo(name, kind):
    backbone = build_backbone(ModelConfig(name), (1, 8, 8))
    kinds = {type(m) for m in backbone.modules()} & {nn.LeakyReLU, nn.SiLU}
    assert kinds == {kind}
    assert {m.negative_slope for m in backbone.modules() if isinstance(m, nn.LeakyReLU)} <= {0.2}
    tree = {"model": {"backbone": name}}
    assert former.REMOVED["model.activation"].built_in(tree) == {nn.SiLU: "silu"}.get(kind, "leaky_relu")


@pytest.mark.parametrize("name", ["small_cnn", "wrn-10-1", "mlp-2-8"])
class TestStatistics:
    def backbone(self, name):
        return build_backbone(ModelConfig(name, norm="batch"), (1, 8, 8))

    def test_live_ones_see_the_batch_and_frozen_ones_do_not(self, name):
        backbone, x = self.backbone(name), torch.rand(6, 1, 8, 8)
        assert has_live_statistics(backbone)
        with unrecorded_statistics(backbone):
            assert not torch.allclose(backbone(x)[:2], backbone(x[:2]), atol=1e-3)
        with frozen_statistics(backbone):
            assert not has_live_statistics(backbone)
            assert torch.allclose(backbone(x)[:2], backbone(x[:2]), atol=1e-6)
        assert has_live_statistics(backbone)

    def test_what_is_unrecorded_leaves_no_trace(self, name):
        backbone, x = self.backbone(name), torch.rand(6, 1, 8, 8) * 5
        before = [norm.running_mean.clone() for norm in batch_norms(backbone)]
        with unrecorded_statistics(backbone):
            backbone(x)
        after = [norm.running_mean for norm in batch_norms(backbone)]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        backbone(x)
        assert not torch.equal(before[0], batch_norms(backbone)[0].running_mean)

    def test_what_was_frozen_stays_frozen(self, name):
        backbone = self.backbone(name)
        batch_norms(backbone)[0].eval()
        with frozen_statistics(backbone):
            pass
        assert [norm.training for norm in batch_norms(backbone)][:2] == [False, True]


@pytest.mark.parametrize("numbers", [1, 2, 30])
def test_an_mlp_takes_vectors(numbers):
    backbone = build_backbone(ModelConfig("mlp-2-16", dim=5), (numbers, 1, 1))
    assert backbone(torch.rand(3, numbers, 1, 1)).shape == (3, 5)


def test_an_mlp_keeps_the_size_of_its_input():
    """Else it takes long to learn a curved boundary between numbers in [−1, 1]; torch's own keeps a tenth."""
    torch.manual_seed(0)
    backbone = build_backbone(ModelConfig("mlp-2-64"), (2, 1, 1))
    x = torch.rand(500, 2, 1, 1) * 2 - 1
    assert backbone[:-1](x).std(0).mean() > 0.4 * x.std()


@pytest.mark.parametrize(("name", "millions"), [("wrn-28-10", 36.5), ("wrn-28-4", 5.8), ("wrn-28-2", 1.5)])
def test_wide_resnets_have_the_known_size(name, millions):
    with torch.device("meta"):
        backbone = build_backbone(ModelConfig(name), (3, 32, 32))
    count = sum(p.numel() for p in backbone.parameters())
    assert round(count / 1e6, 1) == millions
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in backbone.modules()) == 25


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (3, 32, 32), "must be 'small_cnn', 'wrn-DEPTH-WIDTH'.*'mlp-DEPTH-WIDTH'.*got 'resnet'"),
        ("wrn", (3, 32, 32), "model.backbone must be"),
        ("wrn-28-0", (3, 32, 32), "model.backbone must be"),
        ("wrn-27-10", (3, 32, 32), r"6n \+ 4, from 10 to 1000, got 27"),
        ("wrn-4-1", (3, 32, 32), r"6n \+ 4, from 10 to 1000, got 4"),
        ("wrn-10-101", (3, 32, 32), "at most 100, got 101"),
        ("small_cnn", (2, 32, 32), "1 or 3 channels, got 2"),
        ("wrn-10-1", (5, 1, 1), "1 or 3 channels, got 5"),
        ("mlp-0-8", (5, 1, 1), "model.backbone must be"),
        ("mlp-101-8", (5, 1, 1), "at most 100 layers of at most 100000 units, got 101, 8"),
        ("small_cnn", (1, 7, 32), "at least 8×8, got 7×32"),
    ],
)
def test_impossible_backbones_are_refused(name, shape, message):
    with pytest.raises(InputError, match=message):
        build_backbone(ModelConfig(name), shape)
