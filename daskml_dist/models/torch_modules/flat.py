"""A torch module over one flat vector: its parameters, gradients and buffers are views of vectors.

The engine's matrix is copied into the vector by one operation a step (`FlatModule.enter`), however
many tensors the module has, and the vector of gradients is handed on without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from daskml_dist.backends.namespace import is_host, namespace
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import Parameters, Part
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.source import NamedTensor, named_tensors


def torch_dtype(dtype: Any) -> Any:
    """Return the dtype of torch that equals a dtype of NumPy."""
    return getattr(load_torch(), np.dtype(dtype).name)


def lay_out_parameters(module: Any, beside_table: bool = False) -> Parameters:
    """Return the layout of a module's parameters and buffers; raise if none is trained.

    `beside_table`: rows of a table are trained, and there may be no more.
    """
    # As in a fit: a module may keep the statistics of some layers as they are (`retention`).
    named = named_tensors(module.train())
    if not beside_table and not any(n.trained for n in named):
        raise InvalidParameterError(
            f"{type(module).__name__} has no parameters to train. Create layers in its __init__ "
            "and keep them as attributes."
        )
    return Parameters(
        tuple(
            Part(n.name, tuple(n.tensor.shape), buffer=not n.trained, retention=n.retention)
            for n in named
        )
    )


def flatten_parameters(module: Any, dtype: Any) -> Any:
    """Return parameters and buffers of a module as a new NumPy matrix of shape (n, 1)."""
    parts = [np.empty(0, dtype)]
    for n in named_tensors(module):
        value = n.tensor.detach().cpu().numpy().ravel()
        parts.append(value.astype(dtype))
        # Integer buffers (counts of batches) travel as floats, which must be exact.
        if not n.trained and not np.array_equal(parts[-1], value, equal_nan=True):
            raise InvalidParameterError(
                f"The buffer {n.name!r} holds numbers that {np.dtype(dtype).name} cannot "
                "represent. Unless it is a running mean, register it with persistent=False."
            )
    return np.concatenate(parts)[:, None]


def find_convolution_kernels(module: Any) -> list[tuple[Any, str]]:
    """Return the kernels of image convolutions: the modules that hold them, and their names."""
    convolutions = load_torch().nn.Conv2d, load_torch().nn.ConvTranspose2d
    return [
        (part, "weight")
        for part in module.modules()
        if isinstance(part, convolutions) and part._parameters.get("weight") is not None
    ]


def to_channels_last(kernel: Any) -> Any:
    """Return a copy of a kernel in channels-last memory format."""
    # By a copy: `Tensor.to(memory_format=...)` does not change kernels of one channel, whose format
    # is ambiguous.
    return load_torch().empty_like(kernel, memory_format=load_torch().channels_last).copy_(kernel)


class FlatModule:
    """A module whose parameters and buffers are views of a flat vector of its own.

    Parameters
    ----------
    module : nn.Module
    parameters : Parameters
        Layout that the module must have.
    like : array of shape (n, 1)
        Gives the device and the dtype of the computation.
    trained : bool
        Whether gradients are needed.
    pixelwise : bool, default=False
        Whether kernels of convolutions on the CPU are in ``channels_last`` memory format, with
        which convolutions take a quarter less time. They are then copies outside the vector.
    """

    def __init__(
        self, module: Any, parameters: Parameters, like: Any, trained: bool, pixelwise: bool = False
    ) -> None:
        torch = load_torch()
        self.module = module
        self.dtype = torch_dtype(str(like.dtype))
        self.device = None if is_host(like) else torch.from_dlpack(like).device
        named = named_tensors(module)
        _check_same_layout(module, named, parameters)
        if self.device is not None:
            module.to(self.device)
            named = named_tensors(module)
        size = parameters.shape[0]
        self._flat = torch.zeros(size, dtype=self.dtype, device=self.device)
        #: The same memory as arrays of the library of `like`.
        self.flat = share_memory(self._flat, like)
        self._gradient: Any = torch.zeros_like(self._flat) if trained else None
        self.gradient: Any = share_memory(self._gradient, like) if trained else None
        self._bind(named)
        #: Slices of the vector without gradients (running means and other buffers), and the factor
        #: by which a batch multiplies their old values; and these values. For training only.
        self._means = _find_means(parameters) if trained else []
        self._old_means: list[Any] = []
        #: Kernels stored outside the vector, and their slices in it.
        self._kernels: list[tuple[Any, Any, Any]] = []
        if pixelwise and self.device is None:
            self._lay_out_kernels()

    def _bind(self, tensors: Sequence[NamedTensor]) -> None:
        """Make the module's tensors views of the vector."""
        #: Trained parameters and their gradients.
        self.trained: list[tuple[Any, Any]] = []
        #: Buffers: their module's dictionary, their name in it, and the view of the vector.
        self._buffers: list[tuple[dict[str, Any], str, Any]] = []
        #: Slices of the vector, and tensors of another dtype (integers) that hold their values.
        self._separate_tensors: list[tuple[Any, Any]] = []
        for rows, adjacent in _group_adjacent(tensors):
            values = self._get_memory(rows, adjacent[0].tensor.dtype)
            offset = 0
            for n in adjacent:
                size = n.tensor.numel()
                self._bind_one(
                    n,
                    values[offset : offset + size],
                    slice(rows.start + offset, rows.start + offset + size),
                )
                offset += size

    def _get_memory(self, rows: slice, dtype: Any) -> Any:
        """Return the memory of tensors of a dtype: a slice of the vector, or a separate tensor."""
        if dtype == self.dtype:
            return self._flat[rows]
        store = load_torch().zeros(rows.stop - rows.start, dtype=dtype, device=self.device)
        self._separate_tensors.append((self._flat[rows].data, store))
        return store

    def _bind_one(self, n: NamedTensor, values: Any, rows: slice) -> None:
        # `.data` gives each view a version counter of its own. Autograd refuses a backward pass if
        # a tensor that it saved has changed since: with one counter for all views, the change of
        # one buffer would count as a change of all.
        view = values.view(n.tensor.shape).data
        if n.is_buffer:
            n.owner._buffers[n.key] = view
            self._buffers.append((n.owner._buffers, n.key, view))
            return
        n.tensor.data = view
        if n.trained and self._gradient is not None:
            n.tensor.grad = self._gradient[rows].view(view.shape)
            self.trained.append((n.tensor, n.tensor.grad))

    def _lay_out_kernels(self) -> None:
        """Replace convolution kernels by channels-last copies, whose gradients are separate."""
        kernels = [getattr(owner, key) for owner, key in find_convolution_kernels(self.module)]
        for n, (kernel, gradient) in enumerate(self.trained):
            if any(kernel is conv_kernel for conv_kernel in kernels):
                self._kernels.append((kernel, kernel.data, gradient))
                kernel.data = to_channels_last(kernel.data)
                kernel.grad = to_channels_last(gradient)
                self.trained[n] = kernel, kernel.grad

    def zero_gradients(self) -> None:
        """Set the gradients to zero."""
        self._gradient.zero_()
        for kernel, _, _ in self._kernels:
            kernel.grad.zero_()

    def gather(self) -> None:
        """Copy the gradients of channels-last kernels into the vector."""
        for kernel, _, gradient in self._kernels:
            gradient.copy_(kernel.grad)

    def enter(self, w: Any) -> None:
        """Set parameters and buffers to those of a matrix."""
        self.flat[...] = namespace(w).reshape(w, (-1,)) if not is_host(w) else w.reshape(-1)
        # Copied: other threads may change `w` before the batch is done.
        self._old_means = [self._flat[mean_slice].clone() for mean_slice, _ in self._means]
        # Integers are means over lanes: rounded.
        for values, store in self._separate_tensors:
            store.copy_(values.round())
        for kernel, values, _ in self._kernels:
            kernel.data.copy_(values)

    def collect(self) -> None:
        """Copy buffers that a forward pass has changed into the vector."""
        for owned, key, view in self._buffers:
            # Reassigned rather than changed in place: bind it again.
            if owned[key] is not view:
                view.copy_(owned[key])
                owned[key] = view
        for values, store in self._separate_tensors:
            values.copy_(store)

    def mean_gradients(self, n_rows: float) -> list[tuple[slice, Any]]:
        """Return the "gradients" of the buffers after a batch, by slices; see `Part.buffer`."""
        return [
            (mean_slice, n_rows * (retention * old - self._flat[mean_slice]))
            for (mean_slice, retention), old in zip(self._means, self._old_means, strict=True)
        ]

    def write_mean_gradients(self, gradients: list[tuple[slice, Any]]) -> None:
        """Write what :meth:`mean_gradients` returned into the vector of gradients."""
        for mean_slice, gradient in gradients:
            self._gradient[mean_slice] = gradient

    def is_bound(self) -> bool:
        """Return whether parameters and their gradients are still those that were bound."""
        parameter_ids = {id(p) for p in self.module.parameters() if p.requires_grad}
        bound = all(p.grad is grad and p.shape == grad.shape for p, grad in self.trained)
        return bound and parameter_ids == {id(p) for p, _ in self.trained}


def _group_adjacent(tensors: Sequence[NamedTensor]) -> Iterator[tuple[slice, list[NamedTensor]]]:
    """Yield runs of adjacent tensors of one dtype, all trained or none, and their slices."""
    adjacent: list[NamedTensor] = []
    start = stop = 0
    for n in tensors:
        if adjacent and (n.tensor.dtype, n.trained) != (
            adjacent[0].tensor.dtype,
            adjacent[0].trained,
        ):
            yield slice(start, stop), adjacent
            adjacent, start = [], stop
        adjacent.append(n)
        stop += n.tensor.numel()
    if adjacent:
        yield slice(start, stop), adjacent


def share_memory(tensor: Any, like: Any) -> Any:
    """Return an array of the library of another array that shares a tensor's memory."""
    return tensor.numpy() if is_host(like) else namespace(like).from_dlpack(tensor)


def _find_means(parameters: Parameters) -> list[tuple[slice, float]]:
    """Return the slices of the buffers with their retention; equal neighbours are joined."""
    means: list[tuple[slice, float]] = []
    for part in parameters.parts:
        if not part.buffer:
            continue
        rows = parameters.rows[part.name]
        if means and means[-1][0].stop == rows.start and means[-1][1] == part.retention:
            rows = slice(means.pop()[0].start, rows.stop)
        means.append((rows, part.retention))
    return means


def _check_same_layout(module: Any, tensors: Sequence[NamedTensor], parameters: Parameters) -> None:
    """Raise `InvalidParameterError` if the module has other names or shapes than the client's."""
    shapes = {n.name: tuple(n.tensor.shape) for n in tensors}
    expected = {part.name: part.shape for part in parameters.parts}
    if shapes != expected:
        different_names = sorted(
            k for k in shapes.keys() | expected if shapes.get(k) != expected.get(k)
        )
        raise InvalidParameterError(
            f"{type(module).__name__} has other parameters here than where the fit started: "
            + ", ".join(
                f"{k} {shapes.get(k)} instead of {expected.get(k)}" for k in different_names[:5]
            )
            + ". Their shapes must depend only on its arguments."
        )
