"""Objects that are sent again and again with other arrays: all but these is made once.

The bytes are those of `pack_object`. Each side remembers what it has seen: the sender what stands
before the arrays, the reader how that was understood.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.comm.packing import Kinds, array_parts, pack_object_parts, unpack, unpack_object

__all__ = ["RepeatedObjects"]

#: Forms of objects that are remembered at most.
_MOST = 64
_PLAIN = (type(None), bool, int, str)


@dataclass(frozen=True)
class _Form:
    """Form of an object of plain values and arrays."""

    kind: type
    state: dict[str, Any]
    #: Which array each attribute is that is one.
    arrays: dict[str, int]

    def filled(self, arrays: list[NDArray[Any]]) -> Any:
        thing: Any = object.__new__(self.kind)
        state = vars(thing)
        state.update(self.state)
        for name, number in self.arrays.items():
            state[name] = arrays[number]
        return thing


class RepeatedObjects:
    """Packs and unpacks objects of some classes.

    Parameters
    ----------
    known : Kinds
    """

    def __init__(self, known: Kinds) -> None:
        self._known = known
        self._heads: dict[Any, bytes] = {}
        self._forms: dict[bytes, _Form] = {}

    def pack(self, thing: Any) -> list[Any]:
        """The bytes of `pack_object`, in parts.

        Raises
        ------
        TypeError
            It holds what cannot be sent.
        """
        form = _form_of(thing)
        if form is None:
            return pack_object_parts(thing, self._known)
        key, arrays = form
        head = self._heads.get(key)
        if head is None:
            parts = pack_object_parts(thing, self._known)
            head = b"".join(parts)
            head = head[: len(head) - sum(map(len, array_parts(arrays)))]
            _remember(self._heads, key, head)
        return [head, *array_parts(arrays)]

    def unpack(self, data: NDArray[np.uint8]) -> Any:
        """Undo `pack`; arrays are parts of `data`.

        Raises
        ------
        CommunicationError
            The bytes are not what it makes.
        """
        arrays = unpack(data)
        text = arrays[0].tobytes() if arrays else b""
        form = self._forms.get(text)
        if form is not None and len(arrays) == 1 + len(form.arrays):
            return form.filled(arrays[1:])
        thing = unpack_object(data, self._known)
        if _form_of(thing) is not None:
            _remember(self._forms, text, _read_form(thing, text))
        return thing


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    if len(known) >= _MOST:
        known.clear()
    known[key] = value


def _form_of(thing: Any) -> tuple[Any, list[NDArray[Any]]] | None:
    """Key of an object's form, other for each, and its arrays; None: it holds other things."""
    if not hasattr(thing, "__dict__"):
        return None
    key: list[Any] = [type(thing)]
    arrays = []
    for name, value in vars(thing).items():
        kind = type(value)
        if kind is np.ndarray:
            arrays.append(value)
            key += (name, value.dtype, value.shape)
        elif kind is float:
            key += (name, kind, repr(value))  # 0.0 is not -0.0
        elif kind in _PLAIN:
            key += (name, kind, value)
        else:
            return None
    return tuple(key), arrays


def _read_form(thing: Any, text: bytes) -> _Form:
    """The form of an object that was read from a tree of that text."""
    _, *rest = json.loads(text)["object"]
    half = len(rest) // 2
    named = zip(rest[:half], rest[half:], strict=True)
    numbers = {name: value["array"] for name, value in named if isinstance(value, dict)}
    state = {name: None if name in numbers else value for name, value in vars(thing).items()}
    return _Form(type(thing), state, numbers)
