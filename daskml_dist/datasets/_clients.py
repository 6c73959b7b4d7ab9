"""Partitions of rows into clients, for experiments with federated learning.

Each function returns lazy Dask collections with one chunk, or partition, for each client, which
`FederatedAveraging` uses as its clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
import scipy.sparse
from dask.base import compute
from dask.delayed import delayed
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.parameters.checks import check_count, check_number

#: Temporary column with a row's client, while the rows of a frame are shuffled.
_CLIENT_COLUMN = "__client"


def partition_by_class(
    X: Any, y: Any, n_clients: int, *, classes_per_client: int = 2, random_state: Any = None
) -> tuple[da.Array, da.Array]:
    """Give each client rows of few classes.

    Rows are sorted by class and cut into ``n_clients * classes_per_client`` equal shards, of which
    each client gets `classes_per_client` at random: the pathological partition of McMahan et al.
    (2017). All clients have equally many rows, and some may get shards of a single class.

    Parameters
    ----------
    X : array-like, sparse matrix or Dask Array of shape (n_rows, ...)
    y : array-like or Dask Array of shape (n_rows,)
        Labels. They are computed immediately, since the order of rows depends on them.
    n_clients : int
    classes_per_client : int, default=2
    random_state : int, RandomState or None, default=None

    Returns
    -------
    X, y : Dask Arrays
        A chunk for each client.

    Raises
    ------
    InvalidParameterError
        There are more shards than rows, or `classes_per_client` exceeds the number of classes.

    References
    ----------
    B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017.

    Examples
    --------
    >>> from daskml_dist.datasets import make_classification, partition_by_class
    >>> X, y = make_classification(1_000, n_classes=4, n_informative=4, random_state=0)
    >>> X, y = partition_by_class(X, y, 10, random_state=0)
    >>> X.chunks[0], max(len(set(y.blocks[k].compute())) for k in range(10)) <= 4
    ((100, 100, 100, 100, 100, 100, 100, 100, 100, 100), True)
    """
    check_count("n_clients", n_clients)
    check_count("classes_per_client", classes_per_client)
    labels = _compute_column("y", y)
    n_shards = n_clients * classes_per_client
    if n_shards > len(labels):
        raise InvalidParameterError(
            f"n_clients={n_clients} of classes_per_client={classes_per_client} are {n_shards} "
            f"shards, and there are {len(labels)} rows. Lower one of them."
        )
    if classes_per_client > (n_classes := len(np.unique(labels))):
        raise InvalidParameterError(
            f"classes_per_client={classes_per_client}, and y has {n_classes} classes. Lower it."
        )
    random = check_random_state(random_state)
    # Ties are in random order, so that a shard is a random sample of its class.
    order = random.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    shards = np.array_split(order, n_shards)
    dealt = random.permutation(n_shards).reshape(n_clients, classes_per_client)
    return _take_rows(X, y, [np.concatenate([shards[s] for s in numbers]) for numbers in dealt])


def partition_by_dirichlet(
    X: Any, y: Any, n_clients: int, *, alpha: float, random_state: Any = None
) -> tuple[da.Array, da.Array]:
    """Give each client a different mixture of classes.

    The shares of the classes in a client are drawn from a Dirichlet distribution around the shares
    in all rows (Hsu et al. 2019): with a small `alpha` each client has about one class, with a
    large one all clients have the same mixture. The numbers of rows of clients differ by at most
    one.

    Parameters
    ----------
    X, y, n_clients, random_state
        As in :func:`partition_by_class`.
    alpha : float
        Concentration; positive.

    Returns
    -------
    X, y : Dask Arrays
        A chunk for each client.

    Raises
    ------
    InvalidParameterError
        There are more clients than rows, or `alpha` is not positive.

    References
    ----------
    T.-M. H. Hsu, H. Qi and M. Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019.

    Examples
    --------
    >>> from daskml_dist.datasets import make_classification, partition_by_dirichlet
    >>> X, y = make_classification(1_000, random_state=0)
    >>> X, y = partition_by_dirichlet(X, y, 8, alpha=0.1, random_state=0)
    >>> X.numblocks
    (8, 1)
    """
    check_count("n_clients", n_clients)
    check_number("alpha", alpha, lambda v: 0 < v < np.inf, "> 0 and finite")
    labels = _compute_column("y", y)
    _check_enough_rows(n_clients, len(labels))
    random = check_random_state(random_state)
    classes, codes = np.unique(labels, return_inverse=True)
    pools = [random.permutation(np.flatnonzero(codes == k)) for k in range(len(classes))]
    remaining = np.array([len(pool) for pool in pools])
    prior = remaining / remaining.sum()
    sizes = [len(part) for part in np.array_split(labels, n_clients)]
    clients = []
    for size in sizes:
        # A tiny alpha gives gamma variates of 0 for every class: then one class gets everything.
        shares = random.standard_gamma(alpha * prior) + 1e-300 * (
            random.permutation(len(prior)) == 0
        )
        client_rows: list[NDArray[np.intp]] = []
        while size:
            # The shares of classes that are used up go to the remaining classes.
            open_shares = np.where(remaining > 0, shares, 0.0)
            if not open_shares.sum():
                open_shares = remaining.astype(float)
            drawn = random.multinomial(size, open_shares / open_shares.sum())
            taken = np.minimum(drawn, remaining)
            for k in np.flatnonzero(taken):
                client_rows.append(pools[k][remaining[k] - taken[k] : remaining[k]])
            remaining -= taken
            size -= int(taken.sum())
        clients.append(np.concatenate(client_rows))
    return _take_rows(X, y, clients)


def partition_by_groups(X: Any, y: Any, groups: Any) -> tuple[da.Array, da.Array]:
    """Give each client the rows of one group, such as those of one user or one hospital.

    Parameters
    ----------
    X, y
        As in :func:`partition_by_class`.
    groups : array-like or Dask Array of shape (n_rows,)
        Group of each row, as in scikit-learn's splits by groups.

    Returns
    -------
    X, y : Dask Arrays
        A chunk for each client, in the order of the sorted groups.

    Raises
    ------
    InvalidDataError
        The groups have another length than the rows, or values are missing.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.datasets import partition_by_groups
    >>> X, y = np.arange(10.0).reshape(5, 2), np.array([0, 1, 0, 1, 0])
    >>> X, y = partition_by_groups(X, y, ["b", "a", "b", "c", "a"])
    >>> X.chunks[0], y.compute().tolist()
    ((2, 2, 1), [1, 0, 0, 0, 1])
    """
    owners, n_rows = _compute_column("groups", groups), len(_compute_column("y", y))
    if len(owners) != n_rows:
        raise InvalidDataError(
            f"groups has {len(owners)} rows, and y has {n_rows}. Give the group of each row."
        )
    # NaN is not equal to itself; None is, and needs a separate check.
    if (owners != owners).any() or (owners.dtype == object and None in owners.tolist()):
        raise InvalidDataError(
            "groups holds missing values. Drop these rows, or give them a group."
        )
    _, codes, counts = np.unique(owners, return_inverse=True, return_counts=True)
    order = np.argsort(codes, kind="stable")
    return _take_rows(X, y, np.split(order, np.cumsum(counts)[:-1]))


def partition_by_column(frame: Any, column: str) -> Any:
    """Give each client the rows of a frame that have one value in a column.

    Parameters
    ----------
    frame : pandas or Dask dataframe
        Its rows are shuffled between workers; the order of the rows of a client is kept.
    column : str
        Column that identifies the client, such as a user or a hospital. It stays in the frame: drop
        it from X.

    Returns
    -------
    Dask dataframe
        One partition for each value, in sorted order.

    Raises
    ------
    InvalidParameterError
        The frame has no such column.
    InvalidDataError
        The column has missing values.

    Examples
    --------
    >>> import pandas as pd
    >>> from daskml_dist.datasets import partition_by_column
    >>> frame = pd.DataFrame({"site": ["b", "a", "b"], "age": [1.0, 2.0, 3.0]})
    >>> clients = partition_by_column(frame, "site")
    >>> clients.partitions[1].compute()["age"].tolist()
    [1.0, 3.0]
    """
    import dask.dataframe as dd
    import pandas as pd

    columns = list(getattr(frame, "columns", ()))
    if column not in columns:
        raise InvalidParameterError(
            f"column={column!r} is not a column of the frame. Choose one of {columns}."
            if columns
            else f"{type(frame).__name__} has no columns. Give a pandas or Dask dataframe, or use "
            "partition_by_groups for arrays."
        )
    if isinstance(frame, pd.DataFrame):
        frame = dd.from_pandas(frame, npartitions=1, sort=False)
    values = frame[column].drop_duplicates().compute()
    if values.isna().any():
        raise InvalidDataError(
            f"The column {column!r} has missing values: frame.dropna(subset=[{column!r}]) drops "
            "these rows."
        )
    values = pd.Index(np.sort(values.to_numpy()))

    def number(part: Any) -> Any:
        return part.assign(**{_CLIENT_COLUMN: values.get_indexer(part[column])})

    meta = frame._meta.assign(**{_CLIENT_COLUMN: np.zeros(0, np.intp)})
    # One partition for each number. The shuffle is by tasks, since the other kind of shuffle orders
    # rows by arrival.
    moved = frame.map_partitions(number, meta=meta).set_index(
        _CLIENT_COLUMN, divisions=list(range(len(values) + 1)), shuffle_method="tasks"
    )
    return moved.reset_index(drop=True)


def _compute_column(name: str, column: Any) -> NDArray[Any]:
    """Return labels or groups as an array in memory."""
    values = np.asarray(compute(column)[0])
    if values.ndim != 1 or not len(values):
        raise InvalidDataError(f"{name} has the shape {values.shape}. Give one value for each row.")
    return values


def _check_enough_rows(n_clients: int, n_rows: int) -> None:
    """Raise if there are more clients than rows."""
    if n_clients > n_rows:
        raise InvalidParameterError(
            f"n_clients={n_clients}, and there are {n_rows} rows. Use n_clients={n_rows} at most."
        )


def _take_rows(X: Any, y: Any, clients: Sequence[NDArray[np.intp]]) -> tuple[da.Array, da.Array]:
    """Return lazy rows and labels with a chunk for each client, given the rows of each."""
    sizes, order = tuple(map(len, clients)), np.concatenate(clients)
    collections = []
    for name, rows in (("X", X), ("y", y)):
        if not (isinstance(rows, da.Array) or scipy.sparse.issparse(rows)):
            rows = np.asarray(rows)
        if rows.shape[0] != len(order):
            raise InvalidDataError(
                f"{name} has {rows.shape[0]} rows, and y has {len(order)}. They must have the "
                "same number; for a Dask Array with unknown chunks, call "
                "X.compute_chunk_sizes() first."
            )
        if isinstance(rows, da.Array):
            chunks = (sizes, *(-1 for _ in rows.shape[1:]))
            collections.append(rows[order].rechunk(chunks))
            continue
        # The rows of each client are a separate object, so that they can be sent alone.
        shape, start = rows.shape[1:], rows[:0]
        parts = [delayed(rows[client_rows], pure=False) for client_rows in clients]
        blocks = [
            da.from_delayed(part, (size, *shape), dtype=rows.dtype, meta=start)
            for part, size in zip(parts, sizes, strict=True)
        ]
        collections.append(da.concatenate(blocks))
    return collections[0], collections[1]
