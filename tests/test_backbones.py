import pytest
import torch
from torch import nn

from gmmc.backbones import build_backbone
from gmmc.errors import InputError


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 8), (3, 32, 32), (1, 9, 13)])
@pytest.mark.parametrize(("name", "own_dim"), [("small_cnn", 64), ("wrn-10-1", 64), ("wrn-16-2", 128)])
@pytest.mark.parametrize("dim", [0, 12])
def test_every_backbone_takes_every_shape(name, own_dim, shape, dim):
    backbone = build_backbone(name, shape, dim)
    assert backbone(torch.rand(2, *shape)).shape == (2, dim or own_dim)


@pytest.mark.parametrize("name", ["small_cnn", "wrn-16-2"])
def test_features_of_an_image_do_not_depend_on_its_batch(name):
    """No normalisation: nothing of a neighbour is in them."""
    backbone = build_backbone(name, (1, 8, 8), 0)
    x = torch.rand(6, 1, 8, 8)
    assert torch.allclose(backbone(x)[2:3], backbone(x[2:3]), atol=1e-6)
    assert not any("norm" in type(m).__name__.lower() for m in backbone.modules())


@pytest.mark.parametrize(("name", "millions"), [("wrn-28-10", 36.5), ("wrn-28-4", 5.8), ("wrn-28-2", 1.5)])
def test_wide_resnets_have_the_known_size(name, millions):
    with torch.device("meta"):
        backbone = build_backbone(name, (3, 32, 32), 0)
    count = sum(p.numel() for p in backbone.parameters())
    assert round(count / 1e6, 1) == millions
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in backbone.modules()) == 25


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("resnet", (3, 32, 32), "model.backbone must be 'small_cnn' or 'wrn-DEPTH-WIDTH'.*got 'resnet'"),
        ("wrn", (3, 32, 32), "model.backbone must be"),
        ("wrn-28-0", (3, 32, 32), "model.backbone must be"),
        ("wrn-27-10", (3, 32, 32), r"6n \+ 4, from 10 to 1000, got 27"),
        ("wrn-4-1", (3, 32, 32), r"6n \+ 4, from 10 to 1000, got 4"),
        ("wrn-10-101", (3, 32, 32), "at most 100, got 101"),
        ("small_cnn", (2, 32, 32), "1 or 3 channels, got 2"),
        ("small_cnn", (1, 7, 32), "at least 8×8, got 7×32"),
    ],
)
def test_impossible_backbones_are_refused(name, shape, message):
    with pytest.raises(InputError, match=message):
        build_backbone(name, shape, 0)
