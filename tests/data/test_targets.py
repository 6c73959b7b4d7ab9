"""Targets of several columns by name, and weights of absent labels."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from numpy.testing import assert_allclose
from sklearn.exceptions import DataConversionWarning

from daskml_dist.ensemble import BaggingClassifier, ExtraTreesClassifier, StackingClassifier
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.model_selection import StratifiedKFold

RNG = np.random.default_rng(0)
X0 = RNG.normal(size=(60, 3))
Y0 = (X0[:, 0] + RNG.normal(size=60) > 0).astype(int)
COLUMNS = list("abc")
FRAME = pd.DataFrame(X0, columns=COLUMNS)


@pytest.mark.parametrize("in_memory", [True, False])
def test_several_targets_by_name(in_memory: bool, client: Client) -> None:
    both = np.column_stack([Y0, 2.0 - Y0])
    frame = FRAME.assign(one=both[:, 0], other=both[:, 1])
    model = Ridge().fit(
        frame if in_memory else dd.from_pandas(frame, npartitions=3), ["one", "other"]
    )
    assert_allclose(model.coef_, Ridge().fit(X0, both).coef_)
    assert model.feature_names_in_.tolist() == COLUMNS
    frame = frame if in_memory else dd.from_pandas(frame, npartitions=3)
    assert model.score(frame, ["one", "other"]) == pytest.approx(
        Ridge().fit(X0, both).score(X0, both)
    )
    with pytest.raises(InvalidDataError, match=r"names \['two'\], which are not columns of X"):
        model.fit(frame, ["one", "two"])
    with pytest.raises(InvalidDataError, match="should be a 1d array"):
        SGDClassifier().fit(frame, ["one", "other"])


def test_class_weights_of_absent_labels() -> None:
    labels, class_weight = np.where(Y0 > 0, "b", "a"), {"a": 2.0, "b": 1.0}
    found = [
        LogisticRegression(class_weight=weights).fit(X0, labels).coef_
        for weights in (class_weight, {**class_weight, "c": 9.0})
    ]
    assert_allclose(*found)
    with pytest.raises(InvalidParameterError, match=r"\['a', 'b'\], are not in class_weight"):
        LogisticRegression(class_weight={"c": 9.0}).fit(X0, labels)


def test_lists_of_one_target_a_row() -> None:
    labels, rows = Y0[:, np.newaxis].tolist(), np.column_stack([Y0, 1 - Y0])
    with pytest.warns(DataConversionWarning):
        forest = ExtraTreesClassifier(2, random_state=0).fit(X0, labels)
    np.testing.assert_array_equal(
        forest.predict(X0), ExtraTreesClassifier(2, random_state=0).fit(X0, Y0).predict(X0)
    )
    stack = StackingClassifier([("trees", ExtraTreesClassifier(2, random_state=0))], cv=2)
    stack.set_params(final_estimator=ExtraTreesClassifier(2, random_state=0))
    assert stack.fit(X0, rows.tolist()).predict(X0).shape == rows.shape


def test_nullable_columns_of_several_labels() -> None:
    frame = pd.DataFrame({"one": Y0, "other": 1 - Y0})
    expected = ExtraTreesClassifier(2, random_state=0).fit(X0, frame).predict(X0)
    found = ExtraTreesClassifier(2, random_state=0).fit(X0, frame.astype("Int64")).predict(X0)
    np.testing.assert_array_equal(found, expected)


def test_labels_that_are_numbers_among_objects() -> None:
    labels = pd.Series(Y0, dtype=object)
    stack = StackingClassifier([("trees", ExtraTreesClassifier(2, random_state=0))], cv=2)
    stack.set_params(final_estimator=ExtraTreesClassifier(2, random_state=0))
    expected = stack.fit(X0, Y0).predict(X0)
    np.testing.assert_array_equal(stack.fit(X0, labels).predict(X0), expected)
    assert sum(len(test) for _, test in StratifiedKFold(3).split(X0, labels)) == len(X0)


def test_texts_of_any_length() -> None:
    words = np.where(Y0, "yes", "no")
    texts = words.astype(np.dtypes.StringDType())
    for model in (ExtraTreesClassifier(2, random_state=0), SGDClassifier(random_state=0)):
        expected = model.fit(X0, words).predict(X0)
        np.testing.assert_array_equal(model.fit(X0, texts).predict(X0), expected)
    assert sum(len(test) for _, test in StratifiedKFold(3).split(X0, texts)) == len(X0)


def test_labels_of_several_types_name_the_remedy() -> None:
    bag = BaggingClassifier(ExtraTreesClassifier(2), n_estimators=2)
    with pytest.raises(InvalidDataError, match="Convert the labels to one type"):
        bag.fit(X0, np.array([1, "a"] * (len(X0) // 2), dtype=object))
