"""Bundles: blocks that one task makes and one worker holds, with the client's summary of each.

Dask takes about as long for a task of few rows as for one of many, so small blocks are made many at
a time; and the `BlockInfo` of a block lies beside it, so that whichever client asks its worker
later need not have the block read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskml_dist.data.block_errors import make_reading_error
from daskml_dist.data.blocks import Block, BlockInfo, inspect_block
from daskml_dist.errors import DaskMLDistError

__all__ = ["Bundle", "group_into_bundles", "make_bundle", "unpack_bundles"]

#: Bytes from which a bundle takes no more blocks: it moves, spills and is made again as one.
_MAX_BUNDLE_BYTES = 2**24
#: Least number of bundles for each thread, where the bytes of a block are not known.
_BUNDLES_PER_THREAD = 8


@dataclass(frozen=True, eq=False)
class Bundle:
    """Blocks, and what the client must know of them.

    Parameters
    ----------
    blocks : dict of int to Block
    infos : dict of int to BlockInfo
    """

    blocks: dict[int, Block]
    infos: dict[int, BlockInfo]

    def __sizeof__(self) -> int:
        # Dask asks this when it budgets a worker's memory.
        return object.__sizeof__(self) + sum(block.nbytes for block in self.blocks.values())


def make_bundle(
    make: Callable[..., Block], numbers: Sequence[int], parts: Sequence[Sequence[Any]]
) -> Bundle:
    """Make blocks, each of one part, and look at them."""
    blocks = {}
    for number, part in zip(numbers, parts, strict=True):
        try:
            blocks[number] = make(number, *part)
        except DaskMLDistError:
            raise
        except Exception as error:
            raise make_reading_error(f"Block {number}", error) from error
    return Bundle(blocks, {number: inspect_block(block) for number, block in blocks.items()})


def group_into_bundles(
    homes: Sequence[str | None], threads: Mapping[str, int], nbytes: Sequence[float] | None
) -> list[tuple[int, ...]]:
    """Return groups of small blocks that one worker holds, each to be made by one task."""
    held: dict[str | None, list[int]] = {}
    for number, home in enumerate(homes):
        held.setdefault(home, []).append(number)
    bundles: list[tuple[int, ...]] = []
    for home, numbers in held.items():
        # At least one bundle a thread, so that all threads of the worker have work.
        shares = threads.get(home or "", 0) * (1 if nbytes is not None else _BUNDLES_PER_THREAD)
        most = len(numbers) // shares if shares else 1
        bundles += _split_by_size(numbers, max(1, most), nbytes)
    return sorted(bundles)


def _split_by_size(
    numbers: Sequence[int], most: int, nbytes: Sequence[float] | None
) -> Iterable[tuple[int, ...]]:
    """Yield runs of blocks: at most `most` together, and no more than fill a bundle."""
    open_: list[int] = []
    size = 0.0
    for number in numbers:
        more = 0.0 if nbytes is None else nbytes[number]
        if open_ and (len(open_) == most or size + more > _MAX_BUNDLE_BYTES):
            yield tuple(open_)
            open_, size = [], 0.0
        open_.append(number)
        size += more
    if open_:
        yield tuple(open_)


def unpack_bundles(bundles: Iterable[Bundle]) -> dict[int, Block]:
    """Return all blocks of some bundles, by number."""
    return {number: block for bundle in bundles for number, block in bundle.blocks.items()}
