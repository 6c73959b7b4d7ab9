"""Diagrams in notebooks link to the pages of the package's reference."""

from __future__ import annotations

import importlib
from typing import Any

import dask
import pytest
from sklearn.base import BaseEstimator
from sklearn.pipeline import make_pipeline

from daskml_dist.estimators import estimator_mixin
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.model_selection import GridSearchCV
from daskml_dist.preprocessing import StandardScaler
from tests.estimators.test_public_api import _exported, _public_subpackages

SITE = "http://localhost/docs/"
ESTIMATORS = {
    f"daskml_dist.{subpackage}.{name}": value
    for subpackage in _public_subpackages()
    if subpackage != "base"
    for name, value in _exported(importlib.import_module(f"daskml_dist.{subpackage}")).items()
    if isinstance(value, type) and issubclass(value, BaseEstimator)
}


def test_each_estimator_links_to_its_page() -> None:
    assert len(ESTIMATORS) > 60
    with dask.config.set({"daskml_dist.docs": SITE}):
        links = {name: value._get_doc_link(value.__new__(value)) for name, value in
                 ESTIMATORS.items()}  # fmt: skip
    assert links == {name: f"{SITE}reference/{name}.html" for name in ESTIMATORS}


@pytest.mark.parametrize("of", ["alone", "pipeline", "search"])
def test_the_diagram_has_the_link(of: str) -> None:
    model: Any = SGDClassifier()
    if of == "pipeline":
        model = make_pipeline(StandardScaler(), model)
    elif of == "search":
        model = GridSearchCV(model, {"alpha": [1.0]})
    with dask.config.set({"daskml_dist.docs": SITE}):
        shown = model._repr_html_()
    assert f'href="{SITE}reference/daskml_dist.linear_model.SGDClassifier.html"' in shown
    assert "scikit-learn.org/dev/modules/generated/daskml" not in shown


def test_without_a_site_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator_mixin, "_site_of_package", lambda: "")
    assert SGDClassifier()._get_doc_link() == ""
    monkeypatch.setattr(estimator_mixin, "_site_of_package", lambda: "http://site")
    assert SGDClassifier()._get_doc_link().startswith("http://site/reference/")


def test_a_custom_estimator_has_no_link() -> None:
    class Own(SGDClassifier):
        pass

    with dask.config.set({"daskml_dist.docs": SITE}):
        assert Own()._get_doc_link() == ""
