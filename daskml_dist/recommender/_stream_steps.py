"""Steps of factors on a stream in which new users and items occur.

Ids are numbered in order of arrival (`NumberedIds`). The factors of an id are in the row with its
number; items' rows come after all reserved rows of users. More rows than ids are reserved, so that
the parameters seldom have to be moved: the number is doubled when all are used, as in a dynamic
array, which costs O(1) per new id (`RatingSteps`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.data.keyed.ids import check_one_kind
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import StartedStream
from daskml_dist.streaming.steps import InProcessSteps
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec

#: Minimum rows reserved for users, and for items: with doubling, few streams grow more than once.
_MIN_RESERVED_ROWS = 1024


@dataclass(frozen=True, eq=False)
class UnnumberedRatings:
    """Ratings of a call, whose ids are not numbered yet."""

    entries: NumberedEntries

    @property
    def n_rows(self) -> int:
        """Return the number of ratings."""
        return len(self.entries)


class RatingSteps(InProcessSteps):
    """Steps of the factors of users and items, with more rows if new ids occur.

    Parameters
    ----------
    fit : FitSpec
        Fit of one lane, with reserved rows.
    batch_rows : int or None
    ids : tuple of NumberedIds
        Ids of users and of items.
    on_growth : callable
        Called with the fit that has more rows.
    """

    def __init__(
        self,
        fit: FitSpec,
        batch_rows: int | None,
        ids: tuple[NumberedIds, NumberedIds],
        on_growth: Callable[[FitSpec], Any],
    ) -> None:
        super().__init__(fit, batch_rows)
        self.fit, self.ids, self._on_growth = fit, ids, on_growth

    def learn_rows(self, rows: BatchRows, block: Any) -> float:
        """Number the ratings, reserve more rows if needed, and take a step; return its loss."""
        if (sizes := self.find_sizes_needed(block)) is not None:
            self.grow_parameters(*sizes)
        self.number_rows(rows, block)
        return super().learn_rows(rows, block)

    def find_sizes_needed(self, block: UnnumberedRatings) -> tuple[int, int] | None:
        """Return the numbers of users and items to reserve for a call; None if space is left."""
        capacities = self._model.n_users, self._model.n_items
        by_side = list(zip(self.ids, block.entries.ids, capacities, strict=True))
        # There is space even if all ids of the call are new: no need to look them up.
        if all(
            len(known_ids) + len(call_ids) <= capacity for known_ids, call_ids, capacity in by_side
        ):
            return None
        needed = [known_ids.count_with_new(call_ids) for known_ids, call_ids, _ in by_side]
        # Doubled, so that moving the parameters has a constant cost per id.
        users, items = (
            capacity if n <= capacity else 2 * n
            for n, capacity in zip(needed, capacities, strict=True)
        )
        return None if (users, items) == capacities else (users, items)

    def grow_parameters(self, n_users: int, n_items: int) -> None:
        """Move the parameters to more rows; rows of future ids have initial values as in a fit."""
        old_model, old_shard = self._model, self.shard
        fit = reserve_rows(self.fit, n_users, n_items)
        work = fit.steps
        # Initial factors are hashed from the numbers of ids (`RatedPairs.init_rows`), so that new
        # rows do not depend on when they are reserved.
        w = work.model.init(work.seed, old_shard.w.dtype)
        opt_state = work.rule.init(w)
        for new_start, start, n in (
            (0, 0, old_model.n_users),
            (n_users, old_model.n_users, old_model.n_items),
        ):
            w[new_start : new_start + n] = old_shard.w[start : start + n]
            for name, array in opt_state.items():
                array[new_start : new_start + n] = old_shard.opt_state[name][start : start + n]
        shard = Shard(work.rule, ShardState(w, opt_state, old_shard.step, old_shard.rows))
        # All or none of the attributes change, even if the user interrupts.
        with Interrupts() as interrupts, interrupts.delay():
            self.fit, self._work, self._model, self.shard = fit, work, work.model, shard
            self._on_growth(fit)

    def number_rows(self, rows: BatchRows, block: UnnumberedRatings) -> None:
        """Number the ids of a call: set `rows` to rows of the parameters, and to targets."""
        entries = block.entries
        users, items = (
            numbered.assign_numbers(ids)[codes]
            for numbered, ids, codes in zip(self.ids, entries.ids, entries.codes, strict=True)
        )
        values = entries.values
        y = np.ones(len(users)) if values is None else values.astype(np.float64)
        rows.X = np.stack([users, items + self._model.n_users], axis=1)
        rows.y = self._model.encode(y, None, self.shard.w.dtype)
        # Negatives are drawn among items that have occurred, not among reserved rows.
        self._model = replace(self._model, n_drawn=len(self.ids[1]))

    def draw_items_of_steps(self, rows: BatchRows, n_rows: int, step: int) -> Any:
        """Return the rows of a call, with the items that its steps draw as negatives.

        They are the items that :meth:`learn_rows` draws at step `step`.
        """
        if not self._model.negatives:
            return rows.X
        steps = self.cut_into_steps(rows, n_rows, step)
        drawn = [
            self._model.draw_negatives(piece, self._backend)
            for pieces, _ in steps
            for piece in pieces
        ]
        return np.concatenate(drawn)


def reserve_rows(fit: FitSpec, n_users: int, n_items: int) -> FitSpec:
    """Return the fit with rows for at least these numbers of users and items."""
    model = fit.steps.model
    assert isinstance(model, RatedPairs)
    sizes = max(n_users, _MIN_RESERVED_ROWS), max(n_items, _MIN_RESERVED_ROWS)
    model = replace(model, n_users=sizes[0], n_items=sizes[1])
    n = model.parameters.shape[0]
    (group,) = fit.steps.rule.groups
    # Sparse updates: a step changes few of the rows, however many are reserved.
    rule = replace(
        fit.steps.rule, groups=(replace(group, stop=n, n_penalised=n),), coordinates=True
    )
    return fit.replace_work(model=model, rule=rule)


@dataclass
class StartedRatingStream(StartedStream):
    """Stream of ratings, planned by its first call.

    Parameters
    ----------
    ids : tuple of NumberedIds
        Ids of users and of items.
    """

    ids: tuple[NumberedIds, NumberedIds]

    def describe(self) -> dict[str, Any]:
        """Return the contents of a stream's checkpoint, with the ids and the reserved rows."""
        model: Any = self.fit.steps.model
        ids = [ids_to_json(numbered.array) for numbered in self.ids]
        capacity = [model.n_users, model.n_items]
        return {**self.likeness, "ids": ids, "room": capacity, "offset": float(model.offset)}

    def sorted_state(
        self, state: ShardState
    ) -> tuple[ShardState, tuple[NDArray[Any], NDArray[Any]]]:
        """Return the state with its rows in the order of the sorted ids, and these ids."""
        model: Any = self.fit.steps.model
        id_arrays = [numbered.array for numbered in self.ids]
        orders = [np.argsort(ids, kind="stable") for ids in id_arrays]
        # Rows of the users, sorted, then of the items; reserved rows without an id are left out.
        row_order = np.concatenate([orders[0], orders[1] + model.n_users])
        opt_state = {name: array[row_order] for name, array in state.opt_state.items()}
        users, items = (ids[order] for ids, order in zip(id_arrays, orders, strict=True))
        return ShardState(state.w[row_order], opt_state, state.step, state.rows), (users, items)


class NumberedIds:
    """Ids of users or of items in order of arrival, each with its number.

    Parameters
    ----------
    first : ndarray
        Ids to begin with.
    """

    def __init__(self, first: NDArray[Any]) -> None:
        #: Ids in the order of their numbers; joined only on request.
        self._id_arrays: list[NDArray[Any]] = []
        self._number_of_id: dict[Any, int] = {}
        if len(first):
            self._add(first)

    def __len__(self) -> int:
        return len(self._number_of_id)

    def check(self, ids: NDArray[Any]) -> None:
        """Raise if ids have a different kind from the ids so far."""
        if self._id_arrays:
            check_one_kind([self._id_arrays[0], ids])

    def assign_numbers(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Return the numbers of distinct ids; new ids get the next numbers, in order."""
        get = self._number_of_id.get
        numbers = np.array([get(key, -1) for key in ids.tolist()], np.int64)
        if len(new_positions := np.flatnonzero(numbers < 0)):
            numbers[new_positions] = len(self) + np.arange(len(new_positions))
            self._add(ids[new_positions])
        return numbers

    def count_with_new(self, ids: NDArray[Any]) -> int:
        """Return the number of ids after adding `ids`, which are distinct."""
        return len(self) + sum(key not in self._number_of_id for key in ids.tolist())

    def _add(self, ids: NDArray[Any]) -> None:
        """Give new ids the next numbers."""
        self._id_arrays.append(ids)
        start = len(self)
        self._number_of_id.update((key, start + i) for i, key in enumerate(ids.tolist()))

    @property
    def array(self) -> NDArray[Any]:
        """Return all ids, in the order of their numbers."""
        if len(self._id_arrays) > 1:
            self._id_arrays = [np.concatenate(self._id_arrays)]
        return self._id_arrays[0]


def ids_to_json(ids: NDArray[Any]) -> dict[str, Any]:
    """Return ids as an object for JSON; raise for bytes."""
    # Times as integers of their unit: `tolist` makes datetime objects, which JSON cannot hold.
    if ids.dtype.kind == "M":
        return {"dtype": ids.dtype.str, "ids": ids.view(np.int64).tolist()}
    keys = ids.tolist()
    if any(isinstance(key, bytes) for key in keys[:1]):
        raise InvalidParameterError(
            "A checkpoint of a stream can hold ids that are numbers, strings or times, but "
            "these are bytes. Decode them: frame[column].str.decode('utf-8')."
        )
    return {"dtype": ids.dtype.str, "ids": keys}


def ids_from_json(plain: dict[str, Any]) -> NDArray[Any]:
    """Return the ids that :func:`ids_to_json` wrote."""
    dtype = np.dtype(plain["dtype"])
    if dtype.kind == "M":
        return np.array(plain["ids"], np.int64).view(dtype)
    return np.array(plain["ids"], dtype)
