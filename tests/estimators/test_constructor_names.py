"""Constructors called with unknown names, and their signatures."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from sklearn.base import clone

from daskml_dist import (
    Run,
    calibration,
    callbacks,
    cluster,
    compression,
    ensemble,
    feature_extraction,
    linear_model,
    losses,
    model_selection,
    naive_bayes,
    neural_network,
    optimizers,
    policies,
    preprocessing,
    schedules,
    streaming,
    svm,
    tree,
)
from daskml_dist.errors import InvalidParameterError, InvalidTypeError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint

SUBPACKAGES = (cluster, ensemble, linear_model, naive_bayes, neural_network, svm, tree)


def _faces() -> Iterator[type]:
    for subpackage in SUBPACKAGES:
        for face in (getattr(subpackage, name) for name in subpackage.__all__):
            if isinstance(face, type) and issubclass(face, BaseOnRows):
                yield face


def _public(*subpackages: Any) -> Iterator[type]:
    """Return classes that users instantiate, without abstract ones and results."""
    for subpackage in subpackages:
        for kind in (getattr(subpackage, name) for name in subpackage.__all__):
            if isinstance(kind, type) and issubclass(kind, NamedParameters | BaseOnRows):
                if not inspect.isabstract(kind) and kind is not optimizers.Optimizer:
                    yield kind


@pytest.mark.parametrize(
    ("params", "suggestion"),
    [
        ({"lr": 0.1}, "Here it is named 'learning_rate'."),
        ({"alpha": 1.0, "Penalty": "l1"}, "Did you mean 'penalty'?"),
        ({"epochs": 3}, "Here it is named 'max_iter'."),
        ({"n_lanes": 3}, r"run=Run\(n_lanes=...\)"),
        ({"xyzzy": 3}, "It has alpha, average, "),
    ],
)
def test_the_error_suggests_the_similar_name(params: dict[str, Any], suggestion: str) -> None:
    with pytest.raises(InvalidTypeError, match=rf"^SGDClassifier\(\): .* {suggestion}"):
        SGDClassifier(**params)
    with pytest.raises(TypeError):  # as in Python's error
        SGDClassifier(**params)


def test_signatures_are_those_of_the_constructors() -> None:
    faces = list(_faces())
    assert len(faces) > 30
    for face in faces:
        parameters = list(inspect.signature(face.__init__).parameters.values())[1:]  # type: ignore[misc]
        assert list(inspect.signature(face).parameters.values()) == parameters, face


def test_subclasses_may_have_other_constructors() -> None:
    class Any_(SGDClassifier):
        def __init__(self, own: int = 1, **more: Any) -> None:
            super().__init__(**more)
            self.own = own

    class Few(SGDClassifier):
        def __init__(self, own: int = 1) -> None:
            super().__init__(run=Run(n_lanes=2))
            self.own = own

    assert Any_(own=2, alpha=0.5).alpha == 0.5
    assert clone(Few(own=3)).own == copy.deepcopy(Few(3)).own == 3
    assert pickle.loads(pickle.dumps(SGDClassifier(alpha=0.5))).alpha == 0.5
    with pytest.raises(InvalidTypeError, match=r"^Few\(\): 'alpha' is not one of its parameters"):
        Few(alpha=0.5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "kind",
    [Checkpoint, Run, *_public(callbacks, compression, losses, optimizers, policies, schedules,
     ensemble, calibration, model_selection, preprocessing, feature_extraction, streaming)],
)  # fmt: skip
def test_every_constructor_error_lists_its_parameters(kind: type) -> None:
    with pytest.raises((InvalidTypeError, InvalidParameterError), match="'xyzzy'"):
        kind(xyzzy=1)
    init: Any = kind.__init__  # type: ignore[misc]
    parameters = (
        [] if init is object.__init__ else list(inspect.signature(init).parameters.values())[1:]
    )
    found = inspect.signature(kind).parameters.values()
    assert [*map(str, found)] == [*map(str, parameters)]  # NaN defaults are the same


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: policies.BoundedStaleness(stalenes=3), "Did you mean 'staleness'"),
        (lambda: policies.LocalSGD(k=3), "It has .*outer, outer_momentum, .*sync_every"),
        (lambda: policies.AllReduce(every=1), "It has none"),
        (lambda: optimizers.Adam(beta_1=0.5), "Did you mean 'beta1'"),
        (lambda: callbacks.EarlyStopping(patince=2), "Did you mean 'patience'"),
        (lambda: Run(memory="2 GiB"), "Did you mean 'memory_budget'|It has compression"),
        (lambda: model_selection.GridSearchCV(None, {}, scorng="r2"), "Did you mean 'scoring'"),
        (lambda: preprocessing.LabelEncoder(3), "has no parameters"),
    ],
)
def test_other_constructors_suggest_the_similar_name(make: Any, message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        make()
