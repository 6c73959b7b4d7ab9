"""Docstrings show every parameter of an estimator, including those documented by a base class."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from daskml_dist.base import BaseSteps, Supervised
from daskml_dist.estimators.base import BaseOnRows
from daskml_dist.estimators.inherited_docs import read_entries
from tests.contracts.subjects import public_estimators

NAMES = [name for name, one in public_estimators().items() if isinstance(one, BaseOnRows)]


@pytest.mark.parametrize("name", NAMES)
def test_each_parameter_of_the_constructor_is_documented(name: str) -> None:
    kind = type(public_estimators()[name])
    documented = read_entries(inspect.getdoc(kind) or "", "Parameters")
    signature = inspect.signature(kind)
    expected = [n for n, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD]
    assert set(expected) == {n for n in documented if not n.startswith("**")}


@pytest.mark.parametrize("name", NAMES)
def test_attributes_of_all_fits_are_documented(name: str) -> None:
    documented = read_entries(inspect.getdoc(type(public_estimators()[name])) or "", "Attributes")
    assert {"n_features_in_", "feature_names_in_", "history_"} <= documented.keys()


def test_a_custom_estimator_inherits_them_with_its_default() -> None:
    class Level(BaseSteps, Supervised):
        """Mean of the targets.

        Parameters
        ----------
        max_iter : int, default=7
            Own words.
        """

        def __init__(self, shuffle: bool = False, max_iter: int = 7, verbose: Any = "no") -> None:
            pass

    entries = read_entries(inspect.getdoc(Level) or "", "Parameters")
    assert list(entries) == ["shuffle", "max_iter", "verbose"]
    assert entries["shuffle"].startswith("shuffle : bool, default=False\n    Visit")
    assert entries["max_iter"].endswith("Own words.")
    assert entries["verbose"].startswith('verbose : int, default="no"\n')


def test_a_class_without_a_docstring_has_none() -> None:
    class Silent(BaseSteps, Supervised):
        def __init__(self, shuffle: bool = False) -> None:
            pass

    assert not Silent.__doc__
