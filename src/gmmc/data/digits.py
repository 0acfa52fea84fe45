"""Scikit-learn's 1,797 handwritten digits of 8×8 pixels: they come with its wheel, nothing is downloaded."""

import torch

from gmmc.data.splits import LabelledImages, hold_out

TEST_SHARE = 0.2
TEST_SEED = 0  # fixed: the test images are the same for every run


def digits() -> tuple[LabelledImages, LabelledImages, tuple[str, ...]]:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).reshape(-1, 1, 8, 8) * (255 / 16)  # the file has grey levels 0..16
    data = LabelledImages(images.round().to(torch.uint8), torch.from_numpy(labels).long())
    train, test = hold_out(data, TEST_SHARE, TEST_SEED)
    return train, test, tuple(str(digit) for digit in range(10))
