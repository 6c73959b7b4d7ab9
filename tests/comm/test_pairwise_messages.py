"""Messages between pairs of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from daskml_dist.comm.base import WaitBound
from daskml_dist.comm.socket_group import PairMessages
from daskml_dist.errors import CommunicationError, RunAbortedError
from tests.comm.ranks import PATIENCE, Ranks


def test_messages_are_received_by_name(ranks: Callable[..., Ranks]) -> None:
    """Messages may be received in any order and have any size."""
    large = np.arange(3_000_000.0)  # more than socket buffers hold

    def act(group: Any) -> list[Any]:
        lines, others = PairMessages(group), [(group.rank + k) % group.size for k in (1, 2, 0)]
        for to in others:
            lines.send(to, 1, [large + group.rank])
            lines.send(to, 2, [])
            lines.send(to, 3, [np.array([group.rank, to]), np.ones((2, 0, 3), np.float32)])
        found = [(lines.receive(source, 3), lines.receive(source, 1)) for source in others]
        assert all(lines.receive(source, 2) == [] for source in others)
        lines.flush()
        total = group.allreduce(np.ones(4))  # a collective may follow all messages
        np.testing.assert_array_equal(total, np.full(4, group.size))
        lines.close()
        return [(source, *arrays) for source, arrays in zip(others, found, strict=True)]

    for rank, found in enumerate(ranks(False, False, False).each(act)):
        for source, (named, empty), (big,) in found:
            np.testing.assert_array_equal(named, [source, rank])
            assert (empty.shape, empty.dtype) == ((2, 0, 3), np.float32)
            assert big[-1] == large[-1] + source


def test_a_missing_message_times_out(ranks: Callable[..., Ranks]) -> None:
    aborted = [False]
    two = ranks(False, False, wait=WaitBound(PATIENCE, is_aborted=lambda: aborted[0]))

    def act(group: Any) -> None:
        lines = PairMessages(group)
        if group.rank:
            aborted[0] = True
            return
        with pytest.raises(RunAbortedError):
            lines.receive(1, 7)
        with pytest.raises(CommunicationError, match="of its own"):
            lines.receive(0, 7)
        lines.close()

    two.each(act)
