"""From a batch to new weights: loss, gradients, optimiser. The middle of Algorithm 1."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.networks.backbones import has_live_statistics
from gmmc.sampling.engine import Captured, Engine
from gmmc.train.objectives import Loss, Outcome, Pair
from gmmc.train.schedule import Moment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FUSED_ON = {"cuda"}  # one kernel for all parameters


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
        self.optimizer = torch.optim.Adam(self.parameters, fused=model.device.type in FUSED_ON)
        self._beta = torch.zeros((), device=model.device)  # where a graph reads it
        self._captured: tuple[tuple, Captured] | None = None  # of the present kind of batch

    def restore(self, slots: dict[str, Tensor]) -> None:
        """Give the optimiser these slots, as `slots` returned them, in place of its own."""
        state = self.optimizer.state_dict() | {"state": {}}
        for key, slot in slots.items():
            index, name = key.split(".")
            place = state["state"].setdefault(int(index), {})
            place[name] = laid_out_like(self.parameters[int(index)], slot)
        self.optimizer.load_state_dict(state)

    def slots(self) -> dict[str, Tensor]:
        """What the optimiser keeps of each parameter, by the parameter's number and the slot's name."""
        state = self.optimizer.state_dict()["state"]
        return {
            f"{index}.{name}": slot
            for index, slots in state.items()
            for name, slot in slots.items()
            if slot is not None
        }

    def prepare(self, now: Moment, *, pace: float, limit: float) -> None:
        """Set learning rate, weight decay and the largest sampled energy of this moment."""
        for group in self.optimizer.param_groups:
            group["lr"] = now.lr * pace
            group["weight_decay"] = now.phase.weight_decay
        self.loss.limit = limit

    def __call__(
        self,
        real: Pair,
        contrast: Tensor | None,
        sampled: Pair | None,
        beta: float,
        network: Callable[[Tensor], Tensor] | None = None,
    ) -> Updated:
        """`network`: what the pairs go through in place of the backbone; other weights stay as they are."""
        if self.engine.graph and network is None:
            outcome = self._replayed(real, contrast, sampled, beta)
        else:
            outcome = self._backward(real, contrast, sampled, beta, network)
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
        live = has_live_statistics(self.model)
        kind = (len(real[1]), contrast is None, sampled is None, self.loss.limit, live)
        if self._captured is None or self._captured[0] != kind:
            network = self.model.backbone
            ways = [("plain", functools.partial(self._flat_backward, network))]
            if self.engine.compile:
                compiled = torch.compile(network, dynamic=False)
                ways.insert(0, ("compiled", functools.partial(self._flat_backward, compiled)))
            what = "the update" if sampled is None else "the generative update"
            self._captured = kind, Captured(ways, self.model.device, what=what)
        self._beta.fill_(beta)
        return self._captured[1](*real, contrast, *(sampled or (None, None)))

    def _flat_backward(
        self,
        network: Callable[[Tensor], Tensor],
        x: Tensor,
        y: Tensor,
        contrast: Tensor | None,
        sampled_x: Tensor | None,
        sampled_y: Tensor | None,
    ) -> Outcome:
        sampled = None if sampled_x is None or sampled_y is None else (sampled_x, sampled_y)
        return self._backward((x, y), contrast, sampled, self._beta, network)

    @property
    def how(self) -> str:
        """How the last kind of update is computed."""
        return self._captured[1].how if self._captured else "plain"

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


def laid_out_like(parameter: Tensor, slot: Tensor) -> Tensor:
    """A copy in the parameter's order in memory, which a fused optimiser takes for granted."""
    if slot.shape != parameter.shape:
        return slot.clone()
    return torch.empty_like(parameter, dtype=slot.dtype).copy_(slot)
