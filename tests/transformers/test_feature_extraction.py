"""Hashing and tf-idf of Dask collections: kinds of input, dtypes, missing texts, clones."""

from __future__ import annotations

import pickle
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.feature_extraction.text
from distributed import Client
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from daskml_dist.compose import Blockwise
from daskml_dist.errors import InvalidDataError
from daskml_dist.feature_extraction import (
    FeatureHasher,
    HashingVectorizer,
    NamespaceHasher,
    TfidfTransformer,
)

TEXTS = ["the cat sat on the mat", "a dog ran", "", "cats and dogs", "the the the"] * 5
DICTS = [{"a": 1, "b": 2.5}, {"c": 1}, {}] * 4
SPACES = [{"user": "anna", "page": {"length": 2.5}}, {"user": ["bob", "eve"]}, {}] * 4


def _counts(dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    X = rng.poisson(0.5, (60, 8)).astype(dtype)
    X[:, 7] = 0  # in no document
    return sparse.csr_array(X)


def _blocks(X: Any) -> da.Array:
    """Blocks of unknown sizes, one of them empty."""
    parts = [X[:20], X[20:20], X[20:]]
    arrays = [
        da.from_delayed(dask.delayed(part), (np.nan, X.shape[1]), meta=X[:0]) for part in parts
    ]
    return da.concatenate(arrays, allow_unknown_chunksizes=True)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "options",
    [{}, {"sublinear_tf": True}, {"use_idf": False}, {"norm": "l1"}, {"norm": None}],
    ids=str,
)
def test_tf_idf_equals_scikit_learn(options: dict[str, Any], dtype: str) -> None:
    X = _counts(dtype)
    ours, theirs = (
        t(**options) for t in (TfidfTransformer, sklearn.feature_extraction.text.TfidfTransformer)
    )
    lazy, expected = ours.fit_transform(_blocks(X)), theirs.fit_transform(X)
    assert sparse.issparse(lazy._meta)
    assert np.isnan(lazy.shape[0])
    found = lazy.compute()
    assert found.dtype == lazy.dtype == expected.dtype
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6)
    if theirs.use_idf:
        assert ours.idf_.dtype == theirs.idf_.dtype
        np.testing.assert_allclose(ours.idf_, theirs.idf_, rtol=1e-6)
    assert ours.n_features_in_ == theirs.n_features_in_
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_allclose(unpickled.transform(X).toarray(), expected.toarray(), rtol=1e-6)
    clone(ours)


def test_a_term_of_no_document_without_smoothing() -> None:
    """Its weight is infinite, but no row has it."""
    for X in (_blocks(_counts("float64")), _blocks(_counts("float64").toarray())):
        found = TfidfTransformer(smooth_idf=False).fit_transform(X).compute().toarray()
        peer = sklearn.feature_extraction.text.TfidfTransformer(smooth_idf=False)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(found, peer.fit_transform(_counts("float64")).toarray())


def test_a_later_fit_without_idf() -> None:
    X = _counts("float64")
    model = TfidfTransformer().fit(_blocks(X))
    lazy = model.transform(_blocks(X))
    model.set_params(use_idf=False).fit(_blocks(X))
    for found, options in ((lazy, {}), (model.transform(_blocks(X)), {"use_idf": False})):
        expected = sklearn.feature_extraction.text.TfidfTransformer(**options).fit_transform(X)
        np.testing.assert_allclose(found.compute().toarray(), expected.toarray())


def test_text_on_worker_processes(client: Client) -> None:
    model = make_pipeline(HashingVectorizer(n_features=64), TfidfTransformer())
    theirs = make_pipeline(
        sklearn.feature_extraction.text.HashingVectorizer(n_features=64),
        sklearn.feature_extraction.text.TfidfTransformer(),
    )
    series = dd.from_pandas(pd.Series(TEXTS), npartitions=3)
    found, expected = model.fit_transform(series).compute(), theirs.fit_transform(TEXTS)
    np.testing.assert_allclose(found.toarray(), expected.toarray())


def test_hashing_needs_no_fit_and_takes_empty_blocks() -> None:
    bag = db.from_sequence(TEXTS, npartitions=4).filter(lambda text: "dog" in text)
    expected = HashingVectorizer(n_features=16).transform([t for t in TEXTS if "dog" in t])
    found = HashingVectorizer(n_features=16).transform(bag)
    np.testing.assert_array_equal(found.compute().toarray(), expected.toarray())
    dicts, spaces = (db.from_sequence(rows, npartitions=3) for rows in (DICTS, SPACES))
    assert FeatureHasher(8).transform(dicts).compute().shape == (12, 8)
    assert NamespaceHasher(np.int64(8)).fit().transform(spaces).compute().shape == (12, 8)


def test_no_document_of_a_generator_is_lost() -> None:
    for hasher, items in ((HashingVectorizer(n_features=8), TEXTS), (FeatureHasher(8), DICTS)):
        found = hasher.transform(item for item in items)
        np.testing.assert_array_equal(found.toarray(), hasher.transform(items).toarray())


@pytest.mark.parametrize("missing", [None, np.nan])
@pytest.mark.parametrize("kind", ["bag", "series", "array"])
def test_a_missing_text_names_its_block(kind: str, missing: Any) -> None:
    texts = ["a b"] * 6 + [missing] + ["c d"] * 5
    lazy = {
        "bag": lambda: db.from_sequence(texts, npartitions=2),
        "series": lambda: dd.from_pandas(pd.Series(texts, dtype=object), npartitions=2),
        "array": lambda: da.from_array(np.array(texts, dtype=object), chunks=6),
    }[kind]()
    with pytest.raises(InvalidDataError, match=r"Block 1 of X: .*invalid document.*fill missing"):
        HashingVectorizer(n_features=8).fit_transform(lazy).compute()


def test_items_that_dask_made_strings_are_named() -> None:
    for items in (DICTS, [["a", "b"], ["c"]] * 6):
        series = dd.from_pandas(pd.Series(items), npartitions=2)
        for hasher in (FeatureHasher(8), NamespaceHasher(8)):
            with pytest.raises(InvalidDataError, match="convert-string"):
                hasher.fit(series)
    with dask.config.set({"dataframe.convert-string": False}):
        series = dd.from_pandas(pd.Series(DICTS), npartitions=2)
    assert FeatureHasher(8).transform(series).compute().shape == (12, 8)


def test_float32() -> None:
    bag = db.from_sequence(TEXTS, npartitions=2)
    found = HashingVectorizer(n_features=8, dtype=np.float32).fit_transform(bag)
    assert found.dtype == np.float32
    assert TfidfTransformer().fit_transform(found).compute().dtype == np.float32


def test_scikit_learns_hashers_by_the_block() -> None:
    for transformer, rows in (
        (sklearn.feature_extraction.text.HashingVectorizer(n_features=16), TEXTS),
        (sklearn.feature_extraction.FeatureHasher(16), DICTS),
    ):
        found = Blockwise(transformer).fit_transform(db.from_sequence(rows, npartitions=3))
        expected = clone(transformer).fit_transform(rows)
        np.testing.assert_array_equal(found.compute().toarray(), expected.toarray())
