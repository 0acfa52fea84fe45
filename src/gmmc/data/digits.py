"""Scikit-learn's 1,797 handwritten digits of 8×8 pixels: they come with its wheel, nothing is downloaded."""

import torch

from gmmc.data.splits import LabelledImages, hold_out

TEST_SHARE = 0.2
TEST_SEED = 0  # fixed: the test images are the same for every run


def digits() -> tuple[LabelledImages, LabelledImages, tuple[str, ...]]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).unsqueeze(1) * (255 / 16)  # sixteen grey levels
    data = LabelledImages(images.round().to(torch.uint8), torch.from_numpy(bunch.target).long())
    train, test = hold_out(data, TEST_SHARE, TEST_SEED)
    return train, test, tuple(str(digit) for digit in range(10))
