"""Gradients of a loss, captured where that is faster, and the optimiser."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gmmc.classifier.model import Classifier
from gmmc.config.schema import Config
from gmmc.networks.backbones import has_live_statistics
from gmmc.sampling.engine import Captured, Engine
from gmmc.train.process import Process
from gmmc.train.schedule import Moment

FUSED_ON = {"cuda"}  # one kernel for all parameters


Network = Callable[[Tensor], Tensor]
Loss = Callable[..., tuple[Tensor, Any]]  # (network, tensors or None …) → loss, and what to return of it


class Updater:
    """Moves the weights by one batch. Nothing here waits for the device.

    With several processes the gradients are averaged over all of them before the optimiser sees them: they
    make one update on the union of their batches.
    """

    def __init__(self, model: Classifier, cfg: Config, process: Process, engine: Engine):
        self.model, self.cfg, self.process, self.engine = model, cfg, process, engine
        self.parameters = list(model.parameters())
        kind = torch.optim.AdamW if cfg.train.decoupled_decay else torch.optim.Adam
        self.optimizer = kind(self.parameters, fused=model.device.type in FUSED_ON)
        self._captured: tuple[Hashable, Captured] | None = None  # of the present kind of batch

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

    def prepare(self, now: Moment) -> None:
        """Set the learning rate and weight decay of this moment."""
        for group in self.optimizer.param_groups:
            group["lr"] = now.lr
            group["weight_decay"] = now.phase.weight_decay

    def __call__(
        self,
        loss: Loss,
        *inputs: Tensor | None,
        network: Network | None = None,
        kind: Hashable = None,
        accept: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> tuple[Any, Tensor]:
        """Make one update; return (record that the loss returns, norm of the gradient before the clip).

        `network`: what the loss is given in place of the backbone; other weights stay as they are.
        `kind`: changes whenever the loss computes something else from inputs of the same shapes.
        `accept`: given both, returns whether to move the weights at all, as a tensor; None: always.
        """
        if self.engine.graph and network is None:
            record = self._replayed(loss, inputs, kind)
        else:
            self._captured = None  # a graph writes into the gradients that it was captured with
            record = self._backward(loss, network or self.model.backbone, *inputs)
        self._share_gradients()
        norm = get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if self.cfg.train.clip:
            clip_grads_with_norm_(self.parameters, self.cfg.train.clip, norm)
        if accept is None:
            self.optimizer.step()
        else:
            self._step_if(accept(record, norm))
        return record, norm

    def _step_if(self, accepted: Tensor) -> None:
        """Let the optimiser step or leave all of its state as it is."""
        if self.model.device.type not in FUSED_ON:
            if accepted:
                self.optimizer.step()
            return
        # How a GradScaler skips a step; the fused optimiser reads it on the device.
        optimizer: Any = self.optimizer
        optimizer.grad_scale, optimizer.found_inf = None, (~accepted).float()
        self.optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf

    def _backward(self, loss: Loss, network: Network, *inputs: Tensor | None) -> Any:
        """Compute gradients of the loss, in the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        with self.process.fabric.autocast():
            total, record = loss(network, *inputs)
        total.backward()
        return record

    def _replayed(self, loss: Loss, inputs: tuple[Tensor | None, ...], kind: Hashable) -> Any:
        """Compute the same from a CUDA graph, which another kind of batch replaces."""
        shapes = tuple(None if tensor is None else tensor.shape for tensor in inputs)
        kind = (loss, shapes, has_live_statistics(self.model), kind)
        if self._captured is None or self._captured[0] != kind:
            network = self.model.backbone
            ways = [("plain", functools.partial(self._backward, loss, network))]
            if self.engine.compile:
                compiled = torch.compile(network, dynamic=False)
                ways.insert(0, ("compiled", functools.partial(self._backward, loss, compiled)))
            images = sum(shape[0] for shape in shapes if shape and len(shape) == 4)
            self._captured = kind, Captured(ways, self.model.device, what=f"the update on {images} images")
        return self._captured[1](*inputs)

    @property
    def how(self) -> str:
        """Backend in use for the last kind of update."""
        return self._captured[1].how if self._captured else "plain"

    def _share_gradients(self) -> None:
        """The mean over all processes."""
        if self.process.count == 1:
            return
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        mean = self.process.mean(flat)
        for gradient, part in zip(gradients, mean.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def laid_out_like(parameter: Tensor, slot: Tensor) -> Tensor:
    """A copy in the parameter's order in memory, which a fused optimiser takes for granted."""
    if slot.shape != parameter.shape:
        return slot.clone()
    return torch.empty_like(parameter, dtype=slot.dtype).copy_(slot)
