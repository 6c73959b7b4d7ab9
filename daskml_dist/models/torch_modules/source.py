"""Construction of a torch module and its criterion, with the same parameters in every process.

The user's argument (a class and its arguments, or an instance) is sent as a `ModuleSource`; each
lane makes its own module from it. The rest of the file serves this:

- `named_tensors` fixes the order of a module's tensors in the flat parameter vector;
- `split_chain` cuts a sequential module into layers, for stages of a pipeline;
- `seeded` and `Drawing` keep torch's random stream the same on any number of workers. The stream
  is global to the process, while lanes are threads, so draws need a lock.
"""

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
from daskml_dist.models.torch_modules.lookups import replace_embeddings


# Compared by identity (eq=False), since `==` of tensors is elementwise.
@dataclass(frozen=True, eq=False)
class NamedTensor:
    """A parameter or buffer of a module.

    Parameters
    ----------
    name : str
        Its key in ``state_dict()``.
    owner : nn.Module
        The submodule that holds it.
    key : str
        Name of the attribute of `owner`.
    tensor : Tensor
    trained : bool
        Whether it is a parameter that requires gradients.
    """

    name: str
    owner: Any
    key: str
    tensor: Any
    trained: bool

    @property
    def is_buffer(self) -> bool:
        """Return whether it is a buffer, which a forward pass may change."""
        return self.key in self.owner._buffers

    @property
    def retention(self) -> float:
        """Return the factor by which a batch multiplies its old value; 1 unless it is known."""
        norm = load_torch().nn.modules.batchnorm._NormBase
        is_mean = isinstance(self.owner, norm) and self.key in {"running_mean", "running_var"}
        if not is_mean or not self.owner.training:
            return 1.0
        # Without a momentum it is the mean of all batches, whose factor changes with their number.
        momentum = self.owner.momentum
        return 1.0 if momentum is None else 1.0 - float(momentum)


@dataclass(frozen=True, eq=False)
class ModuleSource:
    """Factory of a module and of its criterion. Picklable, if the user's objects are.

    Parameters
    ----------
    module : callable, or nn.Module
        A class or function that makes the module; or an instance without weights
        (:func:`without_weights`), which is copied for each lane.
    arguments : mapping
        Keyword arguments of `module`.
    criterion : callable
        Class or instance of a loss module, or a function of outputs and targets.
    criterion_arguments : mapping
        Keyword arguments of a class `criterion`.
    lookups : tuple of str
        Embedding parts of the module, replaced by lookups of rows that are provided with a batch.
    """

    module: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    criterion: Any = None
    criterion_arguments: Mapping[str, Any] = field(default_factory=dict)
    lookups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the module's class or function."""
        return class_name_of(self.module)

    def make_seeded(self, seed: int, dtype: Any) -> Any:
        """Return a new module, whose parameters are drawn from a seed."""
        torch = load_torch()
        with seeded(seed), explain_errors(f"{self.name}(...)"):
            is_made = isinstance(self.module, torch.nn.Module)
            module = copy.deepcopy(self.module) if is_made else self.module(**self.arguments)
        if not isinstance(module, torch.nn.Module):
            raise InvalidParameterError(
                f"module={self.module!r} makes a {type(module).__name__}, which is not a module. "
                "Give a class derived from torch.nn.Module, or a function that returns one."
            )
        replace_embeddings(module, self.lookups)
        # Parameters become slices of one real vector, which is laid out before any row is seen.
        _check_not_lazy(module)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if tensor.is_complex():
                raise InvalidParameterError(
                    f"The parameter {name!r} is complex. Use separate real and imaginary parts."
                )
        return module.to(dtype)

    def make_criterion(self, dtype: Any) -> Any:
        """Return the criterion, which gives a loss for each row."""
        torch, user_criterion = load_torch(), self.criterion
        # reduction="none": rows have weights, and the losses of lanes are summed, not averaged.
        if isinstance(user_criterion, torch.nn.Module):
            criterion = copy.deepcopy(user_criterion)
            if hasattr(criterion, "reduction"):
                criterion.reduction = "none"
            return _check_criterion(criterion).to(dtype)
        if not inspect.isclass(user_criterion):  # a function, which must not reduce its result
            return user_criterion
        arguments = dict(self.criterion_arguments)
        if "reduction" in inspect.signature(user_criterion).parameters:
            arguments["reduction"] = "none"
        with explain_errors(f"{class_name_of(user_criterion)}(...)"):
            criterion = user_criterion(**arguments)
        return (
            _check_criterion(criterion).to(dtype)
            if isinstance(criterion, torch.nn.Module)
            else criterion
        )


def _check_criterion(criterion: Any) -> Any:
    """Return a loss module; raise if it has parameters to train."""
    # The vector of parameters is that of the module alone: others would stay as they began.
    trained = [name for name, p in criterion.named_parameters() if p.requires_grad]
    if trained:
        raise InvalidParameterError(
            f"The criterion {class_name_of(type(criterion))} has parameters to train "
            f"({', '.join(trained[:5])}), but a fit trains only those of the module. Create them "
            "in the module and return them from forward in a tuple, which the criterion receives; "
            "or freeze them: requires_grad_(False)."
        )
    return criterion


def _check_not_lazy(module: Any) -> None:
    """Raise if a module has parameters without a shape."""
    lazy = load_torch().nn.parameter.UninitializedTensorMixin
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, lazy):
            raise InvalidParameterError(
                f"{class_name_of(module)} has a lazy layer: the shape of {name} is only known "
                "after its first rows, but parameters are laid out before. Give the layer its "
                "sizes, such as torch.nn.Linear(20, 2) for LazyLinear(2)."
            )


def class_name_of(value: Any) -> str:
    """Return the name of a class or function, or of the class of any other value."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def without_weights(module: Any) -> Any:
    """Return a copy of a module whose parameters and saved buffers take no memory.

    It is sent to the workers instead of the user's instance, whose weights are sent in the flat
    vector.
    """
    torch = load_torch()
    _check_not_lazy(module)
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise InvalidParameterError(
            f"module={class_name_of(module)}(...) cannot be copied for the lanes, with "
            f"{type(error).__name__}: {error}. Keep open files, locks and connections out of it."
        ) from error
    for named in named_tensors(copied):
        # One element, with strides of 0: the shape is kept.
        placeholder = torch.zeros((), dtype=named.tensor.dtype).expand(named.tensor.shape)
        if named.is_buffer:
            named.owner._buffers[named.key] = placeholder
        else:
            named.tensor.data, named.tensor.grad = placeholder, None
    return copied


def named_tensors(module: Any) -> list[NamedTensor]:
    """Return parameters and saved buffers in the order of the flat vector, each tensor once.

    Trained parameters come first, then parameters without gradients and buffers, floating-point
    ones before others. In a sequential module this is the order within each child, one child after
    the other, so that a stage of a pipeline is a contiguous slice.
    """
    children = _find_chain_children(module)
    tensors_by_id: dict[int, NamedTensor] = {}
    for path, child in [("", module)] if children is None else children:
        tensors = _iterate_tensors(child, f"{path}." if path else "")
        # Checkpoints depend on this order. The sort is stable: equal kinds stay as defined.
        sorted_tensors = sorted(
            tensors, key=lambda n: (not n.trained, not n.tensor.is_floating_point())
        )
        for named in sorted_tensors:
            # A tensor that several children share belongs to the first of them.
            tensors_by_id.setdefault(id(named.tensor), named)
    return list(tensors_by_id.values())


def _iterate_tensors(module: Any, prefix: str) -> Iterator[NamedTensor]:
    """Yield the parameters and saved buffers of a module and its submodules, each tensor once."""
    tensor_ids: set[int] = set()
    for path, owner in module.named_modules():
        owner_prefix = f"{prefix}{path}." if path else prefix
        saved_buffers = [k for k in owner._buffers if k not in owner._non_persistent_buffers_set]
        for key in (*owner._parameters, *saved_buffers):
            tensor = getattr(owner, key)
            if tensor is not None and id(tensor) not in tensor_ids:
                tensor_ids.add(id(tensor))
                trained = key in owner._parameters and tensor.requires_grad
                yield NamedTensor(owner_prefix + key, owner, key, tensor, trained)


@contextmanager
def explain_errors(subject: str) -> Iterator[None]:
    """Turn an error of a user's module into an InvalidParameterError with a remedy.

    `subject` raised it: the subject of the message.
    """
    try:
        yield
    except DaskMLDistError:
        raise
    except Exception as error:
        raise InvalidParameterError(
            f"{subject} raised {type(error).__name__}: "
            f"{error}{_suggest_remedy(str(error), subject)}"
        ) from error


def _suggest_remedy(text: str, subject: str) -> str:
    """Return the likely remedy for an error of torch, recognised by words in its message."""
    # The first match is used: words that occur in many errors are tested last.
    if "Expected more than 1 value per channel" in text:
        return (
            ". Batch normalisation needs at least two rows per batch: use a larger batch_size "
            "or micro_batch_size, chunks of more even sizes, or fewer lanes "
            "(run=Run(n_lanes=...))."
        )
    if "missing" in text and subject.startswith("The criterion,"):
        return (
            ". It is called with the outputs and the targets: to give it more, wrap it in a "
            "function of these two; outputs may be a tuple."
        )
    if "forward() missing" in text or "forward() got an unexpected" in text:
        return (
            ". Rows are passed as one argument; use inputs={'name': columns, ...} to map "
            "columns of a dataframe to arguments."
        )
    if "unexpected keyword" in text or "missing" in text:
        return ". Pass its arguments as module__name=value (criterion__name=value)."
    if "Bool and" in text:
        return ". Boolean rows are not converted: X.astype('float32')."
    if "Long and" in text or "Int and" in text:
        return (
            ". Integers are not converted, since they may be tokens. If they are numbers: "
            "X.astype('float32')."
        )
    if "'indices'" in text:
        return ". Tokens must be integers: X.astype('int64')."
    if "Target size" in text or "must match the size of tensor" in text:
        return ". For labels of several classes use a criterion such as torch.nn.CrossEntropyLoss."
    if "not tuple" in text:
        return (
            ". The criterion receives everything that forward returns: use one that accepts a "
            "tuple, or return only the outputs."
        )
    if "Byte" in text or "unsigned char" in text:
        return (
            '. Rows of bytes are not converted: set images="channels_last" or "channels_first", '
            "or begin forward with x = x.float() / 255."
        )
    if "shapes cannot be multiplied" in text or "size mismatch" in text:
        return (
            ". The first layer expects another number of features than X has: set it with "
            "module__name=value."
        )
    if "out of range" in text:
        return (
            ". A token is negative, or not below the size of the embedding: make that larger, and "
            "count tokens from 0."
        )
    return ". Correct it, and try it on a few rows first: module(torch.from_numpy(X[:2]))."


def _find_chain_children(module: Any) -> list[tuple[str, Any]] | None:
    """Return paths and modules of the layers of a `Sequential`, nested ones expanded; or None.

    A module that holds one `Sequential` and nothing else counts as a `Sequential`. Whether its
    `forward` only calls it is not seen here: :func:`split_chain` tries it.
    """
    path = ""
    while not _is_plain_sequential(module):
        has_tensors = any(value is not None for value in (*module._parameters.values(),
                                                  *module._buffers.values()))  # fmt: skip
        if has_tensors or len(module._modules) != 1:
            return None
        ((name, module),) = module._modules.items()
        path += f"{name}."
    return list(_iterate_layers(module, path))


def _is_plain_sequential(module: Any) -> bool:
    """Return whether a module only calls its children in order."""
    forward = load_torch().nn.Sequential.forward
    # Hooks may change the data that passes through the module.
    has_hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return getattr(type(module), "forward", None) is forward and not has_hooks


def _iterate_layers(chain: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in chain._modules.items():
        if _is_plain_sequential(child):
            yield from _iterate_layers(child, f"{path}{name}.")
        else:
            yield path + name, child


def split_chain(
    name: str, module: Any, positional: list[Any], keyword_args: dict[str, Any]
) -> tuple[tuple[str, ...], ...]:
    """Return the layers of a module, each the paths of adjacent children, for pipeline stages.

    The module is called once on the arguments, to check that rows pass through its children in
    order.
    """
    children = _find_chain_children(module)
    with _record_children(children or []) as recorded, load_torch().no_grad():
        output = module(*positional, **keyword_args)
    # Compared by identity: each child is called once, the first one on the unchanged rows, and the
    # module returns the result of the last one.
    if (
        not children
        or keyword_args
        or len(recorded) != len(children) + 1
        or recorded[0] is not positional[0]
        or recorded[-1] is not output
    ):
        raise InvalidParameterError(
            f"{name} is not a chain of layers that a pipeline can split into stages. Make module "
            "a torch.nn.Sequential, or a module that only calls one kept as its only attribute; "
            "or use pipeline=None."
        )
    layers = _group_by_layer(children, recorded[1:], len(positional[0]))
    _check_no_shared_tensors(name, layers)
    return tuple(tuple(path for path, _ in layer) for layer in layers)


@contextmanager
def _record_children(children: list[tuple[str, Any]]) -> Iterator[list[Any]]:
    """Record the input of the first child and the output of each while the context is open."""
    recorded: list[Any] = []

    def record_input(_: Any, inputs: tuple[Any, ...]) -> None:
        if not recorded and len(inputs) == 1:
            recorded.append(inputs[0])

    hooks = [children[0][1].register_forward_pre_hook(record_input)] if children else []
    # A module that occurs twice in the chain gets one hook, which is called twice.
    for child in {id(child): child for _, child in children}.values():
        hooks.append(child.register_forward_hook(lambda _, __, output: recorded.append(output)))
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _group_by_layer(
    children: list[tuple[str, Any]], outputs: list[Any], n_rows: int
) -> list[list[tuple[str, Any]]]:
    """Return the children grouped into layers, each with parameters (unless no child has any)."""
    torch = load_torch()
    layers: list[list[tuple[str, Any]]] = [[]]
    has_tensors = can_cut = False
    for (path, child), output in zip(children, outputs, strict=True):
        child_has_tensors = any(True for _ in (*child.parameters(), *child.buffers()))
        # A layer without parameters (an activation, dropout) stays with the one before it.
        if child_has_tensors and has_tensors and can_cut:
            layers.append([])
            has_tensors = False
        layers[-1].append((path, child))
        has_tensors = has_tensors or child_has_tensors
        # A stage sends one float tensor to the next, with a gradient for each row. A recurrent
        # layer's tuple, or tokens, cannot be sent.
        can_cut = isinstance(output, torch.Tensor) and output.is_floating_point()
        can_cut = can_cut and output.ndim > 0 and output.shape[0] == n_rows
    return layers


def _check_no_shared_tensors(name: str, layers: list[list[tuple[str, Any]]]) -> None:
    """Raise `InvalidParameterError` if two layers share a parameter or buffer (tied weights)."""
    owner: dict[int, int] = {}
    for number, layer in enumerate(layers):
        for path, child in layer:
            for key, tensor in (*child.named_parameters(), *child.named_buffers()):
                if owner.setdefault(id(tensor), number) != number:
                    raise InvalidParameterError(
                        f"{name} uses {path}.{key} in several layers, which stages of a pipeline "
                        "cannot share. Give each layer its own parameters, or use pipeline=None."
                    )


def keep_children(module: Any, paths: set[str]) -> dict[str, Any]:
    """Keep the children of a chain at some paths, and remove the others; return the kept ones."""
    kept_children: dict[str, Any] = {}
    for path, child in _find_chain_children(module) or ():
        if path in paths:
            kept_children[path] = child
            continue
        # A stage holds its own parameters only; an Identity keeps the paths of the others valid.
        owner, _, key = path.rpartition(".")
        module.get_submodule(owner)._modules[key] = load_torch().nn.Identity()
    return kept_children


R = TypeVar("R")


#: Seeds torch's generator by a key, such as (seed of the fit, lane, step).
Seed = Callable[[tuple[int, ...]], None]


class _SharedLock:
    """Readers-writer lock of torch's random stream, in which waiting writers go first.

    Threads that do not draw share it; one that draws holds it exclusively.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_sharing = 0
        self._n_waiting = 0  # threads that wait for the exclusive lock
        self._is_exclusive = False

    @contextmanager
    def share(self) -> Iterator[None]:
        with self._changed:
            # Wait for pending writers: a sequence of readers would otherwise starve them.
            self._changed.wait_for(lambda: not (self._is_exclusive or self._n_waiting))
            self._n_sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_sharing -= 1
                if self._n_waiting:
                    self._changed.notify_all()

    @contextmanager
    def exclude(self) -> Iterator[None]:
        with self._changed:
            # Counted before it waits, so that no reader can start in between.
            self._n_waiting += 1
            self._changed.wait_for(lambda: not (self._is_exclusive or self._n_sharing))
            self._n_waiting -= 1
            self._is_exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()


#: One per process, like torch's generator.
_STREAM_LOCK = _SharedLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator within the context, and restore its state afterwards."""
    generator = load_torch().default_generator
    with _STREAM_LOCK.exclude():
        old_state = generator.get_state()
        generator.manual_seed(seed)
        try:
            yield
        finally:
            generator.set_state(old_state)


class Drawing:
    """Caller of forward passes that may draw random numbers (dropout) and are then seeded.

    Lanes run side by side until one is seen to draw: the state of the generator has changed. From
    then on this caller's functions run one at a time, each seeded by its own keys, so that draws do
    not depend on the number of workers or threads.

    Parameters
    ----------
    device : torch.device or None
        GPU on which the functions compute, whose generator is not observed: they are assumed to
        draw from the start. None: the CPU.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._draws = device is not None

    def call(self, function: Callable[[Seed], R], undo: Callable[[], Any]) -> R:
        """Return ``function(seed)``; the first call that draws is undone and repeated, seeded."""
        # At first unseeded and in parallel with other lanes: without dropout, a network never
        # draws.
        if not self._draws:
            with _STREAM_LOCK.share():
                old_state = _get_stream_state()
                result = function(lambda key: None)
                if _get_stream_state() == old_state:
                    return result
            # The pass may have changed buffers, such as running means.
            undo()
            self._draws = True
        with _STREAM_LOCK.exclude():
            return function(self._seed)

    def _seed(self, key: tuple[int, ...]) -> None:
        # A hash, so that keys that differ in one number give unrelated streams; 56 bits fit torch's
        # signed 64-bit seeds.
        number = int.from_bytes(blake2b(repr(key).encode(), digest_size=7).digest())
        torch = load_torch()
        torch.default_generator.manual_seed(number)
        # `torch.manual_seed` would give the same streams, but also queues seeds for absent kinds of
        # devices, each with a formatted stack: a fifth of a network's step.
        if self._device is not None:
            torch.cuda.default_generators[self._device.index].manual_seed(number)


def _get_stream_state() -> bytes:
    # Bytes, as tensors are compared elementwise.
    state: bytes = load_torch().default_generator.get_state().numpy().tobytes()
    return state
