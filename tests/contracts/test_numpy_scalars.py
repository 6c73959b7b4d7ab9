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

from daskml_dist.collective import ParameterServer, run_together
from daskml_dist.diagnostics import plots
from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.inspection import partial_dependence
from daskml_dist.linear_model import Ridge, SGDClassifier
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
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_scalars_of_numpy_are_numbers(name: str) -> None:
    call, value = CALLS[name]
    scalar = np.asarray(value)[()]
    assert isinstance(scalar, np.generic)
    call(scalar)
    if type(value) is int:
        call(np.uint8(value))
    if type(value) is float:
        call(np.float32(value))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "wrong", ["some", [1, 2], 1j, object()], ids=["text", "list", "complex", "object"]
)
def test_other_kinds_are_refused_with_a_remedy(name: str, wrong: Any) -> None:
    if name == "partial_dependence(features=)" and isinstance(wrong, list | str):
        pytest.skip("a list of features, or a name")
    with pytest.raises(DaskMLDistError):
        CALLS[name][0](wrong)


@pytest.mark.parametrize("wrong", [True, np.True_])
def test_a_flag_is_no_number_of_servers(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError, match="n_servers=True"):
        ParameterServer({"w": np.zeros(2)}, n_servers=wrong)
    with pytest.raises(InvalidParameterError, match="retries="):
        _run(retries=wrong)
