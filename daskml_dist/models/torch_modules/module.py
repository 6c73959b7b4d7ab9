"""A `torch.nn.Module` as a model that is trained by gradient steps.

The engine keeps one vector of parameters and does not depend on torch. A `TorchModel` holds what is
needed to make the module in any process; each lane makes one (`_Lane`), whose parameters and
gradients are views of flat vectors (`FlatModule`). A step copies the engine's vector into it, runs
forward and backward, and returns the vector of the gradients.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends.base import Backend
from daskml_dist.backends.namespace import is_host, namespace, stream_of
from daskml_dist.errors import DeviceUnavailableError, DivergedError, InvalidParameterError
from daskml_dist.models.base import BatchRows, Parameters, StepModel, encode_labels, r2_of_sums
from daskml_dist.models.torch_modules.flat import (
    FlatModule,
    flatten_parameters,
    share_memory,
    torch_dtype,
)
from daskml_dist.models.torch_modules.library import load_torch, threads_of_torch
from daskml_dist.models.torch_modules.source import Drawing, ModuleSource, Seed, explain_errors

#: Steps of a lane between copies of its parameters, which are attached to the error of a diverging
#: fit.
_STEPS_PER_COPY = 32
#: Numbers of the gradients of single rows that are in memory together (64 MiB of float32).
_ROW_GRADIENT_NUMBERS = 1 << 24


@dataclass(frozen=True, eq=False)
class TorchModel(StepModel):
    """A torch module, its criterion, and the conversion of rows and targets to tensors.

    Parameters
    ----------
    source : ModuleSource
    parameters : Parameters
        Layout of the module's trained parameters and, as buffers, the rest of its state.
    inputs : TorchInputs
    target : {"labels", "binary", "numbers"}
        Form of the targets: class indices (int64), 0 and 1 in the dtype of the outputs, or
        regression targets.
    threshold : float
        Output of a single unit above which the second class is predicted.
    precision : {"bf16", "fp16"} or None
        Precision of products (autocast); parameters and sums stay in the fit's dtype.
    start : ndarray or None
        Initial parameters; None: the module draws them.
    checksum : int or None
        CRC-32 of the initial parameters on the client, which workers compare with theirs.
    fewest_rows : int
        Least number of rows of a batch.
    pixelwise : bool
        Whether kernels of convolutions are in channels-last memory format.
    row_clip : float or None
        Largest norm of the gradient of a row, over all trained parameters.
    """

    source: ModuleSource
    parameters: Parameters
    inputs: TorchInputs
    target: str
    threshold: float = 0.0
    precision: str | None = None
    start: NDArray[Any] | None = None
    checksum: int | None = None
    fewest_rows: int = 1
    pixelwise: bool = False
    row_clip: float | None = None
    #: Modules made in this process, by lane; for a pipeline by the layers of a stage.
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    #: torch starts OpenMP threads, but none if a lane computes with one thread.
    starts_threads = False
    flushes = True

    @property
    def module_parameters(self) -> Parameters:
        """Return the layout of the parameters that the module itself holds."""
        return self.parameters

    def computing(self, n_threads: int) -> AbstractContextManager[Any]:
        """Return a context in which torch uses `n_threads` threads for each lane."""
        return threads_of_torch(n_threads)

    def __getstate__(self) -> dict[str, Any]:
        # Each process makes its own modules.
        return {**self.__dict__, "_made": {}}

    def at_rest(self) -> TorchModel:
        """Return the model without data that only a fit needs, to be kept by a fitted estimator."""
        return replace(self, start=None, checksum=None, _made={})

    def init(self, seed: int, dtype: Any) -> NDArray[Any]:
        """Return the module's initial parameters, drawn from torch's stream of the seed."""
        if self.start is not None:
            return self.start.astype(dtype)
        w: NDArray[Any] = flatten_parameters(
            self.source.make_seeded(seed, torch_dtype(dtype)), dtype
        )
        # Lanes must start from the same bits: another version of torch, or NumPy draws in __init__,
        # give others.
        if self.checksum is not None and zlib.crc32(w.tobytes()) != self.checksum:
            raise InvalidParameterError(
                f"{self.source.name} starts with other parameters here than on the client. Draw "
                "them only with torch's functions, and use the same torch everywhere; or send "
                f"them: module={self.source.name}(...) with warm_start=True."
            )
        return w

    def checked(self, seed: int, dtype: Any) -> TorchModel:
        """Return the model with a checksum of its initial parameters, which workers compare."""
        return (
            self
            if self.start is not None
            else replace(self, checksum=zlib.crc32(self.init(seed, dtype).tobytes()))
        )

    def encode(self, y: NDArray[Any], classes: NDArray[Any] | None, dtype: Any) -> NDArray[Any]:
        """Return the targets in the dtype of the criterion."""
        if self.target == "numbers" or y.ndim == 2:  # two-dimensional: multilabel indicators
            return y.astype(dtype)
        assert classes is not None
        return encode_labels(y, classes, np.int64 if self.target == "labels" else dtype)

    def prepare(self, X: Any, dtype: Any) -> Any:
        """Return floats in the fit's dtype; bytes, tokens and mixed columns unchanged.

        `TorchInputs` casts these batch by batch: a block of bytes would grow fourfold here.
        """
        if X.dtype.kind != "f" or X.dtype == dtype or self.inputs.columns is not None:
            return X
        return X.astype(dtype)

    def add_gradient(self, w: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        """Add the gradient of the sum of the rows' losses, by torch's autograd."""
        gradient, loss = self._lane(rows, w).gradient_of(w, rows)
        out += gradient
        return loss

    def own_gradient(self, w: Any, rows: BatchRows, backend: Backend) -> tuple[Any, Any] | None:
        """Return the gradient in the memory to which torch has written it, and the summed loss."""
        return self._lane(rows, w).gradient_of(w, rows)

    def _lane(self, rows: BatchRows, w: Any) -> _Lane:
        """Return the module of the rows' lane, made at its first step."""
        number = rows.key[1] if len(rows.key) > 1 else 0
        lane = self._made.get(number)
        if lane is None or lane.flat.dtype != w.dtype:
            lane = self._made[number] = _Lane(self, w)
        return lane

    def validation_sums(self, w: Any, rows: BatchRows, backend: Backend) -> NDArray[np.float64]:
        """Return weighted sums from which :meth:`validation_score` computes accuracy or R^2.

        Classification: the weight, and the weight of correct rows, of shape (2,). Regression: the
        weight, squared errors, targets and squared targets, means over the outputs, of shape (4,).
        """
        raw = self._lane(rows, w).outputs(w, rows)
        y, weight = backend.to_numpy(rows.y), np.ones(len(raw))
        if rows.weight is not None:
            weight = backend.to_numpy(rows.weight).astype(np.float64)
        if self.target == "labels":
            return np.array([weight.sum(), weight @ (raw.argmax(axis=1) == y)])
        if self.target == "binary":
            # With several labels a row is correct if all are (subset accuracy), as in scikit-learn.
            right = (raw.reshape(y.shape) > self.threshold) == (y > 0)
            return np.array([weight.sum(), weight @ right.reshape(len(y), -1).all(axis=1)])
        y = y.reshape(len(y), -1).astype(np.float64)
        residual = y - raw.reshape(y.shape)
        sums = (weight @ values.mean(axis=1) for values in (residual**2, y, y**2))
        return np.array([weight.sum(), *sums])

    def validation_score(self, sums: NDArray[np.float64]) -> float:
        """Return accuracy, or R^2."""
        total, first = sums[:2]
        if total == 0:
            return math.nan
        if self.target != "numbers":
            return float(first / total)
        return float(r2_of_sums(*sums))

    def identity(self) -> dict[str, Any]:
        """Return the module's name and the shapes of its parts, in order."""
        parts = [[part.name, list(part.shape)] for part in self.parameters.parts]
        facts = {"module": self.source.name, "parts": parts, "precision": self.precision}
        return facts if self.row_clip is None else facts | {"row_clip": self.row_clip}


class _Lane(FlatModule):
    """The module of one lane, with gradients. Used by one thread at a time."""

    def __init__(self, model: TorchModel, w: Any) -> None:
        self.model = model
        dtype = torch_dtype(str(w.dtype))
        # Seeded only so that torch's stream is left as it was: the parameters are overwritten.
        module = model.source.make_seeded(0, dtype)
        layout = model.module_parameters
        super().__init__(module, layout, w, trained=True, pixelwise=model.pixelwise)
        self.criterion = model.source.make_criterion(self.dtype)
        if self.device is not None and hasattr(self.criterion, "to"):
            self.criterion.to(self.device)
        self.module.train()
        self._cast = autocast(model.precision, self.device)
        self._drawing = Drawing(self.device)
        self._steps = 0
        self._last_finite: Any = None
        #: Whether gradients of single rows are computed one by one.
        self._row_by_row = False
        # On a GPU the loss of a step, and the same memory as an array of the engine's library.
        self._loss_sum: Any = None
        self._loss_array: Any = None
        if self.device is not None:
            self._loss_sum = load_torch().zeros((), dtype=self.dtype, device=self.device)
            self._loss_array = share_memory(self._loss_sum, w)

    def gradient_of(self, w: Any, rows: BatchRows) -> tuple[Any, Any]:
        """Return the gradient and the summed loss of a batch.

        The gradient is a view of the vector of gradients, valid until the next step of the lane.
        """
        torch = load_torch()
        if self.model.row_clip is not None:
            self.enter(w)
            add = partial(self._add_clipped, rows, self.model.row_clip)
            self._drawing.call(add, lambda: self.enter(w))
            self.gather()
            return self._shape_gradient(w), 0.0
        with on_stream_of(w, self.device), torch.enable_grad():
            self.enter(w)
            self.zero_gradients()
            loss = self._drawing.call(partial(self._loss, rows), lambda: self.enter(w))
            with explain_errors(f"The backward pass of {self.model.source.name}"):
                self._backward(loss)
            # In the first step only: it walks over all parameters.
            if self._steps == 0 and not self.is_bound():
                raise InvalidParameterError(
                    f"{self.model.source.name} replaced or reshaped its parameters while "
                    "computing. Create them in __init__, and let only training change them."
                )
            self.collect()
            self.write_mean_gradients(self.mean_gradients(rows.X.shape[0]))
            # On a GPU the loss stays there: reading it would wait for the step. Two small copies
            # take the host less time than a new exchange of memory between the libraries.
            if self.device is not None:
                self._loss_sum.copy_(loss.detach())
        loss_value = loss.item() if self.device is None else self._loss_array.copy()
        if self.device is None and not math.isfinite(loss_value):
            raise self._make_divergence_error(loss_value, rows)
        # The last parameters known to have a finite loss, for the error of a later step.
        if self._steps % _STEPS_PER_COPY == 0 and is_host(w):
            self._last_finite = w.copy()
        self._steps += 1
        return self._shape_gradient(w), loss_value

    def _backward(self, loss: Any) -> None:
        """Run the backward pass into the vector of gradients.

        In float16 with loss scaling (Micikevicius et al. 2018): the largest factor with which no
        gradient overflows. torch's `GradScaler` adapts its factor from step to step and skips steps
        that overflow. Here each step tries the same factors: it has no state, drops no rows, and a
        step that is repeated after the loss of a worker gives the same bits.
        """
        if self.model.precision != "fp16":
            loss.backward()
            self.gather()
            return
        for factor in _LOSS_FACTORS:
            self.zero_gradients()
            (loss * factor).backward(retain_graph=True)
            self.gather()
            if bool(self._gradient.isfinite().all()):
                break
        self._gradient /= factor

    def _loss(self, rows: BatchRows, seed: Seed) -> Any:
        """Return the sum of the weighted losses, as a tensor with its graph."""
        seed(rows.key)
        positional, named = self.model.inputs(rows.X, self.dtype, self.device)
        y = to_tensor(rows.y)
        name = self.model.source.name
        with self._cast():
            with explain_errors(f"{name}.forward, on {len(y)} rows,"):
                output = self.module(*positional, **named)
            losses = compute_row_losses(self.criterion, output, y, name)
        if losses.dtype != self.dtype:
            losses = losses.to(self.dtype)
        if rows.weight is not None:
            losses = losses * to_tensor(rows.weight)
        return losses.sum()

    def _add_clipped(self, rows: BatchRows, clip: float, seed: Seed) -> None:
        """Set the gradients to the sum of those of the rows, each clipped to a norm."""
        seed(rows.key)
        self.zero_gradients()
        batch_inputs = *self.model.inputs(rows.X, self.dtype, self.device), to_tensor(rows.y)
        max_rows = max(1, _ROW_GRADIENT_NUMBERS // len(self.flat))
        for start in range(0, rows.X.shape[0], max_rows):
            row_slice = slice(start, start + max_rows)
            positional, named, y = batch_inputs
            part_inputs = (
                [x[row_slice] for x in positional],
                {k: x[row_slice] for k, x in named.items()},
                y[row_slice],
            )
            gradients = self._row_gradients(*part_inputs)
            squares = sum(gradient.flatten(1).square().sum(dim=1) for gradient in gradients)
            # A norm of 0 is not clipped: the quotient is infinite, and is bounded by 1.
            factors = (clip / squares.sqrt()).clamp(max=1.0)
            for (_, total), gradient in zip(self.trained, gradients, strict=True):
                total.add_(load_torch().tensordot(factors, gradient, dims=1))

    def _row_gradients(
        self, positional: list[Any], keyword_args: dict[str, Any], y: Any
    ) -> list[Any]:
        """Return the gradient of each row for each trained parameter, rows first."""
        func = load_torch().func
        names = {id(p): name for name, p in self.module.named_parameters()}
        trained = {names[id(p)]: p.detach() for p, _ in self.trained}
        if not self._row_by_row:
            gradients = func.vmap(
                func.grad(self._loss_of_row), in_dims=(None, 0, 0, 0), randomness="different"
            )
            # Recurrent layers, and code that depends on values, cannot be vectorised over rows; an
            # error of the module itself occurs again for a single row.
            with suppress(RuntimeError, InvalidParameterError):
                row_gradients = gradients(trained, positional, keyword_args, y)
                return [row_gradients[name] for name in trained]
            self._row_by_row = True
        one_by_one = [
            func.grad(self._loss_of_row)(
                trained,
                [x[i] for x in positional],
                {k: x[i] for k, x in keyword_args.items()},
                y[i],
            )
            for i in range(len(y))
        ]
        stack = load_torch().stack
        return [stack([row_gradients[name] for row_gradients in one_by_one]) for name in trained]

    def _loss_of_row(
        self,
        parameters: dict[str, Any],
        positional: list[Any],
        keyword_args: dict[str, Any],
        y: Any,
    ) -> Any:
        """Return the loss of one row as a function of the trained parameters."""
        name = self.model.source.name
        arguments = tuple(x[None] for x in positional)
        with explain_errors(f"{name}.forward, on 1 row,"):
            output = load_torch().func.functional_call(
                self.module, parameters, arguments, {k: x[None] for k, x in keyword_args.items()}
            )
        return compute_row_losses(self.criterion, output, y[None], name).sum()

    def _shape_gradient(self, w: Any) -> Any:
        """Return the gradient in the shape of `w`."""
        xp = np if is_host(w) else namespace(w)
        return xp.reshape(self.gradient, w.shape)

    def outputs(self, w: Any, rows: BatchRows) -> NDArray[Any]:
        """Return the outputs of held-out rows, in evaluation mode, as float32 on the host."""
        torch = load_torch()
        self.module.eval()
        try:
            with on_stream_of(w, self.device), torch.no_grad(), self._cast():
                self.enter(w)
                positional, named = self.model.inputs(rows.X, self.dtype, self.device)
                output = self.module(*positional, **named)
                first = output[0] if isinstance(output, tuple) else output
                # The copy waits only for the current stream, so it must be made here.
                raw_outputs: NDArray[Any] = first.float().cpu().numpy()
        finally:
            self.module.train()
        return raw_outputs

    def _make_divergence_error(self, loss: float, rows: BatchRows) -> DivergedError:
        # The key of a batch: seed, lane, step, position.
        lane, clock = (*rows.key, 0, 0)[1:3]
        are_finite = bool(np.isfinite(self.flat).all())
        X = np.asarray(rows.X.toarray() if hasattr(rows.X, "toarray") else rows.X)
        return DivergedError(
            f"The loss became {loss} in step {clock + 1} of lane {lane}, on a batch of {len(X)} "
            f"rows between {X.min():.3g} and {X.max():.3g}; the parameters before it are "
            f"{'finite' if are_finite else 'not finite any more'}. Lower learning_rate, set "
            "clip=1.0, or scale the inputs.",
            self._last_finite,
            clock,
        )


def on_stream_of(array: Any, device: Any) -> AbstractContextManager[Any]:
    """Return a context in which torch computes on the CUDA stream of an array's library.

    Both libraries' kernels are then in order without a synchronisation. `device` is torch's of the
    array, or None.

    CuPy's null stream has the address 0, from which torch would make a new stream of its own pool
    that nothing orders (pytorch issue 182960); torch's default stream is the null stream.
    """
    if device is None or device.type == "cpu":
        return nullcontext()
    cuda, address = load_torch().cuda, stream_of(array)
    # torch computes there already: nothing to enter, and to leave.
    if cuda.current_stream(device).cuda_stream == address:
        return nullcontext()
    if address == 0:
        stream = cuda.default_stream(device)
    else:
        stream = cuda.ExternalStream(address, device=device)
    context: AbstractContextManager[Any] = cuda.stream(stream)
    return context


#: Orders of the dimensions of images.
IMAGES = ("channels_last", "channels_first")


@dataclass(frozen=True)
class InputColumns:
    """Columns of a dataframe that are one argument of a module.

    Parameters
    ----------
    positions : tuple of int
        Positions of the columns.
    single : bool
        Whether it is one column given by its name, which becomes a tensor of shape (n,).
    is_integer : bool
        Whether the columns hold integers, which become int64.
    """

    positions: tuple[int, ...]
    single: bool
    is_integer: bool


@dataclass(frozen=True)
class TorchInputs:
    """Conversion of rows to the tensors that a module is called with.

    Floats become the dtype of the parameters, bytes and bools stay, and other integers (tokens)
    become int64.

    Parameters
    ----------
    images : {"channels_last", "channels_first"} or None
        Whether rows are images, whose bytes become floats between 0 and 1, channels first.
    columns : mapping of str to InputColumns, or None
        Columns of a dataframe for each argument of the module; None: the module takes the rows.
    """

    images: str | None = None
    columns: Mapping[str, InputColumns] | None = None

    def __call__(self, X: Any, dtype: Any, device: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments of a module for some rows."""
        rows = to_tensor(X.toarray() if hasattr(X, "toarray") else X)
        if device is not None:
            rows = rows.to(device)
        if self.columns is not None:
            return [], {
                name: self._input(rows, column, dtype) for name, column in self.columns.items()
            }
        if self.images is not None:
            return [self._image(rows, dtype)], {}
        return [_convert_input(rows, dtype)], {}

    def _image(self, rows: Any, dtype: Any) -> Any:
        if rows.ndim < 3:
            raise InvalidParameterError(
                f"images={self.images!r}, but a row of X has the shape {tuple(rows.shape[1:])}. "
                "Reshape X to (n_rows, height, width), with a dimension of channels if there are "
                "several, or set images=None."
            )
        if rows.ndim == 3:  # grey images without a channel dimension
            rows = rows[:, None]
        elif rows.ndim == 4 and self.images == "channels_last":
            rows = rows.movedim(3, 1)
        # Bytes range from 0 to 255; floats are assumed to be scaled already.
        scale = 1.0 if rows.is_floating_point() else 1 / 255
        return rows.to(dtype).contiguous() * scale

    def _input(self, rows: Any, input_columns: InputColumns, dtype: Any) -> Any:
        torch = load_torch()
        columns = (
            rows[:, input_columns.positions[0]]
            if input_columns.single
            else rows[:, list(input_columns.positions)]
        )
        return columns.to(torch.int64 if input_columns.is_integer else dtype)


def to_tensor(array: Any) -> Any:
    """Return a tensor that shares the memory of an array if it is writable."""
    torch = load_torch()
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        # Few of torch's functions take uint16, uint32 and uint64.
        array = array.astype("int64")
    if not is_host(array):
        # -1: no synchronisation between streams, since both libraries compute on one.
        return torch.from_dlpack(array.__dlpack__(stream=-1))
    # torch refuses byte-swapped arrays and negative strides, and warns of read-only memory.
    if not (array.flags.writeable and array.flags.c_contiguous and array.dtype.isnative):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise InvalidParameterError(f"{error} Convert X to float32 or int64 first.") from error


def _convert_input(rows: Any, dtype: Any) -> Any:
    torch = load_torch()
    if rows.is_floating_point():
        return rows if rows.dtype == dtype else rows.to(dtype)
    return rows if rows.dtype in (torch.uint8, torch.bool) else rows.to(torch.int64)


def cross_entropy(output: Any, y: Any) -> Any:
    """Return the cross-entropy of logits: one per class, or a single one for the second of two."""
    functional = load_torch().nn.functional
    # Float targets belong to a single logit, or to one for each of several labels.
    if y.is_floating_point():
        return functional.binary_cross_entropy_with_logits(output, y, reduction="none")
    return functional.cross_entropy(output, y, reduction="none")


def squared_error(output: Any, y: Any) -> Any:
    """Return the squared error of each target."""
    return load_torch().nn.functional.mse_loss(output, y, reduction="none")


def compute_row_losses(criterion: Any, output: Any, y: Any, name: str) -> Any:
    """Return the loss of each row, as a tensor of shape (n,)."""
    first = output[0] if isinstance(output, tuple) else output
    # Outputs of shape (n, 1) and targets of shape (n,) would broadcast to (n, n).
    if y.is_floating_point() and first.shape != y.shape:
        first = _match_shape(first, y, name)
        output = (first, *output[1:]) if isinstance(output, tuple) else first
    shapes = f"outputs of shape {tuple(first.shape)} and targets of shape {tuple(y.shape)}"
    labels = "" if y.is_floating_point() else " (numbers of the classes)"
    with explain_errors(f"The criterion, on {shapes}{labels},"):
        losses = criterion(output, y)
    if not isinstance(losses, load_torch().Tensor):
        raise InvalidParameterError(
            f"The criterion gives a {type(losses).__name__}, but a tensor with the loss of each "
            "row is needed. Compute it from the outputs with functions of torch."
        )
    if losses.ndim == 0 or losses.shape[0] != y.shape[0]:
        raise InvalidParameterError(
            f"The criterion gives a loss of shape {tuple(losses.shape)} for {y.shape[0]} rows, "
            'but each row needs its own loss. Return it without a mean (reduction="none").'
        )
    # A regression criterion would broadcast class indices against all outputs of a row.
    if not y.is_floating_point() and losses.numel() != y.numel():
        raise InvalidParameterError(
            f"The criterion compares each of the outputs of shape {tuple(first.shape)} with the "
            "number of the class. Use one that accepts labels, such as "
            "torch.nn.CrossEntropyLoss."
        )
    return losses if losses.ndim == 1 else losses.flatten(1).mean(dim=1)


def _match_shape(output: Any, y: Any, name: str) -> Any:
    if output.numel() != y.numel():
        raise InvalidParameterError(
            f"{name} gives outputs of shape {tuple(output.shape)} for targets of shape "
            f"{tuple(y.shape)}. Let its last layer have an output for each target."
        )
    return output.reshape(y.shape)


#: Precisions, and torch's names of their dtypes.
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


#: Factors of the loss before the backward pass in float16, tried in decreasing order until nothing
#: overflows: without one, gradients below 6e-8 would be 0 (Micikevicius et al., "Mixed precision
#: training", ICLR 2018).
_LOSS_FACTORS = tuple(2.0**power for power in (16, 12, 8, 4, 0))


def autocast(precision: str | None, device: Any) -> Callable[[], AbstractContextManager[Any]]:
    """Return a factory of contexts in which torch computes products in a precision (autocast)."""
    if precision is None:
        return nullcontext
    torch = load_torch()
    kind = "cpu" if device is None else device.type
    is_supported = (
        precision == "bf16"
        if kind == "cpu"
        else precision == "fp16" or torch.cuda.is_bf16_supported()
    )
    if not is_supported:
        raise DeviceUnavailableError(
            f"precision={precision!r}: {'a CPU' if kind == 'cpu' else 'this GPU'} computes no "
            f"networks in {PRECISIONS[precision]}. Use precision="
            f"{'bf16' if precision == 'fp16' else 'fp16'!r}, or None."
        )
    return partial(torch.autocast, kind, getattr(torch, PRECISIONS[precision]))
