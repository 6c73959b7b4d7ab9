"""`frequent_itemsets`: parameter checks, the search as a fit, and the frame of the result.

The search is Apriori (R. Agrawal and R. Srikant 1994): a set can only be frequent if all its
subsets are, so candidates of length k + 1 are built from the frequent sets of length k, and one
pass over the rows counts them. Counts of blocks are added ("count distribution" of R. Agrawal and
J. Shafer 1996). The counting is in `solvers/apriori.py`; `data/baskets.py` builds baskets from long
frames. This module runs the search as a fit, with its lanes, callbacks and recovery.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
from dask.utils import is_dataframe_like
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.data.baskets import make_baskets, mark_known
from daskml_dist.data.conversion import convert_foreign, get_column_names, load_pandas
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import suggest_arguments
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.solver_rounds import BaseRounds
from daskml_dist.models.row_models import Baskets
from daskml_dist.parameters.checks import check_count, check_flag, check_number, check_run
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.apriori import Apriori
from daskml_dist.solvers.base import Solution
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.spec import RunSettings


@suggest_arguments
def frequent_itemsets(
    X: Any,
    *,
    min_support: float = 0.5,
    max_length: int | None = None,
    basket: Any = None,
    item: Any = None,
    max_candidates: int = 50_000_000,
    null_values: bool = False,
    run: Run | None = None,
    callbacks: Any = None,
    client: Any = None,
) -> Any:
    """Find the sets of items that occur together in many baskets.

    Exact: every set that is in enough baskets is found and counted, on any number of workers. For
    each length of the sets, candidates are counted on the workers that hold the rows, and the
    counts are added.

    Parameters
    ----------
    X : array-like, scipy.sparse matrix, pandas.DataFrame, dask Array or dask DataFrame
        A row for each basket and a column for each item; a nonzero entry means that the item is in
        the basket. Entries are numbers >= 0, or bools. Chunks may be sparse (CSR). With `basket`
        and `item`: a pandas or Dask dataframe with a row for each item of a basket; baskets without
        items do not count.
    min_support : float or int, default=0.5
        Minimum share of the baskets, in (0, 1], that contain the set; an int: their minimum number,
        at least 1. So 1.0 means all baskets, and 1 any basket.
    max_length : int or None, default=None
        Largest number of items in a set; None: no limit.
    basket, item : str, default=None
        Columns of a long frame that hold the ids of the baskets and of the items: numbers or text.
        The rows of a basket may be anywhere in the frame (Dask shuffles them), and may be repeated.
        None: a row of `X` is a basket.
    max_candidates : int, default=50_000_000
        Largest number of sets of one length to count. Each takes about 16 bytes in one process;
        with more sets, an error is raised before they are counted.
    null_values : bool, default=False
        Whether entries of `X` may be missing (NaN, None, ``pandas.NA``), if it is not known whether
        the item is in the basket. Only for dense rows. The support of a set is then its share of
        the baskets in which all its items are known, and a set is found if its support suffices and
        all its subsets are found.
    run : Run or None, default=None
        `n_lanes`, `memory_budget` and `on_lost_data`; none of them changes the result, unless data
        is lost.
    callbacks : callback, sequence of callbacks, or None, default=None
        Each round of counting is a pass.
    client : distributed.Client or None, default=None
        None: the current client; without one, data in memory is counted in this process.

    Returns
    -------
    pandas.DataFrame
        ``support`` (float64, share of the baskets), ``count`` (int64) and ``itemset`` (tuple of
        column names, or column numbers of an array, in their order; for a long frame the items,
        sorted), most frequent first, and sets with equal counts in the order of their columns. With
        `null_values` also ``representativity`` (float64, share of the baskets in which all items of
        the set are known) and ``split_counts``, which :func:`association_rules` needs (tuple of
        int: for each way to split the set in two, the number of baskets that contain the first part
        and in which the second part is known).

    Raises
    ------
    InvalidParameterError, InvalidDataError
        Names the remedy: before any round, or, for negative, NaN or infinite entries and for more
        than `max_candidates`, during the search.
    TrainingError
        The computation cannot continue.

    See Also
    --------
    association_rules

    References
    ----------
    Agrawal and Srikant, "Fast algorithms for mining association rules", VLDB 1994; Agrawal and
    Shafer, "Parallel mining of association rules", IEEE TKDE 8(6), 1996; Zaki, "Scalable algorithms
    for association mining", IEEE TKDE 12(3), 2000.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.frequent_patterns import frequent_itemsets
    >>> baskets = pd.DataFrame({"bread": [1, 1, 0, 1], "milk": [1, 1, 1, 0], "tea": [0, 0, 1, 0]})
    >>> frequent_itemsets(baskets, min_support=0.5)
       support  count        itemset
    0     0.75      3       (bread,)
    1     0.75      3        (milk,)
    2     0.50      2  (bread, milk)
    """
    if (basket is None) != (item is None):
        raise InvalidParameterError(
            f"basket={basket!r} and item={item!r}: name both columns of a dataframe with one row "
            "per entry, or neither."
        )
    check_flag("null_values", null_values)
    X = convert_foreign(X)
    if basket is None:
        _check_no_lists_of_items(X)
        names = _read_item_names(X)
        # With missing values each item gets a second column, for the baskets in which it is known.
        X = mark_known(X) if null_values else X
    elif null_values:
        raise InvalidParameterError(
            "null_values=True needs a table with one column per item; in a long frame, items "
            "that are not named are known to be absent. Leave null_values out."
        )
    else:
        X, items = make_baskets(X, basket, item, client)
        names = _make_object_array(items.tolist())
    search = _ItemsetSearch(min_support, max_length, max_candidates, null_values, run, callbacks)
    with _suggest_null_values(null_values):
        search.fit(X, None, client=client)
    return _make_frame_of_sets(search.levels_, search.splits_, search.n_rows_, names)


def _check_no_lists_of_items(X: Any) -> None:
    """Raise where each basket is a list of its items, which no row of a table is."""
    rows = X.tolist() if getattr(X, "ndim", 2) == 1 and hasattr(X, "tolist") else X
    if not isinstance(rows, list | tuple):
        return
    if any(
        isinstance(row, set | frozenset)
        or (isinstance(row, list | tuple) and any(isinstance(item, str) for item in row))
        for row in rows
    ):
        raise InvalidDataError(
            "X holds a list of items for each basket. Make a frame with one row per entry, "
            'frame = pandas.Series(X).explode().dropna().reset_index(name="item"), and call '
            'frequent_itemsets(frame, basket="index", item="item"). Baskets without items '
            "have no row there: if there are some, give min_support as a number of baskets, and "
            "divide the counts by the number of all."
        )


class _ItemsetSearch(BaseRounds):
    """Internal estimator for the search of itemsets, whose fit runs the rounds of Apriori."""

    _tensors = True  # rows keep their dtype: bytes and bools are not converted to floats
    device = "cpu"

    def __init__(
        self, min_support: Any, max_length: Any, max_candidates: Any, null_values: bool, run: Any,
        callbacks: Any,
    ) -> None:  # fmt: skip
        self.min_support = min_support
        self.max_length = max_length
        self.max_candidates = max_candidates
        self.null_values = null_values
        self.run = run
        self.callbacks = callbacks

    def _check_params(self) -> None:
        if isinstance(self.min_support, Integral):
            check_count("min_support", self.min_support, also="or a share of (0, 1]")
        else:
            share = "of (0, 1], a share of the baskets, or an integer >= 1"
            check_number("min_support", self.min_support, lambda v: 0 < v <= 1, share)
        if self.max_length is not None:
            check_count("max_length", self.max_length, also="or None")
        check_count("max_candidates", self.max_candidates)

    def _run_settings(self) -> RunSettings:
        return check_run(self.run, "cpu", name="frequent_itemsets", used_settings=self._run_used)

    def _problem(self, rows: DatasetInfo) -> tuple[Any, Any]:
        if len(rows.summary.row_shape) != 1:
            raise InvalidDataError(
                f"X has rows of shape {rows.summary.row_shape}. Give two dimensions: one row per "
                "basket and one column per item."
            )
        # The type matters: 1 means one basket, 1.0 all baskets.
        is_count = isinstance(self.min_support, Integral)
        support = int(self.min_support) if is_count else float(self.min_support)
        max_length = None if self.max_length is None else int(self.max_length)
        solver = Apriori(support, max_length, int(self.max_candidates), self.null_values)
        return Baskets(rows.summary.n_features), solver

    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        # For each length of the sets: column numbers and counts; with missing values, also the
        # counts for each way to split a set in two.
        self.levels_: list[tuple[NDArray[Any], NDArray[Any]]] = solution.extra.get("levels", [])
        self.splits_: list[NDArray[np.int64]] | None = solution.extra.get("splits")
        self.n_rows_: int = solution.extra.get("n_rows", 0)

    def _warn(self, solution: Solution) -> None:
        if not solution.converged:
            warnings.warn(
                f"frequent_itemsets was stopped after length {solution.n_iter}: longer itemsets "
                "are missing. Let the callback continue, or set max_length.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )


def _read_item_names(X: Any) -> NDArray[Any] | None:
    """Return the names of the columns, checked to be distinct; None if X has no names."""
    if not is_dataframe_like(X):
        return get_column_names(X)
    names = _make_object_array(list(X.columns))
    if doubled := [name for name, n in Counter(names.tolist()).items() if n > 1]:
        raise InvalidDataError(
            f"X has several columns named {doubled[:5]}, and each is an item. Rename them, or "
            "keep one of each: X.loc[:, ~X.columns.duplicated()]."
        )
    return names


@contextmanager
def _suggest_null_values(null_values: bool) -> Iterator[None]:
    """Add to errors about missing entries the hint that `null_values` allows them."""
    try:
        yield
    except InvalidDataError as error:
        if not null_values and "NaN" in str(error):
            error.args = (
                f"{error}\nIf it is unknown whether an item is in a basket, count with "
                "frequent_itemsets(..., null_values=True).",
            )
        raise


def _make_frame_of_sets(
    levels: list[tuple[NDArray[Any], NDArray[Any]]], splits: list[NDArray[np.int64]] | None,
    n_rows: int, names: NDArray[Any] | None,
) -> Any:  # fmt: skip
    """Return the sets of all lengths in one frame, the most frequent first."""
    n = sum(len(counts) for _, counts in levels)
    sets, count = np.empty(n, object), np.empty(n, np.int64)
    n_known, split_counts = np.full(n, n_rows, np.int64), np.empty(n, object)
    has_nulls = any(counts.ndim == 2 for _, counts in levels)
    # Sets with equal counts are sorted by their columns, padded with -1: a prefix comes first.
    columns = np.full((n, max([columns.shape[1] for columns, _ in levels], default=1)), -1)
    start = 0
    for level, (level_columns, counts) in enumerate(levels):
        rows = slice(start, start + len(counts))
        # With missing values: baskets that contain the set, and baskets in which all items are
        # known.
        if has_nulls:
            counts, n_known[rows] = counts.T
        if splits is not None:
            split_counts[rows] = _make_object_array(list(map(tuple, splits[level].tolist())))
        columns[rows, : level_columns.shape[1]], count[rows] = level_columns, counts
        items = level_columns if names is None else names[level_columns]
        sets[rows] = _make_object_array(list(zip(*items.T.tolist(), strict=True)))
        start = rows.stop
    # lexsort uses its last key first: by decreasing counts, then by the columns in their order.
    order = np.lexsort((*columns.T[::-1], -count))
    count, n_known = count[order], n_known[order]
    frame = {"support": count / np.maximum(n_known, 1), "count": count, "itemset": sets[order]}
    if splits is not None or has_nulls:
        frame["representativity"] = n_known / max(n_rows, 1)
    if splits is not None:
        frame["split_counts"] = split_counts[order]
    return load_pandas().DataFrame(frame)


def _make_object_array(values: list[Any]) -> NDArray[Any]:
    """Return a 1-D array of objects; NumPy alone would turn tuples into a second axis."""
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects
