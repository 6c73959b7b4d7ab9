"""Partitions of rows among clients contain every row once, with the requested clients."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
from distributed import Client

from daskml_dist.datasets import (
    partition_by_class,
    partition_by_column,
    partition_by_dirichlet,
    partition_by_groups,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import FederatedAveraging

N, CLASSES = 230, 5
_draw = np.random.default_rng(0)
Y = _draw.integers(CLASSES, size=N)
#: The first column numbers the rows.
X = np.column_stack([np.arange(N), _draw.normal(size=(N, 2))])


def _clients(y: da.Array) -> list[Any]:
    return [np.asarray(y.blocks[k].compute(scheduler="sync")) for k in range(y.numblocks[0])]


@pytest.mark.parametrize("part", [
    lambda X, y, **kw: partition_by_class(X, y, 10, random_state=0, **kw),
    lambda X, y: partition_by_dirichlet(X, y, 7, alpha=0.5, random_state=0),
    lambda X, y: partition_by_dirichlet(X, y, 7, alpha=1e-6, random_state=0),
    lambda X, y: partition_by_groups(X, y, np.arange(N) % 9),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["numpy", "dask", "sparse", "list"])
def test_every_row_has_one_client_and_its_label(part: Any, kind: str) -> None:
    arguments: Any = {
        "numpy": (X, Y), "list": (X.tolist(), Y.tolist()),
        "sparse": (scipy.sparse.csr_matrix(X), Y),
        "dask": (da.from_array(X, chunks=(50, 2)), da.from_array(Y, chunks=50)),
    }[kind]  # fmt: skip
    rows, labels = part(*arguments)
    assert rows.numblocks == (labels.numblocks[0], 1)
    assert rows.chunks[0] == labels.chunks[0]
    blocks = [rows.blocks[k].compute(scheduler="sync") for k in range(rows.numblocks[0])]
    if kind == "sparse":
        assert all(scipy.sparse.issparse(block) for block in blocks)
        blocks = [block.toarray() for block in blocks]
    found = np.vstack(blocks)
    numbers = found[:, 0].astype(int)
    assert sorted(numbers) == list(range(N))
    np.testing.assert_array_equal(found, X[numbers])
    np.testing.assert_array_equal(labels.compute(scheduler="sync"), Y[numbers])


def test_shards_of_classes() -> None:
    """As McMahan et al. part MNIST: equal clients, each with few classes."""
    labels = np.repeat(np.arange(10), 60)
    _draw.shuffle(labels)
    _, y = partition_by_class(labels[:, None], labels, 20, random_state=1)
    clients = _clients(y)
    assert {len(client) for client in clients} == {30}
    assert all(len(set(client)) <= 2 for client in clients)
    _, by_label_column = partition_by_class(labels[:, None], labels, 20, random_state=1)
    np.testing.assert_array_equal(
        np.concatenate(_clients(by_label_column)), np.concatenate(clients)
    )
    _, other = partition_by_class(labels[:, None], labels, 20, random_state=2)
    assert (np.concatenate(_clients(other)) != np.concatenate(clients)).any()


def test_dirichlet_goes_from_one_class_to_the_mixture_of_all() -> None:
    labels = np.repeat(np.arange(4), 500)
    largest = {}
    for alpha in (1e-3, 1.0, 1e6):
        _, y = partition_by_dirichlet(labels[:, None], labels, 20, alpha=alpha, random_state=0)
        shares = np.array([np.bincount(client, minlength=4) / 100 for client in _clients(y)])
        largest[alpha] = float(shares.max(axis=1).mean())
    assert largest[1e-3] > 0.8
    assert 0.4 < largest[1.0] < 0.85
    assert largest[1e6] < 0.35


def test_a_client_for_each_group() -> None:
    rows, y = partition_by_groups(X, Y, np.array(["u", "w", "v"])[np.arange(N) % 3])
    assert rows.chunks[0] == (77, 76, 77)
    np.testing.assert_array_equal(rows.blocks[1].compute(scheduler="sync"), X[2::3])
    np.testing.assert_array_equal(y.blocks[2].compute(scheduler="sync"), Y[1::3])


def _frame() -> Any:
    pd = pytest.importorskip("pandas")
    sites = np.array(["north", "south", "east"])[_draw.integers(3, size=N)]
    return pd.DataFrame({"site": sites, "a": X[:, 1], "b": X[:, 2], "y": Y})


@pytest.mark.parametrize("npartitions", [0, 1, 4])
def test_a_client_for_each_value_of_a_column(client: Client, npartitions: int) -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = _frame()
    rows = dd.from_pandas(frame, npartitions=npartitions) if npartitions else frame
    clients = partition_by_column(rows, "site")
    assert clients.npartitions == 3
    assert list(clients.columns) == list(frame.columns)
    for k, site in enumerate(["east", "north", "south"]):
        found, rows_of_site = clients.partitions[k].compute(), frame[frame["site"] == site]
        assert len(found) == len(rows_of_site)
        np.testing.assert_array_equal(np.sort(found["a"]), np.sort(rows_of_site["a"]))
        assert set(found["site"]) == {site}
    policy = FederatedAveraging(1.0)
    clf = SGDClassifier(policy=policy, max_iter=3, tol=None, random_state=0)
    clf.fit(clients[["a", "b"]], clients["y"])
    assert [record["clients"] for record in clf.history_] == [[0, 1, 2]] * 3
    assert [record["rows"] for record in clf.history_] == [N] * 3


@pytest.mark.parametrize(("part", "kind", "message"), [
    (lambda: partition_by_class(X, Y, 0), InvalidParameterError, "n_clients=0"),
    (lambda: partition_by_class(X, Y, 200), InvalidParameterError, "400 shards.*230 rows"),
    (lambda: partition_by_class(X, Y, 3, classes_per_client=6), InvalidParameterError, "5 classes"),
    (lambda: partition_by_class(X[:9], Y, 3), InvalidDataError, "X has 9 rows, and y has 230"),
    (lambda: partition_by_class(X, Y[:, None], 3), InvalidDataError, "one value for each row"),
    (lambda: partition_by_dirichlet(X, Y, 231, alpha=1), InvalidParameterError, "n_clients=230 at"),
    (lambda: partition_by_dirichlet(X, Y, 3, alpha=0), InvalidParameterError, "alpha=0"),
    (lambda: partition_by_groups(X, Y, [1, 2]), InvalidDataError, "groups has 2 rows"),
    (lambda: partition_by_groups(X, Y, np.full(N, np.nan)), InvalidDataError, "missing"),
    (lambda: partition_by_groups(X, Y, [None] + ["a"] * (N - 1)), InvalidDataError, "missing"),
    (lambda: partition_by_column(_frame(), "town"), InvalidParameterError, r"one of \['site', 'a'"),
    (lambda: partition_by_column(X, "town"), InvalidParameterError, "partition_by_groups"),
    (lambda: partition_by_column(_frame().assign(site=None), "site"), InvalidDataError, "dropna"),
])  # fmt: skip
def test_bad_input(part: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        part()
