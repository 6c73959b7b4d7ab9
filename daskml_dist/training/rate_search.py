"""Searches for the factor on a rate, as generators: many of them can ask side by side.

A search yields half powers of ten, is sent the loss after steps at a rate so many times the base,
and returns the one that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

__all__ = ["Search", "best", "calm", "factor", "found"]

#: Half powers of ten: asked for, answered with losses, and the last of them returned.
Search = Generator[int, float, int]

#: Half powers of ten by which a rate is multiplied: of the first trial, of the largest and of the
#: least that is ever tried, and of the largest that may be called calm.
_FIRST, _MOST, _LEAST, _CALM = -1, 8, -40, -6
#: Share of the loss that steps must gain, lest they had better be calm; and the share of the best
#: gain for which a smaller rate is taken.
_GAIN, _MOST_OF_IT = 1e-3, 0.9
#: Share of the loss by which calm steps may raise it.
_STIR = 1e-4


def best(begin: float) -> Search:
    """The rate that leads farthest down from the loss in the beginning."""
    known: dict[int, float] = {}

    def value(k: int) -> Generator[int, float, float]:
        if k not in known:
            known[k] = yield k
        return known[k]

    k = _FIRST
    below = yield from value(k - 1)
    way = -1 if below <= (yield from value(k)) else 1
    while _LEAST < k + way <= _MOST and (yield from value(k + way)) <= known[k]:
        k += way
    gain = begin - known[k]
    if not gain > _GAIN * abs(begin):
        return (yield from calm(begin))
    # Rows that the sample lacks may be wilder than those that it has.
    while k - 1 > _LEAST and begin - (yield from value(k - 1)) >= _MOST_OF_IT * gain:
        k -= 1
    return k


def calm(begin: float) -> Search:
    """A rate small enough that steps at a minimum stay there."""
    most = begin + _STIR * abs(begin)
    for k in range(_CALM, _LEAST, -2):
        if (yield k) <= most:
            return k
    return _LEAST


def factor(k: int) -> float:
    """The factor that a number stands for."""
    return float(10.0 ** (k / 2))


def found(
    searches: Sequence[Search], losses: Callable[[list[int], list[int]], Sequence[float]]
) -> list[float]:
    """Factors that searches find.

    Parameters
    ----------
    searches : sequence of Search
    losses : callable
        Takes the places of searches that ask, and what each asks for; returns its loss.
    """
    asked = {i: next(search) for i, search in enumerate(searches)}
    ended: dict[int, float] = {}
    while asked:
        at = list(asked)
        for i, loss in zip(at, losses(at, [asked[i] for i in at]), strict=True):
            try:
                asked[i] = searches[i].send(loss)
            except StopIteration as end:
                ended[i] = factor(end.value)
                del asked[i]
    return [ended[i] for i in range(len(searches))]
