"""Sparse matrices whose entries lie outside their shape are refused before compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from scipy import sparse
from sklearn.base import clone

from daskml_dist.cluster import KMeans
from daskml_dist.data.conversion import check_sparse_structure
from daskml_dist.decomposition import TruncatedSVD
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import InvalidDataError
from daskml_dist.feature_extraction import TfidfTransformer
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.naive_bayes import MultinomialNB
from daskml_dist.preprocessing import MaxAbsScaler, PolynomialFeatures, StandardScaler

N_ROWS, N_COLUMNS = 30, 6
Y = np.arange(N_ROWS) % 2

MODELS = [
    KMeans(2),
    LogisticRegression(),
    MaxAbsScaler(),
    MultinomialNB(),
    Ridge(),
    SGDClassifier(max_iter=2),
    StandardScaler(with_mean=False),
    TfidfTransformer(),
    TruncatedSVD(2),
]


def _rows(kind: str = "csr") -> Any:
    rows = sparse.random(N_ROWS, N_COLUMNS, density=0.4, format="csr", random_state=0)
    return rows.asformat(kind)


def _beyond(rows: Any) -> Any:
    rows.indices[3] = 1_000
    return rows


def _below(rows: Any) -> Any:
    rows.indices[3] = -1
    return rows


def _narrow(rows: Any) -> Any:
    return type(rows)((rows.data, rows.indices, rows.indptr), shape=(N_ROWS, N_COLUMNS - 2))


def _falling(rows: Any) -> Any:
    rows.indptr[2] = rows.indptr[3] + 5
    return rows


def _long(rows: Any) -> Any:
    rows.indptr[-1] += 1_000
    return rows


def _few_rows(rows: Any) -> Any:
    rows.indptr = rows.indptr[:-2]
    return rows


DAMAGE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "column too large": (_beyond, "row 1 has an entry in column 1000, of 6 columns"),
    "negative column": (_below, "row 1 has an entry in column -1, of 6 columns"),
    "shape too narrow": (_narrow, "of 4 columns"),
    "indptr that falls": (_falling, "indptr decreases after row 2"),
    "indptr too long": (_long, "entries are stored"),
    "indptr of fewer rows": (_few_rows, "indptr has 29 entries instead of 31"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_message_tells_the_place(damage: Any, message: str, dtype: str) -> None:
    rows = _rows()
    rows.indices, rows.indptr = rows.indices.astype(dtype), rows.indptr.astype(dtype)
    check_sparse_structure(rows)
    with pytest.raises(InvalidDataError, match=message):
        check_sparse_structure(damage(rows))


def test_errors_of_csc_rows_name_the_column() -> None:
    rows = _rows("csc")
    check_sparse_structure(rows)
    rows.indices[0] = 99
    with pytest.raises(InvalidDataError, match="column 0 has an entry in row 99, of 30 rows"):
        check_sparse_structure(rows)


@pytest.mark.parametrize("damage", [_beyond, _below, _falling, _long])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_fits_refuse_them_in_memory_and_in_blocks(model: Any, damage: Any) -> None:
    wrong = damage(_rows())
    with pytest.raises(InvalidDataError, match="X is no valid CSR matrix"):
        model.fit(wrong, Y)
    whole = _rows()
    parts = [
        da.from_delayed(delayed(part), shape=part.shape, dtype=float, meta=whole[:0])
        for part in (whole, wrong)
    ]
    with pytest.raises(InvalidDataError, match=r"Block 1.*X is no valid CSR matrix"):
        model.fit(da.concatenate(parts), da.from_array(np.r_[Y, Y], chunks=N_ROWS))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_predictions_and_transforms_refuse_them(model: Any) -> None:
    model.fit(_rows(), Y)
    wrong = _beyond(_rows())
    lazy = da.from_delayed(delayed(wrong), shape=wrong.shape, dtype=float, meta=_rows()[:0])
    for name in ("predict", "transform"):
        if hasattr(model, name):
            method = getattr(model, name)
            with pytest.raises(InvalidDataError, match="X is no valid CSR matrix"):
                method(wrong)
            with pytest.raises(ValueError, match="X is no valid CSR matrix"):
                method(lazy).compute()


def test_trees_refuse_them() -> None:
    with pytest.raises(InvalidDataError, match=r"X is no valid CSR matrix|[Ss]parse"):
        HistGradientBoostingClassifier(max_iter=1).fit(_beyond(_rows()), Y)


def _repeated() -> tuple[Any, Any]:
    """Return a matrix with repeated, unsorted entries, and the same without."""
    rng = np.random.default_rng(1)
    rows = np.repeat(np.arange(N_ROWS), 9)
    at = rng.integers(0, N_COLUMNS, len(rows)), np.arange(0, len(rows) + 1, 9)
    messy = sparse.csr_matrix((rng.random(len(rows)), *at), shape=(N_ROWS, N_COLUMNS))
    plain = messy.copy()
    plain.sum_duplicates()
    return messy, plain


@pytest.mark.parametrize(
    "transformer",
    [
        MaxAbsScaler(),
        PolynomialFeatures(2),
        PolynomialFeatures(3, interaction_only=True),
        StandardScaler(with_mean=False),
        TfidfTransformer(),
    ],
    ids=str,
)
def test_repeated_entries_are_added_up(transformer: Any) -> None:
    messy, plain = _repeated()
    n_stored = messy.nnz
    expected = transformer.fit(plain).transform(plain).toarray()
    assert np.allclose(transformer.fit(messy).transform(messy).toarray(), expected)
    lazy = da.from_array(messy, chunks=(10, -1), asarray=False)
    found = transformer.fit(lazy).transform(lazy).compute()
    assert np.allclose(found.toarray(), expected)
    assert messy.nnz == n_stored  # the user's matrix is left alone


@pytest.mark.parametrize(
    "estimator", [PolynomialFeatures(2), StandardScaler(with_mean=False), Ridge()]
)
def test_changed_indices_are_looked_at_again(estimator: Any) -> None:
    """SciPy says of them what it found before."""
    rows = _repeated()[1]
    assert rows.has_canonical_format
    rows.indices = rows.indices[::-1] // 2  # unsorted, and repeated
    plain = sparse.csr_matrix(rows.toarray())
    lazy = da.from_array(rows, chunks=(10, -1), asarray=False)
    method = "predict" if hasattr(estimator, "predict") else "transform"
    expected, *found = (
        getattr(clone(estimator).fit(given, Y), method)(plain) for given in (plain, rows, lazy)
    )
    found.append(getattr(estimator.fit(plain, Y), method)(rows))
    for each in (expected, *found):
        dense = each.toarray() if sparse.issparse(each) else each
        np.testing.assert_allclose(dense, expected if dense is each else expected.toarray())
