"""From a batch to new weights: loss, gradients, optimiser. The middle of Algorithm 1."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gmmc.backbones import has_live_statistics
from gmmc.config import Config, PhaseConfig
from gmmc.engine import Captured, Engine
from gmmc.models import Classifier
from gmmc.objectives import Loss, Outcome, Pair
from gmmc.schedule import Moment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Updated(NamedTuple):
    outcome: Outcome
    grad_norm: Tensor  # before the clip


class Updater:
    """Moves the weights by one batch. Nothing here waits for the device.

    With several processes the gradients are averaged over all of them before the optimiser sees them: they
    make one update on the union of their batches.
    """

    def __init__(self, model: Classifier, cfg: Config, fabric: "Fabric", engine: Engine):
        self.model, self.cfg, self.fabric, self.engine = model, cfg, fabric, engine
        self.loss = Loss(model, cfg)
        self.parameters = list(model.parameters())
        self._beta = torch.zeros((), device=model.device)  # where a graph reads it
        self._captured: tuple[tuple, Captured] | None = None  # of the present kind of batch

    def begin(self, phase: PhaseConfig) -> None:
        """A new optimiser, without a memory."""
        nesterov = {"momentum": phase.momentum, "nesterov": True} if phase.optimizer == "sgd" else {}
        fused = self.model.device.type == "cuda"
        self.optimizer = OPTIMIZERS[phase.optimizer](self.parameters, lr=phase.lr, fused=fused, **nesterov)

    def prepare(self, now: Moment, *, pace: float, limit: float) -> None:
        """The optimiser as this moment wants it; moments of another kind of optimiser mean nothing to it."""
        if not isinstance(self.optimizer, OPTIMIZERS[now.phase.optimizer]):
            self.begin(now.phase)
        for group in self.optimizer.param_groups:
            group["lr"] = now.lr * pace
            group["weight_decay"] = now.phase.weight_decay
            if "momentum" in group:
                group["momentum"] = now.phase.momentum
        self.loss.limit = limit

    def __call__(self, real: Pair, contrast: Tensor | None, sampled: Pair | None, beta: float) -> Updated:
        backward = self._replayed if self.engine.graph else self._backward
        outcome = backward(real, contrast, sampled, beta)
        self._share_gradients()
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.cfg.train.clip:
            clip_grads_with_norm_(self.parameters, self.cfg.train.clip, norm)
        self.optimizer.step()
        return Updated(outcome, norm)

    def _backward(
        self,
        real: Pair,
        contrast: Tensor | None,
        sampled: Pair | None,
        beta: float | Tensor,
        network: Callable[[Tensor], Tensor] | None = None,
    ) -> Outcome:
        """Gradients of the loss, in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        with self.fabric.autocast():
            loss, outcome = self.loss(real, contrast, sampled, beta, network)
        loss.backward()
        return outcome

    def _replayed(self, real: Pair, contrast: Tensor | None, sampled: Pair | None, beta: float) -> Outcome:
        """The same from a CUDA graph; another one for another kind of batch."""
        parts = [*real, *([] if contrast is None else [contrast]), *([] if sampled is None else sampled)]
        contrasted = contrast is not None
        kind = (
            len(real[1]),
            contrasted,
            sampled is not None,
            self.loss.limit,
            has_live_statistics(self.model),
        )
        if self._captured is None or self._captured[0] != kind:
            backward = functools.partial(self._backward_of, contrasted)
            compiled = None
            if self.engine.compile:
                network = torch.compile(self.model.backbone, dynamic=False)
                compiled = functools.partial(self._backward_of, contrasted, network=network)
            self._captured = kind, Captured(backward, self.model.device, compiled=compiled, what="the update")
        self._beta.fill_(beta)
        return self._captured[1](*parts)

    def _backward_of(
        self, contrasted: bool, *parts: Tensor, network: Callable[[Tensor], Tensor] | None = None
    ) -> Outcome:
        x, y, *rest = parts
        contrast = rest.pop(0) if contrasted else None
        sampled = (rest[0], rest[1]) if rest else None
        return self._backward((x, y), contrast, sampled, self._beta, network)

    def _share_gradients(self) -> None:
        """The mean over all processes."""
        if self.fabric.world_size == 1:
            return
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        mean = self.fabric.all_reduce(flat, reduce_op="mean")
        assert isinstance(mean, Tensor)
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
