"""Making of a module and of its criterion, anywhere the same, from what a user gave."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar

from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.models.torch_modules.library import load_torch


@dataclass(frozen=True, eq=False)
class NamedTensor:
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
        """True for a buffer, which a forward pass may change."""
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
        return class_name_of(self.module)

    def make(self, dtype: Any) -> Any:
        """Return a new module, whose parameters are drawn from torch's current random stream."""
        torch = load_torch()
        with explain_errors(f"{self.name}(...)"):
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
        """Return a new module, whose parameters are drawn from a seed."""
        with seeded(seed):
            return self.make(dtype)

    def make_criterion(self, dtype: Any) -> Any:
        """Return the criterion, which gives a loss for each row."""
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
        with explain_errors(f"{class_name_of(given)}(...)"):
            found = given(**arguments)
        return found.to(dtype) if isinstance(found, torch.nn.Module) else found


def class_name_of(value: Any) -> str:
    """Return the name of a class or function, or of the class of any other value."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def without_weights(module: Any) -> Any:
    """Return a copy of a module whose parameters and saved buffers take no memory."""
    torch = load_torch()
    try:
        bare = copy.deepcopy(module)
    except Exception as error:
        raise InvalidParameterError(
            f"module={class_name_of(module)}(...) cannot be copied for the lanes, with "
            f"{type(error).__name__}: {error}. Keep open files, locks and connections out of it."
        ) from error
    for named in named_tensors(bare):
        bare_one = torch.zeros((), dtype=named.tensor.dtype).expand(named.tensor.shape)
        if named.is_buffer:
            named.owner._buffers[named.key] = bare_one
        else:
            named.tensor.data, named.tensor.grad = bare_one, None
    return bare


def named_tensors(module: Any) -> list[NamedTensor]:
    """Return parameters and saved buffers, each once; of a chain layer after layer.

    Of any other module parameters come first. Those without gradients count among the buffers,
    which come after, in their order, floating-point ones before others.
    """
    children = find_chain_children(module)
    if children is None:
        return _sort_by_kind(_iterate_own_tensors(module, ""))
    found = [
        n
        for path, child in children
        for n in _sort_by_kind(_iterate_own_tensors(child, f"{path}."))
    ]
    seen: set[int] = set()
    return [n for n in found if not (id(n.tensor) in seen or seen.add(id(n.tensor)))]  # type: ignore[func-returns-value]


def _iterate_own_tensors(module: Any, prefix: str) -> Iterator[NamedTensor]:
    seen: set[int] = set()
    for path, owner in module.named_modules():
        at = f"{prefix}{path}." if path else prefix
        saved = [k for k in owner._buffers if k not in owner._non_persistent_buffers_set]
        for key in (*owner._parameters, *saved):
            tensor = getattr(owner, key)
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                trained = key in owner._parameters and tensor.requires_grad
                yield NamedTensor(at + key, owner, key, tensor, trained)


def _sort_by_kind(found: Iterator[NamedTensor]) -> list[NamedTensor]:
    return sorted(found, key=lambda n: (not n.trained, not n.tensor.is_floating_point()))


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Turn an error of a user's module into an InvalidParameterError with a remedy."""
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:
        raise InvalidParameterError(
            f"{what} raised {type(error).__name__}: {error}{_suggest_remedy(str(error))}"
        ) from error


def _suggest_remedy(text: str) -> str:
    """Return the likely remedy of an error of torch."""
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


def find_chain_children(module: Any) -> list[tuple[str, Any]] | None:
    """Return the children of a chain, through which rows go in order, with their paths; or None.

    Of a `Sequential`, those of plain ones in it in their places; or of a module that holds one such
    and nothing else. None: there is none.
    """
    path = ""
    while not _is_chain(module):
        own = any(value is not None for value in (*module._parameters.values(),
                                                  *module._buffers.values()))  # fmt: skip
        if own or len(module._modules) != 1:
            return None
        ((name, module),) = module._modules.items()
        path += f"{name}."
    return list(_children(module, path))


def _is_chain(module: Any) -> bool:
    forward = load_torch().nn.Sequential.forward
    hooked = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return getattr(type(module), "forward", None) is forward and not hooked


def _children(chain: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in chain._modules.items():
        if _is_chain(child):
            yield from _children(child, f"{path}{name}.")
        else:
            yield path + name, child


def split_chain(
    name: str, module: Any, positional: list[Any], named: dict[str, Any]
) -> tuple[tuple[str, ...], ...]:
    """Return the layers of a module: paths of adjacent children, at least one with parameters."""
    children = find_chain_children(module)
    with _record_children(module, children or []) as seen, load_torch().no_grad():
        output = module(*positional, **named)
    whole = bool(children) and not named
    if not whole or seen[0] is not positional[0] or not _is_last(seen, children or [], output):
        raise InvalidParameterError(
            f"{name} is no chain of layers that a pipeline could cut into stages. Let module make "
            "a torch.nn.Sequential, or a module that does nothing but call one that it keeps as "
            "its only attribute; or use pipeline=None."
        )
    assert children is not None
    layers = _group_by_layer(children, seen[1:], len(positional[0]))
    _check_apart(name, layers)
    return tuple(tuple(path for path, _ in layer) for layer in layers)


@contextmanager
def _record_children(module: Any, children: list[tuple[str, Any]]) -> Iterator[list[Any]]:
    """Record the input of the first child and the output of each while the context is open."""
    seen: list[Any] = []

    def first(_: Any, given: tuple[Any, ...]) -> None:
        if not seen and len(given) == 1:
            seen.append(given[0])

    hooks = [children[0][1].register_forward_pre_hook(first)] if children else []
    for child in {id(child): child for _, child in children}.values():
        hooks.append(child.register_forward_hook(lambda _, __, output: seen.append(output)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _is_last(seen: list[Any], children: list[tuple[str, Any]], output: Any) -> bool:
    return len(seen) == len(children) + 1 and seen[-1] is output


def _group_by_layer(
    children: list[tuple[str, Any]], outputs: list[Any], n_rows: int
) -> list[list[tuple[str, Any]]]:
    """Return children by layer.

    A new layer begins with parameters, where one tensor is passed on.
    """
    torch = load_torch()
    layers: list[list[tuple[str, Any]]] = [[]]
    has = goes_over = False
    for (path, child), output in zip(children, outputs, strict=True):
        own = any(True for _ in (*child.parameters(), *child.buffers()))
        if own and has and goes_over:
            layers.append([])
            has = False
        layers[-1].append((path, child))
        has = has or own
        goes_over = isinstance(output, torch.Tensor) and output.is_floating_point()
        goes_over = goes_over and output.ndim > 0 and output.shape[0] == n_rows
    return layers


def _check_apart(name: str, layers: list[list[tuple[str, Any]]]) -> None:
    owner: dict[int, int] = {}
    for number, layer in enumerate(layers):
        for path, child in layer:
            for key, tensor in (*child.named_parameters(), *child.named_buffers()):
                if owner.setdefault(id(tensor), number) != number:
                    raise InvalidParameterError(
                        f"{name} uses {path}.{key} in several layers, which stages of a pipeline "
                        "cannot share. Give each layer parameters of its own, or use pipeline=None."
                    )


def keep_children(module: Any, paths: set[str]) -> dict[str, Any]:
    """Keep the children of a chain at some paths, remove the others, and return the kept ones."""
    kept: dict[str, Any] = {}
    for path, child in find_chain_children(module) or ():
        if path in paths:
            kept[path] = child
            continue
        owner, _, key = path.rpartition(".")
        module.get_submodule(owner)._modules[key] = load_torch().nn.Identity()
    return kept


R = TypeVar("R")


#: Begins the stream of a key.
Seed = Callable[[tuple[int, ...]], None]


class _Turns:
    """Turns of threads at the stream: one that draws is alone with it, others are together."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._together = 0
        self._waiting = 0
        self._alone = False

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not (self._alone or self._waiting))
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                if self._waiting:
                    self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._alone or self._together))
            self._waiting -= 1
            self._alone = True
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()


_TURNS = _Turns()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the host's random numbers from a seed meanwhile; the stream is then as it was."""
    generator = load_torch().default_generator
    with _TURNS.alone():
        before = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(before)


class Drawing:
    """Calls of functions that may draw random numbers: then from streams that they name.

    Whether they draw is seen from the stream, at each call, until one does.

    Parameters
    ----------
    on_device : bool
        Whether they compute on a device, whose stream is not looked at: then they always draw.
    """

    def __init__(self, on_device: bool) -> None:
        self._on_device = on_device
        self._draws = on_device

    def call(self, function: Callable[[Seed], R], undo: Callable[[], Any]) -> R:
        """Call a function and return its result; once it draws random numbers, from named
        streams.
        """
        if not self._draws:
            with _TURNS.together():
                before = _position()
                result = function(lambda key: None)
                if _position() == before:
                    return result
            undo()
            self._draws = True
        with _TURNS.alone():
            return function(self._seed)

    def _seed(self, key: tuple[int, ...]) -> None:
        digest = blake2b(repr(key).encode(), digest_size=7).digest()
        torch = load_torch()
        seed = torch.manual_seed if self._on_device else torch.default_generator.manual_seed
        seed(int.from_bytes(digest))


def _position() -> bytes:
    state: bytes = load_torch().default_generator.get_state().numpy().tobytes()
    return state
