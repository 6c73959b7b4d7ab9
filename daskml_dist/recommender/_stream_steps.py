"""Steps of factors along a stream, in which users and items come that were not there before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.keyed.cut import NumberedEntries
from daskml_dist.models.base import BatchRows
from daskml_dist.models.rated_pairs import RatedPairs
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.recommender._stream_ids import Ids
from daskml_dist.streaming.steps import Steps
from daskml_dist.training.interrupts import Interrupts
from daskml_dist.training.spec import FitSpec

__all__ = ["StepsOfPairs", "UnnumberedRatings", "roomy"]

Array = NDArray[Any]
#: Users, or items, that there is room for at first.
_ROOM = 1024


@dataclass(frozen=True, eq=False)
class UnnumberedRatings:
    """Ratings of a call, with ids that nobody has numbered yet."""

    entries: NumberedEntries

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
        if (sizes := self.sizes(block)) is not None:
            self.grow(*sizes)
        self.number(rows, block)
        return super().take(rows, block)

    def sizes(self, block: UnnumberedRatings) -> tuple[int, int] | None:
        """Users and items to have room for, for those of a call too; None: there is room."""
        there = self._model.n_users, self._model.n_items
        both = list(zip(self.ids, block.entries.ids, there, strict=True))
        if all(len(own) + len(given) <= room for own, given, room in both):
            return None
        most = [own.with_new(given) for own, given, _ in both]
        users, items = (room if n <= room else 2 * n for n, room in zip(most, there, strict=True))
        return None if (users, items) == there else (users, items)

    def grow(self, n_users: int, n_items: int) -> None:
        """Have rows for so many users and items; those that nobody has learned begin as any."""
        before, old = self._model, self.shard
        fit = roomy(self.fit, n_users, n_items)
        work = fit.steps
        w = work.model.init(work.seed, old.w.dtype)
        opt_state = work.rule.init(w)
        for to, start, n in (0, 0, before.n_users), (n_users, before.n_users, before.n_items):
            w[to : to + n] = old.w[start : start + n]
            for name, array in opt_state.items():
                array[to : to + n] = old.opt_state[name][start : start + n]
        shard = Shard(work.rule, ShardState(w, opt_state, old.step, old.rows))
        with Interrupts() as interrupts, interrupts.held():
            self.fit, self._work, self._model, self.shard = fit, work, work.model, shard
            self._grown(fit)

    def number(self, rows: BatchRows, block: UnnumberedRatings) -> None:
        """Have the rows of the parameters in place of the ids of a call, and its targets."""
        entries = block.entries
        users, items = (
            own.numbers(ids)[codes]
            for own, ids, codes in zip(self.ids, entries.ids, entries.codes, strict=True)
        )
        values = entries.values
        y = np.ones(len(users)) if values is None else values.astype(np.float64)
        rows.X = np.stack([users, items + self._model.n_users], axis=1)
        rows.y = self._model.encode(y, None, self.shard.w.dtype)
        self._model = replace(self._model, n_drawn=len(self.ids[1]))

    def drawn(self, rows: BatchRows, n_rows: int, step: int) -> Any:
        """Rows of the parameters of a call, with the items that its steps draw from `step` on.

        They are those that :meth:`take` draws.
        """
        if not self._model.negatives:
            return rows.X
        steps = self.pieces(rows, n_rows, step)
        drawn = [self._model.drawn(one, self._backend) for pieces, _ in steps for one in pieces]
        return np.concatenate(drawn)


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
    return fit.replace_work(model=model, rule=rule)
