"""Arrays and objects as bytes that contain only data, and bounds of messages.

An object is split into a tree that JSON can represent, and arrays. The reader rebuilds it as one of
the classes that it expects, with values of the types in the class's annotations; a message never
carries code. Every length that a message announces is checked by `check_array_layout` against the
`MessageBounds` of the connection.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import MessageError

#: Classes whose objects may be sent, by their names.
KnownClasses = Mapping[str, type]


# -- arrays ----------------------------------------------------------------------------------------


def pack_arrays(arrays: list[NDArray[Any]]) -> bytes:
    """Return arrays of any shapes and numeric dtypes as bytes."""
    return b"".join(pack_array_parts(arrays))


def pack_array_parts(arrays: list[NDArray[Any]]) -> list[Any]:
    """Return the bytes of `pack_arrays` in parts, without copying the arrays."""
    text = json.dumps([[array.dtype.str, array.shape] for array in arrays]).encode()
    # Layout: length of the JSON text (8 bytes), the text with dtypes and shapes, padded to a whole
    # word; then the arrays, each padded so that the next one is aligned.
    parts: list[Any] = [len(text).to_bytes(8, "little") + text + bytes(-len(text) % 8)]
    return parts + list_array_bytes(arrays)


def view_bytes(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array, without a copy if it is contiguous."""
    # A memoryview without entries cannot be cast.
    return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")


def list_array_bytes(arrays: list[NDArray[Any]]) -> list[Any]:
    """Return the bytes of each array, padded to whole words."""
    parts: list[Any] = []
    for array in arrays:
        if array.size:
            parts.append(view_bytes(array))
            if n_padding := -array.nbytes % 8:
                parts.append(bytes(n_padding))
    return parts


def unpack_arrays(data: NDArray[np.uint8]) -> list[NDArray[Any]]:
    """Undo `pack_arrays`; the arrays are views of `data`, and aligned as `data` is."""
    try:
        length = int.from_bytes(data[:8].tobytes(), "little")
        layout = json.loads(data[8 : 8 + length].tobytes())
        offset, arrays = 8 + length + -length % 8, []
        for dtype, shape in layout:
            # No array may extend beyond the received bytes.
            checked_dtype, size = check_array_layout(dtype, shape, max(0, len(data) - offset))
            arrays.append(data[offset : offset + size].view(checked_dtype).reshape(shape))
            offset += size + -size % 8
    except (ValueError, TypeError, RecursionError) as error:
        raise make_malformed_error(
            f"arrays that cannot be read ({type(error).__name__})"
        ) from error
    return arrays


# -- objects ---------------------------------------------------------------------------------------


def name_classes(classes: Iterable[type]) -> KnownClasses:
    """Return classes by qualified name, the same in every process."""
    return {_get_qualified_name(kind): kind for kind in classes}


def _get_qualified_name(kind: type) -> str:
    """Return the name that identifies a class in messages."""
    return f"{kind.__module__}.{kind.__qualname__}"


def pack_object(obj: Any, known_classes: KnownClasses) -> bytes:
    """Return an object as bytes for `unpack_object`; see `split_object`."""
    return b"".join(pack_object_parts(obj, known_classes))


def pack_object_parts(obj: Any, known_classes: KnownClasses) -> list[Any]:
    """Return the bytes of `pack_object` in parts, without copying the arrays."""
    tree, arrays = split_object(obj, known_classes)
    text = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    return pack_array_parts([text, *arrays])


def unpack_object(data: bytes | NDArray[np.uint8], known_classes: KnownClasses) -> Any:
    """Undo `pack_object`; its arrays are views of `data`, unless `data` is a bytes object."""
    if isinstance(data, bytes):  # bytes are read-only and may be unaligned
        data = np.frombuffer(bytearray(data), np.uint8)
    try:
        text, *arrays = unpack_arrays(data)
        return join_object(json.loads(text.tobytes()), arrays, known_classes)
    except (ValueError, RecursionError) as error:
        raise make_malformed_error("an object that cannot be read") from error


def split_object(obj: Any, known_classes: KnownClasses) -> tuple[Any, list[NDArray[Any]]]:
    """Return a tree that JSON can represent, and the arrays that it refers to."""
    arrays: list[NDArray[Any]] = []
    return _build_tree(obj, arrays, known_classes), arrays


def _build_tree(obj: Any, arrays: list[NDArray[Any]], known_classes: KnownClasses) -> Any:
    """Return an object as JSON values; append its arrays to `arrays`."""

    def each(objects: Iterable[Any]) -> list[Any]:
        return [_build_tree(value, arrays, known_classes) for value in objects]

    if obj is None or isinstance(obj, bool | int | float | str):
        return obj
    # NumPy scalars are sent as Python scalars, which JSON can represent.
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, np.ndarray):
        arrays.append(obj)
        return {"array": len(arrays) - 1}
    if isinstance(obj, list):
        return each(obj)
    if isinstance(obj, tuple | set | frozenset):
        return {"tuple" if isinstance(obj, tuple) else "set": each(obj)}
    if isinstance(obj, dict):
        # As pairs, since keys of JSON objects must be strings.
        return {"dict": [each(item) for item in obj.items()]}
    name = _get_qualified_name(type(obj))
    if known_classes.get(name) is not type(obj):
        hint = f" (there is another class {name})" if name in known_classes else ""
        raise TypeError(
            f"{name} cannot be sent to other workers{hint}: give numbers, text, arrays, "
            "lists, tuples, sets, dictionaries or objects of the classes that are sent."
        )
    return {"object": [name, *each(vars(obj)), *each(vars(obj).values())]}


def join_object(tree: Any, arrays: list[NDArray[Any]], known_classes: KnownClasses) -> Any:
    """Undo `split_object`."""
    try:
        return _rebuild_object(tree, arrays, known_classes)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise make_malformed_error(
            f"an object that cannot be read ({type(error).__name__})"
        ) from error


def _rebuild_object(tree: Any, arrays: list[NDArray[Any]], known_classes: KnownClasses) -> Any:
    """Return the object of a tree that :func:`_build_tree` made."""

    def each(trees: list[Any]) -> list[Any]:
        return [_rebuild_object(subtree, arrays, known_classes) for subtree in trees]

    if isinstance(tree, list):
        return each(tree)
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "array":
        return arrays[content]
    if kind == "object":
        name, *children = each(content)
        return _make_object(known_classes[name], children)
    return _CONTAINERS[kind](each(content))


#: Containers that JSON lacks, by their names in a tree.
_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "dict": dict}


def _make_object(kind: type, names_and_values: list[Any]) -> Any:
    """Return an object with its attributes, without calling its class."""
    # The names of the attributes come first, then their values.
    half = len(names_and_values) // 2
    state = dict(zip(names_and_values[:half], names_and_values[half:], strict=True))
    # A message may neither omit a field nor add an attribute that the class lacks.
    if dataclasses.is_dataclass(kind) and state.keys() != {
        f.name for f in dataclasses.fields(kind)
    }:
        raise ValueError(f"other attributes than those of {kind.__name__}")
    hints = _find_type_hints(kind)
    if not all(
        isinstance(name, str) and _matches_hint(state[name], hints.get(name, Any)) for name in state
    ):
        raise ValueError(f"no attributes of {kind.__name__}")
    obj: Any = object.__new__(kind)
    vars(obj).update(state)
    return obj


def _find_type_hints(kind: type) -> dict[str, Any]:
    """Return the types in a class's annotations."""
    hints = _known_hints.get(kind)
    if hints is None:
        try:
            hints = typing.get_type_hints(kind)
        except NameError:  # names that a user's class imports for type checkers only
            hints = {}
        _known_hints[kind] = hints
    return hints


#: Type hints by class; weak, since a notebook defines new classes each time a cell runs.
_known_hints: WeakKeyDictionary[type, dict[str, Any]] = WeakKeyDictionary()


def _matches_hint(value: Any, hint: Any) -> bool:
    """Return whether a value has the annotated type, as far as this can be checked."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or getattr(hint, "_is_protocol", False):
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_matches_hint(value, item) for item in arguments)
    # An integer is accepted for a float, as by type checkers (PEP 484).
    if hint is float:
        return isinstance(value, int | float)
    if hint is int:
        return type(value) is int
    if origin in (list, set) and arguments:
        return isinstance(value, origin) and all(
            _matches_hint(item, arguments[0]) for item in value
        )
    if origin is dict:
        return isinstance(value, dict) and all(
            _matches_hint(key, arguments[0]) and _matches_hint(item, arguments[1])
            for key, item in value.items()
        )
    # Hints that are not classes, such as a TypeVar, are not checked.
    expected = origin or hint
    return not isinstance(expected, type) or isinstance(value, expected)


#: Dtypes of arrays that may be sent: plain numbers in this machine's byte order. Object dtypes,
#: which would need pickle, and structured dtypes are refused.
_WIRE_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?efdbhiqBHIQ"}
#: Most arrays in the snapshot of one lane or server: parameters, optimizer state, sums.
_ARRAYS_PER_LANE = 16
#: Most entries of an array along one dimension (2**48); no array is that long.
_MAX_DIMENSION = 1 << 48
#: Most rows of parameters in a message: four billion, at least 17 GB.
_MAX_ROWS = 1 << 32
#: Bytes that a message may have in addition, for headers and small values (4 KiB).
_SMALL_MESSAGE_BYTES = 1 << 12


@dataclass(frozen=True)
class MessageBounds:
    """Bounds of the frames of a connection, from the layout of the fit.

    Parameters
    ----------
    dtype : str or dtype
        Dtype of the parameters.
    n_rows, width : int
        Shape of the server's parameters; if trainers hold them, of all parameters.
    n_lanes : int
        Number of lanes of the fit.
    """

    dtype: Any
    n_rows: int
    width: int
    n_lanes: int

    #: Most bytes of JSON: the records of about 200,000 passes.
    most_text = 1 << 26

    @property
    def most_rows(self) -> int:
        """Return the most rows in a message; a growing table has fewer rows than possible ids."""
        return min(self.n_rows, _MAX_ROWS)

    @property
    def most_packed(self) -> int:
        """Return the most bytes of a compressed push: twice the bytes of the values."""
        itemsize: int = np.dtype(self.dtype).itemsize
        return 2 * self.most_rows * self.width * itemsize + _SMALL_MESSAGE_BYTES

    @property
    def most_arrays(self) -> int:
        """Return the most arrays of a control call: the snapshots of all lanes."""
        return _ARRAYS_PER_LANE * self.n_lanes

    @property
    def most_array(self) -> int:
        """Return the most bytes of an array of a control call.

        Either one number per parameter or, for small models, the sums of all open passes, of which
        there may be as many as records in the JSON text.
        """
        return max(8 * self.most_rows * self.width + _SMALL_MESSAGE_BYTES, self.most_text)


def check_array_layout(
    dtype: Any, shape: Sequence[Any], max_bytes: int
) -> tuple[np.dtype[Any], int]:
    """Return the dtype and size in bytes of an announced array; raise if it is not allowed."""
    known_dtype = _WIRE_DTYPES.get(dtype)
    if known_dtype is None:
        raise make_malformed_error(f"an array of dtype {str(dtype)[:20]!r}")
    if len(shape) > 8 or not all(type(n) is int and 0 <= n < _MAX_DIMENSION for n in shape):
        raise make_malformed_error("an array without a shape")
    size = known_dtype.itemsize * math.prod(shape)
    if size > max_bytes:
        raise make_malformed_error(f"an array of {size} bytes where {max_bytes} are the most")
    return known_dtype, size


def make_malformed_error(content: object) -> MessageError:
    """Return the error for a message that this version would never send."""
    return MessageError(
        f"Another worker of the fit sent {content}. Do all workers have the same version of "
        "daskml_dist, and does no other program use their ports? Fit again."
    )


IdArray = NDArray[Any]


def pack_ids(id_arrays: Sequence[IdArray]) -> NDArray[np.uint8]:
    """Return several arrays of ids as bytes; object arrays must be all str or all bytes."""
    arrays: list[IdArray] = []
    for ids in id_arrays:
        array = ids.astype(object) if ids.dtype.kind in "SU" else ids
        if array.dtype.kind == "O":
            arrays += _pack_texts(array.tolist())
        else:
            data = np.ascontiguousarray(array).view(np.uint8)
            arrays += [_encode_name(array.dtype.str), np.empty(0, np.int64), data]
    return np.frombuffer(pack_arrays(arrays), np.uint8)


def _pack_texts(texts: list[Any]) -> list[IdArray]:
    """Return the type, lengths and bytes of texts."""
    is_bytes = bool(texts) and isinstance(texts[0], bytes)
    encoded = texts if is_bytes else [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([len(text_bytes) for text_bytes in encoded], np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    return [_encode_name("bytes" if is_bytes else "str"), lengths, data]


def _encode_name(text: str) -> IdArray:
    """Return a short text as an array of bytes."""
    return np.frombuffer(text.encode(), np.uint8)


def unpack_ids(packed: NDArray[np.uint8]) -> list[IdArray]:
    """Undo `pack_ids`; texts become object arrays."""
    arrays = unpack_arrays(packed)
    id_arrays: list[IdArray] = []
    for name, lengths, data in zip(arrays[::3], arrays[1::3], arrays[2::3], strict=True):
        kind = name.tobytes().decode()
        if kind in ("str", "bytes"):
            id_arrays.append(_unpack_texts(data.tobytes(), lengths, kind))
        else:
            id_arrays.append(data.copy().view(kind))
    return id_arrays


def _unpack_texts(joined_bytes: bytes, lengths: IdArray, kind: str) -> IdArray:
    """Return an object array of str or bytes, from the joined bytes and their lengths."""
    pieces: list[Any] = [joined_bytes[a:b] for a, b in pairwise([0, *np.cumsum(lengths).tolist()])]
    texts = np.empty(len(pieces), object)
    texts[:] = pieces if kind == "bytes" else [p.decode("utf-8", "surrogatepass") for p in pieces]
    return texts


#: Most forms of objects that are cached; a fit sends objects of only a few forms.
_MAX_FORMS = 64
#: Types of values that are part of a form, since they rarely change between messages.
_PLAIN_TYPES = (type(None), bool, int, str)


@dataclass(frozen=True)
class _ObjectForm:
    """Form of an object: its class, its plain values, and which attributes are arrays."""

    kind: type
    state: dict[str, Any]
    #: Position in the message of each attribute that is an array.
    arrays: dict[str, int]

    def filled(self, arrays: list[NDArray[Any]]) -> Any:
        """Return an object of this form with the given arrays."""
        obj: Any = object.__new__(self.kind)
        state = vars(obj)
        state.update(self.state)
        for name, number in self.arrays.items():
            state[name] = arrays[number]
        return obj


class RepeatedObjects:
    """Packer and unpacker of objects of some classes, which caches their forms.

    Snapshots of a fit differ only in their arrays. The text before the arrays, which names classes
    and attributes, is built or parsed once per form.

    Parameters
    ----------
    known_classes : KnownClasses
    """

    def __init__(self, known_classes: KnownClasses) -> None:
        self._known_classes = known_classes
        self._heads: dict[Any, bytes] = {}
        self._forms: dict[bytes, _ObjectForm] = {}

    def pack(self, obj: Any) -> list[Any]:
        """Return the bytes of `pack_object`, in parts."""
        form = _describe_form(obj)
        if form is None:
            return pack_object_parts(obj, self._known_classes)
        key, arrays = form
        # If the form was packed before, the bytes before its arrays are the same.
        head = self._heads.get(key)
        if head is None:
            parts = pack_object_parts(obj, self._known_classes)
            head = b"".join(parts)
            head = head[: len(head) - sum(map(len, list_array_bytes(arrays)))]
            _remember_form(self._heads, key, head)
        return [head, *list_array_bytes(arrays)]

    def unpack(self, data: NDArray[np.uint8]) -> Any:
        """Return the object that :meth:`pack` packed; its arrays are views of `data`."""
        arrays = unpack_arrays(data)
        # The text is the key: if it was parsed before, only the arrays are new.
        text = arrays[0].tobytes() if arrays else b""
        form = self._forms.get(text)
        if form is not None and len(arrays) == 1 + len(form.arrays):
            return form.filled(arrays[1:])
        obj = unpack_object(data, self._known_classes)
        if _describe_form(obj) is not None:
            _remember_form(self._forms, text, _read_form(obj, text))
        return obj


def _remember_form(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Cache a value; if the cache is full, clear it first, since forms rarely change."""
    if len(cache) >= _MAX_FORMS:
        cache.clear()
    cache[key] = value


def _describe_form(obj: Any) -> tuple[Any, list[NDArray[Any]]] | None:
    """Return a key of an object's form, and its arrays; None if it holds values of other types."""
    if not hasattr(obj, "__dict__"):
        return None
    key: list[Any] = [type(obj)]
    arrays = []
    for name, value in vars(obj).items():
        kind = type(value)
        if kind is np.ndarray:
            arrays.append(value)
            key += (name, value.dtype, value.shape)
        elif kind is float:
            key += (name, kind, repr(value))  # 0.0 is not -0.0
        elif kind in _PLAIN_TYPES:
            key += (name, kind, value)
        else:
            return None
    return tuple(key), arrays


def _read_form(obj: Any, text: bytes) -> _ObjectForm:
    """Return the form of an object that was read from the given JSON text."""
    _, *attributes = json.loads(text)["object"]
    half = len(attributes) // 2
    fields = zip(attributes[:half], attributes[half:], strict=True)
    numbers = {name: value["array"] for name, value in fields if isinstance(value, dict)}
    state = {name: None if name in numbers else value for name, value in vars(obj).items()}
    return _ObjectForm(type(obj), state, numbers)
