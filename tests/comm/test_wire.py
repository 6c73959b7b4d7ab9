"""Frames arrive unchanged, and keys known to both ends are not sent again."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.wire import FrameReader, PulledKeys, encode_request
from daskml_dist.ps.messages import ServerRequest


class _Pipe:
    """Byte stream in memory."""

    def __init__(self) -> None:
        self.data = b""

    def read_into(self, buffer: memoryview) -> None:
        buffer[:] = self.data[: len(buffer)]
        self.data = self.data[len(buffer) :]


class _Way:
    """Direction of a connection, with encoder and decoder."""

    def __init__(self) -> None:
        self._pipe, self._keys = _Pipe(), PulledKeys()
        self._reader = FrameReader(self._pipe, MessageBounds("float32", 2000, 2, 10))

    def send(
        self, lane: int, index: NDArray[np.int64] | None, wanted: NDArray[np.int64] | None
    ) -> int:
        """Send a push and a pull, check the received ones; return the number of bytes."""
        values = None if index is None else np.full((len(index), 2), 7, dtype="float32")
        sent = ServerRequest((lane, 9), 1, 2, 4, 8.0, values, index, pull_index=wanted)
        data = b"".join(bytes(buffer) for buffer in encode_request(sent, self._keys))
        self._pipe.data += data
        found = self._reader.read_frame()
        assert isinstance(found, ServerRequest)
        assert not self._pipe.data
        for ours, theirs in (
            (index, found.index), (wanted, found.pull_index), (values, found.values),
        ):  # fmt: skip
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_array_equal(ours, theirs)
        return len(data)


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_a_push_to_pulled_keys_omits_them(length: int) -> None:
    way, of_keys = _Way(), 8 * length
    one, two = np.arange(length), np.arange(length) + 5
    first = way.send(1, None, one)
    both = way.send(1, one, two)
    assert both == first + 8 * length  # bytes of the values
    assert way.send(1, two.copy(), None) == both - of_keys
    assert way.send(1, two, two) == both


def test_keys_that_differ_from_the_pull_are_sent() -> None:
    way = _Way()
    one, two = np.arange(100), np.arange(100) + 1
    way.send(1, None, one)
    plain = way.send(1, one, None)
    assert way.send(1, two, None) == plain + 800
    assert way.send(1, one[:50], None) == plain + 400 - 400
    assert way.send(2, one, None) == plain + 800  # keys of another lane
    assert way.send(1, one, None) == plain


def test_keys_changed_in_place_are_sent_again() -> None:
    way = _Way()
    keys = np.arange(10)
    way.send(1, None, keys)
    keys += 1
    way.send(1, keys, None)
