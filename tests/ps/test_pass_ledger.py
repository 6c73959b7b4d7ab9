"""The pass ledger: reports that cover several passes."""

from __future__ import annotations

import json
import re
import time

import numpy as np

from daskml_dist.comm.packing import MessageBounds, join_object, name_classes, split_object
from daskml_dist.comm.wire import FrameReader, encode_call
from daskml_dist.policies import Synchronous
from daskml_dist.ps.ledger import LEDGER_PARTS, PassLedger, PassReport, PassStoppingRule
from daskml_dist.ps.messages import CallPayload, ServerStatus
from daskml_dist.ps.server import ShardServer


class ByteSource:
    """Source of the bytes of frames, in place of a socket."""

    def __init__(self, sent: bytes) -> None:
        self._left = memoryview(sent)

    def read_into(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes."""
        buffer[:], self._left = self._left[: len(buffer)], self._left[len(buffer) :]


def _server(max_iter: int = 100) -> tuple[ShardServer, PassLedger]:
    ledger = PassLedger([0, 1, 2], PassStoppingRule(max_iter, tol=None), lockstep=True)
    return ShardServer(Synchronous(), [0, 1, 2], None, ledger, n_trainers=1), ledger


def _report(server: ShardServer, first: int, sums: list[list[float]]) -> CallPayload:
    answers: list[CallPayload] = []
    payload = {"generation": 0, "first": first, "sums": sums}
    server.call("report_sums", payload, answers.append)
    (answer,) = answers
    return answer


def test_sums_reported_together_are_separate_passes_with_their_times() -> None:
    server, ledger = _server()
    since = time.perf_counter()
    ledger.start_clock()
    time.sleep(0.06)
    sums = [[6.0, 3.0, 10.0, 20.0, 0.05], [3.0, 3.0, 11.0, 21.0, 0.02]]
    assert _report(server, 1, sums) == {"status": 0, "stop": False}
    first, second = ledger.records
    assert (first["pass"], first["loss"], first["rows"], first["steps"]) == (1, 2.0, 3, 1)
    assert (second["pass"], second["bytes_pushed"], second["bytes_pulled"]) == (2, 11, 21)
    elapsed = time.perf_counter() - since
    assert first["seconds"] >= 0.01 - 1e-6
    assert second["seconds"] >= 0.03 - 1e-6
    assert first["seconds"] + second["seconds"] <= elapsed - 0.02 + 1e-6


def test_repeated_sums_are_ignored_and_times_never_decrease() -> None:
    server, ledger = _server()
    _report(server, 1, [[1.0, 1.0, 0.0, 0.0, 0.0]])
    # A trainer that takes over reports from the beginning, by a different clock.
    sums = [[9.0, 1.0, 0.0, 0.0, 50.0], [2.0, 1.0, 0.0, 0.0, 40.0], [3.0, 1.0, 0.0, 0.0, 0.0]]
    _report(server, 1, sums)
    assert [record["loss"] for record in ledger.records] == [1.0, 2.0, 3.0]
    assert min(record["seconds"] for record in ledger.records) >= 0.0


def test_the_reply_says_that_the_fit_ends() -> None:
    server, ledger = _server(max_iter=3)
    sums = [[1.0, 1.0, 0.0, 0.0, 0.0]] * 2
    assert not _report(server, 1, sums)["stop"]
    assert _report(server, 3, sums)["stop"]
    assert len(ledger.records) == 4
    server, _ = _server()
    server.stop()
    assert _report(server, 1, sums)["stop"]
    server.abort("over")
    assert _report(server, 3, sums) == {"status": int(ServerStatus.ABORTED)}


def test_staleness_is_counted_by_powers_of_two() -> None:
    server, ledger = _server()
    for staleness in (0, 0, 1, 2, 3, 3, 4, 15, 16):
        ledger.observe_staleness(staleness)
    before = ledger.snapshot()
    for staleness in (40, 1):
        ledger.observe_staleness(staleness)
    ledger.restore(before)
    _report(server, 1, [[1.0, 1.0, 0.0, 0.0, 0.0]])
    (record,) = ledger.records
    assert record["staleness_counts"] == [2, 1, 3, 1, 1, 1]
    assert (record["staleness_mean"], record["staleness_max"]) == (44 / 9, 16)
    _report(server, 2, [[1.0, 1.0, 0.0, 0.0, 0.0]])
    assert ledger.records[1]["staleness_counts"] == []


def test_the_snapshot_of_many_open_passes_is_a_few_arrays() -> None:
    """One lane is hundreds of passes behind; each of the other 31 has reported every pass."""
    lanes = list(range(32))
    last = PassLedger(lanes, PassStoppingRule(10**6, tol=None), lockstep=False, score=np.sum)
    rng = np.random.default_rng(0)
    for number in range(1, 301):
        for lane in lanes[:-1]:
            held_out = rng.random(2).tolist()
            last.report(number, PassReport([lane], 1.0, 4.0, 2, 3, 5, validation=held_out))
        last.count(number, 8.0, 2.0, 1)
    snapshot = last.snapshot()
    tree, arrays = split_object(snapshot, name_classes(LEDGER_PARTS))
    # A standby reads all values at each outer step: their number must not grow with reports.
    assert len(re.findall(r"[\w.]+", json.dumps(tree))) < 300 * 6
    copy = join_object(tree, arrays, name_classes(LEDGER_PARTS))
    other = PassLedger(lanes, PassStoppingRule(10**6, tol=None), lockstep=False, score=np.sum)
    other.restore(copy)
    for ledger in (last, other):
        assert ledger.partial_rows == 300 * (31 * 4 + 8)
        for number in range(1, 301):
            ledger.report(number, PassReport([31], 1.0, 4.0, 2, 3, 5, validation=[1.0, 0.0]))
        assert ledger.n_passes == 300
        assert ledger.partial_rows == 0
    different = {"seconds"}
    for one, restored in zip(last.records, other.records, strict=True):
        for name in one.keys() - different:
            assert type(one[name]) is type(restored[name])
            assert one[name] == restored[name]
    assert (one["rows"], one["steps"], one["bytes_pushed"]) == (32 * 4 + 8, 32 * 2 + 1, 32 * 3)
    assert one["loss"] == (32 + 2) / (32 * 4 + 8)


def test_a_lane_may_be_any_number_of_passes_behind_however_small_the_model() -> None:
    """A snapshot of 20,000 open passes fits into a message even with only three parameters."""
    ledger = PassLedger([0, 1], PassStoppingRule(10**6, tol=None), lockstep=False, score=np.sum)
    for number in range(1, 20_001):
        ledger.report(number, PassReport([1], 1.0, 4.0, 2, validation=[1.0, 2.0]))
    sent = b"".join(map(bytes, encode_call({"snapshot": ledger.snapshot()})))
    bounds = MessageBounds("float32", n_rows=3, width=1, n_lanes=2)
    received = FrameReader(ByteSource(sent), bounds).read_frame()
    assert isinstance(received, dict)
    ledger.restore(received["snapshot"])
    assert ledger.partial_rows == 20_000 * 4


def test_a_lane_that_went_back_repeats_the_end_of_a_finished_fit() -> None:
    """A server may be lost after the last pass has closed, with updates not yet replicated."""
    ledger = PassLedger([0, 1], PassStoppingRule(3, tol=None), lockstep=False)
    for number in (1, 2, 3):
        assert not ledger.ends_with(number)
        ledger.report(number, PassReport([0, 1], 1.0, 4.0, 2))
    assert ledger.stopped
    assert [ledger.ends_with(number) for number in (1, 2, 3, 4)] == [False, False, True, True]
