"""Small networks and images for the tests of attacks."""

import torch
from torch import Tensor, nn

LINEAR_GAP = 4.0  # between the true logit and the nearest other
CLASSES = 5
NORMS = ["linf", "l2"]


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(weight: Tensor) -> nn.Module:
    """Logits w·(x − ½), so that gray is on every boundary."""
    layer = nn.Linear(64, len(weight))
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(-weight.sum(1) / 2)
    return nn.Sequential(nn.Flatten(), layer)


def two_classes(count: int = 6, scale: float = 1.0) -> tuple[nn.Module, Tensor, Tensor, dict[str, float]]:
    """A model, images, labels, and the exact distance of each of the images to the boundary."""
    w = torch.rand(64, generator=source()) + 0.5
    w *= torch.where(torch.arange(64) % 2 == 0, 10, -10)
    apart = 2 * w  # w_0 − w_1
    y = torch.arange(count) % 2
    noise = 0.1 * torch.randn(count, 64, generator=source(1))
    along = (1 - 2 * y)[:, None] * LINEAR_GAP - noise @ apart[:, None]
    x = 0.5 + noise + along * apart / apart.square().sum()
    distances = {"linf": LINEAR_GAP / apart.abs().sum().item(), "l2": LINEAR_GAP / apart.norm().item()}
    return linear(scale * torch.stack([w, -w])), x.reshape(count, 1, 8, 8), y, distances


def five_classes(count: int = 10) -> tuple[nn.Module, Tensor, Tensor, dict[str, float]]:
    """Twelve pixels for each class; the next class is nearer than the others."""
    signs = torch.where(torch.rand(60, generator=source()) < 0.5, -1.0, 1.0)
    weight = torch.zeros(5, 64)
    for j in range(5):
        weight[j, 12 * j : 12 * j + 12] = 10 * signs[12 * j : 12 * j + 12]
    y = torch.arange(count) % 5
    logits = torch.zeros(count, 5)
    logits[torch.arange(count), y] = 1.5 * LINEAR_GAP
    logits[torch.arange(count), (y + 1) % 5] = 0.5 * LINEAR_GAP
    x = 0.5 + logits @ weight / weight[0].square().sum()
    distances = {"linf": LINEAR_GAP / 240, "l2": LINEAR_GAP / 2400**0.5}
    return linear(weight), x.reshape(count, 1, 8, 8), y, distances


def smooth(classes: int = CLASSES, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, classes)
        ).eval()


def border_images() -> Tensor:
    """Noise, black, white, and both."""
    noise = torch.rand(3, 1, 8, 8, generator=source(3))
    return torch.cat([noise, torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8), noise[:1].round()])
