"""Messages of a repeated form: their cached encoding equals the plain one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.packing import RepeatedObjects, name_classes, pack_object, unpack_object
from daskml_dist.errors import CommunicationError


@dataclass(frozen=True, eq=False)
class _Question:
    w: Any
    count: Any = 1
    eps: float = 0.0
    note: str | None = None
    shift: Any = None
    inner: Any = None


KNOWN = name_classes([_Question])
QUESTIONS = [
    _Question(np.arange(6.0).reshape(2, 3)),
    _Question(np.ones((2, 3))),  # the same form as the message before
    _Question(np.ones((2, 3)), count=2),
    _Question(np.ones((2, 3)), eps=-0.0),
    _Question(np.ones((2, 3)), eps=0.0),
    _Question(np.ones((2, 3)), count=True),
    _Question(np.ones((2, 3), np.float32), note="x"),
    _Question(np.empty((0, 3)), shift=np.arange(3, dtype=np.int8)),
    _Question(np.ones((2, 3)).T),
    _Question(2, shift=np.float64(3.0)),
    _Question(np.ones(2), inner=(np.ones(3), _Question(None))),
]


def _same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, _Question):
        for name, value in vars(one).items():
            _same(value, vars(other)[name])
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, tuple):
        for mine, theirs in zip(one, other, strict=True):
            _same(mine, theirs)
    else:
        assert repr(one) == repr(other)


def test_cached_encoding_equals_the_plain_one() -> None:
    sender, reader = RepeatedObjects(KNOWN), RepeatedObjects(KNOWN)
    for question in QUESTIONS * 3:
        data = b"".join(sender.pack(question))
        assert data == pack_object(question, KNOWN)
        _same(reader.unpack(np.frombuffer(bytearray(data), np.uint8)), unpack_object(data, KNOWN))


@pytest.mark.parametrize("thing", [{"a": np.ones(3)}, [1, np.ones(2)], "text", None, np.ones(4)])
def test_other_types_use_the_plain_encoding(thing: Any) -> None:
    packer = RepeatedObjects({})
    for _ in range(2):
        data = b"".join(packer.pack(thing))
        unpacked = packer.unpack(np.frombuffer(bytearray(data), np.uint8))
        assert repr(unpacked) == repr(thing)


def test_the_cache_of_forms_is_bounded() -> None:
    sender, reader = RepeatedObjects(KNOWN), RepeatedObjects(KNOWN)
    for count in range(300):
        data = b"".join(sender.pack(_Question(np.ones(1), count)))
        assert reader.unpack(np.frombuffer(bytearray(data), np.uint8)).count == count
    assert len(sender._heads) < 100
    assert len(reader._forms) < 100


def test_invalid_objects_and_bytes_are_refused() -> None:
    packer = RepeatedObjects(KNOWN)
    for _ in range(2):
        with pytest.raises(TypeError, match="cannot be sent"):
            packer.pack(_Question(object()))
    data = np.frombuffer(bytearray(b"".join(packer.pack(QUESTIONS[0]))), np.uint8)
    packer.unpack(data)
    with pytest.raises(CommunicationError):
        packer.unpack(data[:-8])
    with pytest.raises(CommunicationError):
        RepeatedObjects({}).unpack(data)
