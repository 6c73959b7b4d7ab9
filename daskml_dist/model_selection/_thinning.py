"""Splits of a share of the rows."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import resample

from daskml_dist.data.collection import as_collection
from daskml_dist.errors import DaskMLDistError
from daskml_dist.model_selection._split_rows import count_rows, label_counts, n_rows_of, thinned
from daskml_dist.model_selection._validation import Splits
from daskml_dist.parameters.checks import seed_of
from daskml_dist.sklearn_internals import take_rows_or_columns

__all__ = ["count_of_rows", "labels_of", "thinned_splits"]


def count_of_rows(splits: Splits) -> int:
    """Rows of all splits together; counted in one pass where Dask does not know."""
    if splits.codes is not None:
        return n_rows_of(splits.inputs[0])
    return int(count_rows(splits.rows.columns).sum())


def labels_of(splits: Splits) -> NDArray[Any]:
    """Sorted labels of the targets, in one pass over them where they are lazy."""
    X, y, *_ = splits.inputs
    if splits.codes is not None:
        return np.unique(np.asarray(y))
    columns = as_collection(X, y, numeric=False, classification=True, any_shape=True)
    try:
        labels, _ = label_counts(columns, first_seen=False)
    except Exception as error:
        raise error if isinstance(error, DaskMLDistError) else splits.rows.unread(error) from error
    return np.unique(labels)


def thinned_splits(splits: Splits, fraction: float, random_state: Any) -> Splits:
    """The same splits of a share of each one's rows.

    Of rows in memory those that scikit-learn's halving draws; of Dask collections each block gives
    its share, and a larger share has the rows of a smaller one.
    """
    found = copy(splits)
    if splits.codes is None:
        found._rows = thinned(splits.rows, fraction, seed_of(random_state))
        found.roles = found._rows.roles
        return found
    drawn = partial(resample, replace=False, random_state=random_state)
    some = [
        tuple(drawn(side, n_samples=int(fraction * len(side))) for side in split)
        for split in splits._splits
    ]
    # Few rows are copied, so that nobody reads the others.
    used = np.unique(np.concatenate([side for split in some for side in split]))
    if 2 * len(used) <= count_of_rows(splits):
        found.inputs = tuple(
            None if value is None else take_rows_or_columns(value, used) for value in splits.inputs
        )
        some = [tuple(np.searchsorted(used, side) for side in split) for split in some]
    found._splits = some
    found._set_roles()
    return found
