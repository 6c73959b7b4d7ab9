"""Rows of X, y and weights belong together, whatever graph of Dask made them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
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

from daskml_dist.data import as_collection
from daskml_dist.data.lowering import has_one_order
from daskml_dist.data.recipes import make_recipes
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LinearRegression, LogisticRegression, SGDRegressor
from daskml_dist.metrics import accuracy_score, mean_squared_error, r2_score, roc_auc_score
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import MinMaxScaler, StandardScaler, TargetEncoder

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
    "groups": lambda df: df.groupby("key").apply(lambda g: g, meta=FRAME[:0]),
    "from_delayed": lambda df: _delayed(FRAME),
    "from_delayed, shuffled": lambda df: _delayed(FRAME).shuffle("key"),
}
#: Those whose rows come in another order at each reading.
UNORDERED = [name for name in GRAPHS if not name.startswith(("plain", "filter", "from_delayed"))]
UNORDERED += ["filter of a shuffle", "from_delayed, shuffled"]


def _frame(name: str) -> Any:
    return GRAPHS[name](dd.from_pandas(FRAME, npartitions=6))


def _assert_aligned(collection: Any, **options: Any) -> int:
    """Check the rows of all blocks; return how many there are."""
    blocks = dask.compute(*collection.delayed_blocks(None, False), **options)
    for block in blocks:
        np.testing.assert_array_equal(block.y, block.X[:, 0])
        if block.sample_weight is not None:
            np.testing.assert_array_equal(block.sample_weight, block.X[:, 0] + 1)
    return sum(block.n_rows for block in blocks)


@pytest.mark.parametrize("name", GRAPHS)
def test_columns_of_one_frame(name: str) -> None:
    f = _frame(name)
    n_rows = len(f)
    assert _assert_aligned(as_collection(f[X], f["y"], f["w"])) == n_rows
    assert _assert_aligned(as_collection(f[[*X, "y"]], "y", f["w"])) == n_rows
    whole = f[[*X, "y"]].to_dask_array()
    assert _assert_aligned(as_collection(whole[:, :2], whole[:, 2])) == n_rows


@pytest.mark.parametrize("name", GRAPHS)
def test_predictions_and_columns(name: str) -> None:
    f = _frame(name)
    model = LinearRegression().fit(FRAME[X], FRAME["y"])
    predicted = model.predict(f[X])
    assert mean_squared_error(f["y"], predicted) < 1e-12
    assert mean_squared_error(f["y"], predicted * 1, sample_weight=f["w"]) < 1e-12
    assert _assert_aligned(as_collection(predicted.round()[:, None], f["y"], f["w"])) == len(f)


@pytest.mark.parametrize("name", UNORDERED)
def test_arrays_made_apart_are_refused(name: str) -> None:
    f = _frame(name)
    inputs = [f[X].to_dask_array(), f["y"].to_dask_array()]
    if name == "optimized":  # Dask has settled the shuffle: it is one
        assert _assert_aligned(as_collection(*inputs)) == N
        return
    pairs = [(inputs[0], inputs[1]), (inputs[0], f["y"]), (f[X], inputs[1])]
    for rows, y in pairs:
        with pytest.raises(InvalidDataError, match=r"come out of a shuffle.*persist\(\)"):
            as_collection(rows, y)
    with pytest.raises(InvalidDataError, match="X come out of a shuffle"):
        as_collection(f[X].to_dask_array(lengths=True), np.zeros(len(f)))
    with pytest.raises(InvalidDataError, match="come out of a shuffle"):
        as_collection(f[X].to_delayed(), f["y"].to_delayed())


def test_the_remedy_helps() -> None:
    f = _frame("shuffle").persist()
    assert _assert_aligned(as_collection(f[X].to_dask_array(), f["y"].to_dask_array())) == N
    assert has_one_order(f)


def test_two_shuffles_are_refused() -> None:
    df = dd.from_pandas(FRAME, npartitions=6)
    a, b = df[[*X, "key"]].shuffle("key"), df[["y", "key"]].shuffle("key")
    with pytest.raises(InvalidDataError, match="X and y come out of a shuffle"):
        as_collection(a[X], b["y"])


# --- reads that Dask cuts as it likes --------------------------------------------------------


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: Any) -> str:
    folder = tmp_path_factory.mktemp("parquet")
    wide = FRAME.sort_values("x0").assign(**{f"other{i}": 0.0 for i in range(20)})
    for i in range(0, N, 100):
        wide[i : i + 100].to_parquet(folder / f"part-{i:05d}.parquet")
    return str(folder)


@pytest.mark.parametrize("filesystem", ["arrow", "fsspec"])
@pytest.mark.parametrize("how", ["plain", "shuffle", "filter", "filter, then shuffle"])
def test_parquet(parquet: str, filesystem: str, how: str) -> None:
    f = dd.read_parquet(parquet, filesystem=filesystem)
    if how.startswith("filter"):
        f = f[f["x0"] >= 900]
    if how.endswith("shuffle"):
        f = f.shuffle("key")
    n_rows = 300 if how.startswith("filter") else N
    collection = as_collection(f[X], f["y"], f["w"])
    assert _assert_aligned(collection) == n_rows
    read = _columns_read(collection)
    assert read
    assert not any("other" in column for column in read)
    model = LinearRegression().fit(FRAME[X], FRAME["y"])
    assert mean_squared_error(f["y"], model.predict(f[X])) < 1e-12


def _columns_read(collection: Any) -> set[str]:
    """Columns that the tasks of a collection ask files for."""
    recipes = make_recipes(collection.delayed_blocks(None, False))
    text = " ".join(repr(task) for key, task in recipes.graph.items() if "parquet" in str(key))
    return {name for name in ["x0", "y", "other0", "other19"] if f"'{name}'" in text}


@pytest.mark.parametrize("filesystem", ["arrow", "fsspec"])
def test_a_filter_that_leaves_files_out(parquet: str, filesystem: str) -> None:
    f = dd.read_parquet(parquet, filesystem=filesystem)
    kept = f[f["x0"] >= 900]
    # Nothing of the files below 900 is read where statistics tell; an array has all blocks.
    array = da.from_array(FRAME["x0"].sort_values().to_numpy(), chunks=100)
    ones = (array[array >= 900] + 1).compute_chunk_sizes()
    assert _assert_aligned(as_collection(kept[X], kept["y"])) == 300
    assert _assert_aligned(as_collection(kept[X], kept["y"], ones)) == 300


# --- fits, scores and transformers -----------------------------------------------------------


@pytest.fixture(params=["no client", "client"])
def anywhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Dask's shuffle on disk without a client, between workers with one."""
    if request.param == "client":
        request.getfixturevalue("client")
    logging.getLogger("distributed.shuffle").setLevel(logging.ERROR)
    yield


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", ["shuffle", "merge", "from_delayed, shuffled"])
def test_fits_and_scores(name: str) -> None:
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
    f = _frame("shuffle to fewer").assign(x0=lambda d: d["x0"] / N, y=lambda d: d["y"] / N)
    model = SGDRegressor(memory_budget=40_000, max_iter=3, random_state=0).fit(f[X], f["y"])
    assert model.score(f[X], f["y"]) > 0.9
    one = f.repartition(npartitions=1).shuffle("key", npartitions=1)
    assert make_recipes(as_collection(one[X]).delayed_blocks(None, False)).repeated_work > 1.5


def test_a_transformer_with_y() -> None:
    f = _frame("shuffle")
    truth = TargetEncoder(random_state=0).fit(FRAME[["key"]], FRAME["y"]).encodings_
    found = TargetEncoder(random_state=0).fit(f[["key"]], f["y"]).encodings_
    np.testing.assert_allclose(found[0], truth[0], rtol=1e-9)
    # Folds go by the places of rows, which are others at the next reading.
    with pytest.raises(InvalidDataError, match=r"another order at each reading.*persist\(\)"):
        TargetEncoder().fit_transform(f[["key"]], f["y"])


# --- frames of given tasks -------------------------------------------------------------------


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("name", ["from_delayed", "from_delayed, shuffled", "shuffle"])
def test_chains_of_frames(name: str) -> None:
    f = _frame(name)
    steps = StandardScaler(), MinMaxScaler(), StandardScaler(), LogisticRegression(max_iter=20)
    model = make_pipeline(*steps).set_output(transform="pandas").fit(f[X], f["label"])
    truth = model.predict(FRAME[X])
    middle = model[:-1].transform(f[X])
    assert isinstance(middle, dd.DataFrame)
    predicted = model.predict(f[X])
    assert predicted.compute().sum() == truth.sum()
    assert accuracy_score(f["label"], predicted) == model.score(FRAME[X], FRAME["label"])
    assert model.score(f[X], f["label"]) == model.score(FRAME[X], FRAME["label"])
    assert len(middle.compute()) == len(middle.persist().compute()) == N
    assert middle[["x1"]].sum().compute().round(6).tolist() == pytest.approx([0], abs=1e-5)


# --- canaries --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_shuffles_of_dask_are_known(method: str) -> None:
    with dask.config.set({"dataframe.shuffle.method": method}):
        for name in ("shuffle", "merge", "ties sorted", "set_index"):
            f = _frame(name)
            assert has_one_order(f) == (method == "tasks")
            assert has_one_order(f[X].to_dask_array()) == (method == "tasks")
            assert _assert_aligned(as_collection(f[X], f["y"])) == N


def test_shuffles_between_workers_are_known(client: Client) -> None:
    for name in ("shuffle", "merge", "ties sorted", "set_index"):
        f = _frame(name)
        assert not has_one_order(f)
        assert not has_one_order(f[X].to_dask_array())
    array = da.ones((100, 4), chunks=(10, 4)).rechunk((100, 1), method="p2p")
    assert any("p2p" in str(key) for key in dict(array.dask))
    assert has_one_order(array)
