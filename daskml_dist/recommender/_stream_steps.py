"""Steps of factors along a stream, in which users and items come that were not there before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.cut import Numbered
from daskml_dist.data.keyed.ids import check_one_kind
from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.streaming.start import Started
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.spec import FitSpec

__all__ = ["Ids", "Ratings", "StartedPairs", "StepsOfPairs", "ids_of", "plain_ids", "roomy"]

Array = NDArray[Any]
#: Users, or items, that there is room for at first.
_ROOM = 1024


class Ids:
    """Ids of one side in the order in which they came, and the number of each.

    Parameters
    ----------
    first : ndarray
        Those that are there at first.
    """

    def __init__(self, first: Array) -> None:
        self._parts: list[Array] = []
        self._numbers: dict[Any, int] = {}
        if len(first):
            self._add(first)

    def __len__(self) -> int:
        return len(self._numbers)

    def check(self, ids: Array) -> None:
        """Check that ids can be compared with those that there are.

        Raises
        ------
        InvalidDataError
            Some are numbers, others text.
        """
        if self._parts:
            check_one_kind([self._parts[0], ids])

    def numbers(self, ids: Array) -> NDArray[np.int64]:
        """Numbers of ids, each given once; new ones are added, in their order."""
        get = self._numbers.get
        found = np.array([get(key, -1) for key in ids.tolist()], np.int64)
        if len(new := np.flatnonzero(found < 0)):
            found[new] = len(self) + np.arange(len(new))
            self._add(ids[new])
        return found

    def _add(self, ids: Array) -> None:
        self._parts.append(ids)
        start = len(self)
        self._numbers.update((key, start + i) for i, key in enumerate(ids.tolist()))

    @property
    def array(self) -> Array:
        """All of them, in their order."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


@dataclass(frozen=True, eq=False)
class Ratings:
    """Ratings of a call, with ids that nobody has numbered yet."""

    entries: Numbered

    @property
    def n_rows(self) -> int:
        """Ratings."""
        return len(self.entries)


class StepsOfPairs(Steps):
    """Steps of factors, of which there are more where ids come that are new.

    There is room for more ids than have come, so that what there is moves seldom.

    Parameters
    ----------
    fit : FitSpec
        Of one lane, with room.
    batch_rows : int or None
    ids : tuple of Ids
        Of users and items.
    grown : callable
        Told the fit with more room.
    """

    def __init__(
        self,
        fit: FitSpec,
        batch_rows: int | None,
        ids: tuple[Ids, Ids],
        grown: Callable[[FitSpec], Any],
    ) -> None:
        super().__init__(fit, batch_rows)
        self.fit, self.ids, self._grown = fit, ids, grown

    def take(self, rows: BatchRows, block: Any) -> float:
        """As in :class:`Steps`; the ratings are numbered first."""
        entries = block.entries
        users, items = (
            own.numbers(ids)[codes]
            for own, ids, codes in zip(self.ids, entries.ids, entries.codes, strict=True)
        )
        self._make_room()
        values = entries.values
        y = np.ones(len(users)) if values is None else values.astype(np.float64)
        rows.X = np.stack([users, items + self._model.n_users], axis=1)
        rows.y = self._model.encode(y, None, self.shard.w.dtype)
        return super().take(rows, block)

    def _make_room(self) -> None:
        """Have rows for all ids that have come."""
        before = self._model
        sizes = [
            there if len(own) <= there else 2 * len(own)
            for own, there in zip(self.ids, (before.n_users, before.n_items), strict=True)
        ]
        if sizes != [before.n_users, before.n_items]:
            self.fit, old = roomy(self.fit, *sizes), self.shard
            self._work = work = self.fit.steps
            w = work.model.init(work.seed, old.w.dtype)
            slots = work.rule.init(w)
            moves = [(0, 0, before.n_users), (sizes[0], before.n_users, before.n_items)]
            for to, start, n in moves:
                w[to : to + n] = old.w[start : start + n]
                for name, slot in slots.items():
                    slot[to : to + n] = old.slots[name][start : start + n]
            self.shard = Shard(work.rule, ShardState(w, slots, old.step, old.rows))
            self._grown(self.fit)
        model: Any = self.fit.steps.model
        self._model = replace(model, n_drawn=len(self.ids[1]))

    def sorted_state(self, state: ShardState) -> tuple[ShardState, tuple[Array, Array]]:
        """State of the ids that have come, by their order, and these."""
        given = [own.array for own in self.ids]
        orders = [np.argsort(ids, kind="stable") for ids in given]
        at = np.concatenate([orders[0], orders[1] + self._model.n_users])
        slots = {name: slot[at] for name, slot in state.slots.items()}
        users, items = (ids[order] for ids, order in zip(given, orders, strict=True))
        return ShardState(state.w[at], slots, state.step, state.rows), (users, items)


class StartedPairs(Started):
    """A stream of ratings that has seen its first ones."""

    steps: StepsOfPairs

    def facts(self) -> dict[str, Any]:
        """As of any stream, with the ids that have come, and the room that there is."""
        model: Any = self.fit.steps.model
        ids = [plain_ids(own.array) for own in self.steps.ids]
        room = [model.n_users, model.n_items]
        return {**self.likeness, "ids": ids, "room": room, "offset": float(model.offset)}


def roomy(fit: FitSpec, n_users: int, n_items: int) -> FitSpec:
    """The fit with rows for so many users and items at least."""
    model = fit.steps.model
    assert isinstance(model, RatedPairs)
    model = replace(model, n_users=max(n_users, _ROOM), n_items=max(n_items, _ROOM))
    n = model.parameters.shape[0]
    (group,) = fit.steps.rule.groups
    # A step touches few of them, though there be few.
    rule = replace(
        fit.steps.rule, groups=(replace(group, stop=n, n_penalised=n),), coordinates=True
    )
    return fit.working(model=model, rule=rule)


def plain_ids(ids: Array) -> dict[str, Any]:
    """Ids as JSON can hold them.

    Raises
    ------
    InvalidParameterError
        They are bytes.
    """
    if ids.dtype.kind == "M":
        return {"dtype": ids.dtype.str, "ids": ids.view(np.int64).tolist()}
    found = ids.tolist()
    if any(isinstance(key, bytes) for key in found[:1]):
        raise InvalidParameterError(
            "A checkpoint of a stream holds ids that are numbers, text or times, and these are "
            "bytes. Decode them: frame[column].str.decode('utf-8')."
        )
    return {"dtype": ids.dtype.str, "ids": found}


def ids_of(plain: dict[str, Any]) -> Array:
    """Ids of :func:`plain_ids`."""
    dtype = np.dtype(plain["dtype"])
    if dtype.kind == "M":
        return np.array(plain["ids"], np.int64).view(dtype)
    return np.array(plain["ids"], dtype)
