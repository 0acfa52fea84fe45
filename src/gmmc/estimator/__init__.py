"""`GMMCClassifier`: the training of `gmmc train` behind the interface of scikit-learn."""

import copy
import dataclasses
import math
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from gmmc import config, core, scores
from gmmc.abstention import Reference
from gmmc.config import Config
from gmmc.data import Dataset, LabelledImages, hold_out
from gmmc.errors import Diverged, InputError, Interrupted
from gmmc.estimator.rows import Rows
from gmmc.models import Classifier, pick_device
from gmmc.train import train

SMALL_IMAGE = 16  # pixels a side up to which training with samples takes a minute on a CPU, not an hour
HELD_KEPT = 2000  # rows that `partial_fit` remembers to calibrate by
DENSITY = "log_density"


class GMMCClassifier(ClassifierMixin, BaseEstimator):
    """A generative max-Mahalanobis classifier: classes, how sure, how usual, when to abstain, and samples.

    Rows of X are vectors, or images: flat with `image_shape`, or of three or four axes as they are (uint8, or
    floating point; channels first or last).

    Parameters
    ----------
    recipe : str, default="auto"
        A recipe of `gmmc train`, by file or name. "auto": "vectors"; for images up to 16×16 "images", both
        trained jointly; for larger images "photos", which learns the classes alone.
    settings : mapping, default=None
        Changes to the recipe, as on the command line: {"train.clip": 10.0, "model.backbone": "mlp-3-128"}.
    beta : float, default=None
        Weight of sampled energies; 0 trains the classes alone, which is fastest. None: the recipe's.
    min_updates : int, default=500
        Few rows are gone through more often than the recipe's epochs say, until there are so many updates in
        each phase.
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
    model_ : the gmmc.Classifier, whose images are the rows in [0, 1]
    gamma2_ : temperature of the posterior, fitted on rows that were held out
    threshold_ : of `score_samples`; below it, rows are not accepted
    """

    model_: Classifier

    def __init__(
        self,
        recipe="auto",
        *,
        settings=None,
        beta=None,
        min_updates=500,
        image_shape=None,
        tpr=0.95,
        random_state=None,
        device="auto",
        verbose=False,
    ):
        self.recipe = recipe
        self.settings = settings
        self.beta = beta
        self.min_updates = min_updates
        self.image_shape = image_shape
        self.tpr = tpr
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    # --- learning ---

    def fit(self, X, y) -> "GMMCClassifier":
        """Train from random weights; the recipe's share of the rows is held out to calibrate by."""
        x, given, y = self._validated(X, y, reset=True)
        self.classes_ = np.unique(y)
        self._begin(x, given)
        cfg = self._config()
        rows = self._labelled(x, y)
        kept, held = hold_out(rows, cfg.data.valid, cfg.train.seed)
        self._learn(self._lengthened(cfg, len(kept)), kept, held)
        return self

    def partial_fit(self, X, y, classes: Any = None) -> "GMMCClassifier":
        """One pass over these rows, from the weights there are; the first call must name all classes.

        The range of the numbers is that of the first call. Chains and the optimiser begin anew each time, and
        all classes count as equally frequent. The rows held out to calibrate by are those of all calls.
        """
        first = not hasattr(self, "model_")
        if first and classes is None:
            raise InputError("classes must be given in the first call of partial_fit, got None")
        x, given, y = self._validated(X, y, reset=first)
        if first:
            self.classes_ = np.unique(classes)
            self._begin(x, given)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {self.classes_}, got {classes}")
        self._passes += 1
        cfg = _one_pass(self._config())
        kept, held = hold_out(self._labelled(x, y), cfg.data.valid, cfg.train.seed)
        if self._held is not None:
            held = _joined(self._held, held)[-HELD_KEPT:]
        self._learn(cfg, kept, held, start=None if first else self.model_, partial=True)
        return self

    def _begin(self, x: np.ndarray, given: tuple[int, ...]) -> None:
        """What is decided once: how rows are read, and the seed."""
        if len(self.classes_) < 2:
            raise InputError(f"y must have at least two classes, got one class, {self.classes_[0]!r}")
        if len(x) < 2:
            raise InputError(f"a classifier needs at least 2 rows, got n_samples = {len(x)} (1 sample)")
        shape = self.image_shape or (given if len(given) > 1 else None)
        self._rows = Rows.of_vectors(x) if shape is None else Rows.of_images(x, given, shape)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._passes = 0
        self._held: LabelledImages | None = None
        self.__dict__.pop("model_", None)

    def _learn(
        self,
        cfg: Config,
        kept: LabelledImages,
        held: LabelledImages,
        *,
        start: Classifier | None = None,
        partial: bool = False,
    ) -> None:
        names = [str(name) for name in self.classes_.tolist()]
        data = Dataset(kept, held, held[:0], tuple(names), partial=partial)
        threads = torch.get_num_threads()
        try:
            with TemporaryDirectory(prefix="gmmc-") as folder:
                self.model_ = train(cfg, folder, data, start=start, silent=not self.verbose)
        except Interrupted:
            raise KeyboardInterrupt from None
        except Diverged as error:
            reason = str(error).split(";")[0]  # the rest is about a folder that is gone
            raise Diverged(
                f"{reason}; try a smaller beta, or settings with a smaller learning rate"
            ) from None
        finally:
            torch.set_num_threads(threads)  # a recipe's are for a process of its own
        self._held = held
        measure = held if len(held) else kept  # so few rows that none could be spared
        if self.model_.reference is None:
            self.model_.calibrate(measure.images, measure.labels)
        assert self.model_.reference is not None
        self.gamma2_ = self.model_.reference.gamma2
        network = self._network()
        density = core.log_density(
            scores.logits_at(network, scores.unit_energies(network, measure.images), 1.0)
        )
        self.threshold_ = Reference.of(1.0, {DENSITY: density}).threshold(DENSITY, self.tpr)

    def _config(self) -> Config:
        """The recipe with all that the parameters say."""
        recipe = self.recipe
        if recipe == "auto":
            small = max(self._rows.shape[1:]) <= SMALL_IMAGE
            recipe = "vectors" if self._rows.are_vectors else "images" if small else "photos"
        overrides = {
            **(self.settings or {}),
            "train.seed": self._seed + self._passes,
            "train.device": self.device,
        }
        if self.beta is not None:
            overrides["train.beta"] = self.beta
        if self.beta == 0:  # nothing is sampled, and no sampler needed
            overrides |= {"generative.epochs": 0, "sampler.name": "staged"}
        cfg = config.load(recipe, {key: _plain(value) for key, value in overrides.items()})
        needed = len(self.classes_) - 1  # for equiangular means
        if cfg.model.head == "mmc" and 0 < cfg.model.dim < needed:
            cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, dim=needed))
        return cfg

    def _lengthened(self, cfg: Config, rows: int) -> Config:
        """With so many epochs that each phase has `min_updates`."""
        per_epoch = max(1, rows // cfg.train.batch_size)
        least = math.ceil(self.min_updates / per_epoch)
        phases = {
            name: dataclasses.replace(phase, epochs=max(phase.epochs, least))
            for name in ("discriminative", "generative")
            if (phase := getattr(cfg, name)).epochs
        }
        return dataclasses.replace(cfg, **phases)

    # --- asking ---

    def decision_function(self, X) -> np.ndarray:
        """log p(x, y) at γ = `gamma2_`, up to a constant; of two classes, the second against the first."""
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
        """log p(x) up to a constant, at γ = 1: the density that training learns and `sample` draws from."""
        return core.log_density(self._logits(X, gamma2=1.0)).numpy()

    def accepts(self, X) -> np.ndarray:
        """Whether rows are like those of the training: `score_samples` of at least `threshold_`."""
        density = self.score_samples(X)
        return density >= self.threshold_

    def predict_or_abstain(self, X, unknown: Any = None) -> np.ndarray:
        """The class where the row is accepted, `unknown` elsewhere."""
        named = self.predict(X)
        chosen: Any = [named.astype(object) if unknown is None else named, unknown]
        return np.where(self.accepts(X), *chosen)

    def _logits(self, X, gamma2: float | None = None) -> Tensor:
        check_is_fitted(self, "model_")
        x, _ = self._validated(X, reset=False)
        network = self._network()
        energies = scores.unit_energies(network, self._rows.to_unit(x))
        return scores.logits_at(network, energies, self.gamma2_ if gamma2 is None else gamma2)

    def _network(self) -> scores.Tempered:
        """Of vectors in float64: small enough, and then no row feels how many others are asked with it."""
        model = self.model_.to(pick_device(self.device))
        return (copy.deepcopy(model).double() if self._rows.are_vectors else model).tempered()

    # --- drawing ---

    def sample(self, n_samples=1, labels=None, *, random_state=None) -> tuple[np.ndarray, np.ndarray]:
        """Fresh rows, as X was given, and their classes: from the priors, or those asked for."""
        check_is_fitted(self, "model_")
        given = self.random_state if random_state is None else random_state
        seed = int(check_random_state(given).randint(2**31 - 1))
        if labels is None:
            y = self.model_.sample_labels(n_samples, seed)
        else:
            y = torch.from_numpy(self._positions(np.asarray(labels)))
        images = self.model_.to(pick_device(self.device)).sample(n_samples, y, seed)
        return self._rows.from_unit(images), self.classes_[y.numpy()]

    # --- what comes in ---

    def _validated(self, X: Any, *y: Any, reset: bool) -> tuple[Any, ...]:
        """Rows of numbers, the shape of one row as it came, and the classes if given."""
        rows, given = X, ()
        if (np.ndim(X) if isinstance(X, list | tuple) else getattr(X, "ndim", 2)) > 2:
            array = np.asarray(X)
            given, rows = array.shape[1:], array.reshape(len(array), -1)
            if not reset and given != self._rows.given:
                raise InputError(f"rows must have the shape {self._rows.given} of the training, got {given}")
        checked: Any = validate_data  # whose annotations know strings alone
        found = checked(self, rows, *y, reset=reset)
        x, *labels = found if y else (found,)
        if labels:
            check_classification_targets(*labels)
        return x, given or x.shape[1:], *labels

    def _labelled(self, x: np.ndarray, y: np.ndarray) -> LabelledImages:
        unit = self._rows.to_unit(x).clamp(0, 1).float()  # a later `partial_fit` may bring what is beyond
        return LabelledImages(unit, torch.from_numpy(self._positions(y)))

    def _positions(self, y: np.ndarray) -> np.ndarray:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y must be among the classes {self.classes_}, got {unknown[0]!r}")
        return np.searchsorted(self.classes_, y)

    def __getstate__(self) -> dict[str, Any]:
        """The network on the CPU: what one machine dumped, another without its GPU can load."""
        state: dict[str, Any] = super().__getstate__()  # pyright: ignore[reportAssignmentType]
        if "model_" in state:
            state["model_"] = copy.deepcopy(self.model_).cpu()
        return state


def _plain(value: Any) -> Any:
    """Numbers of numpy, as a grid of settings has them, as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _one_pass(cfg: Config) -> Config:
    """One epoch of each phase that the recipe has, at a constant pace."""
    phases = {
        name: dataclasses.replace(phase, epochs=1, warmup=0, schedule="step", decay_epochs=())
        for name in ("discriminative", "generative")
        if (phase := getattr(cfg, name)).epochs
    }
    model = dataclasses.replace(cfg.model, priors="uniform")
    return dataclasses.replace(cfg, model=model, train=dataclasses.replace(cfg.train, ramp=0), **phases)


def _joined(*parts: LabelledImages) -> LabelledImages:
    return LabelledImages(
        torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    )


__all__ = ["GMMCClassifier"]
