"""A classifier is images → logits: a backbone, a head, and the initial images of its chains."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gmmc import core, noise
from gmmc.base.class_names import check_class_names
from gmmc.base.seeds import generator
from gmmc.base.text import shortened
from gmmc.classifier.abstention import NEIGHBOURS_KEPT, Answer, Neighbours, Reference, balanced_subset
from gmmc.classifier.denoiser import Denoiser
from gmmc.classifier.drawing import Drawer, DrawingSettings, OnProgress
from gmmc.classifier.evidence import COMBINED, fit_reference, gather, passes, scores_of
from gmmc.classifier.labels import label_tensor
from gmmc.classifier.noise_sizes import levels, noise_sizes
from gmmc.classifier.predictor import FixedTemperature, NoiseLevel, Predictor, checked_gamma2
from gmmc.classifier.scores import (
    Tempered,
    batched,
    check_finite,
    feature_energies,
    features,
    logits_at,
)
from gmmc.config.schema import Config
from gmmc.config.sections import AbstainConfig, DenoisingConfig
from gmmc.errors import InputError
from gmmc.networks.gaussian_term import GaussianTerm
from gmmc.networks.heads import Head
from gmmc.pixels import Shape, as_batch, to_signed
from gmmc.sampling.engine import PlainGradient
from gmmc.sampling.initial import InitialImages, UniformStart
from gmmc.sampling.samplers import SAMPLERS

DEFAULT_RULE = AbstainConfig()


class Classifier(Predictor):
    """A network φ and a head. Takes images as uint8 or [0, 1]; everything it returns follows from the logits.

    Parameters
    ----------
    backbone : torch.nn.Module
        φ: images in [−1, 1], (N, channels, height, width) → features (N, d).
    head : gmmc.networks.heads.Head
        Features → energies of the classes, with their priors.
    initial : torch.nn.Module, default=None
        Initial images of chains. None: uniform noise.
    shape : (channels, height, width)
        Shape of an image; (n, 1, 1) for rows of n numbers.
    class_names : sequence of str
        Names of the classes, in the order of the head's.
    abstain : AbstainConfig, default=AbstainConfig()
        Score and share of accepted images by which `answer` abstains.
    drawing : DrawingSettings, default=None
        How to draw images. None: the model cannot draw.
    no_drawing : str
        Reason, for the error message of a model that cannot draw.
    resizes : bool, default=False
        Whether `gmmc.read_images` crops and resizes images of another size.
    denoising : DenoisingConfig, default=None
        σ_d and σ of a noise-conditional model, whose φ takes images scaled by c_in, with one more channel for
        the noise level. None: φ takes images as they are.

    Attributes
    ----------
    cfg : Config or None
        The recipe that the model was built from, for files and results. The model itself never reads it:
        `abstain` and `drawing` are in force.

    Examples
    --------
    >>> import gmmc, torch
    >>> from gmmc.networks.heads import MMCHead
    >>> backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    >>> head = MMCHead(3, dim=16, scale=10.0)
    >>> model = gmmc.Classifier(backbone, head, shape=(1, 8, 8), class_names=["a", "b", "c"])
    >>> model.predict_proba(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    head: Head
    start: InitialImages

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        initial: InitialImages | None = None,
        *,
        shape: Shape,
        class_names: Sequence[str],
        abstain: AbstainConfig = DEFAULT_RULE,
        drawing: DrawingSettings | None = None,
        no_drawing: str = "this model was built without drawing settings (drawing=None)",
        resizes: bool = False,
        denoising: DenoisingConfig | None = None,
    ):
        super().__init__()
        self.shape = (shape[0], shape[1], shape[2])
        self.class_names = check_class_names(tuple(class_names), "class_names")
        if len(head.priors) != len(self.class_names):
            classes = len(self.class_names)
            raise InputError(f"head must have {classes} classes, one per name, got {len(head.priors)}")
        self.backbone, self.head = backbone, head
        self.start = UniformStart(shape) if initial is None else initial  # "start." in the names of tensors
        self.abstain, self.drawing, self.resizes = abstain, drawing, resizes
        self._no_drawing = no_drawing
        self.denoising = denoising
        self.gaussian: GaussianTerm | None = None
        if denoising is not None and denoising.gaussian == "fitted":
            self.gaussian = GaussianTerm(self.shape, denoising.sigma_data)
        if denoising is not None:
            self.head.gamma2.fill_(self.density_gamma2)
        self.cfg: Config | None = None
        self.trained: dict[str, Any] = {}  # how, for the conditions of a result
        self.reference: Reference | None = None  # scores of validation images, for `answer`
        self.neighbours: Neighbours | None = None  # features of training images, for one of these scores

    @property
    def dim(self) -> int:
        """Number of features."""
        return self.head.dim

    @property
    def device(self) -> torch.device:
        return self.head.gamma2.device

    @property
    def gamma2(self) -> float:
        """Temperature of logits and probabilities: fitted on validation images.

        Without such images the paper's estimate, or `density_gamma2` of a noise-conditional model.
        """
        return self.reference.gamma2 if self.reference else self.head.gamma2.item()

    def forward(self, images: Tensor) -> Tensor:
        """Images in [0, 1] → logits at `gamma2`, differentiable: what attacks and other tools call."""
        gamma2 = self.reference.gamma2 if self.reference else self.head.gamma2  # never waits for a GPU
        return self.head.logits_at(self.features(images), gamma2)

    def features(self, images: Tensor, sigma: float | None = None) -> Tensor:
        """φ of images in [0, 1], differentiable; in the precision of the weights.

        Of a noise-conditional model φ at the noise level σ, by default that of predictions, and as one more
        feature the Gaussian term of its energy (noise.py).
        """
        x = self._signed(images)
        if self.denoising is None:
            return self.backbone(x)
        sigma_data = self.denoising.sigma_data
        level = noise.per_image(self.denoising.class_sigma if sigma is None else sigma, x)
        u = noise.scales(level, sigma_data).into * x
        features = self.backbone(noise.network_input(u, level))
        term = self.gaussian
        radius = term.radius(u, level) if term else noise.radius(u, level, sigma_data)
        return torch.cat([features, radius], 1)

    @property
    def density_gamma2(self) -> float:
        """γ² of log p(x): 1, or of a noise-conditional model σ/σ_d at the noise level of its predictions."""
        return self.denoising.class_sigma / self.denoising.sigma_data if self.denoising else 1.0

    # --- asking ---

    def energy(self, images, labels) -> Tensor:
        """E(x, y) = ½‖φ(x) − μ_y‖² − log(C·π_y)  (Eq. 4), at γ = 1 as training and sampling define it.

        Of a noise-conditional model E(x, y; σ) at the noise level of its predictions, see `at_noise`.
        """
        logits = self._density_logits(images)
        return core.energy(logits, self.label_tensor(labels, len(logits)).to(self.device))

    def log_density(self, images) -> Tensor:
        """log p(x) = log Σ_y exp(−E(x, y)) up to the constant −log Z, with E as in `energy`."""
        return core.log_density(self._density_logits(images))

    def _density_logits(self, images) -> Tensor:
        """Negated energies, whose γ² is `density_gamma2`."""
        batch = as_batch(images, self.shape)
        gamma2 = self.density_gamma2
        logits = batched(self, lambda x: self.head.logits_at(self.features(x), gamma2), batch)
        check_finite(core.log_density(logits))
        return logits

    def tempered(self) -> Tempered:
        """This model with γ² left open."""
        means = self.head.means
        paper = None if means is None or self.denoising else self.head.gamma2.item()

        def energies_of(found: Tensor) -> Tensor:
            return self.head.unit_energies(found.double())

        split = None
        if means is not None:
            exact = means.detach().double()
            split = functools.partial(core.split_energies, means=exact, basis=core.span_basis(exact))
        return Tempered(
            self,
            self.features,
            energies_of,
            self.head.logits_of,
            paper,
            self.reference,
            split,
            self.neighbours.distance if self.neighbours else None,
            density_gamma2=self.density_gamma2,
            density_name="trained" if self.denoising else "unit",
            density_sigma=self.denoising.class_sigma if self.denoising else None,
            class_dim=self.dim,
            noise_sizes=self._noise_sizes if self.denoising else None,
            noise_levels=tuple(levels(self.denoising)) if self.denoising else (),
        )

    def _noise_sizes(self, images: Tensor) -> Tensor:
        """Sizes of F and denoising errors of images in [0, 1] at several noise levels."""
        assert self.denoising is not None
        gradient = PlainGradient(self.backbone)
        denoiser = Denoiser(self.head, self.denoising.sigma_data, gradient, self.gaussian)
        return noise_sizes(denoiser, self._signed(images), levels(self.denoising))

    def _signed(self, images: Tensor) -> Tensor:
        """Images in [0, 1] as φ takes them: in [−1, 1], in the precision of the weights."""
        return to_signed(images).to(self.head.gamma2.dtype)

    def keep_neighbours(self, images, labels) -> None:
        """Keep features of training images, for the score `neighbours`; `calibrate` then fits its threshold.

        A class-balanced random subset of `NEIGHBOURS_KEPT` images is enough; the rest is not looked at.
        """
        batch = as_batch(images, self.shape)
        y = self.label_tensor(labels, len(batch))
        places = balanced_subset(y, NEIGHBOURS_KEPT, generator(0, "neighbours"))
        network = self.tempered()
        found = features(network, batch[places])
        self.neighbours = Neighbours.of(network.class_features(found).cpu())

    def calibrate(self, images, labels, *, on_progress: Callable[[int], object] | None = None) -> None:
        """Fit γ² and the thresholds of `answer` on images that the model was not trained on.

        `on_progress` is called with the number of images done, each of which is looked at `looks` times.
        """
        batch = as_batch(images, self.shape)
        y = self.label_tensor(labels, len(batch))
        if len(batch) == 0:
            raise InputError("calibration needs at least one image, got none")
        network = replace(self.tempered(), reference=None)
        self.reference = fit_reference(network, gather(network, batch, on_progress=on_progress), y)

    @property
    def looks(self) -> int:
        """Number of times that `calibrate` looks at each image."""
        return passes(replace(self.tempered(), reference=None))

    def looks_for(self, score: str | None = None) -> int:
        """Number of times that `answer` looks at each image by this score, by default by the model's own."""
        return passes(self.tempered(), [self._resolved(self.abstain.score if score is None else score)])

    @property
    def abstains_by(self) -> str:
        """Score by which `answer` accepts images by default: `abstain.score`, with "auto" resolved.

        A noise-conditional model abstains by combined p-values, as log p(x; σ) at a single σ judges poorly.
        Of other models, chains of Langevin dynamics sample from exp(−E), so training shapes all of E into a
        density. Chains that walk to a class mean do not. There log p(x) is taken inside the span of the means
        where the rest, which carries no class, makes up more than half of the energy of validation images.
        """
        return self._resolved(self.abstain.score)

    @property
    def walks_to_means(self) -> bool:
        """Whether chains move to class means: log p(x) is then no density outside their span."""
        return bool(self.drawing and SAMPLERS[self.drawing.sampler.name].to_means)

    def _resolved(self, score: str) -> str:
        if score != "auto":
            return score
        if self.denoising is not None and COMBINED in self._checked_reference().scores:
            return COMBINED
        in_span = self.walks_to_means and self._checked_reference().mostly_outside_span
        return "span_density" if in_span else "log_density"

    def answer(
        self,
        images,
        *,
        score: str | None = None,
        tpr: float | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> Answer:
        """Class and confidence at the fitted γ², and whether the image looks like those of the training.

        An image is accepted when its score is at least that which the share `tpr` of the validation images
        reach; score and tpr are those of `abstain` unless given. `gmmc.read_images` reads files
        and PIL images: `model.answer(gmmc.read_images(["photo.jpg"], model)).names`. `on_progress` is called
        with the number of images done, each of which is looked at `looks_for(score)` times.
        """
        reference = self._checked_reference()
        score = self._resolved(self.abstain.score if score is None else score)
        tpr = self.abstain.tpr if tpr is None else tpr
        threshold = reference.threshold(score, tpr)
        batch = as_batch(images, self.shape)
        network = self.tempered()
        evidence = gather(network, batch, [score], on_progress)
        logits = logits_at(network, feature_energies(network, evidence.features), reference.gamma2)
        confidence, labels = core.log_posterior(logits).exp().max(-1)
        values = scores_of(network, evidence, reference.gamma2, [score])[score]
        check_finite(torch.stack([confidence, values], 1))
        percentile = reference.percentile(score, values)
        names = [self.class_names[y] for y in labels]
        return Answer(labels, names, confidence, score, values, threshold, percentile, values >= threshold)

    def at(self, gamma2: float | str) -> FixedTemperature:
        """Return the same weights with logits at another γ², as a module for other tools.

        `gamma2`: a number above 0; "fitted", the one fitted on validation images; "trained", that of training
        (`density_gamma2`), where the logsumexp of the logits is log p(x); "unit", γ = 1, the same but for
        noise-conditional models; "paper", the estimate of the paper's formula, which needs class means and no
        noise levels.
        """
        if isinstance(gamma2, str):
            gamma2 = self._named_gamma2(gamma2)
        return FixedTemperature(self, checked_gamma2(gamma2))

    def at_noise(self, sigma: float) -> NoiseLevel:
        """Return a noise-conditional model at the noise level σ, a standard deviation in units of [−1, 1].

        Its logits are −E(x, y; σ): `predict_proba` is p(y|x; σ), `log_density` log p(x; σ) up to a constant.
        Images may have that noise, or none.
        """
        return NoiseLevel(self, sigma)

    def _named_gamma2(self, name: str) -> float:
        if name == "fitted":
            return self._checked_reference().gamma2
        if name == "paper" and self.head.means is None:
            raise InputError("gamma2 of a softmax head cannot be 'paper': the formula needs class means")
        if name == "paper" and self.denoising is not None:
            raise InputError(
                "gamma2 of a model trained by denoising cannot be 'paper', as training sets γ²; use 'trained'"
            )
        named = {"paper": self.head.gamma2.item(), "unit": 1.0, "trained": self.density_gamma2}
        if name not in named:
            rule = "gamma2 must be a number, 'fitted', 'trained', 'unit' or 'paper'"
            raise InputError(f"{rule}, got {shortened(name)}")
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
        return self.drawing is not None

    def check_can_sample(self) -> None:
        """Refuse a model that was trained without samples."""
        if not self.can_sample:
            raise InputError(f"cannot draw: {self._no_drawing}")

    def drawer(self) -> Drawer:
        """Return an object that draws many images; prepared once, it serves any number of calls.

        It draws by the weights that the model has at each call. Make another one for a model that was moved
        to another device or whose `drawing` was changed.
        """
        self.check_can_sample()
        assert self.drawing is not None
        return Drawer(
            self.backbone,
            self.head,
            self.start,
            self.drawing,
            self.shape,
            len(self.class_names),
            device=self.device,
            sigma_data=self.denoising.sigma_data if self.denoising else None,
            gaussian=self.gaussian,
        )

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

        Without labels, y′ is drawn from the priors, see `Drawer.labels`. `on_progress` is called after every
        step with the number of images done, a fraction within a block of chains.
        """
        return self.drawer().sample(n, labels, seed, steps=steps, on_progress=on_progress)

    def label_tensor(self, labels, count: int) -> Tensor:
        """`count` class indices as a checked tensor."""
        return label_tensor(labels, count, len(self.class_names))


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
