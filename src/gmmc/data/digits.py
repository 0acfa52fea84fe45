"""Scikit-learn's 1,797 handwritten digits of 8×8 pixels: they come with its wheel, nothing is downloaded."""

import torch

from gmmc.config.sections import DataConfig
from gmmc.data.decode_many import fitted
from gmmc.data.splits import LabelledImages, Parts, hold_out_test
from gmmc.errors import InputError


def digits(cfg: DataConfig) -> Parts:
    from sklearn.datasets import load_digits

    if cfg.label:
        raise InputError(f"data.label is for parquet files, got {cfg.label!r} with digits")
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).reshape(-1, 1, 8, 8) * (255 / 16)  # the file has grey levels 0..16
    images = images.round().to(torch.uint8)
    if cfg.size:
        images = fitted(images, (1, cfg.size, cfg.size))
    train, test = hold_out_test(LabelledImages(images, torch.from_numpy(labels).long()))
    return Parts("digits", train, test, tuple(str(digit) for digit in range(10)))
