"""Rows of X, y and weights stay aligned for every kind of Dask graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from distributed import Client
from sklearn import linear_model
from sklearn.pipeline import make_pipeline

from daskml_dist import Run
from daskml_dist.dask_internals.expressions import lower_all_partitions, lower_together
from daskml_dist.data import as_collection
from daskml_dist.data import lazy as lazy_module
from daskml_dist.data.collection import take_named_columns
from daskml_dist.data.lazy import has_fixed_row_order
from daskml_dist.data.streamed_blocks import make_recipes
from daskml_dist.errors import DataLostError, InvalidDataError
from daskml_dist.linear_model import LinearRegression, LogisticRegression, SGDClassifier
from daskml_dist.metrics import accuracy_score, mean_squared_error, r2_score, roc_auc_score
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import MinMaxScaler, StandardScaler, TargetEncoder
from tests.quick import in_turn

# A row is known by any of its columns: `y` is x0, `w` is x0 + 1.
rng = np.random.default_rng(0)
N = 1200
FRAME = pd.DataFrame({"x0": rng.permutation(N).astype(float), "x1": rng.normal(size=N)})
FRAME["key"] = rng.integers(0, 40, N)
FRAME["y"] = FRAME["x0"]
FRAME["w"] = FRAME["x0"] + 1
FRAME["label"] = (FRAME["x0"] > N / 2).astype(int)
X = ["x0", "x1"]
SMALL = pd.DataFrame({"key": np.arange(40), "other": np.arange(40.0)})


def _delayed(frame: pd.DataFrame, **options: Any) -> Any:
    parts = [delayed(frame[i : i + 300]) for i in range(0, len(frame), 300)]
    return dd.from_delayed(parts, meta=frame[:0], verify_meta=False, **options)


GRAPHS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda df: df,
    "shuffle": lambda df: df.shuffle("key"),
    "shuffle to fewer": lambda df: df.shuffle("key", npartitions=3),
    "merge": lambda df: df.merge(dd.from_pandas(SMALL, npartitions=3), on="key"),
    "ties sorted": lambda df: df.sort_values("key"),
    "set_index": lambda df: df.set_index("key"),
    "concat": lambda df: dd.concat([df.shuffle("key"), df]),
    "repartition": lambda df: df.shuffle("key").repartition(npartitions=4),
    "filter": lambda df: df[df["x1"] > 0],
    "filter of a shuffle": lambda df: (lambda f: f[f["x1"] > 0])(df.shuffle("key")),
    "mapped": lambda df: df.shuffle("key").map_partitions(lambda part: part * 1),
    "optimized": lambda df: df.shuffle("key").optimize(),
    "groups": lambda df: df.groupby("key")[["x0", "x1", "y", "w"]].apply(
        lambda group: group, meta=FRAME[["x0", "x1", "y", "w"]][:0]
    ),
    "from_delayed": lambda df: _delayed(FRAME),
    "from_delayed, shuffled": lambda df: _delayed(FRAME).shuffle("key"),
}
#: Graphs that Dask splits into two shuffles if two arrays are made from them.
UNORDERED = sorted(set(GRAPHS) - {"plain", "filter", "mapped", "groups", "from_delayed"})


def _default_graphs(*names: str, of: Iterable[str] = GRAPHS) -> Any:
    """Return all graphs; those not in the default run are slow."""
    cases = [pytest.param(n, marks=() if n in names else pytest.mark.slow) for n in of]
    return pytest.mark.parametrize("name", cases)


def _frame(name: str) -> Any:
    return GRAPHS[name](dd.from_pandas(FRAME, npartitions=6))


def _assert_aligned(collection: Any, **options: Any) -> int:
    """Check the rows of all blocks; return their number."""
    blocks = dask.compute(*collection.delayed_blocks(), **options)
    for block in blocks:
        np.testing.assert_array_equal(block.y, block.X[:, 0])
        if block.sample_weight is not None:
            np.testing.assert_array_equal(block.sample_weight, block.X[:, 0] + 1)
    return sum(block.n_rows for block in blocks)


@_default_graphs(
    "plain", "shuffle", "ties sorted", "concat", "filter", "mapped", "optimized", "groups"
)
def test_columns_of_one_frame(name: str) -> None:
    f = _frame(name)
    n_rows = len(f)
    assert _assert_aligned(as_collection(f[X], f["y"], f["w"])) == n_rows
    assert _assert_aligned(as_collection(*take_named_columns(f[[*X, "y"]], "y", f["w"]))) == n_rows
    whole = f[[*X, "y"]].to_dask_array()
    assert _assert_aligned(as_collection(whole[:, :2], whole[:, 2])) == n_rows


@_default_graphs("plain", "shuffle", "merge", "filter of a shuffle", "groups")
def test_predictions_and_columns(name: str) -> None:
    f = _frame(name)
    model = LinearRegression().fit(FRAME[X], FRAME["y"])
    predicted = model.predict(f[X])
    assert mean_squared_error(f["y"], predicted) < 1e-12
    assert mean_squared_error(f["y"], predicted * 1, sample_weight=f["w"]) < 1e-12
    assert _assert_aligned(as_collection(predicted.round()[:, None], f["y"], f["w"])) == len(f)


@_default_graphs("shuffle", "merge", "optimized", of=UNORDERED)
def test_separately_made_arrays_are_refused(name: str) -> None:
    f = _frame(name)
    inputs = [f[X].to_dask_array(), f["y"].to_dask_array()]
    pairs = [(inputs[0], inputs[1]), (inputs[0], f["y"]), (f[X], inputs[1])]
    for rows, y in pairs:
        with pytest.raises(InvalidDataError, match=r"come from a shuffle.*persist\(\)"):
            as_collection(rows, y)
    with pytest.raises(InvalidDataError, match="X come from a shuffle"):
        as_collection(f[X].to_dask_array(lengths=True), np.zeros(len(f)))
    with pytest.raises(InvalidDataError, match="come from a shuffle"):
        as_collection(f[X].to_delayed(), f["y"].to_delayed())


def test_the_suggested_remedy_works() -> None:
    f = _frame("shuffle").persist()
    assert _assert_aligned(as_collection(f[X].to_dask_array(), f["y"].to_dask_array())) == N
    assert has_fixed_row_order(f)


def test_two_shuffles_are_refused() -> None:
    df = dd.from_pandas(FRAME, npartitions=6)
    a, b = df[[*X, "key"]].shuffle("key"), df[["y", "key"]].shuffle("key")
    with pytest.raises(InvalidDataError, match="X and y come from a shuffle"):
        as_collection(a[X], b["y"])


# --- reads with partitions chosen by Dask ----------------------------------------------------


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: Any) -> str:
    folder = tmp_path_factory.mktemp("parquet")
    wide = FRAME.sort_values("x0").assign(**{f"other{i}": 0.0 for i in range(20)})
    for i in range(0, N, 100):
        wide[i : i + 100].to_parquet(folder / f"part-{i:05d}.parquet")
    return str(folder)


@pytest.mark.parametrize(
    ("how", "filesystem"),
    in_turn(["plain", "shuffle", "filter", "filter, then shuffle"], ["arrow", "fsspec"]),
)
def test_parquet(parquet: str, how: str, filesystem: str) -> None:
    f = dd.read_parquet(parquet, filesystem=filesystem)
    if how.startswith("filter"):
        f = f[f["x0"] >= 900]
    if how.endswith("shuffle"):
        f = f.shuffle("key")
    n_rows = 300 if how.startswith("filter") else N
    assert _assert_aligned(as_collection(f[X], f["y"], f["w"])) == n_rows
    model = LinearRegression().fit(FRAME[X], FRAME["y"])
    assert mean_squared_error(f["y"], model.predict(f[X])) < 1e-12
    read = {
        column
        for expr in lower_together([f[X].expr, f["y"].expr])
        for node in expr.walk()
        if "ReadParquet" in type(node).__name__
        for column in node.columns
    }
    assert {*X, "y"} <= read <= {*X, "y", "key"}


def test_a_repartitioned_read_that_is_indexed(parquet: str) -> None:
    """Dask fails to count its partitions before it has tuned the read."""
    f = dd.read_parquet(parquet).repartition(npartitions=2).set_index("key", drop=False)
    scaler = StandardScaler().fit(f[X])
    np.testing.assert_allclose(scaler.mean_, FRAME[X].mean())
    assert len(scaler.transform(f[X]).compute()) == N


def test_a_filter_that_leaves_files_out(parquet: str) -> None:
    f = dd.read_parquet(parquet, filters=[("x0", ">=", 900.0)])
    assert f.npartitions == 3
    assert _assert_aligned(as_collection(f[X], f["y"], f["w"])) == 300
    few = f[f["x0"] >= 1100]
    assert _assert_aligned(as_collection(few[X], few["y"], few["w"])) == 100


# --- fits, scores and transformers -----------------------------------------------------------


def _where(*usual: tuple[str, str]) -> Any:
    """Return graphs without a client (shuffle on disk) and with one (between workers)."""
    # Graphs that contain each row once.
    whole = sorted({*UNORDERED, "from_delayed"} - {"concat", "filter of a shuffle"})
    every = itertools.product(["no client", "client"], whole)
    cases = [pytest.param(*case, marks=() if case in usual else pytest.mark.slow) for case in every]
    return pytest.mark.parametrize(("where", "name"), cases)


@pytest.fixture(autouse=True)
def _client(request: pytest.FixtureRequest) -> None:
    if "where" in request.fixturenames and request.getfixturevalue("where") == "client":
        request.getfixturevalue("client")


@_where(("client", "shuffle"))
def test_fits_and_scores(where: str, name: str) -> None:
    f = _frame(name)
    truth = linear_model.LinearRegression().fit(FRAME[X], FRAME["y"], FRAME["w"])
    model = LinearRegression().fit(f[X], f["y"], sample_weight=f["w"])
    np.testing.assert_allclose(model.coef_, truth.coef_, atol=1e-9)
    assert model.score(f[X], f["y"]) > 0.999999
    assert r2_score(f["y"], model.predict(f[X])) > 0.999999
    labels = GaussianNB().fit(FRAME[X], FRAME["label"])
    direct = accuracy_score(FRAME["label"], labels.predict(FRAME[X]))
    assert accuracy_score(f["label"], labels.predict(f[X])) == pytest.approx(direct)
    assert labels.partial_fit(f[X], f["label"]).score(f[X], f["label"]) == pytest.approx(direct)
    assert roc_auc_score(f["label"], labels.predict_proba(f[X])[:, 1]) > 0.99


def test_streamed_rows_of_a_shuffle(client: Client) -> None:
    f = _frame("shuffle to fewer").assign(x0=lambda rows: rows["x0"] * (6 / N) - 3)
    model = SGDClassifier(run=Run(memory_budget=40_000), max_iter=3, random_state=0)
    assert model.fit(f[X], f["label"]).score(f[X], f["label"]) > 0.9
    one = f.repartition(npartitions=1).shuffle("key", npartitions=1)
    assert make_recipes(as_collection(one[X]).delayed_blocks()).repeated_work > 1.5


def test_a_transformer_with_y() -> None:
    f = _frame("shuffle")
    encoder = TargetEncoder(target_type="continuous", random_state=0)
    truth = encoder.fit(FRAME[["key"]], FRAME["y"]).encodings_
    found = encoder.fit(f[["key"]], f["y"]).encodings_
    np.testing.assert_allclose(found[0], truth[0], rtol=1e-9)
    # Folds depend on the positions of rows, which change with the next read.
    with pytest.raises(InvalidDataError, match=r"reorder rows each time.*persist\(\)"):
        encoder.fit_transform(f[["key"]], f["y"])


# --- frames of given tasks -------------------------------------------------------------------


@_where(("client", "from_delayed, shuffled"))
def test_chains_of_frames(where: str, name: str) -> None:
    f = _frame(name)
    steps = StandardScaler(), MinMaxScaler(), StandardScaler(), LogisticRegression(max_iter=20)
    model = make_pipeline(*steps).set_output(transform="pandas").fit(f[X], f["label"])
    truth = model.predict(FRAME[X])
    middle = model[:-1].transform(f[X])
    assert isinstance(middle, dd.DataFrame)
    predicted = model.predict(f[X])
    assert predicted.compute().sum() == truth.sum()
    direct = model.score(FRAME[X], FRAME["label"])
    assert accuracy_score(f["label"], predicted) == pytest.approx(direct)
    assert model.score(f[X], f["label"]) == pytest.approx(direct)
    assert len(middle.compute()) == len(middle.persist().compute()) == N
    assert middle[["x1"]].sum().compute().round(6).tolist() == pytest.approx([0], abs=1e-5)


# --- canaries --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_shuffles_of_dask_are_known(method: str) -> None:
    with dask.config.set({"dataframe.shuffle.method": method}):
        for name in ("shuffle", "merge"):
            f = _frame(name)
            assert has_fixed_row_order(f) == (method == "tasks")
            assert has_fixed_row_order(f[X].to_dask_array()) == (method == "tasks")
            assert _assert_aligned(as_collection(f[X], f["y"])) == N


def test_shuffles_between_workers_are_known(client: Client) -> None:
    for name in ("shuffle", "merge", "ties sorted", "set_index"):
        f = _frame(name)
        assert not has_fixed_row_order(f)
        assert not has_fixed_row_order(f[X].to_dask_array())
    array = da.ones((100, 4), chunks=(10, 4)).rechunk((100, 1), method="p2p")
    assert any("p2p" in str(key) for key in dict(array.dask))
    assert has_fixed_row_order(array)


def test_a_lowering_that_drops_partitions_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    f = _frame("plain")

    def shortened(exprs: list[Any]) -> list[Any]:
        return lower_all_partitions([f.partitions[[0, 1]][X].expr, *exprs[1:]])

    monkeypatch.setattr(lazy_module, "lower_together", shortened)
    monkeypatch.setattr(lazy_module, "lower_separately", shortened)
    assert _assert_aligned(as_collection(f[X], f["y"])) == N


# --- arrays assigned to frames ---------------------------------------------------------------


def _with_predictions(frame: Any, way: str) -> Any:
    if way == "block by block":
        meta = frame._meta.assign(p=0.0)
        return frame.map_partitions(lambda part: part.assign(p=part["x0"]), meta=meta)
    frame = frame.persist() if way == "persisted" else frame
    return frame.assign(p=frame["x0"].to_dask_array())


@pytest.mark.parametrize("way", ["persisted", "block by block"])
def test_predictions_are_assigned_to_a_shuffled_frame(way: str, client: Client) -> None:
    predicted = _with_predictions(_frame("shuffle"), way)
    model = LinearRegression().fit(predicted[["p", "x1"]], predicted["y"])
    np.testing.assert_allclose(model.coef_, [1, 0], atol=1e-9)


def test_an_array_assigned_to_a_shuffled_frame_is_refused(client: Client) -> None:
    """Dask makes a graph without some tasks, and its error mentions lost dependencies."""
    predicted = _with_predictions(_frame("shuffle"), "lazy")
    for fit in (LinearRegression().fit, StandardScaler().fit):
        with pytest.raises(DataLostError, match=r"df\.persist\(\) .* block by block"):
            fit(predicted[["p", "x1"]], predicted["y"])
