"""Arrays, and objects made of them, as bytes that hold data alone.

An object is taken apart into a tree that JSON can hold, and arrays. It is put together again as one
of the classes that the reader expects, with values of the types that the class's annotations name;
no code comes with it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.bounds import array_layout, malformed

__all__ = ["Kinds", "array_parts", "kinds", "pack", "pack_object", "pack_object_parts",
           "pack_parts", "put_together", "take_apart", "unpack", "unpack_object"]  # fmt: skip

#: Classes whose objects may travel, by their names.
Kinds = Mapping[str, type]


# -- arrays ----------------------------------------------------------------------------------------


def pack(arrays: list[NDArray[Any]]) -> bytes:
    """Arrays of any shapes and dtypes of numbers, as bytes."""
    return b"".join(pack_parts(arrays))


def pack_parts(arrays: list[NDArray[Any]]) -> list[Any]:
    """The bytes of `pack` in parts one after the other, without a copy of the arrays."""
    text = json.dumps([[array.dtype.str, array.shape] for array in arrays]).encode()
    parts: list[Any] = [len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8)]
    return parts + array_parts(arrays)


def array_parts(arrays: list[NDArray[Any]]) -> list[Any]:
    """The bytes of arrays, each filled up to whole words."""
    parts: list[Any] = []
    for array in arrays:
        if array.size:
            parts.append(np.ascontiguousarray(array).data.cast("B"))
            if odd := -array.nbytes % 8:
                parts.append(bytes(odd))
    return parts


def unpack(data: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Undo `pack`; the arrays are parts of `data`, and aligned as it is.

    Raises
    ------
    CommunicationError
        The bytes are not what `pack` makes.
    """
    try:
        length = int.from_bytes(data[:8].tobytes(), "little")
        layout = json.loads(data[8 : 8 + length].tobytes())
        at, arrays = 8 + length + -length % 8, []
        for dtype, shape in layout:
            found, size = array_layout(dtype, shape, max(0, len(data) - at))
            arrays.append(data[at : at + size].view(found).reshape(shape))
            at += size + -size % 8
    except (ValueError, TypeError, RecursionError) as error:
        raise malformed(f"arrays that cannot be read ({type(error).__name__})") from error
    return arrays


# -- objects ---------------------------------------------------------------------------------------


def kinds(classes: Iterable[type]) -> Kinds:
    """Names of classes, the same in every process; of two with one name the last counts."""
    return {_name(kind): kind for kind in classes}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def pack_object(thing: Any, known: Kinds) -> bytes:
    """Undone by `unpack_object`; see `take_apart`."""
    return b"".join(pack_object_parts(thing, known))


def pack_object_parts(thing: Any, known: Kinds) -> list[Any]:
    """The bytes of `pack_object` in parts, without a copy of the arrays."""
    tree, arrays = take_apart(thing, known)
    text = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    return pack_parts([text, *arrays])


def unpack_object(data: bytes | NDArray[np.uint8], known: Kinds) -> Any:
    """Undo `pack_object`; arrays of it are parts of `data`, unless that is bytes.

    Raises
    ------
    CommunicationError
        The bytes are not what it makes.
    """
    if isinstance(data, bytes):  # they may lie anywhere, and cannot be written to
        data = np.frombuffer(bytearray(data), np.uint8)
    try:
        text, *arrays = unpack(data)
        return put_together(json.loads(text.tobytes()), arrays, known)
    except (ValueError, RecursionError) as error:
        raise malformed("an object that cannot be read") from error


def take_apart(thing: Any, known: Kinds) -> tuple[Any, list[NDArray[Any]]]:
    """A tree that JSON can hold, and the arrays that it names.

    Parameters
    ----------
    thing : object
        Numbers, text, arrays, lists, tuples, sets, dictionaries and objects of `known` classes.
    known : Kinds

    Raises
    ------
    TypeError
        It holds something else.
    """
    arrays: list[NDArray[Any]] = []
    return _tree(thing, arrays, known), arrays


def _tree(thing: Any, arrays: list[NDArray[Any]], known: Kinds) -> Any:
    def each(things: Iterable[Any]) -> list[Any]:
        return [_tree(one, arrays, known) for one in things]

    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, np.generic):
        return thing.item()
    if isinstance(thing, np.ndarray):
        arrays.append(thing)
        return {"array": len(arrays) - 1}
    if isinstance(thing, list):
        return each(thing)
    if isinstance(thing, tuple | set | frozenset):
        return {"tuple" if isinstance(thing, tuple) else "set": each(thing)}
    if isinstance(thing, dict):
        return {"dict": [each(item) for item in thing.items()]}
    name = _name(type(thing))
    if known.get(name) is not type(thing):
        another = f" (there is another class {name})" if name in known else ""
        raise TypeError(
            f"{name} cannot travel to other workers{another}: give numbers, text, arrays, lists, "
            "tuples, sets, dictionaries or objects of the classes that are sent."
        )
    return {"object": [name, *each(vars(thing)), *each(vars(thing).values())]}


def put_together(tree: Any, arrays: list[NDArray[Any]], known: Kinds) -> Any:
    """Undo `take_apart`.

    Raises
    ------
    CommunicationError
        The tree is not what it makes, or names another class.
    """
    try:
        return _thing(tree, arrays, known)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise malformed(f"an object that cannot be read ({type(error).__name__})") from error


def _thing(tree: Any, arrays: list[NDArray[Any]], known: Kinds) -> Any:
    def each(trees: list[Any]) -> list[Any]:
        return [_thing(one, arrays, known) for one in trees]

    if isinstance(tree, list):
        return each(tree)
    if not isinstance(tree, dict):
        return tree
    ((kind, of),) = tree.items()
    if kind == "array":
        return arrays[of]
    if kind == "object":
        name, *rest = each(of)
        return _made(known[name], rest)
    return _CONTAINERS[kind](each(of))


_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "dict": dict}


def _made(kind: type, rest: list[Any]) -> Any:
    """An object with its attributes, made as `copy` makes one."""
    half = len(rest) // 2
    state = dict(zip(rest[:half], rest[half:], strict=True))
    if dataclasses.is_dataclass(kind) and state.keys() != {
        f.name for f in dataclasses.fields(kind)
    }:
        raise ValueError(f"other attributes than those of {kind.__name__}")
    hints = _hints(kind)
    if not all(
        isinstance(name, str) and _fits(state[name], hints.get(name, Any)) for name in state
    ):
        raise ValueError(f"no attributes of {kind.__name__}")
    thing: Any = object.__new__(kind)
    vars(thing).update(state)
    return thing


def _hints(kind: type) -> dict[str, Any]:
    found = _known_hints.get(kind)
    if found is None:
        try:
            found = typing.get_type_hints(kind)
        except NameError:  # annotations of a user's own, for type checkers alone
            found = {}
        _known_hints[kind] = found
    return found


#: Of classes as long as they live: a notebook makes new ones with each run of a cell.
_known_hints: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that an annotation names, as far as it can be seen."""
    origin, of = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in of)
    if hint is float:
        return isinstance(value, int | float)
    if hint is int:
        return type(value) is int
    if origin in (list, set) and of:
        return isinstance(value, origin) and all(_fits(one, of[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, of[0]) and _fits(one, of[1]) for key, one in value.items()
        )
    found = origin or hint
    return not isinstance(found, type) or isinstance(value, found)
