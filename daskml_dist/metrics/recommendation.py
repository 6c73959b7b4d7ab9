"""Metrics of recommended items: the number and ranks of a user's held-out items among them.

A score is a mean over users. Dask dataframes are shuffled by user, so that each pair of partitions
has all rows of its users. Items are ranked and hits found by `inference/recommendation_hits.py`,
which the scores of recommenders share.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import delayed
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from daskml_dist.data.computing import compute_together
from daskml_dist.data.conversion import convert_foreign
from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidDataError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.inference.recommendation_hits import compute_gains, compute_precisions, find_hits
from daskml_dist.parameters.checks import check_count


@suggest_arguments
def precision_at_k(
    held_out: Any,
    recommended: Any,
    k: int = 10,
    *,
    user_col: str = "user",
    item_col: str = "item",
    score_col: str = "score",
) -> float:
    """Return the share of the first `k` recommended items that are among the held-out ones.

    The mean over the users of `held_out`. If fewer than `k` items are recommended to a user, or
    none, the missing ones count as wrong.

    Parameters
    ----------
    held_out : pandas.DataFrame or dask DataFrame
        Has columns `user_col` and `item_col`: the relevant items of each user. A pair that occurs
        several times counts once.
    recommended : pandas.DataFrame or dask DataFrame
        Has columns `user_col`, `item_col` and `score_col`, as
        :meth:`~daskml_dist.recommender.ALS.recommend` makes it; each pair once.
    k : int, default=10
    user_col, item_col, score_col : str
        Names of the columns.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InvalidParameterError, InvalidDataError
        `k` is not a positive integer; a frame lacks a column; a score is missing; nothing is held
        out.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.metrics import precision_at_k
    >>> held_out = pd.DataFrame({'user': [1, 1, 2], 'item': [10, 11, 12]})
    >>> recommended = pd.DataFrame(
    ...     {'user': [1, 1, 2, 2], 'item': [10, 12, 11, 12], 'score': [0.9, 0.4, 0.8, 0.3]}
    ... )
    >>> round(float(precision_at_k(held_out, recommended, k=2)), 4)
    0.5
    """
    return _average_over_users(
        compute_precisions, held_out, recommended, k, (user_col, item_col, score_col)
    )


@suggest_arguments
def ndcg_at_k(
    held_out: Any,
    recommended: Any,
    k: int = 10,
    *,
    user_col: str = "user",
    item_col: str = "item",
    score_col: str = "score",
) -> float:
    """Return the normalised discounted cumulative gain of the first `k` recommended items.

    A held-out item at place p (from 1) gains ``1 / log2(p + 1)``; the sum is divided by that of
    the best order there is. The mean over the users of `held_out`.

    Parameters
    ----------
    held_out, recommended, k, user_col, item_col, score_col
        As :func:`precision_at_k`.

    Returns
    -------
    float
        In [0, 1].

    Raises
    ------
    InvalidParameterError, InvalidDataError
        As :func:`precision_at_k`.

    References
    ----------
    K. Jarvelin and J. Kekalainen, "Cumulated gain-based evaluation of IR techniques", ACM
    Transactions on Information Systems 20(4), 2002.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.metrics import ndcg_at_k
    >>> held_out = pd.DataFrame({'user': [1, 1, 2], 'item': [10, 11, 12]})
    >>> recommended = pd.DataFrame(
    ...     {'user': [1, 1, 2, 2], 'item': [10, 12, 11, 12], 'score': [0.9, 0.4, 0.8, 0.3]}
    ... )
    >>> round(float(ndcg_at_k(held_out, recommended, k=2)), 4)
    0.622
    """
    return _average_over_users(
        compute_gains, held_out, recommended, k, (user_col, item_col, score_col)
    )


#: Names of the columns of users, items and scores.
_Names = tuple[str, str, str]


#: Function of the hits of each user, of shape (n_users, k), and each user's number of held-out
#: items; returns a score for each user.
_Metric = Callable[[NDArray[np.bool_], NDArray[np.int64]], NDArray[np.float64]]


def _average_over_users(
    metric: _Metric, held_out: Any, recommended: Any, k: int, names: _Names
) -> float:
    """Return the mean of a metric over the users, of frames in memory or lazy."""
    check_count("k", k)
    held_out, recommended = convert_foreign(held_out), convert_foreign(recommended)
    _check_frame_columns("held_out", held_out, names[:2])
    _check_frame_columns("recommended", recommended, names)
    _check_id_dtypes(held_out, recommended, names[:2])
    # An index may have the name of a column, and then pandas knows neither by it.
    held_out = held_out[[*names[:2]]].reset_index(drop=True)
    recommended = recommended[[*names]].reset_index(drop=True)
    sum_of_some = partial(_sum_over_users, metric, k=int(k), names=names)
    # Sums and numbers of users are added, since partitions have different numbers of users.
    if is_dask(held_out) or is_dask(recommended):
        pairs = _partition_by_user(held_out, recommended, names[0])
        # `pure=False`: no name is hashed from the arguments.
        sums = compute_together(delayed(sum_of_some, pure=False)(*pair) for pair in pairs)
    else:
        sums = [sum_of_some(held_out, recommended)]
    total, n_users = np.sum(sums, axis=0)
    if not n_users:
        raise InvalidDataError(
            "held_out has no rows: there are no users to recommend to. Check the filter or the "
            "split that made it."
        )
    return float(total / n_users)


def _partition_by_user(held_out: Any, recommended: Any, user: str) -> list[tuple[Any, Any]]:
    """Return pairs of partitions of both frames, with the same users in each pair."""
    import dask.dataframe as dd

    n = max(frame.npartitions for frame in (held_out, recommended) if is_dask(frame))
    pieces = []
    for frame in (held_out, recommended):
        lazy = frame if is_dask(frame) else dd.from_pandas(frame, npartitions=1, sort=False)
        # Hashed by user into equally many partitions, so that a user's rows of both frames are in
        # the same pair.
        pieces.append(lazy.shuffle(on=user, npartitions=n).to_delayed())
    return list(zip(*pieces, strict=True))


def _check_frame_columns(name: str, frame: Any, columns: tuple[str, ...]) -> None:
    # Before any partition is read: a missing column would fail in a task, with a less clear
    # message.
    if not is_dataframe_like(frame):
        raise InvalidDataError(
            f"{name} is a {type(frame).__name__}. Give a dataframe with columns {list(columns)}."
        )
    if missing := [column for column in columns if column not in frame.columns]:
        raise InvalidDataError(
            f"{name} lacks the columns {missing}; it has {list(frame.columns)}. Name them: "
            "user_col=..., item_col=..., score_col=..."
        )


def _check_id_dtypes(held_out: Any, recommended: Any, columns: tuple[str, ...]) -> None:
    """Raise if ids are numbers in one frame and text in the other, so that none could be equal."""
    for column in columns:
        dtypes = held_out[column].dtype, recommended[column].dtype
        # Objects and categories may hold either.
        kinds = {
            "text" if dtype.name in ("str", "string") else "numbers"
            for dtype in dtypes
            if dtype.name in ("str", "string") or dtype.kind in "iuf"
        }
        if len(kinds) > 1:
            raise InvalidDataError(
                f"Column {column!r} has the dtype {dtypes[0]} in held_out and {dtypes[1]} in "
                "recommended: no id is in both. Convert one: "
                f"recommended.astype({{{column!r}: {dtypes[0].name!r}}})."
            )


def _sum_over_users(
    metric: _Metric, held_out: Any, recommended: Any, *, k: int, names: _Names
) -> tuple[float, int]:
    """Return the sum of a metric over the users of a pair of partitions, and their number."""
    scores = metric(*find_hits(held_out, recommended, k, names))
    return float(scores.sum()), len(scores)
