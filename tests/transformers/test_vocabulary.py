"""Vectorizers that learn a vocabulary of all documents: scikit-learn's terms and numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction import text
from sklearn.pipeline import make_pipeline

from daskml_dist import feature_extraction
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.feature_extraction import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)

TEXTS = ["the cat sat on the mat", "a dog ran", "", "Cats and dogs ran", "the café, the the"] * 5
OPTIONS: list[dict[str, Any]] = [
    {},
    {"min_df": 6},
    {"min_df": 0.15, "max_df": 8, "ngram_range": (1, 2)},
    {"max_features": 3},
    {"max_features": 5, "binary": True, "analyzer": "char_wb", "ngram_range": (2, 3)},
    {"stop_words": "english", "strip_accents": "unicode"},
    {"vocabulary": ["the", "dog", "unseen"]},
    {"vocabulary": {"dog": 1, "the": 0}},
    {"lowercase": False, "dtype": np.float32},
    {"tokenizer": str.split, "token_pattern": None},
]
NAMES = pytest.mark.parametrize("name", ["CountVectorizer", "TfidfVectorizer"])
KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "bag": lambda texts: db.from_sequence(texts, npartitions=3),
    "series": lambda texts: dd.from_pandas(pd.Series(texts), npartitions=3),
    "array": lambda texts: da.from_array(np.array(texts, dtype=object), chunks=7),
    "delayed": lambda texts: [dask.delayed(texts[:4]), dask.delayed(texts[4:])],
}


def _pair(name: str, **options: Any) -> tuple[Any, Any]:
    return getattr(feature_extraction, name)(**options), getattr(text, name)(**options)


@NAMES
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_scikit_learn(name: str, options: dict[str, Any]) -> None:
    ours, theirs = _pair(name, **options)
    expected = theirs.fit_transform(TEXTS)
    for kind, make in KINDS.items():
        lazy = clone(ours).fit_transform(make(TEXTS))
        assert isinstance(lazy, da.Array), kind
        assert sparse.issparse(lazy._meta), kind
        found = lazy.compute(scheduler="sync")
        assert found.dtype == lazy.dtype == expected.dtype
        np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6)
    ours.fit(KINDS["bag"](TEXTS))
    assert ours.vocabulary_ == theirs.vocabulary_
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out())
    if name == "TfidfVectorizer":
        np.testing.assert_allclose(ours.idf_, theirs.idf_, rtol=1e-6)
        assert ours.idf_.dtype == theirs.idf_.dtype
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_allclose(unpickled.transform(TEXTS).toarray(), expected.toarray(), rtol=1e-6)


def test_both_steps_are_the_one() -> None:
    bag = KINDS["bag"](TEXTS)
    for options in ({}, {"sublinear_tf": True, "norm": "l1"}, {"use_idf": False}):
        one = TfidfVectorizer(**options).fit_transform(bag)
        two = make_pipeline(CountVectorizer(), TfidfTransformer(**options)).fit_transform(bag)
        one, two = (lazy.compute(scheduler="sync").toarray() for lazy in (one, two))
        np.testing.assert_allclose(one, two)


def test_a_given_vocabulary_needs_no_fit() -> None:
    model = CountVectorizer(vocabulary=["dog", "the"])
    found = model.transform(KINDS["array"](TEXTS))
    expected = text.CountVectorizer(vocabulary=["dog", "the"]).transform(TEXTS)
    np.testing.assert_array_equal(found.compute().toarray(), expected.toarray())


def test_terms_of_rows() -> None:
    model = CountVectorizer()
    counts = model.fit_transform(KINDS["array"](TEXTS))
    found = model.inverse_transform(counts).compute(scheduler="sync")
    expected = model.inverse_transform(counts.compute())
    assert [list(row) for row in found] == [list(row) for row in expected]
    in_columns = model.inverse_transform(counts.rechunk({1: 2})).compute(scheduler="sync")
    assert [list(row) for row in in_columns] == [list(row) for row in expected]
    with_empty = da.concatenate([counts[:0], counts, counts[:0]])
    in_blocks = model.inverse_transform(with_empty).compute(scheduler="sync")
    assert [list(row) for row in in_blocks] == [list(row) for row in expected]
    with pytest.raises(InvalidDataError, match="CountVectorizer is expecting"):
        model.inverse_transform(counts[:, :2])


def test_names_of_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / str(number)) for number in range(len(TEXTS))]
    for path, document in zip(paths, TEXTS, strict=True):
        Path(path).write_text(document)
    for name in ("CountVectorizer", "TfidfVectorizer", "HashingVectorizer"):
        ours, theirs = _pair(name, input="filename")
        found = ours.fit_transform(KINDS["bag"](paths)).compute(scheduler="sync")
        np.testing.assert_array_equal(found.toarray(), theirs.fit_transform(paths).toarray())


@pytest.mark.parametrize("lazy", [True, False])
def test_bytes_of_another_encoding_name_the_parameter(lazy: bool) -> None:
    documents: Any = [b"a good caf\xe9"] * 4
    given = KINDS["bag"](documents) if lazy else documents
    for model in (CountVectorizer(), HashingVectorizer(n_features=8)):
        with pytest.raises(InvalidDataError, match=r"Set encoding .*decode_error"):
            dask.compute(model.fit_transform(given), scheduler="sync")
    assert CountVectorizer(encoding="latin-1").fit(given).vocabulary_.keys() == {"café", "good"}


def test_on_worker_processes(client: Client) -> None:
    series = KINDS["series"](TEXTS)
    ours, theirs = _pair("TfidfVectorizer", max_features=4)
    found = ours.fit_transform(series).compute()
    np.testing.assert_allclose(found.toarray(), theirs.fit_transform(TEXTS).toarray())


@NAMES
@pytest.mark.parametrize("wrong", [None, np.nan, 7])
def test_a_non_string_document_names_its_block(name: str, wrong: Any) -> None:
    lazy = KINDS["delayed"]([*TEXTS, wrong])
    model = getattr(feature_extraction, name)()
    message = r"Block 1 of X: .*document.*Texts must be strings"
    with pytest.raises(InvalidDataError, match=message) as first:
        model.fit(lazy)
    with pytest.raises(InvalidDataError, match=message) as second:
        model.fit(TEXTS).transform(lazy).compute(scheduler="sync")
    for found in (first, second):
        assert str(found.value).count("Texts must be strings") == 1


@NAMES
def test_no_term_is_left(name: str) -> None:
    make = getattr(feature_extraction, name)
    for nothing in (["", "a", "!"], ["the", "and"]):
        with pytest.raises(InvalidDataError, match=r"empty vocabulary.*stop_words"):
            make(stop_words="english").fit(KINDS["array"](nothing))
    texts = KINDS["array"](TEXTS)
    with pytest.raises(InvalidParameterError, match="no terms remain"):
        make(min_df=24).fit(texts)
    with pytest.raises(InvalidParameterError, match=r"max_df corresponds.*Try"):
        make(min_df=0.9, max_df=2).fit(texts)
    with pytest.raises(InvalidParameterError, match="ngram_range"):
        make(ngram_range=(2, 1)).fit(texts)
    with pytest.raises(InvalidDataError, match=r"X\[\"text\"\]"):
        make().fit(dd.from_pandas(pd.DataFrame({"text": TEXTS}), npartitions=2))
    with pytest.raises(NotFittedError):
        make().transform(texts)


@pytest.mark.parametrize("lazy", [False, True], ids=["in memory", "Dask"])
@pytest.mark.parametrize("columns", [["text"], ["text", "other"]], ids=len)
@pytest.mark.parametrize(
    "name",
    [n for n in feature_extraction.__all__ if n not in ("FieldHasher", "TfidfTransformer")],
)
def test_names_of_columns_are_no_texts(name: str, columns: list[str], lazy: bool) -> None:
    frame = pd.DataFrame({"text": TEXTS, "other": TEXTS})[columns]
    tables = [dd.from_pandas(frame, npartitions=2)] if lazy else [frame, frame.to_numpy()]
    remedy = r'X\["text"\]' if "Vectorizer" in name else r'to_dict\("records"\)'
    for table in tables:
        vectorizer = getattr(feature_extraction, name)()
        for method in ("fit", "fit_transform"):
            with pytest.raises(InvalidDataError, match=rf"came as a table.*{remedy}"):
                getattr(vectorizer, method)(table)
        if "Vectorizer" in name:
            with pytest.raises(InvalidDataError, match=rf"came as a table.*{remedy}"):
                vectorizer.fit(TEXTS).transform(table)
