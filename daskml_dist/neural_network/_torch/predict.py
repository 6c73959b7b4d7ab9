"""Predictions of a fitted module: a function of rows that builds it once in each process.

`TorchOutputs` is sent to workers as the recipe of a module and an array of parameters; each process
builds the module when it first predicts, and keeps the last few by a token.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import isclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import namespace
from daskml_dist.errors import DeviceUnavailableError, InvalidParameterError
from daskml_dist.models.embeddings import to_id_rows
from daskml_dist.models.torch_modules.flat import FlatModule, share_memory, torch_dtype
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.lookups import rows_at_hand
from daskml_dist.models.torch_modules.module import TorchModel, on_stream_of, to_tensor
from daskml_dist.models.torch_modules.source import class_name_of, explain_errors
from daskml_dist.models.torch_modules.tables import TorchTableModel, make_trial_tensors
from daskml_dist.ps.growing_shard import look_up_rows

#: Modules that this process has built, by the token of their outputs and the device; the last used
#: comes last.
_BUILT: OrderedDict[str, Any] = OrderedDict()
#: Modules that are kept: the present one, the last one, and layers of either.
_MAX_MODULES = 4
_BUILDING = threading.Lock()
#: Threads share a module, and a hook on it is called in all of them: one thread at a time hooks.
_HOOKING = threading.Lock()


def make_fitted_module(model: TorchModel, w: NDArray[Any]) -> Any:
    """Return a new module with fitted parameters, in evaluation mode."""
    # The seed does not matter: all parameters and buffers are replaced.
    module = model.source.make_seeded(0, torch_dtype(str(w.dtype)))
    flat = FlatModule(module, model.module_parameters, w, trained=False)
    flat.enter(w)
    return module.eval()


@dataclass(frozen=True, eq=False)
class TorchOutputs:
    """Function from rows to the outputs of a fitted module, or of one of its layers.

    Parameters
    ----------
    model : TorchModel
    w : ndarray of shape (n, 1)
    layer : str or None
        Layer whose output is returned, flattened; None: the module.
    postprocess : callable or None
        Function of the module's output, a tensor in host memory.
    stays_on_device : bool
        Whether outputs of rows on a GPU stay there, as columns of a table.
    takes_floats : bool
        Whether the rows of the fit were floats: then whole numbers are no tokens.
    token : str
        Key under which a process keeps the module.
    """

    # On a GPU: outputs need not show NaN; sparse rows become dense; bytes and tokens stay so.
    hides_not_finite: ClassVar[bool] = True
    makes_dense: ClassVar[bool] = True
    keeps_dtype: ClassVar[bool] = True

    model: TorchModel
    w: NDArray[Any]
    layer: str | None = None
    postprocess: Callable[[Any], Any] | None = None
    stays_on_device: bool = False
    takes_floats: bool = False
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return outputs of shape (n,), or (n, ...)."""
        module = self._module()
        with load_torch().inference_mode():
            return self._finish(self._compute(X, module))

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Any]:
        """Return the function of rows on a GPU, which torch reads where they lie."""
        return self._apply_on_device

    def _apply_on_device(self, X: Any) -> Any:
        """Return outputs of rows on a GPU: there as a table, or in host memory."""
        rows = X.toarray() if hasattr(X, "tocsr") else X
        rows = namespace(rows).ascontiguousarray(rows)  # torch has no negative strides
        try:
            device = to_tensor(rows[:1]).device
        except (AssertionError, BufferError, RuntimeError) as error:
            raise DeviceUnavailableError(
                f"PyTorch here cannot read the CuPy arrays of X: {error}. Install a PyTorch for "
                "CUDA, or read the rows as NumPy arrays."
            ) from error
        module = self._module(device)
        with on_stream_of(rows, device), load_torch().inference_mode():
            tensor = self._compute(rows, module)
            if not self.stays_on_device:
                return self._finish(tensor)
            table = tensor.to(self._kind).reshape(len(tensor), -1).contiguous()
            return share_memory(table, rows)

    def _compute(self, X: Any, module: Any) -> Any:
        """Return the outputs of a module for rows on its device, as a tensor there."""
        # Rows whose values happen to be whole come as integers, for instance from JSON.
        if self.takes_floats and X.dtype.kind in "iub":
            X = X.astype(self.w.dtype)
        positional, named = self.model.inputs(X, self._kind)
        with explain_errors(f"{self.model.source.name}.forward, on {X.shape[0]} rows,"):
            if self.layer is not None:
                return _compute_layer_output(module, self.layer, positional, named)
            # Of several outputs the first is the prediction, as in the loss.
            output = module(*positional, **named)
            return output[0] if isinstance(output, tuple) else output

    def _finish(self, tensor: Any) -> NDArray[Any]:
        """Return outputs as an array in host memory, after the function that ends them."""
        tensor = tensor.cpu()
        if self.layer is None and self.postprocess is not None:
            with explain_errors("The function of the outputs"):
                tensor = self.postprocess(tensor)
        outputs: NDArray[Any] = tensor.to(self._kind).numpy()
        is_column = outputs.shape[1:] == (1,) and self.layer is None
        return outputs.reshape(len(outputs)) if is_column else outputs

    @property
    def _kind(self) -> Any:
        """Return torch's dtype of the parameters."""
        return torch_dtype(str(self.w.dtype))

    def _module(self, device: Any = None) -> Any:
        """Return the module on a device of torch (None: the CPU), built if it is not there."""
        key = self.token if device is None else f"{self.token}-{device}"
        with _BUILDING:
            if key not in _BUILT:
                module = make_fitted_module(self.model, self.module_parameters())
                _BUILT[key] = module if device is None else module.to(device)
                while len(_BUILT) > _MAX_MODULES:
                    _BUILT.popitem(last=False)
            _BUILT.move_to_end(key)
            return _BUILT[key]

    def module_parameters(self) -> NDArray[Any]:
        """Return the parameters that the module holds."""
        return self.w

    def width(self, row_shape: tuple[int, ...], dtype: Any) -> int:
        """Return the number of columns of the result, as a row of zeros shows."""
        rows = np.zeros((1, *row_shape), dtype)
        return int(np.prod(self(rows).shape[1:], dtype=int))


@dataclass(frozen=True, eq=False)
class TableOutputs(TorchOutputs):
    """Function from hashed rows to the outputs of a module whose embeddings are in a table.

    Parameters
    ----------
    ids : ndarray of int64 of shape (n_ids,)
        Sorted, of the rows `w` of the table.
    """

    ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return outputs of shape (n,), or (n, ...)."""
        model = self._table_model
        rows = [to_id_rows(X, self.w.dtype)]
        # Layers are in the module already.
        index, placed = model.placing.place_ids(rows, np.empty(0, np.int64), False)
        embeddings = self._look_up(index)
        with rows_at_hand(model.gather_rows(embeddings, placed, trained=False)):
            return super().__call__(placed)

    def module_parameters(self) -> NDArray[Any]:
        """Return the parameters that the module holds: all but the embeddings."""
        model = self._table_model
        own_ids = model.own_ids
        order = np.argsort(own_ids)
        rows = np.empty((len(own_ids), self.w.shape[1]), self.w.dtype)
        rows[order] = self._look_up(own_ids[order])
        return model.complete_layers(rows)

    def width(self, row_shape: tuple[int, ...], dtype: Any) -> int:
        """Return the number of columns of the result, as made-up rows show."""
        model = self._table_model
        widths = dict(zip(model.part_names, model.widths, strict=True))
        with rows_at_hand(make_trial_tensors(widths, torch_dtype(str(self.w.dtype)))):
            outputs = super().__call__(model.placing.make_trial_rows(str(self.w.dtype)))
        return int(np.prod(outputs.shape[1:], dtype=int))

    def _look_up(self, wanted_ids: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows of sorted ids."""
        table = self._table_model.table
        assert table is not None
        return look_up_rows(wanted_ids, self.ids, self.w, table)

    @property
    def _table_model(self) -> TorchTableModel:
        """Return the model, as what it is."""
        assert isinstance(self.model, TorchTableModel)
        return self.model


def _compute_layer_output(
    module: Any, layer: str, positional_args: list[Any], keyword_args: dict[str, Any]
) -> Any:
    """Return the output of a layer, flattened, by a forward hook on it."""
    layers = dict(module.named_modules())
    if layer not in layers or not layer:
        layer_names = [name for name in layers if name]
        raise InvalidParameterError(
            f"layer={layer!r}: the module's layers are {layer_names}. Name one."
        )
    outputs: list[Any] = []
    with _HOOKING:
        hook = layers[layer].register_forward_hook(lambda _, __, output: outputs.append(output))
        try:
            module(*positional_args, **keyword_args)
        finally:
            hook.remove()
    if not outputs:
        raise InvalidParameterError(f"layer={layer!r} is not used by forward. Name another.")
    # A layer that is called several times, such as one with shared weights, gives the last output.
    last = outputs[-1][0] if isinstance(outputs[-1], tuple) else outputs[-1]
    return last.flatten(1)


def find_nonlinearity(criterion: Any) -> Callable[[Any], Any] | None:
    """Return the function from outputs to probabilities that suits a criterion; None: identity.

    A class derived from a known one, and a known function with some arguments fixed, take the same
    outputs.
    """
    while isinstance(criterion, partial):
        criterion = criterion.func
    if not isclass(criterion) and not hasattr(criterion, "__qualname__"):
        criterion = type(criterion)
    for cls in criterion.__mro__ if isclass(criterion) else (criterion,):
        if (nonlinearity := _NONLINEARITIES.get(class_name_of(cls))) is not None:
            return nonlinearity
    return None


@dataclass(frozen=True)
class MarginOutputs:
    """Function of outputs whose largest, or the sign of a single one, tells the class.

    Parameters
    ----------
    threshold : float
        Output above which a label is predicted.
    is_multilabel : bool
        Whether each of several outputs is a label of its own.
    """

    threshold: float
    is_multilabel: bool

    def __call__(self, output: Any) -> Any:
        """Return outputs of classes unchanged, others relative to the threshold."""
        if output.ndim == 2 and output.shape[1] > 1 and not self.is_multilabel:
            return output
        return output - self.threshold


def _softmax(output: Any) -> Any:
    return output.softmax(dim=1)


def softmax_or_sigmoid(output: Any) -> Any:
    """Return probabilities of logits: one a class, or one for the second of two classes."""
    return _softmax(output) if output.ndim == 2 and output.shape[1] > 1 else sigmoid(output)


def sigmoid(output: Any) -> Any:
    """Return probabilities of logits, each independent of the others."""
    return output.sigmoid()


def _exp(output: Any) -> Any:
    return output.exp()


#: Functions from outputs to probabilities, by the names of criteria that take other outputs.
_NONLINEARITIES = {
    "CrossEntropyLoss": _softmax,
    "cross_entropy": softmax_or_sigmoid,
    "BCEWithLogitsLoss": sigmoid,
    "binary_cross_entropy_with_logits": sigmoid,
    "NLLLoss": _exp,
    "nll_loss": _exp,
}
