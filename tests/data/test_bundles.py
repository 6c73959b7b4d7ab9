"""Bundles: which blocks are computed together."""

from __future__ import annotations

import pytest

from daskml_dist.data.collection import as_collection
from daskml_dist.data.streamed_blocks import group_into_bundles, make_bundle, unpack_bundles
from daskml_dist.errors import InvalidDataError
from tests.data.rows import X

THREADS = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("homes", "nbytes", "expected"),
    [
        (["a", "a", "a"], [1.0] * 3, [(0, 1, 2)]),
        (["a", "b", "a", "b"], [1.0] * 4, [(0, 2), (1,), (3,)]),
        (["a", "a", "a"], [2.0**24] * 3, [(0,), (1,), (2,)]),
        (["a"] * 16, None, [(i, i + 1) for i in range(0, 16, 2)]),
        ([None, None], [1.0] * 2, [(0,), (1,)]),
        (["gone"] * 2, [1.0] * 2, [(0,), (1,)]),
        ([], None, []),
    ],
)  # fmt: skip
def test_small_blocks_of_a_worker_are_computed_together(
    homes: list[str | None], nbytes: list[float] | None, expected: list[tuple[int, ...]]
) -> None:
    assert group_into_bundles(homes, THREADS, nbytes) == expected


def test_a_bundle_returns_its_blocks_and_facts() -> None:
    make = as_collection(X).block_maker
    bundle = make_bundle(make, (3, 5), [[X, None, None], [X[:1], None, None]])
    assert {i: block.n_rows for i, block in unpack_bundles([bundle]).items()} == {3: len(X), 5: 1}
    assert {i: info.n_rows for i, info in bundle.infos.items()} == {3: len(X), 5: 1}


def test_a_failing_block_of_a_bundle_is_named() -> None:
    def make(number: int, *_: object) -> None:
        raise OSError("no such file")

    with pytest.raises(InvalidDataError, match=r"Block 7 could not be read.*no such file"):
        make_bundle(make, (7,), [[None, None, None]])  # type: ignore[arg-type]
