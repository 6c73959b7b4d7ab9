"""Splitters with scikit-learn's names and parameters, for Dask collections too.

For rows in memory each class calls scikit-learn's, from which it derives. For Dask collections it
yields lazy masks. A splitter counts rows, labels or groups of each block in one pass at most, and
its `_plan` turns the counts into two objects of `_fold_rows.py`: a maker of codes, by which tasks
number the rows of their own blocks, and a table of the role of each code in each split. So neither
row numbers nor masks of all rows are ever held in one place.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from math import ceil, floor
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.utils import check_random_state

from daskml_dist.data.collection import Collection, as_collection, take_named_columns
from daskml_dist.data.conversion import (
    check_no_missing,
    convert_extension_column,
    convert_foreign,
    copy_to_host,
)
from daskml_dist.data.lazy import is_dask
from daskml_dist.data.reduce import count_rows
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters, suggest_arguments
from daskml_dist.errors.sklearn_errors import translate_errors, translate_sklearn_errors
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.model_selection._fold_rows import (
    DigitRoles,
    FoldCodes,
    FoldsByGroup,
    FoldsByPlace,
    FoldsByRange,
    Ints,
    RowOrder,
    RowsOfSplits,
    SpreadSplits,
    TableRoles,
    count_labels_by_block,
)
from daskml_dist.models.batched import NEITHER, TEST, TRAIN, FoldAssignment


@translate_sklearn_errors
class DaskSplitter(NamedParameters):
    """Base class of splitters that split Dask collections too.

    Precedes a splitter of scikit-learn among the bases, which splits rows in memory.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        translate_sklearn_errors(cls)

    #: Argument of `split` that determines a row's code: "y", "groups", or None for only its place.
    _column: str | None = None

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Any, Any]]:
        """Yield the training and test rows of each split.

        Parameters
        ----------
        X : array-like, dataframe, dask Array or DataFrame, of shape (n_rows, ...)
            Also a series. Only its first axis counts.
        y, groups : array-like, dask Array or Series, of shape (n_rows,), optional
            `y` may name a column of a dataframe X.

        Yields
        ------
        train, test : ndarray of int64
            Row numbers. If an input is a Dask collection: lazy boolean masks of shape (n_rows,) in
            the chunks of X, such that ``X[train]`` are the rows: a dask Series for a dask DataFrame
            of known divisions, else a dask Array.

        Raises
        ------
        InvalidDataError
            There are fewer rows, rows of each label, or groups than splits.
        """
        X, y, groups = convert_foreign(X, y, groups)
        rows_of_X = X
        if isinstance(y, str):
            rows_of_X, y, _ = take_named_columns(X, y, None)  # X without the column of y
        if not any(map(is_dask, (X, y, groups))):
            y, groups = convert_extension_column(y), convert_extension_column(groups)
            labels_or_groups = {"y": y, "groups": groups}.get(self._column or "")
            if labels_or_groups is not None:
                check_no_missing(np.asarray(copy_to_host(labels_or_groups)), str(self._column))
            with translate_errors():
                yield from super().split(X, y, groups)  # type: ignore[misc]
            return
        rows = self.assign_rows((rows_of_X,), y, groups)
        for split in range(rows.roles.n_splits):
            yield rows.make_mask(split, TRAIN), rows.make_mask(split, TEST)

    def assign_rows(
        self, inputs: tuple[Any, ...], y: Any = None, groups: Any = None
    ) -> RowsOfSplits:
        """Return the rows of Dask inputs (X first) with their codes."""
        column = {"y": y, "groups": groups, None: None}[self._column]
        if self._column is not None and column is None:
            raise InvalidParameterError(
                f"The '{self._column}' parameter should not be None: {type(self).__name__} splits "
                "rows by it. Pass it."
            )
        columns = as_collection(
            inputs[0], column, numeric=False, classification=True, any_shape=True
        )
        codes, roles = self._plan(columns)
        return RowsOfSplits(inputs, columns, codes, roles)

    @abstractmethod
    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        """Return the maker of codes, and the role of each code in each split.

        `columns` holds X and the argument that `_column` names.
        """


class KFold(DaskSplitter, model_selection.KFold):
    """Splitter into k consecutive or shuffled folds, each of which is held out once.

    Parameters are scikit-learn's. With ``shuffle=True`` rows of Dask collections are shuffled
    within their blocks and assigned to the folds in turn, so that folds differ by one row at most,
    and each gets its share of every block.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import KFold
    >>> X, y = np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1])
    >>> [test.tolist() for _, test in KFold(n_splits=2).split(X, y)]
    [[0, 1, 2], [3, 4, 5]]
    """

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        counts = count_rows(columns)
        n, k = int(counts.sum()), self.n_splits
        _check_enough_rows(n, k)
        order = RowOrder(_find_block_starts(counts), _draw_seed(self))
        # A row's code is the number of its fold.
        roles = TableRoles.from_folds(k)
        if self.shuffle:
            return FoldsByPlace(order, k), roles
        # As in scikit-learn: the first n % k folds have one row more.
        sizes = np.full(k, n // k)
        sizes[: n % k] += 1
        return FoldsByRange(order, sizes.cumsum()[:-1], k), roles


class StratifiedKFold(DaskSplitter, model_selection.StratifiedKFold):
    """Splitter into folds that have the same shares of labels as all rows.

    Parameters are scikit-learn's, and so are the folds unless rows are shuffled. The labels of a
    Dask collection are counted in one pass.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import StratifiedKFold
    >>> X, y = np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1])
    >>> [test.tolist() for _, test in StratifiedKFold(n_splits=2).split(X, y)]
    [[0, 1, 3], [2, 4, 5]]
    """

    _column = "y"

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        k = self.n_splits
        order, block_counts = _order_by_label(columns, _draw_seed(self))
        label_counts = block_counts.sum(axis=0)
        _check_enough_rows(int(label_counts.sum()), k)
        _check_label_counts(label_counts, k)
        roles = TableRoles.from_folds(k)
        if self.shuffle:
            return FoldsByPlace(order, k), roles
        # scikit-learn's allocation, without the rows. Among rows sorted by label, it counts for
        # fold i the rows of each label at the places i, i + k, i + 2k, ...: ceil((p - i) / k) such
        # places are before place p. Then it gives each label's rows, in their order in the data, to
        # fold 0 until that has its count, then to fold 1, and so on: each fold gets a range of
        # places.
        first = label_counts.cumsum() - label_counts
        fold = np.arange(k)[:, None]
        counts = (first + label_counts - fold + k - 1) // k - (first - fold + k - 1) // k
        stops = (first + counts.cumsum(axis=0)).T.ravel()
        return FoldsByRange(order, stops[:-1], k), roles


class GroupKFold(DaskSplitter, model_selection.GroupKFold):
    """Splitter into folds of whole groups: all rows of a group are in one fold.

    Parameters are scikit-learn's, and so are the folds, shuffled or not. Without a shuffle groups
    are assigned from the largest to the smallest, each to the fold that has the fewest rows so far.
    The groups of a Dask collection are counted in one pass.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import GroupKFold
    >>> X, groups = np.zeros((6, 1)), np.array([0, 0, 1, 1, 2, 2])
    >>> sorted(test.tolist() for _, test in GroupKFold(n_splits=3).split(X, groups=groups))
    [[0, 1], [2, 3], [4, 5]]
    """

    _column = "groups"

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        groups, counts = count_labels_by_block(columns, first_seen=False, name="groups")
        sizes, k = counts.sum(axis=0), self.n_splits
        if k > len(groups):
            raise InvalidDataError(
                f"Cannot have number of splits n_splits={k} greater than the number of groups: "
                f"{len(groups)}. Lower n_splits."
            )
        if self.shuffle:
            shuffled = check_random_state(self.random_state).permutation(len(groups))
            folds = np.empty(len(groups), np.int64)
            # The same number of groups in each fold, to within 1, for any group sizes:
            # scikit-learn's choice.
            for fold, part in enumerate(np.array_split(shuffled, k)):
                folds[part] = fold
            return FoldsByGroup(groups, folds), TableRoles.from_folds(k)
        # Longest processing time first: the largest fold exceeds the optimum by a third at most
        # (Graham 1969). Of groups of equal size the last comes first, as in scikit-learn.
        loads, folds = np.zeros(k), np.empty(len(groups), np.int64)
        for group in np.argsort(sizes, kind="stable")[::-1]:
            folds[group] = lightest_fold = int(np.argmin(loads))
            loads[lightest_fold] += sizes[group]
        return FoldsByGroup(groups, folds), TableRoles.from_folds(k)


class TimeSeriesSplit(DaskSplitter, model_selection.TimeSeriesSplit):
    """Splitter of rows in the order of time: training rows come before test rows.

    Parameters are scikit-learn's, and so are the splits; the order of rows of a Dask collection is
    that of its blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import TimeSeriesSplit
    >>> X, y = np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1])
    >>> [test.tolist() for _, test in TimeSeriesSplit(n_splits=2).split(X, y)]
    [[2, 3], [4, 5]]
    """

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        counts = count_rows(columns)
        n, k, gap = int(counts.sum()), self.n_splits, self.gap
        size = n // (k + 1) if self.test_size is None else self.test_size
        # The first split must have a row to train on.
        if k + 1 > n or n - gap - size * k <= 0:
            raise InvalidDataError(
                f"Too many splits={k} for number of samples={n} with test_size={size} and "
                f"gap={gap}. Lower one of them."
            )
        # First test row of each split: the last split ends with the last row.
        tests = n - size * np.arange(k, 0, -1)
        trains = tests - gap
        begins = np.zeros(k, np.int64)
        if self.max_train_size:
            begins = np.maximum(0, trains - self.max_train_size)
        # Cut the rows at each begin and end of a side of any split. Between two neighbouring cuts
        # all rows have the same role in every split, so each such range gets a code.
        stops = np.unique(np.concatenate([begins, trains, tests, tests + size, [n]]))
        stops = stops[stops > 0]
        starts = np.concatenate([[0], stops[:-1]])[:, None]
        table = np.full((len(stops), k), NEITHER, np.int8)
        table[(starts >= begins) & (starts < trains)] = TRAIN
        table[(starts >= tests) & (starts < tests + size)] = TEST
        codes = FoldsByRange(RowOrder(_find_block_starts(counts)), stops[:-1], len(stops))
        return codes, TableRoles(table)


class _ShuffledSplitter(DaskSplitter):
    """Base class of splitters that draw the rows of each split independently of the others."""

    n_splits: int
    test_size: Any
    train_size: Any
    _default_test_size: float

    def _spread(self, order: RowOrder, n: int) -> tuple[FoldCodes, FoldAssignment]:
        """Return codes and roles of splits that draw rows evenly along an order of `n` rows."""
        if self.n_splits > DigitRoles.max_splits:
            raise InvalidParameterError(
                f"n_splits={self.n_splits}: at most {DigitRoles.max_splits} on Dask collections. "
                "Split several times, each with another random_state."
            )
        n_train, n_test = resolve_sizes(n, self.test_size, self.train_size, self._default_test_size)
        roles = DigitRoles(self.n_splits)
        return SpreadSplits(order, roles, n, n_test, n_train), roles


class ShuffleSplit(_ShuffledSplitter, model_selection.ShuffleSplit):
    """Splitter that draws test and training rows at random for each split.

    Parameters are scikit-learn's. Every block of a Dask collection gives its share of test rows.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import ShuffleSplit
    >>> X, y = np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1])
    >>> splits = list(ShuffleSplit(n_splits=3, test_size=2, random_state=0).split(X, y))
    >>> len(splits), len(splits[0][1])
    (3, 2)
    """

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        counts = count_rows(columns)
        return self._spread(
            RowOrder(_find_block_starts(counts), _draw_seed(self)), int(counts.sum())
        )


class StratifiedShuffleSplit(_ShuffledSplitter, model_selection.StratifiedShuffleSplit):
    """Splitter that draws test and training rows at random, stratified by label.

    Parameters are scikit-learn's. The labels of a Dask collection are counted in one pass.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import StratifiedShuffleSplit
    >>> X, y = np.zeros((6, 1)), np.array([0, 0, 0, 1, 1, 1])
    >>> splits = list(StratifiedShuffleSplit(n_splits=3, test_size=2, random_state=0).split(X, y))
    >>> len(splits), len(splits[0][1])
    (3, 2)
    """

    _column = "y"

    def _plan(self, columns: Collection) -> tuple[FoldCodes, FoldAssignment]:
        order, counts = _order_by_label(columns, _draw_seed(self))
        # Each side needs a row of every label.
        if counts.sum(axis=0).min() < 2:
            raise InvalidDataError(
                "The least populated classes in y have only 1 member, which is too few: the "
                "minimum number of groups for any class cannot be less than 2. Drop those rows, "
                "or do not stratify."
            )
        n_rows, n_labels = int(counts.sum()), counts.shape[1]
        sizes = resolve_sizes(n_rows, self.test_size, self.train_size, self._default_test_size)
        for side, size in zip(("train_size", "test_size"), sizes, strict=True):
            if size < n_labels:
                raise InvalidDataError(
                    f"The {side} = {size} should be greater or equal to the number of classes = "
                    f"{n_labels}. Raise it, or do not stratify."
                )
        return self._spread(order, n_rows)


# --- one split ---------------------------------------------------------------------------------


@translate_errors()
@suggest_arguments
def train_test_split(
    *arrays: Any,
    test_size: float | None = None,
    train_size: float | None = None,
    random_state: Any = None,
    shuffle: bool = True,
    stratify: Any = None,
) -> list[Any]:
    """Split rows into training and test rows.

    Parameters
    ----------
    *arrays : dask Arrays, DataFrames or Series, or in memory, of as many rows each
        If one is a Dask collection, the first must be, too.
    test_size, train_size : float in (0, 1), or int, or None
        Shares or numbers of rows; a quarter of them by default.
    random_state : int, RandomState or None
    shuffle : bool, default=True
        Whether rows are drawn; False: the last rows are test rows. Every block of a Dask collection
        contributes its share of test rows, and rows keep their order.
    stratify : like a target, or str, or None
        Labels, whose shares are the same on both sides; or the name of the column with them in the
        first array, a dataframe.

    Returns
    -------
    list
        Training rows and test rows of each array; lazy if an array is. Dask Arrays among them know
        their chunk sizes.

    Raises
    ------
    InvalidParameterError, InvalidDataError

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.model_selection import train_test_split
    >>> X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    >>> X_train, X_test, y_train, y_test = train_test_split(
    ...     X, y, test_size=0.2, stratify=y, random_state=0
    ... )
    >>> X_train.shape, y_test.tolist()
    ((8, 2), [0, 1])
    """
    arrays, stratify = tuple(map(convert_foreign, arrays)), convert_foreign(stratify)
    if isinstance(stratify, str) and arrays:
        _, stratify, _ = take_named_columns(arrays[0], stratify, None)
    if not any(map(is_dask, (*arrays, stratify))):
        stratify = convert_extension_column(stratify)
        parts: list[Any] = model_selection.train_test_split(
            *arrays, test_size=test_size, train_size=train_size, random_state=random_state,
            shuffle=shuffle, stratify=stratify,
        )  # fmt: skip
        return parts
    if not arrays or not is_dask(arrays[0]):
        raise InvalidParameterError(
            "The first array is in memory and another is a Dask collection. Pass the rows as a "
            "Dask collection first: dask.array.from_array(X)."
        )
    if test_size is None and train_size is None:
        test_size = 0.25  # scikit-learn's default here; that of its splitters is 0.1
    sizes = {"test_size": test_size, "train_size": train_size}
    if not shuffle:
        if stratify is not None:
            raise InvalidParameterError(
                "Stratified train/test split is not implemented for shuffle=False. Leave out one "
                "of them."
            )
        rows = _split_in_order(arrays, test_size, train_size)
    elif stratify is None:
        rows = ShuffleSplit(1, random_state=random_state, **sizes).assign_rows(arrays)
    else:
        splitter = StratifiedShuffleSplit(1, random_state=random_state, **sizes)
        rows = splitter.assign_rows(arrays, stratify)
    # As in scikit-learn: training rows and test rows of the first array, then of the second, ...
    sides = rows.take_side(0, TRAIN), rows.take_side(0, TEST)
    return [side[i] for i in range(len(arrays)) for side in sides]


def _split_in_order(arrays: tuple[Any, ...], test_size: Any, train_size: Any) -> RowsOfSplits:
    """Return rows of which the first are trained on, the next tested, and the others left out."""
    columns = as_collection(arrays[0], numeric=False, any_shape=True)
    counts = count_rows(columns)
    n_rows = int(counts.sum())
    n_train, n_test = resolve_sizes(n_rows, test_size, train_size)
    stops = np.array([n_train, n_train + n_test])
    codes = FoldsByRange(RowOrder(_find_block_starts(counts)), stops, 3, n_rows)
    # Codes 0, 1 and 2, in the order of their ranges of rows.
    roles = TableRoles(np.array([[TRAIN], [TEST], [NEITHER]], np.int8))
    return RowsOfSplits(arrays, columns, codes, roles)


# --- sizes, seeds and counts -------------------------------------------------------------------


def resolve_sizes(
    n: int, test_size: Any, train_size: Any, default: float = 0.25
) -> tuple[int, int]:
    """Return the numbers of training rows and of test rows, by scikit-learn's rules."""
    for name, value in (("test_size", test_size), ("train_size", train_size)):
        if value is None:
            continue
        is_integer = isinstance(value, Integral)
        if (is_integer and not 0 < value < n) or (not is_integer and not 0 < value < 1):
            raise InvalidParameterError(
                f"{name}={value!r} should be a whole number of rows below n_samples={n}, or a "
                "share in (0, 1)."
            )
    if test_size is None and train_size is None:
        test_size = default
    # A share of test rows is rounded up, one of training rows down. A size that is not given is the
    # rest.
    n_test = None if test_size is None else _count_rows_of_size(test_size, n, ceil)
    n_train = None if train_size is None else _count_rows_of_size(train_size, n, floor)
    n_test = n - n_train if n_test is None else n_test  # type: ignore[operator]
    n_train = n - n_test if n_train is None else n_train
    if n_train + n_test > n or n_train == 0:
        raise InvalidParameterError(
            f"With n_samples={n}, test_size={test_size} and train_size={train_size} there are "
            f"{n_train} rows to train on and {n_test} to test. Lower test_size, or train_size."
        )
    return n_train, n_test


def _count_rows_of_size(size: Any, n: int, round_share: Callable[[float], int]) -> int:
    """Return a number of rows, given a number or a share of `n` rows."""
    return int(size) if isinstance(size, Integral) else int(round_share(float(size) * n))


def _draw_seed(splitter: Any) -> int | None:
    """Return the seed of a splitter; None if it does not shuffle."""
    if not getattr(splitter, "shuffle", True):
        return None
    random_state = splitter.random_state
    # An integer gives the same folds in each call, a generator new ones, as in scikit-learn.
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _find_block_starts(counts: Ints) -> Ints:
    """Return the number of rows before each block, given the number of rows of each."""
    return np.asarray(counts.cumsum() - counts, np.int64)


def _order_by_label(columns: Collection, seed: int | None) -> tuple[RowOrder, Ints]:
    """Return the order of rows by label, then block, and how many each block has of each label."""
    # Labels in the order in which rows show them first, as scikit-learn's StratifiedKFold has them.
    labels, counts = count_labels_by_block(columns, first_seen=True)
    label_counts = counts.sum(axis=0)
    first = label_counts.cumsum() - label_counts  # rows of earlier labels
    rows_before = counts.cumsum(axis=0) - counts  # rows of the same label in earlier blocks
    starts = _find_block_starts(counts.sum(axis=1))
    return RowOrder(starts, seed, labels, first + rows_before), counts


def _check_enough_rows(n_rows: int, n_splits: int) -> None:
    """Raise scikit-learn's error for fewer rows than folds."""
    if n_splits > n_rows:
        raise InvalidDataError(
            f"Cannot have number of splits n_splits={n_splits} greater than the number of samples: "
            f"n_samples={n_rows}. Lower n_splits."
        )


def _check_label_counts(of_label: NDArray[Any], k: int) -> None:
    """Raise an error if every label has fewer rows than folds, and warn if any label has."""
    if (of_label < k).all():
        raise InvalidDataError(
            f"n_splits={k} cannot be greater than the number of members in each class. Lower it."
        )
    if of_label.min() < k:
        warnings.warn(
            f"The least populated class in y has only {of_label.min()} members, which is less "
            f"than n_splits={k}.",
            UserWarning,
            stacklevel=user_stack_level(),
        )
