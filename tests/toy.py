"""A second way to train in ten lines, and `python toy.py train …`: gmmc with it in place of Algorithm 1."""

import sys

import torch.nn.functional as F

from gmmc.cli.app import main
from gmmc.train import learner
from gmmc.train.algorithm import Algorithm, Outcome


class Toy(Algorithm):
    """Cross-entropy, with more noise on the images the more often it saw them."""

    measures = ("loss", "accuracy", "grad_norm")
    seen = 0

    def step(self, batch, now):
        self.seen += 1
        noisy = batch.images + 1e-3 * self.seen
        (losses, correct), norm = self.updater(self.loss, noisy, batch.labels, network=batch.network)
        return Outcome({"loss": losses, "accuracy": correct, "grad_norm": norm})

    def loss(self, network, x, y):
        logits = self.model.head.logits_at(network(x), 1.0)
        losses = F.cross_entropy(logits, y, reduction="none")
        return losses.mean(), (losses.detach(), logits.argmax(-1) == y)

    def info(self):
        return {"seen": self.seen}

    def load_state(self, tensors, info):
        self.seen = info["seen"]


if __name__ == "__main__":
    learner.ALGORITHMS["contrastive"] = Toy
    main(sys.argv[1:])
