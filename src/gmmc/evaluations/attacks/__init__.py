"""Attacks on any classifier of images in [0, 1]; `evaluations.robustness` sums up what they broke."""
