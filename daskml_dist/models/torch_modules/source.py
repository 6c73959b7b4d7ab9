"""Making of a module and of its criterion, anywhere the same, from what a user gave."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.models.torch_modules.chain import children_of_chain
from daskml_dist.models.torch_modules.library import load_torch
from daskml_dist.models.torch_modules.stream import seeded

__all__ = ["ModuleSource", "Named", "name_of", "named_tensors", "telling", "without_weights"]


@dataclass(frozen=True, eq=False)
class Named:
    """A parameter or buffer of a module.

    Parameters
    ----------
    name : str
        As ``state_dict()`` has it.
    owner : nn.Module
        That it belongs to.
    key : str
        Its name there.
    tensor : Tensor
    trained : bool
        Whether it is a parameter that has gradients.
    """

    name: str
    owner: Any
    key: str
    tensor: Any
    trained: bool

    @property
    def is_buffer(self) -> bool:
        """Whether it is a buffer, which a forward pass may change."""
        return self.key in self.owner._buffers


@dataclass(frozen=True, eq=False)
class ModuleSource:
    """Making of a module and of its criterion.

    Parameters
    ----------
    module : callable, or nn.Module
        A class or function; or a module without weights, of which each lane has a copy.
    arguments : mapping
        What it is called with.
    criterion : callable
        Class of a criterion, or a function of outputs and targets; or an object of such a class.
    criterion_arguments : mapping
    """

    module: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    criterion: Any = None
    criterion_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the module's class."""
        return name_of(self.module)

    def make(self, dtype: Any) -> Any:
        """A new module, whose parameters are drawn from torch's random stream, as they come.

        Parameters
        ----------
        dtype : dtype of torch
            Of its floating-point parameters and buffers.
        """
        torch = load_torch()
        with telling(f"{self.name}(...)"):
            is_made = isinstance(self.module, torch.nn.Module)
            found = copy.deepcopy(self.module) if is_made else self.module(**self.arguments)
        if not isinstance(found, torch.nn.Module):
            raise InvalidParameterError(
                f"module={self.module!r} makes a {type(found).__name__}, which is no module. Give "
                "a class derived from torch.nn.Module, or a function that returns one."
            )
        self._check_shapes(found)
        return found.to(dtype)

    def _check_shapes(self, module: Any) -> None:
        lazy = load_torch().nn.parameter.UninitializedTensorMixin
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if isinstance(tensor, lazy):
                raise InvalidParameterError(
                    f"{self.name} has a lazy layer: the shape of {name} is known after its first "
                    "rows alone, and parameters are laid out before. Give the layer its sizes, "
                    "such as torch.nn.Linear(20, 2) for LazyLinear(2)."
                )
            if tensor.is_complex():
                raise InvalidParameterError(
                    f"The parameter {name!r} is complex. Keep its real and imaginary parts apart."
                )

    def make_seeded(self, seed: int, dtype: Any) -> Any:
        """As :meth:`make`, drawn from a seed."""
        with seeded(seed):
            return self.make(dtype)

    def make_criterion(self, dtype: Any) -> Any:
        """The criterion, of which each row has a loss of its own."""
        torch, given = load_torch(), self.criterion
        if isinstance(given, torch.nn.Module):
            found = copy.deepcopy(given)
            if hasattr(found, "reduction"):
                found.reduction = "none"
            return found.to(dtype)
        if not inspect.isclass(given):
            return given
        arguments = dict(self.criterion_arguments)
        if "reduction" in inspect.signature(given).parameters:
            arguments["reduction"] = "none"
        with telling(f"{name_of(given)}(...)"):
            found = given(**arguments)
        return found.to(dtype) if isinstance(found, torch.nn.Module) else found


def name_of(value: Any) -> str:
    """Name of a class or function, or of the class of anything else."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def without_weights(module: Any) -> Any:
    """A copy of a module whose parameters and buffers that it saves have no memory."""
    torch = load_torch()
    try:
        bare = copy.deepcopy(module)
    except Exception as error:
        raise InvalidParameterError(
            f"module={name_of(module)}(...) cannot be copied for the lanes, with "
            f"{type(error).__name__}: {error}. Keep open files, locks and connections out of it."
        ) from error
    for named in named_tensors(bare):
        bare_one = torch.zeros((), dtype=named.tensor.dtype).expand(named.tensor.shape)
        if named.is_buffer:
            named.owner._buffers[named.key] = bare_one
        else:
            named.tensor.data, named.tensor.grad = bare_one, None
    return bare


def named_tensors(module: Any) -> list[Named]:
    """Parameters and saved buffers, each once: of a chain of layers layer after layer.

    Of any other module parameters come first. Those without gradients count among the buffers,
    which come after, in their order, floating-point ones before others.
    """
    children = children_of_chain(module)
    if children is None:
        return _in_order(_own(module, ""))
    found = [n for path, child in children for n in _in_order(_own(child, f"{path}."))]
    seen: set[int] = set()
    return [n for n in found if not (id(n.tensor) in seen or seen.add(id(n.tensor)))]  # type: ignore[func-returns-value]


def _own(module: Any, prefix: str) -> Iterator[Named]:
    seen: set[int] = set()
    for path, owner in module.named_modules():
        at = f"{prefix}{path}." if path else prefix
        saved = [k for k in owner._buffers if k not in owner._non_persistent_buffers_set]
        for key in (*owner._parameters, *saved):
            tensor = getattr(owner, key)
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                trained = key in owner._parameters and tensor.requires_grad
                yield Named(at + key, owner, key, tensor, trained)


def _in_order(found: Iterator[Named]) -> list[Named]:
    return sorted(found, key=lambda n: (not n.trained, not n.tensor.is_floating_point()))


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Say of an error in a user's module where it comes from.

    Raises
    ------
    InvalidParameterError
    """
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:
        raise InvalidParameterError(
            f"{what} raised {type(error).__name__}: {error}{_remedy(str(error))}"
        ) from error


def _remedy(text: str) -> str:
    """Likely remedy of an error of torch."""
    if "Expected more than 1 value per channel" in text:
        return (
            ". A batch normalisation needs two rows of each batch: use a larger batch_size or "
            "micro_batch_size, chunks of more even sizes, or fewer lanes (run=Run(n_lanes=...))."
        )
    if "forward() missing" in text or "forward() got an unexpected" in text:
        return (
            ". Rows come as one argument; let inputs={'name': columns, ...} say which columns of a "
            "dataframe are which argument."
        )
    if "unexpected keyword" in text or "missing" in text:
        return ". Name its arguments as module__name=value (criterion__name=value)."
    if "Bool and" in text:
        return ". Rows of bools come as they are: X.astype('float32')."
    if "'indices'" in text:
        return ". Tokens are whole numbers: X.astype('int64')."
    if "Target size" in text or "must match the size of tensor" in text:
        return ". For labels of several classes use a criterion such as torch.nn.CrossEntropyLoss."
    if "not tuple" in text:
        return (
            ". The criterion gets all that forward returns: give one that takes a tuple, or return "
            "the outputs alone."
        )
    if "Byte" in text or "unsigned char" in text:
        return (
            '. Rows of bytes come as they are: say images="channels_last" or "channels_first", or '
            "begin forward with x = x.float() / 255."
        )
    if "shapes cannot be multiplied" in text or "size mismatch" in text:
        return ". The first layer takes another number of features than X has: module__name=value."
    if "out of range" in text:
        return (
            ". A token is negative, or not below the size of the embedding: make that larger, and "
            "count tokens from 0."
        )
    return ". Mend it, and try it on a few rows first: module(torch.from_numpy(X[:2]))."
