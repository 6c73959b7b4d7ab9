"""Features of texts and dicts: scikit-learn's, lazily."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn.feature_extraction
import sklearn.impute
import sklearn.preprocessing
from sklearn.pipeline import make_pipeline

from daskml_dist import feature_extraction
from daskml_dist.errors import (
    InvalidDataError,
    InvalidParameterError,
)

# --- features of text and dicts ---------------------------------------------------------------


TEXTS = ["the cat sat on the mat", "a dog ran", "cats and dogs", "the the the"] * 5


@pytest.mark.parametrize("kind", ["bag", "series", "array"])
def test_text_to_tf_idf(kind: str) -> None:
    lazy = {
        "bag": lambda: db.from_sequence(TEXTS, npartitions=3),
        "series": lambda: dd.from_pandas(pd.Series(TEXTS), npartitions=3),
        "array": lambda: da.from_array(np.array(TEXTS, dtype=object), chunks=7),
    }[kind]()
    ours = make_pipeline(
        feature_extraction.HashingVectorizer(n_features=64), feature_extraction.TfidfTransformer()
    )
    theirs = make_pipeline(
        sklearn.feature_extraction.text.HashingVectorizer(n_features=64),
        sklearn.feature_extraction.text.TfidfTransformer(),
    )
    found, expected = ours.fit_transform(lazy), theirs.fit_transform(TEXTS)
    np.testing.assert_allclose(found.compute().toarray(), expected.toarray())
    np.testing.assert_allclose(ours[-1].idf_, theirs[-1].idf_)


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        ("dict", [{"a": 1, "b": 2.5}, {"c": 1}, {}]),
        ("pair", [[("a", 1)], [("b", 2), ("a", 3)], []]),
        ("string", [["a", "b"], ["c"], []]),
    ],
)
def test_feature_hasher(kind: str, items: list[Any]) -> None:
    ours = feature_extraction.FeatureHasher(32, input_type=kind)
    theirs = sklearn.feature_extraction.FeatureHasher(32, input_type=kind)
    found = ours.fit_transform(db.from_sequence(items, npartitions=2))
    np.testing.assert_array_equal(found.compute().toarray(), theirs.transform(items).toarray())


def _slow_hash(row: dict[str, Any], n: int, pairs: list[tuple[str, str]]) -> np.ndarray:
    """The definition, one feature at a time, in Python's own integers."""
    from sklearn.utils import murmurhash3_32

    hashed: dict[str, list[tuple[int, float]]] = {}
    for space, features in row.items():
        seed = murmurhash3_32(space, positive=True)
        words = features.split() if isinstance(features, str) else features
        items = words.items() if isinstance(words, dict) else [(word, 1.0) for word in words]
        hashed[space] = [(murmurhash3_32(k, seed=seed, positive=True), v) for k, v in items]
    every = [item for items in hashed.values() for item in items]
    for a, b in pairs:
        for i, (h, v) in enumerate(hashed.get(a, [])):
            for g, u in hashed.get(b, [])[i if a == b else 0 :]:
                every.append(((h * 0x5BD1E995 + g) % 2**32, v * u))
    out = np.zeros(n)
    for h, v in every:
        out[(h % 2**31) % n] += -v if h >> 31 else v
    return out


def test_namespaces_and_their_interactions() -> None:
    rows = [
        {"user": "anna young", "page": {"length": 2.5, "age": 3.0}},
        {"user": ["bob"], "other": "a b c"},
        {},
    ]
    pairs = [("user", "page"), ("user", "user")]
    hasher = feature_extraction.NamespaceHasher(97, interactions=pairs)
    expected = np.array([_slow_hash(row, 97, pairs) for row in rows])
    np.testing.assert_allclose(hasher.fit_transform(rows).toarray(), expected)
    lazy = hasher.fit_transform(db.from_sequence(rows, npartitions=2))
    np.testing.assert_allclose(lazy.compute().toarray(), expected)


def test_namespaces_that_have_no_meaning() -> None:
    with pytest.raises(InvalidParameterError, match="n_features"):
        feature_extraction.NamespaceHasher(0).fit()
    with pytest.raises(InvalidParameterError, match="two namespaces"):
        feature_extraction.NamespaceHasher(8, interactions=[("a", "b", "c")]).fit()
    with pytest.raises(InvalidDataError, match="A row is a str"):
        feature_extraction.NamespaceHasher(8).transform(["text"])


@pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer", "HashingVectorizer"])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_token_pattern_that_is_none_is_refused(name: str, is_lazy: bool) -> None:
    texts: Any = db.from_sequence(TEXTS, npartitions=2) if is_lazy else TEXTS
    model = getattr(feature_extraction, name)(token_pattern="(")
    with pytest.raises(InvalidParameterError, match=r"token_pattern='\('.*as tokenizer"):
        model.fit_transform(texts)
