"""Memory needed to split entries: few bytes per entry besides input and blocks."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from daskml_dist.data.keyed import cut
from daskml_dist.models.rated_pairs import FactorModel
from daskml_dist.solvers.als import SIDES

RANDOM = np.random.default_rng(0)
N_PARTS, N = 40, 10_000


def peak(function: Callable[[], Any]) -> tuple[Any, int]:
    """Return a function's result and its peak memory in bytes."""
    tracemalloc.start()
    try:
        found = function()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def parts() -> list[cut.NumberedEntries]:
    codes = RANDOM.integers(0, 1000, (N_PARTS, 2, N))
    return [cut.number_part(a, b, RANDOM.integers(1, 6, N) / 2, False) for a, b in codes]


def test_blocks_need_one_extra_copy_of_their_entries() -> None:
    keyed_parts = parts()
    assert keyed_parts[0].values is not None
    assert keyed_parts[0].values.dtype == np.float32
    cuts = cut.choose_cuts([cut.sample_ids(part, SIDES) for part in keyed_parts], 1)
    (whole,), peak_bytes = peak(
        lambda: cut.make_parcels(range(N_PARTS), keyed_parts, SIDES[0], cuts["user"], [range(1)])
    )
    # Two codes per entry, whose value is in the part; and temporary memory of one part.
    assert peak_bytes < 1.2 * 8 * N_PARTS * N
    make = [0, [whole], SIDES, cuts]
    cut.build_block(*make)  # type: ignore[arg-type]  # loads the loops
    block, peak_bytes = peak(lambda: cut.build_block(*make))  # type: ignore[arg-type]
    assert block.n_rows == N_PARTS * N
    assert block.values.dtype == np.float32
    # The block's indices and values, and a reordered copy.
    assert peak_bytes < 1.2 * 16 * N_PARTS * N


def test_pieces_hold_no_ids_of_other_ranges() -> None:
    keyed_parts = parts()[:1]
    cuts = cut.choose_cuts([cut.sample_ids(part, SIDES) for part in keyed_parts], 10)
    for parcel in cut.make_parcels(
        [0], keyed_parts, SIDES[0], cuts["user"], [range(1), range(1, 10)]
    ):
        for ((_, piece),) in parcel.pieces.values():
            assert piece.row_ids.base is None
            assert len(piece.row_ids) < 200


def test_initial_factors_are_drawn_in_pieces() -> None:
    factors, peak_bytes = peak(lambda: FactorModel(10).start(slice(0, 400_000), 0))
    assert peak_bytes < 1.5 * factors.nbytes
