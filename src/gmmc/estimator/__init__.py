"""`GMMCClassifier`: the training of `gmmc train` behind the interface of scikit-learn."""

from gmmc.estimator.classifier import GMMCClassifier

__all__ = ["GMMCClassifier"]
