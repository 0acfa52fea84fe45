"""The interface of a way to train: one method, `step`, and defaults for the rest."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.config.sections import AugmentConfig
from gmmc.data.splits import Dataset
from gmmc.errors import InputError
from gmmc.train.memory import Room
from gmmc.train.process import Process
from gmmc.train.schedule import Moment, Plan
from gmmc.train.state import TrainingState
from gmmc.train.updater import Network, Updater

SLOWER = 0.5  # factor on a learning rate, α or β at each rollback


@dataclass(frozen=True)
class Batch:
    """This process's rows of a batch of real images."""

    images: Tensor  # x in [−1, 1], augmented as in the phase; features where the trunk is frozen
    labels: Tensor  # y
    # The same images augmented in another way, by the randomness of this name; not where the trunk is frozen.
    augmented: Callable[[AugmentConfig, str], Tensor]
    network: Network | None = None  # in place of the backbone, where only the last layer is trained


@dataclass(frozen=True)
class Outcome:
    """Record of an update for metrics and guard, without gradients."""

    values: Mapping[str, Tensor]  # of some of the algorithm's measures: one number per image, or one
    accepted: Tensor | None = None  # whether the weights were updated; None: they were


@dataclass(frozen=True)
class Setup:
    """Parts that an algorithm works with."""

    cfg: Config
    model: Classifier
    updater: Updater
    process: Process
    plan: Plan
    room: Room
    batch_size: int  # of all processes


@dataclass(frozen=True)
class Remedy:
    """Changes that a rollback made."""

    pace: Mapping[str, float]  # factors on the learning rate, α and β from here on
    done: Mapping[str, Any] = field(default_factory=dict)  # more, for metrics.jsonl


def check_unused(cfg: Config, keys: Iterable[str]) -> None:
    """Refuse sections, or "section.key", that the recipe sets and its algorithm does not use."""
    unused = []
    for key in keys:
        section, _, name = key.partition(".")
        values = getattr(cfg, section)
        default = type(values)()
        if getattr(values, name) != getattr(default, name) if name else values != default:
            unused.append(key if name else f"[{section}]")
    if unused:
        raise InputError(
            f"train.algorithm={cfg.train.algorithm} does not use {', '.join(unused)}; leave it out"
        )


class Algorithm(ABC):
    """A way to train a classifier. Every process has its own; none waits for the device in `step`."""

    measures: tuple[str, ...] = (
        "grad_norm",
    )  # names in `Outcome.values`, each averaged over a line of metrics

    def __init__(self, setup: Setup):
        self.setup, self.cfg, self.model = setup, setup.cfg, setup.model
        self.updater, self.process = setup.updater, setup.process

    @abstractmethod
    def step(self, batch: Batch, now: Moment) -> Outcome:
        """Make one update."""

    # --- checks before anything is written ---

    @classmethod
    def check_recipe(cls, cfg: Config) -> None:
        """Refuse settings that are each allowed and make no sense together."""
        return

    @classmethod
    def check_data(cls, cfg: Config, data: Dataset, processes: int) -> None:
        """Refuse a recipe that these data or so many processes do not allow."""
        return

    # --- state ---

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors of rows that are this process's own; all processes together make the whole."""
        return {}

    def info(self) -> dict[str, Any]:
        """The rest of the state, as JSON, the same in all processes."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Take over `state_dict()` and `info()`, in place."""
        return

    # --- metrics ---

    def census(self) -> Tensor:
        """Numbers on the state at the end of a line, to be summed over processes."""
        return torch.zeros(0, dtype=torch.float64, device=self.process.device)

    def summary(self, means: dict[str, float], census: list[float], now: Moment) -> dict[str, float]:
        """A line of metrics from the means of the measures and from the census, both of all processes."""
        return means

    def images(self) -> Tensor | None:
        """Images drawn while training, in [−1, 1], for `train.fid_every`; None where there are none."""
        return None

    @property
    def cost(self) -> float:
        """Cost of a generative update, in updates on real images alone: for the time left."""
        return 1.0

    @property
    def how(self) -> str:
        """Backend in use, for people."""
        return f"update {self.updater.how}, {self.process.precision}"

    # --- guard ---

    def trouble(self, line: Mapping[str, Any]) -> str | None:
        """Return why these metrics, all finite, mean divergence; None while all is well."""
        return None

    def recovery(self, now: Moment, failed: int) -> Callable[[TrainingState], Remedy]:
        """Look at the diverged training; return what to do once its last good state is restored.

        `failed`: so many rollbacks before this one did not lead past the trouble.
        """
        return lambda state: Remedy({**state.pace, "lr": state.pace["lr"] * SLOWER})

    def describe(self, done: Mapping[str, Any]) -> list[str]:
        """Words for `Remedy.done`."""
        return []

    def advice(self, now: Moment) -> str:
        """Settings to try after a divergence."""
        return "a smaller learning rate, a warm-up or train.clip"

    # --- beginning and end ---

    def remarks(self) -> Iterator[str]:
        """Lines for people before the first update."""
        yield from ()

    def finish(self, model: Classifier, pace: Mapping[str, float]) -> None:
        """Set what the finished model keeps of the training."""
        return
