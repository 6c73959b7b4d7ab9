"""`Run` is a nested parameter of every estimator, with scikit-learn's conventions."""

from __future__ import annotations

import inspect
import pickle
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_info, threadpool_limits

from daskml_dist import Run, linear_model, naive_bayes, svm
from daskml_dist.compression import TopK
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier

_PUBLIC = [
    getattr(module, name) for module in (linear_model, naive_bayes, svm) for name in module.__all__
]
ESTIMATORS = [kind for kind in _PUBLIC if issubclass(kind, BaseEstimator)]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)

#: A value of each parameter other than its default.
OTHERS: dict[str, Any] = {
    "n_lanes": 2,
    "n_servers": 2,
    "deterministic": True,
    "compute_dtype": "float16",
    "memory_budget": "1 GiB",
    "on_lost_data": "skip",
    "shard": "features",
    "compression": "8bit",
}
BY_STEPS = {"SGDClassifier", "SGDRegressor"}
#: Estimators that use a parameter which others do not.
USED_BY = {
    "n_servers": BY_STEPS,
    "shard": BY_STEPS,
    "compression": BY_STEPS,
    "compute_dtype": {*BY_STEPS, "LogisticRegression"},
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_unused_parameters_are_refused(estimator: Any, name: str) -> None:
    """For every parameter of every estimator; default values are accepted."""
    model = estimator(run=Run(**{name: OTHERS[name]}))
    if estimator.__name__ in USED_BY.get(name, {estimator.__name__}):
        assert model._run_settings() != estimator()._run_settings()
        return
    remedy = rf"run=Run\({name}=.*{estimator.__name__} does not use {name}. Leave that out"
    with pytest.raises(InvalidParameterError, match=remedy):
        model.fit(np.abs(X), Y)
    model.set_params(**{f"run__{name}": getattr(Run(), name)})._run_settings()


def test_the_table_has_every_parameter() -> None:
    assert list(OTHERS) == list(Run().get_params())
    assert list(OTHERS) == list(inspect.signature(Run).parameters)


@pytest.mark.parametrize(
    ("run", "remedy"),
    [
        (Run(n_lanes=0), "n_lanes=0: use an integer >= 1"),
        (Run(n_servers=2.5), "n_servers=2.5: use an integer >= 1"),  # type: ignore[arg-type]
        (Run(compute_dtype="int8"), "float16"),
        (Run(memory_budget="much"), "2 GiB"),
        (Run(on_lost_data="ignore"), "skip"),
        (Run(compression="gzip"), "8bit"),
        ({"n_lanes": 2}, "daskml_dist.Run"),
        (Run, "daskml_dist.Run"),
        (3, "or None"),
    ],
    ids=str,
)
def test_values_are_checked_by_fit(run: Any, remedy: str) -> None:
    model = SGDClassifier(run=run)
    with pytest.raises(InvalidParameterError, match=remedy):
        model.fit(X, Y)


def test_run_is_a_nested_parameter() -> None:
    model = SGDClassifier(run=Run(n_lanes=2, compression=TopK(0.2)))
    assert model.get_params()["run__n_lanes"] == 2
    assert model.set_params(run__n_servers=3, alpha=0.1).run.n_servers == 3
    copy = clone(model)
    assert copy.run == model.run
    assert copy.run is not model.run
    assert copy.set_params(run__n_lanes=None).run != model.run
    assert pickle.loads(pickle.dumps(model)).run == model.run
    text = "Run(n_lanes=2, n_servers=3, compression=TopK(share=0.2))"
    assert repr(model.run) == text
    assert text in " ".join(repr(model).split())
    assert "run" in model._repr_html_()
    assert Run() != 3


def test_run_may_be_none() -> None:
    """None stands for the defaults, and nested parameters can still be set."""
    model = LogisticRegression()
    assert model._run_settings() == LogisticRegression(run=Run())._run_settings()
    assert model.set_params(run__n_lanes=3).run == Run(n_lanes=3)
    assert model.set_params(run=None, run__memory_budget=1).run == Run(memory_budget=1)
    run = Run(n_lanes=2)
    assert model.set_params(run=run, run__deterministic=True).run is run
    assert run == Run(n_lanes=2, deterministic=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"no parameter 'n_lane'. Use one of .*n_lanes"):
        SGDClassifier().set_params(run__n_lane=2)
    with pytest.raises(ValueError, match="n_lanes"):
        SGDClassifier().set_params(n_lanes=2)


def test_a_search_over_run_parameters() -> None:
    search = GridSearchCV(
        SGDClassifier(random_state=0, max_iter=2, tol=None), {"run__n_lanes": [1, 3]}, cv=2
    ).fit(X, Y)
    assert search.best_params_["run__n_lanes"] in (1, 3)
    lanes = search.best_estimator_.history_.extra["n_lanes"]
    assert lanes == search.best_params_["run__n_lanes"]


@pytest.mark.parametrize("model", [SGDClassifier(max_iter=2, tol=None), LogisticRegression()])
def test_a_fit_on_a_cluster_uses_run(model: Any, client: Client) -> None:
    """With streamed rows and the requested number of lanes."""
    rows, labels = da.from_array(X, chunks=(15, -1)), da.from_array(Y, chunks=15)
    run = Run(n_lanes=3, deterministic=True, memory_budget=600)
    clf = clone(model).set_params(run=run).fit(rows, labels)
    assert clf.history_.extra["n_lanes"] == 3
    assert clf.history_.extra["streamed"]


@pytest.mark.parametrize("collect", [np.asarray, da.from_array], ids=["in memory", "on a cluster"])
@pytest.mark.parametrize("model", [SGDClassifier(max_iter=2, tol=None), LogisticRegression()])
def test_there_are_no_more_lanes_than_rows(model: Any, collect: Any, client: Client) -> None:
    clf = clone(model).set_params(run=Run(n_lanes=100_000)).fit(collect(X), collect(Y))
    assert clf.history_.extra["n_lanes"] == len(X)
    assert clf.history_[-1]["rows"] == len(X)


@pytest.mark.parametrize("model", [SGDClassifier(max_iter=3, tol=None), LogisticRegression()])
def test_a_lane_computes_with_one_thread_of_blas(model: Any) -> None:
    """Lanes are the parallelism; tests run with one thread anyway."""

    def threads() -> set[int]:
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    class Note:
        n_threads: ClassVar[set[int]] = set()

        def on_pass_end(self, run: Any, record: dict[str, Any]) -> None:
            self.n_threads.update(threads())

    with threadpool_limits(2, user_api="blas"):
        clone(model).set_params(callbacks=[Note()], run=Run(n_lanes=2)).fit(X, Y)
        assert threads() == {2}
    assert Note.n_threads == {1}
