"""A classifier is images → logits: a backbone, a head, and where its chains start."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gmmc import core
from gmmc.base.class_names import check_class_names
from gmmc.base.seeds import generator
from gmmc.base.text import shortened
from gmmc.classifier.abstention import NEIGHBOURS_KEPT, Answer, Neighbours, Reference, balanced_subset
from gmmc.classifier.checks import check_model
from gmmc.classifier.scores import (
    Tempered,
    batched,
    check_finite,
    feature_energies,
    feature_scores,
    features,
    fit_gamma2,
    gradient_norms,
    logits_at,
)
from gmmc.config.schema import Config
from gmmc.errors import InputError
from gmmc.networks.backbones import build_backbone, feature_dim
from gmmc.networks.heads import HEADS
from gmmc.pixels import Shape, as_batch, to_signed, to_unit
from gmmc.sampling import engine
from gmmc.sampling.initial import GaussianStart, UniformStart
from gmmc.sampling.samplers import BOX, SAMPLERS, Chains, Gradient, OnStep, SeededNoise, ignore

# Chains run in padded blocks of a fixed size, so that an image is the same to the last bit whether it is
# drawn alone or among a thousand; a GPU wants larger blocks than a CPU.
BLOCK = {"cpu": 32, "cuda": 256}

OnProgress = Callable[[float], object]  # of the number of images done


class Predictor(nn.Module):
    """Logits as `forward` returns them, and the posterior and class that follow from them."""

    shape: Shape
    class_names: tuple[str, ...]

    def logits(self, images) -> Tensor:
        """Logits of any number of images at `gamma2`: arrays or tensors, uint8 or [0, 1]."""
        found = batched(self, self, as_batch(images, self.shape))
        check_finite(found.logsumexp(-1))  # a class may have −∞: its prior may be zero
        return found

    def predict_log_proba(self, images) -> Tensor:
        """log p(y|x)  (Eq. 11), calibrated as `predict_proba` is."""
        return core.log_posterior(self.logits(images))

    def predict_proba(self, images) -> Tensor:
        """p(y|x)  (Eq. 11) at `gamma2`, calibrated on validation images if the model has seen any.

        With the paper's γ², most probabilities are exactly 1: `model.at("paper").predict_proba(images)`.
        From files: `model.predict_proba(gmmc.read_images(["photo.jpg"], model))`.
        """
        return self.predict_log_proba(images).exp()

    def predict(self, images) -> Tensor:
        """The most probable class, as an index into `class_names`."""
        return self.logits(images).argmax(-1)


class Classifier(Predictor):
    """φ and a head. Takes images as uint8 or [0, 1]; what it gives back follows from the logits alone."""

    def __init__(self, cfg: Config, shape: Shape, class_names: Sequence[str], priors: Tensor | None = None):
        super().__init__()
        check_model(cfg)
        self.cfg = cfg
        self.trained: dict[str, Any] = {}  # how, for the conditions of a result
        self.reference: Reference | None = None  # scores of validation images, for `answer`
        self.neighbours: Neighbours | None = None  # features of training images, for one of these scores
        self.shape = shape
        self.resizes = cfg.data.size > 0  # whether `read_images` crops and resizes unless asked not to
        self.class_names = check_class_names(tuple(class_names), "class_names")
        classes = len(self.class_names)
        self.backbone = build_backbone(cfg.model, shape)
        self.dim = feature_dim(self.backbone)
        self.head = HEADS[cfg.model.head](classes, self.dim, cfg.model.scale, priors)
        gaussian = cfg.buffer.start == "gaussian" and cfg.samples
        rank, detail = cfg.buffer.rank, cfg.buffer.detail
        self.start = GaussianStart(shape, classes, rank, detail) if gaussian else UniformStart(shape)

    @property
    def device(self) -> torch.device:
        return self.head.gamma2.device

    @property
    def gamma2(self) -> float:
        """Temperature of logits and probabilities: fitted on validation images, else the paper's estimate."""
        return self.reference.gamma2 if self.reference else self.head.gamma2.item()

    def forward(self, images: Tensor) -> Tensor:
        """Images in [0, 1] → logits at `gamma2`, differentiable: what attacks and other tools call."""
        gamma2 = self.reference.gamma2 if self.reference else self.head.gamma2  # never waits for a GPU
        return self.head.logits_at(self.features(images), gamma2)

    def features(self, images: Tensor) -> Tensor:
        """φ of images in [0, 1], differentiable; in the precision of the weights."""
        return self.backbone(to_signed(images).to(self.head.gamma2.dtype))

    # --- asking ---

    def energy(self, images, labels) -> Tensor:
        """E(x, y) = ½‖φ(x) − μ_y‖² − log(C·π_y)  (Eq. 4), at γ = 1 as training and sampling define it."""
        logits = self._unit_logits(images)
        return core.energy(logits, self.label_tensor(labels, len(logits)).to(self.device))

    def log_density(self, images) -> Tensor:
        """log p(x) = log Σ_y exp(−E(x, y)) up to the constant −log Z, at γ = 1."""
        return core.log_density(self._unit_logits(images))

    def _unit_logits(self, images) -> Tensor:
        """Logits at γ = 1."""
        batch = as_batch(images, self.shape)
        logits = batched(self, lambda x: self.head.logits_at(self.features(x), 1.0), batch)
        check_finite(core.log_density(logits))
        return logits

    def tempered(self) -> Tempered:
        """This model with γ² left open."""
        means = self.head.means
        paper = None if means is None else self.head.gamma2.item()

        def energies_of(found: Tensor) -> Tensor:
            return self.head.unit_energies(found.double())

        split = None
        if means is not None:
            exact = means.detach().double()
            split = functools.partial(core.split_energies, means=exact, basis=core.span_basis(exact))
        distance = self.neighbours.distance if self.neighbours else None
        fitted = self.reference.gamma2 if self.reference else None
        return Tempered(self, self.features, energies_of, self.head.logits_of, paper, fitted, split, distance)

    def keep_neighbours(self, images, labels) -> None:
        """Keep features of training images, for the score `neighbours`; `calibrate` then fits its threshold.

        A class-balanced random subset of `NEIGHBOURS_KEPT` images is enough; the rest is not looked at.
        """
        batch = as_batch(images, self.shape)
        y = self.label_tensor(labels, len(batch))
        places = balanced_subset(y, NEIGHBOURS_KEPT, generator(0, "neighbours"))
        self.neighbours = Neighbours.of(features(self.tempered(), batch[places]).cpu())

    def calibrate(self, images, labels, *, on_progress: Callable[[int], object] | None = None) -> None:
        """Fit γ² and the thresholds of `answer` on images that the model was not trained on.

        `on_progress` is called with the number of images done, each of which is looked at twice.
        """
        batch = as_batch(images, self.shape)
        y = self.label_tensor(labels, len(batch))
        if len(batch) == 0:
            raise InputError("calibration needs at least one image, got none")
        network = self.tempered()
        found = features(network, batch, on_progress)
        gamma2 = fit_gamma2(network, feature_energies(network, found), y)
        norms = gradient_norms(network, batch, on_progress and (lambda done: on_progress(len(batch) + done)))
        scores = feature_scores(network, found, gamma2) | {"gradient_norm": norms}
        self.reference = Reference.of(gamma2, scores)

    @property
    def abstains_by(self) -> str:
        """Score by which `answer` accepts images by default: `abstain.score`, with "auto" resolved.

        Chains of Langevin dynamics sample from exp(−E), so training shapes all of E into a density. Chains
        that walk to a class mean do not. There log p(x) is taken inside the span of the means where the rest,
        which carries no class, makes up more than half of the energy of validation images.
        """
        return self._resolved(self.cfg.abstain.score)

    def _resolved(self, score: str) -> str:
        if score != "auto":
            return score
        walks_to_mean = self.cfg.samples and SAMPLERS[self.cfg.sampler.name].to_means
        in_span = walks_to_mean and self._checked_reference().mostly_outside_span
        return "span_density" if in_span else "log_density"

    def answer(self, images, *, score: str | None = None, tpr: float | None = None) -> Answer:
        """Class and confidence at the fitted γ², and whether the image looks like those of the training.

        An image is accepted when its score is at least that which the share `tpr` of the validation images
        reach; score and tpr are those of the recipe's [abstain] unless given. `gmmc.read_images` reads files
        and PIL images: `model.answer(gmmc.read_images(["photo.jpg"], model)).names`.
        """
        reference = self._checked_reference()
        score = self._resolved(self.cfg.abstain.score if score is None else score)
        tpr = self.cfg.abstain.tpr if tpr is None else tpr
        threshold = reference.threshold(score, tpr)
        batch = as_batch(images, self.shape)
        network = self.tempered()
        found = features(network, batch)
        logits = logits_at(network, feature_energies(network, found), reference.gamma2)
        confidence, labels = core.log_posterior(logits).exp().max(-1)
        if score == "gradient_norm":
            values = gradient_norms(network, batch)
        else:
            values = feature_scores(network, found, reference.gamma2, [score])[score]
        check_finite(torch.stack([confidence, values], 1))
        percentile = reference.percentile(score, values)
        names = [self.class_names[y] for y in labels]
        return Answer(labels, names, confidence, score, values, threshold, percentile, values >= threshold)

    def at(self, gamma2: float | str) -> "FixedTemperature":
        """Return the same weights with logits at another γ², as a module for other tools.

        `gamma2`: a number above 0; "paper", the estimate of the paper's formula; "unit", γ = 1, where the
        logsumexp of the logits is log p(x); "fitted", the one fitted on validation images.
        """
        if isinstance(gamma2, str):
            gamma2 = self._named_gamma2(gamma2)
        return FixedTemperature(self, _checked_gamma2(gamma2))

    def _named_gamma2(self, name: str) -> float:
        if name == "fitted":
            return self._checked_reference().gamma2
        if name == "paper" and self.head.means is None:
            raise InputError("gamma2 of a softmax head cannot be 'paper': the formula needs class means")
        named = {"paper": self.head.gamma2.item(), "unit": 1.0}
        if name not in named:
            raise InputError(f"gamma2 must be a number, 'fitted', 'unit' or 'paper', got {shortened(name)}")
        return named[name]

    def _checked_reference(self) -> Reference:
        if self.reference is None:
            raise InputError(
                "this model keeps no scores of validation images to abstain by: it was trained without any "
                "(data.valid) or by an older gmmc; in Python, model.calibrate(images, labels) makes them"
            )
        return self.reference

    # --- drawing ---

    @property
    def can_sample(self) -> bool:
        """Whether training drew samples; chains of a model trained without any end in noise."""
        return self.cfg.samples

    def check_can_sample(self) -> None:
        """Refuse a model that was trained without samples."""
        if self.can_sample:
            return
        sampler = "" if self.head.means is not None else " and sampler.name=sgld, since it has no class means"
        raise InputError(
            f"cannot draw: this model was trained without samples (train.beta={self.cfg.train.beta:g}, "
            f"generative.epochs={self.cfg.generative.epochs}); train one with both above 0{sampler}, "
            "as the recipe digits does"
        )

    @torch.inference_mode(False)  # whatever mode the caller is in, the images are for any use
    def sample(
        self,
        n: int,
        labels: Sequence[int] | Tensor | None = None,
        seed: int = 0,
        *,
        steps: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Tensor:
        """n fresh chains → images in [0, 1]. Image i is the one of seed + i, whatever n is.

        Without labels, y′ is drawn from the priors, see `sample_labels`. `on_progress` is called after every
        step with the number of images done, a fraction within a block of chains.
        """
        n, seed = int(n), int(seed)
        if n < 0:
            raise InputError(f"the number of samples must be at least 0, got {n}")
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        y = self.sample_labels(n, seed) if labels is None else self.label_tensor(labels, n)
        images, done = [torch.empty(0, *self.shape, device=self.device)], 0
        for block in self.sample_blocks(y, seed, steps=steps, on_progress=on_progress):
            images.append(block)
            done += len(block)
            if on_progress:
                on_progress(done)
        return torch.cat(images)

    def sample_blocks(
        self,
        labels: Sequence[int] | Tensor,
        seed: int = 0,
        *,
        steps: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Tensor]:
        """The images of `sample(len(labels), labels, seed)`, block by block as they are finished.

        `on_progress` is called within each block, after every step but the last, with the images done so far.
        A finished block is the caller's to report, once its images are kept.
        """
        self.check_can_sample()
        y = self.label_tensor(labels, len(labels))
        if seed < 0:
            raise InputError(f"seed must be at least 0, got {seed}")
        steps = self.cfg.sample.steps if steps is None else steps
        if steps < 1:
            raise InputError(f"steps must be at least 1, got {steps}")
        return self._finished_blocks(y, seed, steps, on_progress)

    # The sampler needs gradients, whatever mode the caller is in. On a generator these hold while it works,
    # and not between blocks.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def _finished_blocks(
        self, labels: Tensor, seed: int, steps: int, on_progress: OnProgress | None
    ) -> Iterator[Tensor]:
        gradient = self._gradient()
        for first, count, padded in self._blocks(labels):
            on_step = on_progress and _within_block(on_progress, first, count, steps)
            images = self._chains(gradient, padded, seed + first, steps, on_step)[:count]
            check_finite(images)
            yield images

    def sample_labels(self, n: int, seed: int = 0) -> Tensor:
        """The classes that `sample(n, seed=seed)` draws from the priors."""
        quantiles = SeededNoise.quantiles_of(range(seed, seed + n))
        return core.labels_at(quantiles, self.head.priors.cpu())

    @torch.inference_mode(False)
    @torch.enable_grad()
    def film(
        self,
        labels: Sequence[int] | Tensor,
        seed: int = 0,
        *,
        frames: Sequence[int],
        on_progress: OnProgress | None = None,
    ) -> Tensor:
        """The chains of `sample(len(labels), labels, seed)` after these numbers of steps: (frames, n, …)."""
        self.check_can_sample()
        if not frames or min(frames) < 0:
            raise InputError(f"frames must be numbers of steps, at least 0, got {list(frames)}")
        parts = []
        gradient = self._gradient()
        for first, count, padded in self._blocks(self.label_tensor(labels, len(labels))):
            seen: dict[int, Tensor] = {}
            report = on_progress and _within_block(on_progress, first, count, max(frames))

            def keep(step: int, x: Tensor, seen: dict[int, Tensor] = seen, report=report) -> None:
                if step in frames:
                    seen[step] = to_unit(x.clamp(*BOX))
                if report:
                    report(step, x)

            self._chains(gradient, padded, seed + first, max(frames), keep)
            parts.append(torch.stack([seen[step] for step in frames])[:, :count])
        return torch.cat(parts, 1)

    def _blocks(self, labels: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """(place of the first, number, labels filled up to the size of a block) of each block of chains."""
        size = BLOCK.get(self.device.type, 32)
        for first in range(0, len(labels), size):
            part = labels[first : first + size]
            yield first, len(part), torch.cat([part, part[-1:].expand(size - len(part))])

    def _gradient(self) -> Gradient:
        return engine.new_gradient(self.backbone, self._sampling_engine, self.sampling_precision)

    @property
    def _sampling_engine(self) -> engine.Engine:
        return engine.choose_for_samples(self.cfg.train.engine, self.device)

    @property
    def sampling_precision(self) -> str:
        """Precision of fresh chains; `train.precision=auto` is resolved on the present device.

        The plain sampler is always fp32.
        """
        if not self._sampling_engine.copy:
            return "fp32"
        return engine.resolve_precision(self.cfg.train.precision, self.device)

    def _chains(
        self,
        gradient: Gradient,
        labels: Tensor,
        first_seed: int,
        steps: int,
        on_step: OnStep | None = None,
    ) -> Tensor:
        labels = labels.to(self.device)
        noise = SeededNoise(range(first_seed, first_seed + len(labels)), self.device)
        x = self.start(labels, noise)
        if on_step:
            on_step(0, x)
        sampler = SAMPLERS[self.cfg.sampler.name]
        chains = Chains.of(self.head, self.head.unit_energy, labels, noise)
        x = sampler.move(gradient, x, chains, self.cfg.sampler, steps=steps, on_step=on_step or ignore)
        return to_unit(x.clamp(*BOX))

    def label_tensor(self, labels, count: int) -> Tensor:
        """`count` class indices as a checked tensor."""
        try:
            y = torch.as_tensor(labels if hasattr(labels, "__len__") else list(labels))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"labels must be a list of whole numbers: {error}") from None
        if (y.is_floating_point() and y.numel()) or y.ndim != 1 or len(y) != count:
            got = f"{y.dtype} of the shape {tuple(y.shape)}"
            raise InputError(f"labels must be {count} whole numbers, one per image, got {got}")
        classes = len(self.class_names)
        if count and not (y.min() >= 0 and y.max() < classes):
            raise InputError(f"labels must lie in 0..{classes - 1}, got {y.min().item()}..{y.max().item()}")
        return y.long()


def _within_block(on_progress: OnProgress, first: int, count: int, steps: int) -> OnStep:
    """Report images done after each step of a block but the last.

    It reads no chain, so that nothing waits for a GPU.
    """

    def on_step(step: int, x: Tensor) -> None:
        if step < steps:
            on_progress(first + count * step / steps)

    return on_step


def _checked_gamma2(gamma2: Any) -> float:
    """Return a number, also of numpy or torch, as Python's; refuse anything else."""
    try:
        number = math.nan if isinstance(gamma2, bool) else float(gamma2)
    except (TypeError, ValueError, RuntimeError):
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"gamma2 must be a finite number above 0 or a name, got {shortened(gamma2)}")
    return number


@dataclass(frozen=True)
class FixedTempered(Tempered):
    """A network with logits at a γ² of choice."""

    given: float = 1.0

    @property
    def gamma2(self) -> float:
        return self.given


class FixedTemperature(Predictor):
    """Images in [0, 1] → logits of a model at a γ² of choice."""

    gamma2: Tensor

    def __init__(self, model: Classifier, gamma2: float):
        super().__init__()
        self.model, self.given = model, gamma2
        self.shape, self.class_names = model.shape, model.class_names
        # A buffer: the same weights at another γ² are another network, also to who hashes its state.
        self.register_buffer("gamma2", torch.tensor(gamma2, device=model.device))
        self.training = model.training

    def forward(self, images: Tensor) -> Tensor:
        return self.model.head.logits_at(self.model.features(images), self.gamma2)

    def at(self, gamma2: float | str) -> "FixedTemperature":
        """Return the same weights with logits at another γ²."""
        return self.model.at(gamma2)

    def tempered(self) -> Tempered:
        """The model with γ² left open, and the γ² of choice as the one in use."""
        return FixedTempered(**{**vars(self.model.tempered()), "module": self, "given": self.given})


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        present = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(device.type, 0)
        if (device.index or 0) >= present:
            raise RuntimeError
    except RuntimeError:
        present = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu (no GPU is found here)"
        raise InputError(f"device must be {present}, got {name!r}") from None
    return device
