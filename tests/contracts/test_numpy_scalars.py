"""Scalars of NumPy are accepted where numbers of Python are, and other kinds are refused.

Constructors of policies, losses and the like are in `test_parameter_objects.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest

from daskml_dist import Run
from daskml_dist.collective import ParameterServer, run_together
from daskml_dist.datasets import (
    make_blobs,
    make_classification,
    make_clicks,
    make_counts,
    make_regression,
)
from daskml_dist.datasets._criteo import _check_blocksize
from daskml_dist.diagnostics import plots
from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.inspection import partial_dependence, permutation_importance
from daskml_dist.linear_model import Ridge, SGDClassifier
from daskml_dist.metrics import roc_auc_score
from daskml_dist.mixture import GaussianMixture
from daskml_dist.planning.hypothetical_cluster import parse_bandwidth
from daskml_dist.serving.server import _check_parameters
from daskml_dist.streaming import folder
from daskml_dist.svm import LinearSVC

X = np.random.default_rng(0).normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)
LAZY = da.from_array(X, chunks=(20, 2))
FITTED = Ridge().fit(X, X[:, 0])


def _run(**options: Any) -> Any:
    return run_together(None, lambda group, blocks, state: group.size, np.arange(4.0), **options)


def _stream(n: Any) -> None:
    with SGDClassifier().stream(classes=[0, 1], publish=print, publish_every=n) as session:
        session.learn(X, Y)


def _plot(n: Any) -> Any:
    pytest.importorskip("matplotlib").use("Agg")
    return plots.coefficients(FITTED, n=n)


def _folder(**options: Any) -> list[Any]:
    return list(folder(Path("no such folder") / "*.csv", target="y", **{"idle": 0.0, **options}))


def _importances(column_memory: Any) -> Any:
    return permutation_importance(FITTED, X, X[:, 0], n_repeats=1, column_memory=column_memory)


#: Functions that make data sets, and parameters of theirs that are numbers.
GENERATED: dict[Callable[..., Any], dict[str, float]] = {
    make_classification: {
        "n_samples": 20, "n_features": 8, "n_informative": 3, "n_redundant": 1, "n_repeated": 1,
        "n_classes": 2, "n_clusters_per_class": 1, "flip_y": 0.1, "class_sep": 0.5, "shift": 0.5,
        "scale": 2.0, "random_state": 1,
    },
    make_regression: {
        "n_samples": 20, "n_features": 8, "n_informative": 3, "n_targets": 2, "bias": 1.0,
        "noise": 0.5, "random_state": 1,
    },
    make_counts: {
        "n_samples": 20, "n_features": 8, "n_informative": 3, "scale": 0.5, "random_state": 1,
    },
    make_blobs: {
        "n_samples": 20, "n_features": 8, "centers": 3, "cluster_std": 0.5, "random_state": 1,
    },
    make_clicks: {
        "n_rows": 20, "n_fields": 3, "n_ids": 10, "n_numeric": 1, "n_factors": 2, "zipf": 0.5,
        "drift": 0.5, "click_rate": 0.5, "random_state": 1,
    },
}  # fmt: skip


def _make_call(make: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    params = {key: v for key, v in GENERATED[make].items() if isinstance(v, int)}
    return lambda value: make(**{**params, name: value}, chunks=10)


CALLS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "run_together(retries=)": (lambda v: _run(retries=v), 3),
    "run_together(timeout=)": (lambda v: _run(timeout=v), 30),
    "ParameterServer(n_servers=)": (
        lambda v: _run(server=ParameterServer({"w": np.zeros(2)}, n_servers=v)), 2,
    ),
    "ParameterServer(learning_rate=)": (
        lambda v: ParameterServer({"w": np.zeros(2)}, learning_rate=v), 0.5,
    ),
    "stream(publish_every=)": (_stream, 2),
    "plots.coefficients(n=)": (_plot, 1),
    "folder(idle=)": (lambda v: _folder(idle=v), 0),
    "folder(poll=)": (lambda v: _folder(poll=v), 1),
    "Plan.what_if(bandwidth=)": (parse_bandwidth, 10),
    "serve(watch=)": (lambda v: _check_parameters(0, 1, v), True),
    "serve(watch=), seconds": (lambda v: _check_parameters(0, 1, v), 2),
    "LinearSVC(dual=)": (lambda v: LinearSVC(dual=v).fit(X, Y), True),
    "partial_dependence(features=)": (lambda v: partial_dependence(FITTED, LAZY, v), 1),
    "partial_dependence(features=), in memory": (lambda v: partial_dependence(FITTED, X, v), 1),
    "permutation_importance(column_memory=)": (_importances, 10**6),
    "load_criteo(blocksize=)": (_check_blocksize, 10**6),
    "Run(memory_budget=), set later": (
        lambda v: Ridge(run=Run().set_params(memory_budget=v)).fit(X, X[:, 0]), 10**9,
    ),
    "roc_auc_score(max_thresholds=)": (
        lambda v: roc_auc_score(Y, X[:, 0], max_thresholds=v), 100,
    ),
    "GaussianMixture.sample(n_samples=)": (GaussianMixture(2).fit(X).sample, 5),
    **{
        f"{make.__name__}({name}=)": (_make_call(make, name), value)
        for make, parameters in GENERATED.items()
        for name, value in parameters.items()
    },
}  # fmt: skip
#: Parameters that also take lists, or names.
OTHERS = {
    "partial_dependence(features=)": (list, str),
    "partial_dependence(features=), in memory": (list, str),
    "make_blobs(centers=)": (list,),
}


@pytest.mark.parametrize("name", CALLS)
def test_scalars_of_numpy_are_numbers(name: str) -> None:
    call, value = CALLS[name]
    scalar = np.asarray(value)[()]
    assert isinstance(scalar, np.generic)
    call(scalar)
    if type(value) is int and value < 256:
        call(np.uint8(value))
    if type(value) is float:
        call(np.float32(value))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong", ["some", [1, 2], 1j, object()], ids=["text", "list", "complex", "object"]
)
def test_other_kinds_are_refused_with_a_remedy(name: str, wrong: Any) -> None:
    if isinstance(wrong, OTHERS.get(name, ())):
        pytest.skip("also a valid kind")
    with pytest.raises(DaskMLDistError):
        CALLS[name][0](wrong)


@pytest.mark.parametrize("wrong", [True, np.True_])
def test_a_flag_is_no_number_of_servers(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError, match="n_servers=True"):
        ParameterServer({"w": np.zeros(2)}, n_servers=wrong)
    with pytest.raises(InvalidParameterError, match="retries="):
        _run(retries=wrong)
