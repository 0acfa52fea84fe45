"""FID of the replay buffer while a training runs: `train.fid_every`. It costs the training no time."""

import torch
from torch import Tensor

from gmmc.config.schema import Config
from gmmc.data.splits import Dataset
from gmmc.fid import features
from gmmc.fid.chain_images import as_files, evenly
from gmmc.fid.feature_cache import training_features
from gmmc.fid.similarity import Gaussian, frechet

IMAGES = 10_000  # of the buffer
FEATURES = "auto"  # network, unless another is asked for


class Watch:
    """The training images as the feature network sees them, and what the buffer looks like beside them.

    The same number as `buffer/fid` of the evaluation `validation`; of several processes the first one's part.
    """

    def __init__(self, cfg: Config, data: Dataset, device: torch.device, feature_network: str | None = None):
        self.every = cfg.train.fid_every
        self.network = features.find(feature_network or FEATURES, data, device)
        self.real = Gaussian.of(torch.cat(training_features(self.network, data)))

    def due(self, epoch: int, last: bool) -> bool:
        """`epoch`: how many generative epochs are done."""
        return epoch > 0 and (last or epoch % self.every == 0)

    def fid(self, drawn: Tensor) -> float:
        """FID of images in [−1, 1]."""
        chosen = evenly(len(drawn), IMAGES).to(drawn.device)
        images = as_files(drawn[chosen])
        # Silent: there is the bar of the training.
        return frechet(self.real, Gaussian.of(self.network.features(images, silent=True)))
