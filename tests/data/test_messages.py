"""Messages for typical mistakes name the column, the remedy, and rows of closed clients."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA
from daskml_dist.errors import DaskMLDistError, DataLostError, InvalidDataError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.preprocessing import MinMaxScaler, StandardScaler

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=["age", "pay", "days"])
HOLES = FRAME.assign(pay=FRAME["pay"].where(FRAME.index != 33))
WORDS = FRAME.assign(job=["clerk", "nurse"] * 20)
ESTIMATORS = [SGDClassifier(), LogisticRegression(), GaussianNB(), KMeans(2), PCA(2)]


def _lazy(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=2)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_missing_value_names_its_column_and_our_imputer(estimator: Any, lazy: bool) -> None:
    rows, y = (_lazy(HOLES), _lazy(pd.DataFrame({"y": Y}))["y"]) if lazy else (HOLES, Y)
    with pytest.raises(InvalidDataError) as raised:
        estimator.fit(rows, y)
    assert "column 'pay', number 1" in str(raised.value)
    assert "daskml_dist.impute.SimpleImputer" in str(raised.value)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_missing_value_of_new_rows_names_its_column(lazy: bool) -> None:
    model = SGDClassifier(max_iter=2, tol=None).fit(FRAME, Y)
    with pytest.raises(InvalidDataError, match="column 'pay', number 1"):
        np.asarray(model.predict(_lazy(HOLES) if lazy else HOLES))


def test_selected_columns_are_not_named_after_others() -> None:
    model = SGDClassifier(policy="allreduce", run=Run(shard="features", n_lanes=3))
    with pytest.raises(InvalidDataError) as raised:
        model.fit(HOLES, Y)
    assert "'age'" not in str(raised.value)
    assert "'days'" not in str(raised.value)


@pytest.mark.parametrize(
    "estimator", [*ESTIMATORS, StandardScaler(), MinMaxScaler()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("lazy", [False, True])
def test_strings_name_their_column_and_our_encoder(estimator: Any, lazy: bool) -> None:
    with pytest.raises(InvalidDataError, match=r"\['job'\][\s\S]*daskml_dist.preprocessing"):
        estimator.fit(_lazy(WORDS) if lazy else WORDS, Y)


def test_objects_name_our_encoder() -> None:
    rows = da.from_array(WORDS.to_numpy(), chunks=(20, 4))
    with pytest.raises(InvalidDataError, match=r"daskml_dist\.preprocessing\.OrdinalEncoder"):
        SGDClassifier().fit(rows, da.from_array(Y, chunks=20))


def test_rows_of_another_cluster_or_closed_client_raise(client: Client) -> None:
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        rows, y = other.persist([da.from_array(X, chunks=(20, 3)), da.from_array(Y, chunks=20)])
        for data in ((rows, y), (rows, Y), (da.from_array(X, chunks=(20, 3)), y)):
            with pytest.raises(InvalidDataError, match=r"are on the cluster at .* client=client"):
                SGDClassifier().fit(*data)
        assert SGDClassifier(max_iter=1, tol=None).fit(rows, y, client=other).n_iter_ == 1
    for estimator in (SGDClassifier(), StandardScaler(), GaussianNB()):
        with pytest.raises(DataLostError, match=r"client[\s\S]*(storage|again)"):
            estimator.fit(rows, y)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SGDClassifier(eta0=-0.1), "eta0"),
        (lambda: SGDClassifier(n_jobs="all"), "n_jobs"),
        (lambda: SGDRegressor(epsilon=-1.0), "epsilon"),
    ],
)
def test_scikit_learns_other_parameters_are_checked(make: Any, words: str) -> None:
    with pytest.raises(DaskMLDistError, match=words):
        make().fit(X, Y)
