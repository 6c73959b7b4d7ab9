"""Compression of a push: accuracy, bytes, and error feedback."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.wire import FrameReader, encode_request
from daskml_dist.compression import (
    COMPRESSORS,
    EF21,
    Compressor,
    EightBit,
    Feedback,
    Float16,
    OneBit,
    Packed,
    PowerSGD,
    SignificantlyModified,
    TopK,
    get_compressor,
)
from daskml_dist.errors import InvalidParameterError
from daskml_dist.ps.messages import ServerRequest
from tests.maths.compressors import ALL, PROMISED

DTYPES = ["float32", "float64"]


def _unpacked(compressor: Compressor, array: NDArray[Any]) -> NDArray[Any]:
    out = np.full_like(array, np.nan)
    compressor.decompress(compressor.compress(array), out)
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_half_precision_keeps_eleven_bits_at_any_scale(dtype: str, size: float) -> None:
    rng = np.random.default_rng(0)
    array = (size * rng.normal(size=1000) * 10.0 ** rng.uniform(-4, 0, 1000)).astype(dtype)
    np.testing.assert_allclose(_unpacked(Float16(), array), array, rtol=2**-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1000])
def test_eight_bits_are_within_half_a_level_of_their_block(dtype: str, n: int) -> None:
    rng = np.random.default_rng(0)
    array = (rng.normal(size=n) * 10.0 ** (np.arange(n) // 256 * 3.0)).astype(dtype)
    error = np.abs(_unpacked(EightBit(), array) - array)
    for start in range(0, n, 256):
        at = slice(start, start + 256)
        assert error[at].max() <= np.abs(array[at]).max() / 254 * (1 + 1e-5)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 40])
def test_one_bit_keeps_signs_and_mean_sizes(n: int) -> None:
    array = np.random.default_rng(0).normal(size=n)
    out = _unpacked(OneBit(block_size=8), array)
    np.testing.assert_array_equal(out > 0, array > 0)
    for start in range(0, n, 8):
        at = slice(start, start + 8)
        np.testing.assert_allclose(np.abs(out[at]), np.abs(array[at]).mean())


@pytest.mark.parametrize("share", [0.001, 0.01, 0.5, 1.0])
def test_the_largest_entries_are_sent_as_they_are(share: float) -> None:
    array = np.random.default_rng(0).normal(size=1000)
    out = _unpacked(TopK(share), array)
    sent = np.flatnonzero(out)
    largest = np.argsort(-np.abs(array))[: round(1000 * share)]
    np.testing.assert_array_equal(sent, np.sort(largest))
    np.testing.assert_array_equal(out[sent], array[sent])


def test_significant_entries_are_sent_as_they_are() -> None:
    array = np.random.default_rng(0).normal(size=1000)
    out = _unpacked(SignificantlyModified(0.3), array)
    large = np.abs(array) >= 0.3 * np.abs(array).max()
    np.testing.assert_array_equal(out, np.where(large, array, 0))
    # The indices of sent values take at most one bit per entry.
    everything = SignificantlyModified(0.01).compress(np.ones(1000))
    assert everything.nbytes == 1000 * 8 + 125


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
def test_edges(compression: Any, dtype: str) -> None:
    compressor = get_compressor(compression)
    assert compressor is not None
    assert pickle.loads(pickle.dumps(compressor)).__class__ is compressor.__class__
    assert len(_unpacked(compressor, np.empty(0, dtype))) == 0
    np.testing.assert_array_equal(_unpacked(compressor, np.zeros(300, dtype)), 0)
    tiny = np.full(3, np.finfo(dtype).smallest_subnormal)
    assert np.isfinite(_unpacked(compressor, tiny)).all()


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_do_not_overflow(name: str, dtype: str) -> None:
    huge = np.finfo(dtype).max * np.array([0.5, -1e-3, 0.99])
    out = _unpacked(COMPRESSORS[name](), huge.astype(dtype))
    assert np.isfinite(out).all()
    # Of signs, entries have one size.
    np.testing.assert_allclose(out[2], huge[2], rtol=0.6 if name == "1bit" else 1e-2)


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_compression_keeps_non_finite_values_visible(name: str, value: float) -> None:
    array = np.ones(300)
    array[7] = value
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(_unpacked(COMPRESSORS[name](), array)[7])


@pytest.mark.parametrize(("name", "dtype"), PROMISED)
def test_bytes_fall_as_promised(name: str, dtype: str) -> None:
    array = np.random.default_rng(0).normal(size=10_000).astype(dtype)
    packed = COMPRESSORS[name]().compress(array)
    assert packed.nbytes / array.nbytes == pytest.approx(PROMISED[name, dtype], rel=0.01)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("sparse_push", [False, True])
def test_packed_pushes_travel_whole(compression: Any, sparse_push: bool) -> None:
    compressor = get_compressor(compression)
    assert compressor is not None
    rng = np.random.default_rng(0)
    packed = compressor.compress(rng.normal(size=60))
    index = np.arange(30) if sparse_push else None
    sent = ServerRequest((3, 5), 1, 2, 4, 8.0, None, index, pull_index=index, packed=packed)
    data = b"".join(bytes(buffer) for buffer in encode_request(sent, {}))
    found = FrameReader(_Bytes(data), MessageBounds("float64", 30, 2, 6)).read_frame()
    assert isinstance(found, ServerRequest)
    assert found.packed is not None
    assert (found.lanes, found.clock, found.rows) == ((3, 5), 2, 8.0)
    for ours, theirs in zip(packed.arrays, found.packed.arrays, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    assert len(data) < packed.nbytes + 60 * 8 * sparse_push + 200


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, buffer: memoryview) -> None:
        buffer[:], self._data = self._data[: len(buffer)], self._data[len(buffer) :]


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sparse_push", [False, True])
def test_nothing_is_lost(compression: Any, dtype: str, sparse_push: bool) -> None:
    """Sent values plus residuals equal the sum of gradients, also after a flush."""
    compressor = get_compressor(compression)
    assert compressor is not None
    rng = np.random.default_rng(0)
    feedback = Feedback(compressor, (200, 2), dtype)
    sent, arrived = np.zeros((200, 2)), np.zeros((200, 2))
    for _ in range(50):
        index = np.sort(rng.choice(200, 30, replace=False)) if sparse_push else None
        values = rng.normal(size=(30 if sparse_push else 200, 2)).astype(dtype)
        before = values.copy()
        packed = feedback.pack(values, index)
        np.testing.assert_array_equal(values, before)
        out = np.empty_like(values)
        compressor.decompress(packed, out.reshape(-1))
        at = slice(None) if index is None else index
        sent[at] += values
        arrived[at] += out
        np.testing.assert_allclose(
            arrived + feedback.residual, sent, atol=1e3 * np.finfo(dtype).eps
        )
    # Vectors alone are no matrices of low rank, and are sent whole.
    assert (np.abs(feedback.residual).max() > 0) == (compression != "powersgd")
    rest, index = feedback.flush(np.zeros((200, 2), dtype))
    assert index is None
    np.testing.assert_allclose(arrived + rest, sent, atol=1e3 * np.finfo(dtype).eps)
    assert not feedback.residual.any()


def test_a_sparse_flush_takes_along_the_rows_that_wait() -> None:
    feedback = Feedback(TopK(0.5), (6, 1), "float64")
    feedback.pack(np.array([[1.0], [8.0]]), np.array([2, 4]))
    values, index = feedback.flush(np.array([[3.0]]), np.array([5]))
    np.testing.assert_array_equal(index, [2, 5])
    np.testing.assert_array_equal(values, [[1.0], [3.0]])
    assert not feedback.residual.any()


def test_every_compressor_is_found_by_its_name() -> None:
    assert get_compressor(None) is None
    for name, kind in COMPRESSORS.items():
        assert kind.name == name
        assert get_compressor(name) == kind()
        assert get_compressor(found := kind()) is found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TopK, 0),
        (TopK, 1.5),
        (TopK, "all"),
        (SignificantlyModified, -1),
        (SignificantlyModified, np.nan),
        (EightBit, 0),
        (EightBit, 2.5),
        (OneBit, 0),
        (PowerSGD, 0),
        (PowerSGD, True),
        (EF21, 0),
        (partial(EF21, 0.1), 1),
        (partial(OneBit, 8), -0.1),
        (partial(OneBit, 8), "much"),
    ],
)
def test_invalid_parameters_are_refused(kind: Any, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="give a"):
        kind(value)


@pytest.mark.parametrize(
    "arrays", [(), (np.ones((2, 2)),), ([1.0],), (np.array(["a"]),), (np.ones(1),) * 256]
)
def test_unsupported_arrays_are_refused(arrays: Any) -> None:
    with pytest.raises(InvalidParameterError, match="1 to 255 arrays of numbers"):
        Packed(arrays)
