"""A small feature network for images that Inception was not made for, trained in seconds.

It sees the training images and labels only and knows nothing of the evaluated model. It is trained on the CPU
with fixed seeds, so that its features do not depend on where the model is.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gmmc.base.progress import Progress
from gmmc.base.seeds import derived_seed, generator
from gmmc.data.splits import LabelledImages
from gmmc.pixels import to_signed

SEED = 0
DIM = 64
UPDATES, BATCH, LR = 300, 64, 2e-3


class SmallNetwork(nn.Module):
    """Images in [−1, 1] → 64 features and logits."""

    unit: Tensor

    def __init__(self, channels: int, classes: int):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, DIM),
            nn.ReLU(),
        )
        self.head = nn.Linear(DIM, classes)
        self.register_buffer("unit", torch.ones(()))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(images)
        return hidden / self.unit, self.head(hidden)


@torch.inference_mode(False)
@torch.enable_grad()
def trained(data: LabelledImages, classes: int) -> SmallNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(SEED, "features"))
        network = SmallNetwork(data.images.shape[1], classes)
    optimizer = torch.optim.Adam(network.parameters(), LR)
    source = generator(SEED, "feature batches")
    with Progress("training a feature network", UPDATES) as bar:
        for update in range(UPDATES):
            chosen = torch.randint(len(data), (BATCH,), generator=source)
            _, logits = network(to_signed(data.images[chosen]))
            loss = F.cross_entropy(logits, data.labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update(update + 1)
    network.eval().requires_grad_(False)
    # The kernel of KID wants features of about one.
    some = torch.randperm(len(data), generator=source)[:1000]
    network.unit.copy_(network(to_signed(data.images[some]))[0].square().mean().sqrt().clamp(min=1e-6))
    return network
