"""Chains in modules: the layers of a `Sequential`, which a pipeline cuts into stages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.torch_modules.library import load_torch

__all__ = ["chain_of", "children_of_chain", "keep_children"]


def children_of_chain(module: Any) -> list[tuple[str, Any]] | None:
    """Children that the data may go through one after the other, with their paths.

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


def chain_of(
    name: str, module: Any, positional: list[Any], named: dict[str, Any]
) -> tuple[tuple[str, ...], ...]:
    """Layers of a module, each the paths of neighbouring children: one has parameters at least.

    Parameters
    ----------
    name : str
        Of the module, for errors.
    module : nn.Module
        In evaluation mode; called once.
    positional, named : list, dict
        What it is called with.

    Raises
    ------
    InvalidParameterError
        It is no chain, or a parameter is in several of its layers.
    """
    children = children_of_chain(module)
    with _watched(module, children or []) as seen, load_torch().no_grad():
        output = module(*positional, **named)
    whole = bool(children) and not named
    if not whole or seen[0] is not positional[0] or not _is_last(seen, children or [], output):
        raise InvalidParameterError(
            f"{name} is no chain of layers that a pipeline could cut into stages. Let module make "
            "a torch.nn.Sequential, or a module that does nothing but call one that it keeps as "
            "its only attribute; or use pipeline=None."
        )
    assert children is not None
    layers = _grouped(children, seen[1:], len(positional[0]))
    _check_apart(name, layers)
    return tuple(tuple(path for path, _ in layer) for layer in layers)


@contextmanager
def _watched(module: Any, children: list[tuple[str, Any]]) -> Iterator[list[Any]]:
    """Input of the first of some children meanwhile, and the output of each."""
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


def _grouped(
    children: list[tuple[str, Any]], outputs: list[Any], n_rows: int
) -> list[list[tuple[str, Any]]]:
    """Children by layer: a new one begins with parameters, where one tensor of rows goes over."""
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
    """The children of a chain at some paths; the others leave the module."""
    kept: dict[str, Any] = {}
    for path, child in children_of_chain(module) or ():
        if path in paths:
            kept[path] = child
            continue
        owner, _, key = path.rpartition(".")
        module.get_submodule(owner)._modules[key] = load_torch().nn.Identity()
    return kept
