"""SHAP values are the Shapley values of their games, written down over all subsets of features."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import factorial
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from daskml_dist.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRanker,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.inspection import shap_values
from daskml_dist.linear_model import LogisticRegression, Ridge
from daskml_dist.models import tree_shap
from daskml_dist.models.tree_shap import ExplainedTrees
from daskml_dist.models.trees import number_categories
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.tree import DecisionTreeRegressor

RNG = np.random.default_rng(0)
D = 4
X = RNG.normal(size=(300, D)).astype(np.float32).astype(np.float64)
X[:, 2] = RNG.integers(0, 5, 300)
X[RNG.random(300) < 0.1, 3] = np.nan
SUM = X[:, 0] * X[:, 1] + X[:, 2] + np.nan_to_num(X[:, 3])
LABELS = (SUM > 1).astype(int) + (SUM > 3)
BOOSTED: dict[str, Any] = {"max_iter": 6, "max_leaf_nodes": 8, "random_state": 0}
GROWN: dict[str, Any] = {"n_estimators": 5, "max_depth": 4, "random_state": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "boosting": lambda: HistGradientBoostingRegressor(**BOOSTED).fit(X, SUM),
    "boosting of categories": lambda: HistGradientBoostingRegressor(
        categorical_features=[2], **BOOSTED
    ).fit(X, np.where(X[:, 2] % 2, SUM, -SUM)),
    "boosting of two classes": lambda: HistGradientBoostingClassifier(**BOOSTED).fit(X, LABELS > 0),
    "boosting of three classes": lambda: HistGradientBoostingClassifier(**BOOSTED).fit(X, LABELS),
    "forest": lambda: RandomForestRegressor(**GROWN).fit(X, SUM),
    "forest of three classes": lambda: RandomForestClassifier(**GROWN).fit(X, LABELS),
    "extra trees": lambda: ExtraTreesRegressor(**GROWN).fit(np.nan_to_num(X), SUM),
    "tree": lambda: DecisionTreeRegressor(max_depth=5).fit(X, SUM),
    "stump of one leaf": lambda: HistGradientBoostingRegressor(
        max_iter=2, min_samples_leaf=200
    ).fit(X, SUM),
}


def shapley(worth: Callable[[tuple[int, ...]], Any]) -> Any:
    """Return the Shapley value of each feature, by its definition."""
    worths = {s: worth(s) for k in range(D + 1) for s in combinations(range(D), k)}
    found = []
    for i in range(D):
        others = [j for j in range(D) if j != i]
        total: Any = 0
        for k in range(D):
            weight = factorial(k) * factorial(D - 1 - k) / factorial(D)
            for s in combinations(others, k):
                total = total + weight * (worths[tuple(sorted((*s, i)))] - worths[s])
        found.append(total)
    return np.array(found)


def path_worth(of: ExplainedTrees, row: Any) -> Callable[[tuple[int, ...]], Any]:
    """Return the game whose unknown features are averaged by the training rows of nodes."""
    nodes, numbered = of.trees.nodes, number_categories(of.trees, row[None])[0]

    def goes_left(k: int) -> bool:
        x = numbered[nodes.feature[k]]
        if np.isnan(x):
            return bool(nodes.missing_left[k])
        if nodes.category[k] >= 0:
            word = int(nodes.bitsets[nodes.category[k], int(x) >> 6])
            return bool(word >> (int(x) & 63) & 1)
        return bool(x <= nodes.threshold[k])

    def expect(k: int, known: tuple[int, ...]) -> Any:
        if nodes.feature[k] < 0:
            return of.value[k]
        left, right = nodes.left[k], nodes.left[k] + 1
        if nodes.feature[k] in known:
            return expect(left if goes_left(k) else right, known)
        share = of.cover[left] / of.cover[k]
        return share * expect(left, known) + (1 - share) * expect(right, known)

    def worth(known: tuple[int, ...]) -> Any:
        total = of.baseline.copy()
        for t, root in enumerate(of.trees.roots[:-1]):
            if of.value.shape[1] > 1:
                total += expect(root, known)
            else:
                total[t % of.n_in_turn] += expect(root, known)[0]
        return total

    return worth


def raw_of(model: Any, rows: Any) -> Any:
    found = np.asarray(model._raw_prediction()(rows))
    return found if found.ndim == 2 else found[:, None]


def with_outputs(values: Any) -> Any:
    return values if values.ndim == 3 else values[:, :, None]


@pytest.mark.parametrize("name", MODELS)
def test_path_dependent_values(name: str) -> None:
    model = MODELS[name]()
    rows = np.nan_to_num(X) if name == "extra trees" else X
    found = shap_values(model, rows)
    values, of = with_outputs(found.values), ExplainedTrees.from_raw(model._raw_prediction())
    raw = raw_of(model, rows)
    assert_allclose(values.sum(axis=1) + found.base_values, raw, rtol=0, atol=1e-10)
    for i in range(0, 300, 60):
        worth = path_worth(of, rows[i])
        assert_allclose(values[i], shapley(worth), rtol=0, atol=1e-10)
        assert_allclose(worth(()), np.atleast_1d(found.base_values), atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_interventional_values(name: str) -> None:
    model = MODELS[name]()
    rows = np.nan_to_num(X) if name == "extra trees" else X
    background = rows[5:18]
    found = shap_values(model, rows, background=background)
    values = with_outputs(found.values)
    assert_allclose(values.sum(axis=1) + found.base_values, raw_of(model, rows), atol=1e-10)
    for i in range(0, 300, 60):

        def worth(known: tuple[int, ...], row: Any = rows[i]) -> Any:
            mixed = background.copy()
            mixed[:, list(known)] = row[list(known)]
            return raw_of(model, mixed).mean(axis=0)

        assert_allclose(values[i], shapley(worth), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_few_rows_have_the_bits_of_many(name: str) -> None:
    """Of few rows the background rows are followed down the trees, of many all are marked."""
    model = MODELS[name]()
    rows = np.nan_to_num(X) if name == "extra trees" else X
    found = shap_values(model, rows, background=rows[5:90]).values
    for at in (slice(0, 1), slice(1, 4), slice(4, 20)):
        few = shap_values(model, rows[at], background=rows[5:90]).values
        assert few.tobytes() == found[at].tobytes()


def test_deep_trees_and_many_features() -> None:
    """Paths of many features, some repeated: only the sums can be compared."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(500, 40))
    target = rows @ rng.normal(size=40) + rng.normal(size=500)
    model = RandomForestRegressor(3, random_state=0).fit(rows, target)
    depth = model._raw_prediction().trees.nodes.depth.max()
    assert depth > 10
    for found in (shap_values(model, rows), shap_values(model, rows, background=rows[:7])):
        total = found.values.sum(axis=1) + found.base_values
        assert_allclose(total, model.predict(rows), rtol=0, atol=1e-9)


def test_patterns_with_colliding_cache_slots_are_distinguished() -> None:
    """A leaf has more patterns than the cache, in an order that evicts them repeatedly."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(4000, 12))
    model = RandomForestRegressor(2, max_depth=9, max_features=2, random_state=0)
    model.fit(rows, rows.sum(axis=1))
    found = shap_values(model, rows, background=rows[:20]).values
    alone = np.concatenate(
        [shap_values(model, rows[i : i + 1], background=rows[:20]).values for i in range(50)]
    )
    assert_allclose(found[:50], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_around_the_width(dtype: str) -> None:
    """Numbers of rows that fill the lanes of a group, and that do not: each row is as if alone."""
    model = MODELS["boosting of three classes"]()
    rows = X.astype(dtype)
    alone = np.concatenate([shap_values(model, rows[i : i + 1]).values for i in range(33)])
    for n in (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33):
        assert_allclose(shap_values(model, rows[:n]).values, alone[:n], rtol=0, atol=1e-14)
    whole = shap_values(model, rows).values
    assert_allclose(whole[:33], alone, rtol=0, atol=1e-14)
    total = whole.sum(axis=1) + shap_values(model, rows).base_values
    assert_allclose(total, raw_of(model, rows), rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_background", [1, 63, 64, 65, 128, 130])
def test_backgrounds_around_words_of_bits(n_background: int) -> None:
    """Values with several background rows are means over single ones."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(200, 9))
    model = RandomForestRegressor(2, max_depth=7, random_state=0).fit(rows, rows.sum(axis=1))
    background = rng.normal(size=(n_background, 9))
    found = shap_values(model, rows[:20], background=background).values
    alone = [shap_values(model, rows[:20], background=one[None]).values for one in background]
    assert_allclose(found, np.mean(alone, axis=0), rtol=0, atol=1e-12)


def test_pieces_of_rows_and_of_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in several pieces, and tables that are too large to be kept: the same values."""
    model = MODELS["forest of three classes"]()
    kinds = ({}, {"background": X[:9]})
    expected = [shap_values(model, X, **kind).values for kind in kinds]
    for name in ("_PATH_ROWS_AT_ONCE", "_INTERVENTIONAL_ROWS_AT_ONCE"):
        monkeypatch.setattr(tree_shap, name, 37)
    monkeypatch.setattr(tree_shap, "_MAX_TABLE_BYTES", 2000)
    for kind, values in zip(kinds, expected, strict=True):
        assert_allclose(shap_values(model, X, **kind).values, values, rtol=0, atol=1e-12)


def test_linear_models() -> None:
    whole, y = np.nan_to_num(X), SUM
    model = Ridge().fit(whole, y)
    found = shap_values(model, whole[:5], background=da.from_array(whole, chunks=(70, D)))
    for i in range(5):

        def worth(known: tuple[int, ...], row: Any = whole[i]) -> Any:
            mixed = whole.copy()
            mixed[:, list(known)] = row[list(known)]
            return model.predict(mixed).mean()

        assert_allclose(found.values[i], shapley(worth), atol=1e-10)
    assert_allclose(found.values.sum(axis=1) + found.base_values, model.predict(whole[:5]))
    classes = LogisticRegression().fit(whole, LABELS)
    found = shap_values(classes, whole, background=whole)
    assert found.values.shape == (300, D, 3)
    total = found.values.sum(axis=1) + found.base_values
    assert_allclose(total, classes.decision_function(whole))


def test_blocks_are_explained_lazily(client: Any) -> None:
    model = MODELS["boosting of three classes"]()
    lazy = da.from_array(X, chunks=((100, 0, 200), D))
    expected = shap_values(model, X).values
    found = shap_values(model, lazy).values
    assert found.chunks == ((100, 0, 200), (D,), (3,))
    assert_allclose(found, expected)
    unknown = lazy[da.ones(300, chunks=((100, 0, 200),), dtype=bool)]
    assert_allclose(shap_values(model, unknown).values.compute(), expected)
    found = shap_values(model, lazy, background=lazy[:20]).values
    assert_allclose(found, shap_values(model, X, background=X[:20]).values)


def test_values_as_columns() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"), index=np.arange(300) + 7)
    model = HistGradientBoostingRegressor(**BOOSTED).fit(frame, SUM)
    found = shap_values(model, frame, as_frame=True)
    assert list(found.values.columns) == [*"abcd", "base_value"]
    assert_allclose(found.values.sum(axis=1), model.predict(frame))
    lazy = shap_values(model, dd.from_pandas(frame, npartitions=3), as_frame=True).values
    pd.testing.assert_frame_equal(lazy.compute(), found.values)
    assert_allclose(found.values["a"], shap_values(model, frame).values[:, 0])


def test_categories_of_frames_are_read_as_predictions_read_them() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    for of in ("low", 10):
        values = np.array([of * (k + 1) for k in range(5)], dtype=object)
        frame["c"] = pd.Categorical(values[X[:, 2].astype(int)])
        model = HistGradientBoostingRegressor(**BOOSTED).fit(frame, np.where(X[:, 2] % 2, 1, -1))
        assert model.is_categorical_.tolist() == [False, False, True, False]
        for rows in (frame, dd.from_pandas(frame, npartitions=3)):
            for background in (None, rows):
                found = shap_values(model, rows, background=background)
                total = np.asarray(found.values).sum(axis=1) + found.base_values
                assert_allclose(total, model.predict(frame), atol=1e-12)


def test_a_column_of_queries_is_left_out() -> None:
    frame = pd.DataFrame(np.nan_to_num(X), columns=list("abcd"))
    ranked = frame.assign(qid=np.arange(300) // 10)
    model = HistGradientBoostingRanker(max_iter=3).fit(ranked, LABELS)
    found = shap_values(model, ranked)
    assert list(found.feature_names) == list("abcd")
    assert_allclose(found.values, shap_values(model, frame).values)
    assert_allclose(found.values.sum(axis=1) + found.base_values, model.predict(ranked))


def test_a_tree_that_was_grown_on_no_rows() -> None:
    model = HistGradientBoostingRegressor(**BOOSTED, subsample=1e-9).fit(X, SUM)
    for background in (None, X[:9]):
        found = shap_values(model, X[:5], background=background)
        assert_allclose(found.values, 0)
        assert_allclose(found.base_values, model.predict(X[:1])[0])


def test_a_background_without_a_known_length_is_not_gathered() -> None:
    """No more rows of a large one than it may have come here, whatever its blocks hold."""
    model = MODELS["boosting"]()
    rows = da.zeros((40_000, D), chunks=(4_000, D))
    unknown = rows[da.ones(40_000, chunks=4_000, dtype=bool)]
    for background in (rows, unknown, unknown.to_dask_dataframe(columns=None)):
        with pytest.raises(InvalidParameterError, match="a few hundred rows"):
            shap_values(model, X, background=background)
    with pytest.raises(InvalidDataError, match="0 sample"):
        shap_values(model, X, background=X[:0])


def test_invalid_arguments_are_refused() -> None:
    whole = np.nan_to_num(X)
    with pytest.raises(
        InvalidParameterError, match="GaussianNB is not supported: exact SHAP values"
    ):
        shap_values(GaussianNB().fit(whole, LABELS), whole)
    line = Ridge().fit(whole, SUM)
    with pytest.raises(InvalidParameterError, match="Pass background=X_train"):
        shap_values(line, whole)
    with pytest.raises(InvalidDataError, match="NaN"):
        shap_values(line, X, background=whole)
    with pytest.raises(InvalidDataError, match="3 features"):
        shap_values(line, whole[:, :3], background=whole)
    model = MODELS["boosting"]()
    with pytest.raises(InvalidParameterError, match="a few hundred rows"):
        shap_values(model, X, background=np.zeros((10_001, D)))
    chain = np.tril(np.ones((80, 80)))
    deep = DecisionTreeRegressor().fit(chain, np.arange(80.0) % 7 + np.arange(80))
    if ExplainedTrees.from_raw(deep._raw_prediction()).edges.n_features.max() > 64:
        with pytest.raises(InvalidParameterError, match="take 64 at most"):
            shap_values(deep, chain, background=chain)
    classes = MODELS["boosting of three classes"]()
    with pytest.raises(InvalidParameterError, match="as_frame=True needs a model with one output"):
        shap_values(classes, X, as_frame=True)


def test_values_are_those_of_shap() -> None:
    """Equal to the shap package's to 1e-6, of exported models."""
    shap = pytest.importorskip("shap", reason="shap is not installed")
    rows = np.nan_to_num(X)
    for model in (
        HistGradientBoostingRegressor(**BOOSTED).fit(rows, SUM),
        RandomForestRegressor(**GROWN).fit(rows, SUM),
        RandomForestClassifier(**GROWN).fit(rows, LABELS),
    ):
        theirs = shap.TreeExplainer(model.to_sklearn())
        expected = theirs.shap_values(rows, check_additivity=False)
        assert_allclose(shap_values(model, rows).values, expected, rtol=0, atol=1e-6)
        theirs = shap.TreeExplainer(model.to_sklearn(), rows[:30])
        expected = theirs.shap_values(rows, check_additivity=False)
        found = shap_values(model, rows, background=rows[:30]).values
        assert_allclose(found, expected, rtol=0, atol=1e-6)
