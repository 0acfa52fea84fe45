"""Fresh images: chains of one seed each, in blocks of a fixed size."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from gmmc import core
from gmmc.classifier.checks import check_sampler
from gmmc.classifier.labels import label_tensor
from gmmc.classifier.scores import check_finite
from gmmc.config.sections import SampleConfig, SamplerConfig, TrainConfig
from gmmc.errors import InputError
from gmmc.networks.gaussian_term import GaussianTerm
from gmmc.networks.heads import Head
from gmmc.pixels import Shape, to_unit
from gmmc.sampling import engine
from gmmc.sampling.initial import InitialImages
from gmmc.sampling.samplers import BOX, NOISE_SETTINGS, SAMPLERS, Chains, OnStep, SeededNoise, ignore

# Chains run in padded blocks of a fixed size, so that an image is the same to the last bit whether it is
# drawn alone or among a thousand; a GPU wants larger blocks than a CPU.
BLOCK = {"cpu": 32, "cuda": 256}

OnProgress = Callable[[float], object]  # of the number of images done
OnBlock = Callable[[int, int], OnStep]  # of the place of its first chain, and their number


@dataclass(frozen=True)
class DrawingSettings:
    """How a model draws images; `engine` and `precision` as in [train] of a recipe."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    steps: int = SampleConfig.steps
    engine: str = "auto"
    precision: str = "auto"

    def __post_init__(self):
        SampleConfig(steps=self.steps)
        TrainConfig(engine=self.engine, precision=self.precision)  # pyright: ignore[reportArgumentType]


def with_guidance(settings: DrawingSettings | None, guidance: float) -> DrawingSettings:
    """Return settings with this guidance; refuse those of a model without noise levels."""
    if settings is None or not SAMPLERS[settings.sampler.name].noise_conditional:
        raise InputError(
            "guidance needs a model trained by denoising (train.algorithm=denoising) that draws, got another"
        )
    return replace(settings, sampler=replace(settings.sampler, guidance=guidance))


class Drawer:
    """Draws images of a model, prepared once for any number of calls.

    Parameters
    ----------
    backbone, head, initial : torch.nn.Module
        Network φ, head and initial images of chains, on `device`. Their weights may change between calls, in
        place.
    settings : DrawingSettings
        Sampler, default number of steps, engine and precision.
    shape : (channels, height, width)
        Shape of an image.
    classes : int
        Number of classes.
    device : torch.device
        Device of the modules.
    sigma_data : float, default=None
        σ_d of a noise-conditional model.
    gaussian : GaussianTerm, default=None
        Gaussian term of its energy, where that was fitted.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        initial: InitialImages,
        settings: DrawingSettings,
        shape: Shape,
        classes: int,
        *,
        device: torch.device,
        sigma_data: float | None = None,
        gaussian: GaussianTerm | None = None,
    ):
        noise_conditional = sigma_data is not None
        check_sampler(settings.sampler.name, has_means=head.has_means, noise_conditional=noise_conditional)
        self.backbone, self.head, self.initial, self.settings = backbone, head, initial, settings
        self.shape, self.classes, self.device, self.sigma_data = shape, classes, device, sigma_data
        self.gaussian = gaussian
        self._engine = engine.choose_for_samples(settings.engine, device)
        self._gradient: engine.PlainGradient | engine.FastGradient | None = None  # built when first needed

    @property
    def precision(self) -> str:
        """Precision of the chains, with "auto" resolved on this device; the plain sampler is always fp32."""
        if not self._engine.copy:
            return "fp32"
        return engine.resolve_precision(self.settings.precision, self.device)

    def sampler_settings(self) -> dict[str, Any]:
        """Settings that decide what the sampler does, by their names in [sampler]."""
        values = asdict(self.settings.sampler)
        if self.sigma_data is None:
            return {name: value for name, value in values.items() if name not in NOISE_SETTINGS}
        read = {name: values[name] for name in ("name", *NOISE_SETTINGS)}
        return {**read, "sigma_data": self.sigma_data}

    def labels(self, n: int, seed: int = 0) -> Tensor:
        """Draw the classes of `sample(n, seed=seed)` from the priors."""
        quantiles = SeededNoise.quantiles_of(range(seed, seed + n))
        return core.labels_at(quantiles, self.head.priors.cpu())

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
        """Draw n images in [0, 1], see `Classifier.sample`."""
        n, seed = int(n), int(seed)
        if n < 0:
            raise InputError(f"the number of samples must be at least 0, got {n}")
        _check_seed(seed)
        y = self.labels(n, seed) if labels is None else label_tensor(labels, n, self.classes)
        images, done = [torch.empty(0, *self.shape, device=self.device)], 0
        for block in self.blocks(y, seed, steps=steps, on_progress=on_progress):
            images.append(block)
            done += len(block)
            if on_progress:
                on_progress(done)
        return torch.cat(images)

    def blocks(
        self,
        labels: Sequence[int] | Tensor,
        seed: int = 0,
        *,
        steps: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Iterator[Tensor]:
        """Yield the images of `sample(len(labels), labels, seed)`, block by block as they are finished.

        Impossible arguments are refused at the call, before the first block is asked for. `on_progress` is
        called within each block, after every step but the last, with the images done so far. A finished block
        is the caller's to report, once its images are kept.
        """
        y = label_tensor(labels, len(labels), self.classes)
        _check_seed(seed)
        steps = self.settings.steps if steps is None else steps
        if steps < 1:
            raise InputError(f"steps must be at least 1, got {steps}")
        return self._run(y, seed, steps, on_progress and _reporting(on_progress, steps))

    @torch.inference_mode(False)
    def film(
        self,
        labels: Sequence[int] | Tensor,
        seed: int = 0,
        *,
        frames: Sequence[int],
        steps: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> Tensor:
        """The chains of `sample(len(labels), labels, seed, steps=steps)` after some of the steps.

        `frames`: numbers of steps done; 0 shows the images that the sampler begins with. A noise-conditional
        sampler shows its estimates of the images at the noise level of the next step, and last the images.
        `steps`: length of the chains, by default the last frame.
        Returns (frames, n, channels, height, width).
        """
        if not frames or min(frames) < 0:
            raise InputError(f"frames must be numbers of steps, at least 0, got {list(frames)}")
        _check_seed(seed)
        y, steps = label_tensor(labels, len(labels), self.classes), steps or max(1, *frames)
        if steps < max(frames):
            raise InputError(f"frames must be at most steps={steps}, got {list(frames)}")
        reporting = on_progress and _reporting(on_progress, steps)
        parts = [torch.empty(len(frames), 0, *self.shape, device=self.device)]
        seen: dict[int, Tensor] = {}  # of the present block

        def on_block(first: int, count: int) -> OnStep:
            report = reporting and reporting(first, count)

            def keep(step: int, x: Tensor) -> None:
                if step in frames:
                    seen[step] = to_unit(x[:count].clamp(*BOX))
                if report:
                    report(step, x)

            return keep

        for _ in self._run(y, seed, steps, on_block):
            parts.append(torch.stack([seen[step] for step in frames]))
        return torch.cat(parts, 1)

    def initial_images(self, labels: Sequence[int] | Tensor, seed: int = 0) -> Tensor:
        """Images in [0, 1] that chains of `sample(len(labels), labels, seed)` start from, without noise."""
        parts = [torch.empty(0, *self.shape, device=self.device)]
        for _, count, y, noise in self._padded(label_tensor(labels, len(labels), self.classes), seed):
            parts.append(to_unit(self.initial(y, noise)[:count].clamp(*BOX)))
        return torch.cat(parts)

    # The sampler needs gradients, whatever mode the caller is in. On a generator these hold while it works,
    # and not between blocks.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def _run(self, labels: Tensor, seed: int, steps: int, on_block: OnBlock | None) -> Iterator[Tensor]:
        """Yield the images of each block of chains."""
        if not len(labels):
            return
        if self._gradient is None:
            self._gradient = engine.new_gradient(self.backbone, self._engine, self.precision)
        else:
            self._gradient.refresh()  # the weights may have changed since the last call
        cfg = self.settings.sampler
        for first, count, y, noise in self._padded(labels, seed):
            x = self.initial(y, noise)
            on_step = on_block and on_block(first, count)
            sampler = SAMPLERS[cfg.name]
            energy = self.head.guided_energy if sampler.noise_conditional else self.head.unit_energy
            chains = Chains.of(self.head, energy, y, noise, self.sigma_data, self.gaussian)
            x = sampler.move(self._gradient, x, chains, cfg, steps=steps, on_step=on_step or ignore)
            images = to_unit(x[:count].clamp(*BOX))
            check_finite(images)
            yield images

    def _padded(self, labels: Tensor, seed: int) -> Iterator[tuple[int, int, Tensor, SeededNoise]]:
        """(place of the first, number, labels, noise) of each block of chains, filled up to its size."""
        size = BLOCK.get(self.device.type, 32)
        for first in range(0, len(labels), size):
            part = labels[first : first + size]
            y = torch.cat([part, part[-1:].expand(size - len(part))]).to(self.device)
            yield first, len(part), y, SeededNoise(range(seed + first, seed + first + size), self.device)


def _reporting(on_progress: OnProgress, steps: int) -> OnBlock:
    """Report images done after each step of a block but the last.

    It reads no chain, so that nothing waits for a GPU.
    """

    def on_block(first: int, count: int) -> OnStep:
        def on_step(step: int, x: Tensor) -> None:
            if step < steps:
                on_progress(first + count * step / steps)

        return on_step

    return on_block


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed must be at least 0, got {seed}")
