"""Standard errors, tests and likelihoods equal those of statsmodels on its data sets.

`statsmodels_truth.json` holds the data sets (the target first) and the numbers of statsmodels.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    TweedieRegressor,
)

_FILE = json.loads(Path(__file__).with_name("statsmodels_truth.json").read_text())
DATA = {name: np.array(rows, np.float64) for name, rows in _FILE["data"].items()}
TRUTH: dict[str, tuple[str, dict[str, Any]]] = _FILE["truth"]
NEWTON: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 300}
FREE: dict[str, Any] = {"alpha": 0.0, **NEWTON}
MODELS: dict[str, Any] = {
    "stackloss": LinearRegression(),
    "stackloss without intercept": LinearRegression(fit_intercept=False),
    "longley": LinearRegression(tol=0.0),
    "poisson": PoissonRegressor(**FREE),
    "gamma": GammaRegressor(**FREE),
    "tweedie 1.5": TweedieRegressor(power=1.5, **FREE),
    "inverse gaussian": TweedieRegressor(power=3, **FREE),
    "gaussian": TweedieRegressor(power=0, **FREE),
    "gaussian log": TweedieRegressor(power=0, link="log", **FREE | {"tol": 1e-8}),
    "logit": LogisticRegression(None, **NEWTON),
}


def summary_of(name: str, rows: Any = np.asarray, chunks: Any = None) -> Any:
    """Return the summary of a case, of rows in memory or lazy ones."""
    table = DATA[TRUTH[name][0]]
    X, y, n = table[:, 1:], table[:, 0], len(table)
    model = MODELS.get(name)
    kind = name.rpartition(" ")[2]
    if model is None:
        model = MODELS[name.rpartition(" ")[0]]
    options: dict[str, Any] = {}
    weight: Any = None
    if kind.startswith("HC"):
        options["cov_type"] = kind
    if kind == "cluster":
        options.update(cov_type="cluster", groups=np.arange(n) // 4)
    if kind == "weighted":
        weight = np.arange(1, n + 1) / 10
    if chunks is not None:
        X, y = da.from_array(X, chunks=(chunks, X.shape[1])), da.from_array(y, chunks=chunks)
        if weight is not None:
            weight = da.from_array(weight, chunks=chunks)
        if "groups" in options:
            options["groups"] = da.from_array(options["groups"], chunks=chunks)
    return model.fit(X, y, weight).summary(X, y, weight, **options)


@pytest.mark.parametrize("chunks", [None, 5])
@pytest.mark.parametrize("name", TRUTH)
def test_results_equal_statsmodels(name: str, chunks: int | None) -> None:
    expected, found = TRUTH[name][1], summary_of(name, chunks=chunks)
    for key, value in expected.items():
        ours = found.conf_int().ravel() if key == "conf_int" else getattr(found, key)
        # The columns of longley are collinear up to ten digits.
        rtol = 1e-6 if "longley" in name and key not in ("params", "bse") else 1e-8
        if key in ("pvalues", "f_pvalue", "llr_pvalue", "conf_int"):
            rtol = max(rtol, 1e-6)  # an error in a ratio is relative to the ratio
        assert_allclose(ours, value, rtol=rtol, err_msg=key)


def test_leverages_of_glm_families_scale_residuals() -> None:
    """HC2 and HC3 of a GLM use the hat matrix of its last step (as R's sandwich does)."""
    table = DATA["cpunish"]
    X, y = table[:, 1:], table[:, 0]
    model = MODELS["poisson"].fit(X, y)
    design, mean = np.column_stack([np.ones(len(X)), X]), model.predict(X)
    bread = np.linalg.inv(design.T @ (mean[:, None] * design))
    leverage = mean * np.einsum("ij,jk,ik->i", design, bread, design)
    for kind, power in (("HC2", 1), ("HC3", 2)):
        scores = ((y - mean) / (1 - leverage) ** (power / 2))[:, None] * design
        expected = np.sqrt(np.diag(bread @ scores.T @ scores @ bread))
        assert_allclose(model.summary(X, y, cov_type=kind).bse, expected, rtol=1e-6)


def test_the_text_equals_the_table_of_statsmodels() -> None:
    text = str(summary_of("stackloss nonrobust"))
    assert "OLS Regression Results" in text
    assert "R-squared:" in text
    assert "0.914" in text
    (line,) = [line for line in text.splitlines() if line.startswith("x1")]
    assert line.split() == ["x1", "0.7156", "0.135", "5.307", "0.000", "0.431", "1.000"]
    assert "P>|t|" in text
    assert "<pre>" in summary_of("stackloss nonrobust")._repr_html_()
    text = str(summary_of("logit HC0"))
    assert "Pseudo R-squ.:" in text
    assert "P>|z|" in text
    assert "Link Function:" in str(summary_of("gamma nonrobust"))


def test_names_of_columns_and_labels_of_texts() -> None:
    table = DATA["spector"]
    frame = pd.DataFrame(table, columns=["grade", "gpa", "tuce", "psi"])
    frame["grade"] = np.where(frame["grade"] > 0, "pass", "fail")
    many = dd.from_pandas(frame, npartitions=3)
    model = LogisticRegression(None, **NEWTON).fit(many, "grade")
    found = model.summary(many, "grade")
    assert found.names == ["const", "gpa", "tuce", "psi"]
    assert_allclose(found.params, TRUTH["logit nonrobust"][1]["params"], rtol=1e-7)
    assert_allclose(found.cov_params(), found.covariance)


def test_models_without_standard_errors_raise() -> None:
    X, y = DATA["stackloss"][:, 1:], DATA["stackloss"][:, 0]
    labels = (y > 15).astype(int)
    for model, target, remedy in (
        (PoissonRegressor(), y, "Fit with alpha=0"),
        (LogisticRegression(), labels, "Fit with penalty=None"),
        (LinearRegression(positive=True), y, "Fit without"),
        (LogisticRegression(None, class_weight="balanced", tol=1.0), labels, "Fit without"),
        (LogisticRegression(None, tol=1.0), np.arange(21) % 3, "there are 3"),
        (LinearRegression(), np.column_stack([y, y]), "there are 2"),
    ):
        with pytest.raises(InvalidParameterError, match=remedy):
            model.fit(X, target).summary(X, target)
    line = LinearRegression().fit(X, y)
    with pytest.raises(InvalidParameterError, match="Pass both, or neither"):
        line.summary(X, y, cov_type="cluster")
    with pytest.raises(InvalidParameterError, match="use one of"):
        line.summary(X, y, cov_type="HC9")
    with pytest.raises(InvalidDataError, match="two"):
        line.summary(X, y, cov_type="cluster", groups=np.zeros(21))
    twice = np.column_stack([X, X[:, 0] * 2])
    with pytest.raises(
        InvalidDataError, match=r"are linear combinations of earlier ones: \['x4'\]"
    ):
        LinearRegression().fit(twice, y).summary(twice, y)
    with pytest.raises(InvalidDataError, match="There are 4 rows"):
        line.summary(X[:4], y[:4])


def test_rows_and_groups_without_a_robust_covariance_are_named() -> None:
    """A row that is the only one with a column, and rows without a group."""
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.normal(size=30), np.arange(30) == 7]), rng.normal(size=30)
    model = LinearRegression().fit(X, y)
    for kind in ("HC2", "HC3"):
        with pytest.raises(InvalidDataError, match="A single row determines a coefficient"):
            model.summary(X, y, cov_type=kind)
    assert np.isfinite(model.summary(X, y, cov_type="HC1").bse).all()
    groups = np.where(np.arange(30) == 3, np.nan, np.arange(30) // 5)
    with pytest.raises(InvalidDataError, match="groups has missing labels"):
        model.summary(X, y, cov_type="cluster", groups=groups)
    named = np.where(np.arange(30) == 3, None, "a")
    with pytest.raises(InvalidDataError, match="groups has labels of several types"):
        model.summary(X, y, cov_type="cluster", groups=named)


def test_fewer_clusters_than_coefficients_have_a_table() -> None:
    """Their covariance is singular: F tests as many combinations as its rank."""
    X, y = DATA["stackloss"][:, 1:], DATA["stackloss"][:, 0]
    model, groups = LinearRegression().fit(X, y), np.arange(21) % 2
    found = model.summary(X, y, cov_type="cluster", groups=groups)
    assert np.isfinite([found.fvalue, found.f_pvalue]).all()
    assert "F-statistic:" in str(found)
    # For any units of a column.
    units = X * [1.0, 1000.0, 0.01]
    other = LinearRegression().fit(units, y).summary(units, y, cov_type="cluster", groups=groups)
    assert_allclose(other.fvalue, found.fvalue, rtol=1e-6)


def test_uninformative_rows_are_named() -> None:
    X = DATA["stackloss"][:, 1:]
    flat = np.full(21, 2.0)
    model = LinearRegression().fit(X, flat)
    model.coef_, model.intercept_ = np.zeros(3), 2.0
    with pytest.raises(InvalidDataError, match="predicts every target exactly"):
        model.summary(X, flat)
    table = DATA["spector"]
    fitted = LogisticRegression(None, **NEWTON).fit(table[:, 1:], table[:, 0])
    passed = table[table[:, 0] > 0]
    with pytest.warns(UserWarning, match="standard errors from the optimum"):
        found = fitted.summary(passed[:, 1:], passed[:, 0])
    assert np.isnan(found.prsquared)
    assert "Pseudo R-squ.:" in str(found)


def test_a_fit_that_has_not_converged_warns() -> None:
    X, y = DATA["stackloss"][:, 1:], DATA["stackloss"][:, 0]
    line = LinearRegression().fit(X, y)
    with pytest.warns(UserWarning, match="standard errors from the optimum"):
        line.summary(X, y + X[:, 0])
