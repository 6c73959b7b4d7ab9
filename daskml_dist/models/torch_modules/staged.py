"""A sequential torch module cut into stages of a pipeline (`StagedModel`).

A stage holds the parameters of some adjacent layers. It keeps autograd's graph of a micro-batch's
forward pass until the next stage returns the gradient of its output; nothing is computed twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import is_host, namespace
from daskml_dist.errors import DivergedError
from daskml_dist.models.base import BatchRows, Parameters, StagedModel
from daskml_dist.models.torch_modules.flat import FlatModule, torch_dtype
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.module import (
    TorchModel,
    autocast,
    compute_row_losses,
    to_tensor,
)
from daskml_dist.models.torch_modules.source import Drawing, Seed, explain_errors, keep_children


@dataclass(frozen=True, eq=False)
class TorchChain(TorchModel, StagedModel):
    """A torch module whose children are called one after the other.

    Parameters
    ----------
    chain : tuple of tuple of str
        Paths of the children of each layer, as :func:`split_chain` returns them.
    """

    chain: tuple[tuple[str, ...], ...] = ()

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], ...]:  # type: ignore[override]
        """Names of the parts of each layer."""
        names = [part.name for part in self.parameters.parts]
        return tuple(
            tuple(n for n in names if any(n.startswith(f"{path}.") for path in paths))
            for paths in self.chain
        )

    def forward(
        self, w: Any, x: Any, layers: range, rows: BatchRows, backend: Backend
    ) -> tuple[Any, Any]:
        """Return the output of some layers, and the data that :meth:`backward` needs for it."""
        return self._stage(layers, w).forward(w, x, rows)

    def backward(
        self,
        w: Any,
        memory: Any,
        gradient: Any,
        out: Any,
        layers: range,
        rows: BatchRows,
        backend: Backend,
        *,
        wants_input: bool,
    ) -> Any:
        """Add the gradient of some layers to `out`, and return the gradient of their input.

        None for the first layers, whose input has no gradient.
        """
        return self._stage(layers, w).backward(memory, gradient, out)

    def loss_gradient(self, output: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any]:
        """Return the sum of the weighted losses, and its gradient with respect to the output."""
        torch = load_torch()
        # A new leaf: the last stage's graph is separate, and `backward` starts from this gradient.
        leaf = to_tensor(output).detach().requires_grad_()
        device = None if is_host(output) else leaf.device
        criterion = self._criterion(leaf)
        with torch.enable_grad(), autocast(self.precision, device)():
            losses = compute_row_losses(criterion, leaf, to_tensor(rows.y), self.source.name)
        losses = losses.to(leaf.dtype)
        if rows.weight is not None:
            losses = losses * to_tensor(rows.weight)
        loss = losses.sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        total_loss = loss.item()
        # The key of a batch: seed, lane, step, position.
        if not math.isfinite(total_loss):
            lane, clock = (*rows.key, 0, 0)[1:3]
            raise DivergedError(
                f"The loss became {total_loss} in step {clock + 1} of lane {lane}, on a "
                f"micro-batch of {len(losses)} rows. Lower learning_rate, set clip=1.0, or scale "
                "the inputs.",
                clock=clock,
            )
        return total_loss, _to_library_of(gradient, output)

    def _criterion(self, leaf: Any) -> Any:
        """Return the criterion, made once per dtype, on the device of `leaf`."""
        key = "criterion", leaf.dtype
        if key not in self._made:
            criterion = self.source.make_criterion(leaf.dtype)
            self._made[key] = criterion.to(leaf.device) if hasattr(criterion, "to") else criterion
        return self._made[key]

    def _stage(self, layers: range, w: Any) -> _Stage:
        """Return the module of some layers, made at its first batch."""
        stage = self._made.get(layers)
        if stage is None or stage.flat.dtype != w.dtype:
            stage = self._made[layers] = _Stage(self, layers, w)
        return stage


class _Stage(FlatModule):
    """Some adjacent layers, with their parameters and gradients. Used by one thread."""

    def __init__(self, model: TorchChain, layers: range, w: Any) -> None:
        # The whole module is made once, and layers of other stages are dropped.
        module = model.source.make_seeded(0, torch_dtype(str(w.dtype)))
        paths = {path for layer in layers for path in model.chain[layer]}
        names = {name for layer in layers for name in model.layers[layer]}
        children = keep_children(module, paths)
        stage_parameters = Parameters(
            tuple(part for part in model.parameters.parts if part.name in names)
        )
        super().__init__(
            module.train(), stage_parameters, w, trained=True, pixelwise=model.pixelwise
        )
        self._model = model
        self._begins = layers.start == 0
        self._layers = [(n, [children[path] for path in model.chain[n]]) for n in layers]
        self._drawing = Drawing(self.device)
        self._cast = autocast(model.precision, self.device)

    def forward(self, w: Any, x: Any, rows: BatchRows) -> tuple[Any, Any]:
        """Return the output, and (input, output with its graph, gradients of the buffers)."""
        leaf = None
        if self._begins:
            ((value,), _) = self._model.inputs(x, self.dtype, self.device)
        else:
            # The input is a leaf, so that its gradient, which the previous stage needs, is kept.
            leaf = self._normalize(to_tensor(x)).detach().requires_grad_()
            # Autograd refuses in-place layers on a leaf: they get a copy.
            value = leaf.clone()
        self.enter(w)
        with load_torch().enable_grad(), explain_errors(f"{self._model.source.name}.forward"):
            # If the pass turns out to draw random numbers it is repeated, from the same buffers.
            output = self._drawing.call(
                partial(self._apply_layers, value, rows.key), lambda: self.enter(w)
            )
        self.collect()
        # Buffers (running means) as gradients, see `Part.buffer`. Taken now: the next micro-batch's
        # forward pass changes them again.
        mean_gradients = self.mean_gradients(x.shape[0])
        return _to_library_of(output.detach(), w), (leaf, output, mean_gradients)

    def _apply_layers(self, value: Any, key: tuple[int, ...], seed: Seed) -> Any:
        for number, children in self._layers:
            # Seeded by layer, so that draws do not depend on where the chain is split.
            seed((*key, number))
            with self._cast():
                for child in children:
                    value = child(value)
            value = self._normalize(value)
        return value

    def _normalize(self, value: Any) -> Any:
        """Return a layer's output in the dtype and memory format of the next layer's input.

        The same between layers of one stage and of two, so that the bits do not depend on the cut.
        """
        memory_format = load_torch().contiguous_format
        if self._model.pixelwise and self.device is None and value.ndim == 4:
            memory_format = load_torch().channels_last
        return value.to(self.dtype).contiguous(memory_format=memory_format)

    def backward(self, memory: Any, gradient: Any, out: Any) -> Any:
        """Add the gradient of the parameters to `out`; return that of the input, or None."""
        leaf, output, mean_gradients = memory
        self.zero_gradients()
        # False if none of the stage's layers has trained parameters.
        if output.requires_grad:
            output.backward(to_tensor(gradient))
            self.gather()
        self.write_mean_gradients(mean_gradients)
        out += namespace(out).reshape(self.gradient, out.shape)
        if leaf is None:
            return None
        # No gradient reaches the input if a layer detaches it.
        return _to_library_of(
            load_torch().zeros_like(leaf) if leaf.grad is None else leaf.grad, out
        )


def _to_library_of(tensor: Any, like: Any) -> Any:
    """Return a tensor as an array of the library of `like`, sharing memory if contiguous."""
    tensor = tensor.contiguous()
    return tensor.numpy() if is_host(like) else namespace(like).from_dlpack(tensor)
