"""`GMMCClassifier`: the training of `gmmc train` behind the interface of scikit-learn."""

import copy
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gmmc import core
from gmmc.base.class_names import check_class_names
from gmmc.base.text import shortened
from gmmc.classifier import scores
from gmmc.classifier.abstention import Reference
from gmmc.classifier.build import recipe_of
from gmmc.classifier.evidence import Evidence, gather, scores_of
from gmmc.classifier.model import Classifier, pick_device
from gmmc.config.schema import Config
from gmmc.data.splits import Dataset, LabelledImages
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.estimator.recipe import AUTOMATIC, chosen, lengthened, one_pass
from gmmc.estimator.rows import Rows
from gmmc.estimator.splits import held_out, joined, split
from gmmc.pixels import is_vector
from gmmc.train.loop import train
from gmmc.train.memory import ROWS_AT_ONCE

HELD_KEPT = 2000  # rows that are remembered for a later `partial_fit` to calibrate by
DENSITY = "log_density"
FITTED = ("model_", "gamma2_", "threshold_", "low_", "high_")
OWN_PARAMETERS = {
    "abstain.tpr": "the parameter tpr",
    "data.name": "X and y",
    "train.device": "the parameter device",
    "train.devices": "gmmc train",
    "train.log": "gmmc train",
    "train.nodes": "gmmc train",
    "train.seed": "the parameter random_state",
    "train.start": "the parameter start",
}


class GMMCClassifier(ClassifierMixin, BaseEstimator):
    """A generative max-Mahalanobis classifier: classes, how sure, how usual, when to abstain, and samples.

    Rows of X are vectors, or images: flat with `image_shape`, or of three or four axes as they are (uint8, or
    floating point; channels first or last). For a model that is fitted on images, `gmmc.read_images` reads
    files and PIL images as such rows: `model.predict(gmmc.read_images(["photo.jpg"], model, resize=True))`.

    Parameters
    ----------
    recipe : str, default="auto"
        A recipe of `gmmc train`, by file or name. "auto": "vectors"; for images up to 16×16 "images", both
        trained jointly; for larger images "photos", which learns the classes alone.
    algorithm : {"contrastive", "denoising"}, default=None
        Way to train. "denoising" learns without chains, see docs/denoising.md: "auto" is then
        "vectors-denoising", or "images-denoising" for images up to 16×16, and there is none for larger ones.
        None: the recipe's, and of "auto" contrastive.
    settings : mapping, default=None
        Changes to the recipe, as on the command line: {"train.clip": 10.0, "model.backbone": "mlp-3-128"}.
    start : str, default=None
        A run, a model file or a shipped model whose network `fit` begins with: "cifar10" for images of 32×32
        pixels in RGB, "auto" for a shipped model where the images fit. None: random weights, also where
        the recipe has train.start="auto". Not for `partial_fit`.
    beta : float, default=None
        Weight of sampled energies; 0 trains the classes alone, which is fastest. None: the recipe's.
    min_updates : int, default=500
        Few rows are gone through more often than the recipe's epochs say, until there are so many updates in
        each phase. Not of the phases of a start, [transfer].
    image_shape : tuple, default=None
        (height, width), (channels, height, width) or (height, width, channels) of flat rows.
    tpr : float, default=0.95
        Share of rows like those of the training that `accepts` should accept.
    random_state : int, RandomState or None
        Weights, order, held-out rows and samples follow from it.
    device : str, default="auto"
        "auto", "cpu" or "cuda".
    verbose : bool, default=False
        Whether the progress of the training is shown.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_ : as everywhere
    model_ : the gmmc.Classifier, whose images are the rows in [0, 1], see `to_unit`; its class names are the
        labels, or their positions in `classes_` ("0", "1", …) where a label is no class name
    low_, high_ : what became 0 and 1 there, of each column or of all pixels
    gamma2_ : temperature of the posterior, fitted on rows that were held out (on all if they are few)
    abstains_by_ : score that decides which rows are accepted: "log_density", or after training by denoising
        "combined"; settings={"abstain.score": …} chooses another
    threshold_ : of `acceptance_scores`; below it, rows are not accepted
    """

    model_: Classifier

    def __init__(
        self,
        recipe="auto",
        *,
        algorithm=None,
        settings=None,
        start=None,
        beta=None,
        min_updates=500,
        image_shape=None,
        tpr=0.95,
        random_state=None,
        device="auto",
        verbose=False,
    ):
        self.recipe = recipe
        self.algorithm = algorithm
        self.settings = settings
        self.start = start
        self.beta = beta
        self.min_updates = min_updates
        self.image_shape = image_shape
        self.tpr = tpr
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- learning ---

    def fit(self, X, y) -> "GMMCClassifier":
        """Train from random weights or `start`; the recipe's share of the rows is held out to calibrate."""
        x, given, y = self._validated(X, y, reset=True)
        self.classes_ = np.unique(y)
        self._begin(x, given)
        cfg = self._config()
        kept, held = split(self._labelled(x, y), self._held_out(x, cfg), every_class=True)
        self._learn(lengthened(cfg, len(kept), self.min_updates), kept, held)
        return self

    def partial_fit(self, X, y, classes: Any = None) -> "GMMCClassifier":
        """One pass over these rows, from the weights there are; the first call must name all classes.

        The range of the numbers is that of the first call. Chains and the optimiser begin anew each time, and
        all classes count as equally frequent. A row that is held out to calibrate by is so in every call.
        """
        first = not hasattr(self, "model_")
        if self.start:
            raise InputError(f"start must be None for partial_fit, got {shortened(self.start)}; use fit")
        if first and classes is None:
            raise InputError("classes must be given in the first call of partial_fit, got None")
        x, given, y = self._validated(X, y, reset=first)
        if first:
            self.classes_ = np.unique(classes)
            self._begin(x, given)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {self.classes_}, got {classes}")
        else:
            self._check_parameters()
        self._passes += 1
        cfg = one_pass(self._config())
        kept, held = split(self._labelled(x, y), self._held_out(x, cfg), every_class=first)
        if self._held is not None:
            held = joined(self._held, held)
        if len(kept):
            self._learn(cfg, kept, held, start=None if first else self.model_, partial=True)
        else:  # so few rows that all are for the next call to calibrate by
            self._held = held[-HELD_KEPT:]
        return self

    def _begin(self, x: np.ndarray, given: tuple[int, ...]) -> None:
        """Forget what was learned before, and decide how rows are read, and the seed."""
        for name in FITTED:
            self.__dict__.pop(name, None)
        self._check_parameters()
        if len(self.classes_) < 2:
            raise InputError(
                f"y must have at least two classes, got one class, {shortened(self.classes_.tolist()[0])}"
            )
        if len(x) < 2:
            raise InputError(f"a classifier needs at least 2 rows, got n_samples = {len(x)} (1 sample)")
        shape = given if self.image_shape is None and len(given) > 1 else self.image_shape
        self._rows = Rows.of_vectors(x) if shape is None else Rows.of_images(x, given, shape)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._passes = 0
        self._held: LabelledImages | None = None

    def _check_parameters(self) -> None:
        """Check the parameters that training would only read at its end."""
        if not isinstance(self.tpr, Real) or not 0 < self.tpr < 1:
            raise InputError(f"tpr must lie between 0 and 1, got {shortened(self.tpr)}")
        if not isinstance(self.min_updates, Integral) or self.min_updates < 0:
            raise InputError(
                f"min_updates must be a whole number, at least 0, got {shortened(self.min_updates)}"
            )
        if self.algorithm is not None and self.algorithm not in tuple(AUTOMATIC):
            known = ", ".join(map(repr, AUTOMATIC))
            raise InputError(f"algorithm must be None or one of {known}, got {shortened(self.algorithm)}")
        if not isinstance(self.start, str | Path | None):
            raise InputError(f"start must name a run, a model file or a model, got {shortened(self.start)}")
        if not isinstance(self.settings, Mapping | None):
            raise InputError(f"settings must be a mapping of keys to values, got {shortened(self.settings)}")
        for key in self.settings or ():
            if key in OWN_PARAMETERS:
                raise InputError(f"settings must leave {key} to {OWN_PARAMETERS[key]}")
            if not isinstance(key, str) or (key == "train.beta" and self.beta is not None):
                raise InputError(f"settings must have keys of a recipe, beta only once, got {shortened(key)}")

    def _learn(
        self,
        cfg: Config,
        kept: LabelledImages,
        held: LabelledImages,
        *,
        start: Classifier | None = None,
        partial: bool = False,
    ) -> None:
        data = Dataset(kept, held, held[:0], class_names(self.classes_), partial=partial)
        try:
            with TemporaryDirectory(prefix="gmmc-") as folder:
                model = train(
                    cfg, folder, data, start=start, silent=not self.verbose, changed=self.settings or ()
                )
        except Interrupted:
            raise KeyboardInterrupt from None
        except Diverged as error:
            reason = str(error).split(";")[0]  # the rest is about a folder that is gone
            raise Diverged(
                f"{reason}; try a smaller beta, or settings with a smaller learning rate"
            ) from None
        measure = held if len(held) else kept  # so few rows that none could be spared
        if model.reference is None:
            model.calibrate(measure.images, measure.labels)
        assert model.reference is not None
        score = abstains_by(model)
        reference = model.reference
        if score == DENSITY:  # of all rows that were held out, in the precision of `score_samples`
            network = self._tempered(model)
            reference = Reference.of(1.0, {DENSITY: self._scores(network, measure.images, DENSITY)})
        self.threshold_ = reference.threshold(score, self.tpr)
        self.gamma2_, self.low_, self.high_ = model.reference.gamma2, self._rows.low, self._rows.high
        self.model_, self._held = model, held[-HELD_KEPT:]

    def _config(self) -> Config:
        """The recipe with all that the parameters say."""
        overrides = {**(self.settings or {}), "train.seed": self._seed + self._passes}
        overrides["train.device"] = self.device
        if self.start is not None:
            overrides["train.start"] = str(self.start)
        if self.beta is not None:
            overrides["train.beta"] = self.beta
        return chosen(self.recipe, self._rows.shape, len(self.classes_), overrides, self.algorithm)

    # --- asking ---

    def decision_function(self, X) -> np.ndarray:
        """log p(x, y) at γ² = `gamma2_`, up to a constant; of two classes, the second against the first."""
        logits = self._logits(X).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_log_proba(self, X) -> np.ndarray:
        """log p(y|x), calibrated on rows that were held out."""
        return core.log_posterior(self._logits(X)).numpy()

    def predict_proba(self, X) -> np.ndarray:
        """p(y|x), calibrated on rows that were held out."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X) -> np.ndarray:
        """The most probable class, also of rows that `accepts` would refuse."""
        most_probable = self._logits(X).argmax(-1).numpy()
        return self.classes_[most_probable]

    def score_samples(self, X) -> np.ndarray:
        """log p(x) up to a constant, at the γ² of training: 1, or σ/σ_d after training by denoising."""
        network, images = self._asked(X)
        return self._scores(network, images, DENSITY).numpy()

    @property
    def abstains_by_(self) -> str:
        check_is_fitted(self)
        return abstains_by(self.model_)

    def acceptance_scores(self, X) -> np.ndarray:
        """The score `abstains_by_` of each row, which decides whether it is accepted: high for usual rows."""
        network, images = self._asked(X)
        return self._scores(network, images, self.abstains_by_).numpy()

    def accepts(self, X) -> np.ndarray:
        """Whether rows are like those of the training: `acceptance_scores` of at least `threshold_`."""
        return self.acceptance_scores(X) >= self.threshold_

    def predict_or_abstain(self, X, unknown: Any = None) -> np.ndarray:
        """The class where the row is accepted, `unknown` elsewhere."""
        network, images = self._asked(X)
        score = self.abstains_by_
        evidence = gather(network, images, [score])
        energies = scores.feature_energies(network, evidence.features)
        named = self.classes_[scores.logits_at(network, energies, self.gamma2_).argmax(-1).numpy()]
        strange = score_of(network, evidence, score).numpy() < self.threshold_
        answers = named if np.asarray(unknown).dtype.kind == named.dtype.kind else named.astype(object)
        either: Any = (unknown, answers)
        return np.where(strange, *either)

    def to_unit(self, X) -> Tensor:
        """Rows as `model_` takes them: images, (X − `low_`)/(`high_` − `low_`)."""
        check_is_fitted(self)
        x, _ = self._validated(X, reset=False)
        return self._rows.to_unit(x)

    def from_unit(self, images: Tensor) -> np.ndarray:
        """Images in [0, 1], as `model_` takes them, as rows in the shape and range that `fit` was given."""
        check_is_fitted(self)
        return self._rows.from_unit(images)

    def _logits(self, X) -> Tensor:
        network, energies = self._energies(X)
        return scores.logits_at(network, energies, self.gamma2_)

    def _scores(self, network: scores.Tempered, images: Tensor, score: str) -> Tensor:
        """Score of images in [0, 1]."""
        return score_of(network, gather(network, images, [score]), score)

    def _energies(self, X) -> tuple[scores.Tempered, Tensor]:
        network, images = self._asked(X)
        return network, scores.unit_energies(network, images)

    def _asked(self, X) -> tuple[scores.Tempered, Tensor]:
        """The network, and rows as its images in [0, 1]."""
        images = self.to_unit(X)
        return self._tempered(self.model_.to(pick_device(self.device))), images

    def _tempered(self, model: Classifier) -> scores.Tempered:
        """Model in float64 for vectors, so that a row does not depend on how many others come with it."""
        return (copy.deepcopy(model).double() if is_vector(self._rows.shape) else model).tempered()

    # --- drawing ---

    def sample(self, n_samples=None, labels=None, *, random_state=None) -> tuple[np.ndarray, np.ndarray]:
        """Fresh rows, as X was given, and their classes: as many as asked for, or as there are labels.

        Without labels, classes are drawn from the priors; without either, it is one row.
        """
        check_is_fitted(self)
        if not self.model_.can_sample:
            cfg = recipe_of(self.model_)
            got = f"beta={cfg.train.beta:g} and generative.epochs={cfg.generative.epochs}"
            how = 'beta above 0 and settings={"generative.epochs": …}'
            raise InputError(f"sample needs an estimator fitted with samples, got {got}; fit with {how}")
        given = self.random_state if random_state is None else random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        asked = None if labels is None else self._positions(np.atleast_1d(np.asarray(labels)))
        if n_samples is None:
            n_samples = 1 if asked is None else len(asked)
        if not isinstance(n_samples, Integral) or n_samples < 0:
            raise InputError(f"n_samples must be a whole number, at least 0, got {shortened(n_samples)}")
        if asked is not None and len(asked) != n_samples:
            raise InputError(f"labels must be {n_samples}, one per sample, got {len(asked)}")
        n = int(n_samples)
        drawer = self.model_.to(pick_device(self.device)).drawer()
        y = drawer.labels(n, seed) if asked is None else torch.from_numpy(asked)
        images = drawer.sample(n, y, seed)
        return self._rows.from_unit(images), self.classes_[y.numpy()]

    # --- what comes in ---

    def _validated(self, X: Any, *y: Any, reset: bool) -> tuple[Any, ...]:
        """Rows of numbers, the shape of one row as it came, and the classes if given."""
        rows, given = X, ()
        if _axes(X) > 2:
            array = np.asarray(X)
            given, rows = array.shape[1:], array.reshape(len(array), -1)
            if not reset and given != self._rows.given:
                raise InputError(f"rows must have the shape {self._rows.given} of the training, got {given}")
        checked: Any = validate_data  # whose annotations know strings alone
        found = checked(self, rows, *y, reset=reset)
        x, *labels = found if y else (found,)
        if x.dtype.kind not in "biuf":  # scikit-learn lets dates pass
            raise InputError(f"X must be numbers, got {x.dtype}")
        if labels:
            check_classification_targets(*labels)
        return x, given or x.shape[1:], *labels

    def _labelled(self, x: np.ndarray, y: np.ndarray) -> LabelledImages:
        return LabelledImages(self._rows.to_learn(x), torch.from_numpy(self._positions(y)))

    def _held_out(self, x: np.ndarray, cfg: Config) -> Tensor:
        """By the rows before what is beyond the range is cut: else these would be all alike."""
        parts = [x[first : first + ROWS_AT_ONCE] for first in range(0, len(x), ROWS_AT_ONCE)]
        return torch.cat([held_out(self._rows.to_unit(p), cfg.data.valid, self._seed) for p in parts])

    def _positions(self, y: np.ndarray) -> np.ndarray:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(
                f"y must be among the classes {self.classes_}, got {shortened(unknown.tolist()[0])}"
            )
        return np.searchsorted(self.classes_, y)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __getstate__(self) -> dict[str, Any]:
        """The network on the CPU: with device="auto", another machine can use what one with a GPU dumped."""
        whole: Any = super().__getstate__()
        return {**whole, "model_": copy.deepcopy(self.model_).cpu()} if "model_" in whole else {**whole}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore an estimator, also one that was stored before it had all of today's parameters."""
        super().__setstate__({"algorithm": None, **state})


def score_of(network: scores.Tempered, evidence: Evidence, score: str) -> Tensor:
    """One score from the evidence; a confidence is at the γ² that its threshold was fitted at."""
    gamma2 = network.reference.gamma2 if network.reference else network.density_gamma2
    return scores_of(network, evidence, gamma2, [score])[score]


def abstains_by(model: Classifier) -> str:
    """Score that decides which rows are accepted: the model's, where it names one or has noise levels."""
    is_default = model.abstain.score == "auto" and model.denoising is None
    return DENSITY if is_default else model.abstains_by


def _axes(X: Any) -> int:
    """Return the number of axes; 2 for rows of unequal length, which scikit-learn refuses itself."""
    try:
        return np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)
    except ValueError:
        return 2


def class_names(classes: np.ndarray) -> tuple[str, ...]:
    """Names for the model: the labels themselves, or their positions where one of them is no class name."""
    try:
        return check_class_names([str(label) for label in classes.tolist()], "y")
    except InputError:
        return tuple(map(str, range(len(classes))))
