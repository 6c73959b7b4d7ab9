"""No estimator has more than seven classes of the package in its MRO."""

from __future__ import annotations

import inspect

import pytest

from tests.contracts.subjects import public_estimators

#: The class itself, fitting, prediction, its family, and their common base.
MOST_CLASSES = 7


@pytest.mark.parametrize("name", sorted(public_estimators()))
def test_estimators_have_few_base_classes(name: str) -> None:
    made_of = inspect.getmro(type(public_estimators()[name]))
    own_classes = [kind.__name__ for kind in made_of if kind.__module__.startswith("daskml_dist.")]
    assert own_classes[0] == name
    assert len(own_classes) <= MOST_CLASSES, own_classes
