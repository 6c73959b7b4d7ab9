"""Plots of fits show the values of histories and results."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.pipeline import make_pipeline

from daskml_dist.diagnostics import plots
from daskml_dist.diagnostics.curves import LEAST_SPAN, make_curves_html
from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, SGDClassifier
from daskml_dist.model_selection import GridSearchCV, HalvingGridSearchCV, HyperbandSearchCV
from daskml_dist.preprocessing import StandardScaler
from daskml_dist.training.history import History

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
Y = np.where(X[:, 0] + 0.5 * RNG.normal(size=120) > 0, "yes", "no")


@pytest.fixture(autouse=True)
def pyplot() -> Iterator[Any]:
    found = pytest.importorskip("matplotlib.pyplot")
    found.switch_backend("Agg")
    yield found
    found.close("all")


def _history(policy: str, n: int = 3, extra: dict[str, Any] | None = None, **more: Any) -> History:
    records = [
        {
            "pass": i, "loss": 1 / i, "rows": 100, "seconds": 0.5 * i, "val_score": None,
            "bytes_pushed": 2_000_000, "bytes_pulled": 1_000_000, "staleness_mean": 0.5 * i,
            "staleness_max": 3 * i, **more,
        }
        for i in range(1, n + 1)
    ]  # fmt: skip
    return History(records, {"policy": policy, **(extra or {})})


def _points(line: Any) -> list[tuple[float, float]]:
    return [tuple(point) for point in line.get_xydata().tolist()]


def _lefts_and_widths(ax: Any) -> list[tuple[float, float, float]]:
    bars = [bar for container in ax.containers for bar in container]
    return [(bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in bars]


# -- passes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("over", "costs"),
    [("pass", [1, 2, 3]), ("seconds", [0.5, 1.5, 3.0]), ("rows", [100, 200, 300]),
     ("bytes", [3, 6, 9])],
)  # fmt: skip
def test_learning_curves(over: str, costs: list[float]) -> None:
    ax = plots.learning_curves([_history("sync"), _history("ssp"), _history("ssp")], over=over)
    assert [line.get_label() for line in ax.lines] == ["sync", "ssp", "ssp #2"]
    assert _points(ax.lines[1]) == list(zip(costs, [1.0, 0.5, 1 / 3], strict=True))


def test_a_nearly_constant_loss_is_drawn_flat() -> None:
    history = _history("sync")
    for record in history.records:
        record["loss"] = 0.598866 - 1e-8 * record["pass"]
    low, high = plots.learning_curves(history).get_ylim()
    assert (high - low) / 0.598866 == pytest.approx(LEAST_SPAN, rel=1e-6)
    (points,) = re.findall('polyline points="([^"]+)"', make_curves_html(history.records))
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert max(heights) - min(heights) < 1.0
    assert "loss 0.598866<" in make_curves_html(history.records)
    # Larger changes fill the axis as usual.
    (points,) = re.findall('polyline points="([^"]+)"', make_curves_html(_history("sync").records))
    assert max(float(p.split(",")[1]) for p in points.split()) > 100.0


def test_learning_curves_of_fits_by_name(pyplot: Any) -> None:
    _, own_axes = pyplot.subplots()
    model = SGDClassifier(max_iter=2, tol=None, early_stopping=True, random_state=0).fit(X, Y)
    ax = plots.learning_curves({"mine": model}, "val_score", ax=own_axes)
    assert ax is own_axes
    (line,) = ax.lines
    assert (line.get_label(), ax.get_ylabel()) == ("mine", "validation score")
    assert _points(line) == [(r["pass"], r["val_score"]) for r in model.history_]


def test_staleness_and_traffic() -> None:
    ax = plots.staleness(_history("ssp"))
    assert [line.get_label() for line in ax.lines] == ["ssp, mean", "ssp, max"]
    assert _points(ax.lines[1]) == [(1, 3), (2, 6), (3, 9)]
    ax = plots.traffic(_history("ssp"))
    pushed, pulled = ([(bar.get_y(), bar.get_height()) for bar in c] for c in ax.containers)
    assert (pushed, pulled) == ([(0, 2)] * 3, [(2, 1)] * 3)


# -- lanes --------------------------------------------------------------------------------------


def test_lanes_and_a_recovery() -> None:
    seatings = [
        {"generation": 0, "at": 0.0, "seconds": 0.0, "workers": ["a", "a", "b"]},
        {"generation": 1, "at": 2.0, "seconds": 0.5, "workers": ["a", "c", "c"]},
    ]
    ax = plots.lanes(_history("sync", extra={"seatings": seatings, "seconds": 4.0}))
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["a", "b", "c"]
    assert sorted(_lefts_and_widths(ax)) == [
        (0, 0.0, 1.5), (0, 2.0, 2.0), (1, 0.0, 1.5), (1, 2.0, 2.0), (2, 0.0, 1.5), (2, 2.0, 2.0),
    ]  # fmt: skip
    assert [_points(line)[0][0] for line in ax.lines] == [2.0]


def test_the_history_of_a_cluster_fit_has_the_workers_of_lanes(client: Client) -> None:
    rows = da.from_array(X, chunks=(30, 3)), da.from_array(Y, chunks=30)
    model = SGDClassifier(max_iter=3, tol=None, callbacks=[Each()]).fit(*rows)
    extra = model.history_.extra
    # In parts of one pass: the assignment is that of the first part.
    (seating,) = extra["seatings"]
    workers = set(client.scheduler_info(n_workers=-1)["workers"])
    assert set(seating["workers"]) <= workers
    assert len(seating["workers"]) == extra["n_lanes"]
    assert 0 < seating["at"] < extra["seconds"]
    ax = plots.lanes(model)
    assert len(_lefts_and_widths(ax)) == extra["n_lanes"]


class Each:
    """Callback that splits a fit into parts."""

    needs_parameters = True

    def on_pass_end(self, run: Any, record: Any) -> None:
        assert run.parameters().shape == (4, 1)


# -- coefficients -------------------------------------------------------------------------------


def test_coefficients_have_the_names_of_their_features() -> None:
    frame = pd.DataFrame(X, columns=["age", "hours", "pay"])
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, Y)
    coef = model[-1].coef_[0]
    order = np.argsort(-np.abs(coef))[:2][::-1]
    for label, sign in ((None, 1), ("yes", 1), ("no", -1)):
        ax = plots.coefficients(model, n=2, label=label)
        assert [bar.get_width() for bar in ax.patches] == (sign * coef[order]).tolist()
        names = [text.get_text() for text in ax.get_yticklabels()]
        assert names == [frame.columns[i] for i in order]


def test_coefficients_of_several_classes() -> None:
    coef = np.array([[1.0, -3.0], [2.0, 0.0], [0.0, 5.0]])
    model = SimpleNamespace(coef_=coef, classes_=np.array(["a", "b", "c"]))
    ax = plots.coefficients(model, label="b", feature_names=["x", "z"])
    assert [bar.get_width() for bar in ax.patches] == [0.0, 2.0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["z", "x"]


# -- searches -----------------------------------------------------------------------------------


def test_a_curve_and_a_map_of_a_search() -> None:
    grid = {"C": [0.01, 1.0, 10.0], "fit_intercept": [True, False]}
    search = GridSearchCV(LogisticRegression(), grid, cv=3).fit(X, Y)
    table = pd.DataFrame(search.cv_results_)
    ax = plots.search_results(search)
    image = ax.images[0].get_array()
    for i, intercept in enumerate([False, True]):
        of = table[table["param_fit_intercept"] == intercept].sort_values("param_C")
        assert image[i].tolist() == of["mean_test_score"].tolist()
    ax = plots.search_results(search, "C")
    best = table.groupby("param_C")["mean_test_score"].max()
    assert _points(ax.lines[0]) == list(best.items())
    assert ax.get_xscale() == "log"


@pytest.mark.parametrize("kind", [pytest.param("halving", marks=pytest.mark.slow), "hyperband"])
def test_rungs(kind: str) -> None:
    values = {"alpha": np.logspace(-6, 0, 9).tolist()}
    model = SGDClassifier(tol=None, max_iter=2, random_state=0)
    if kind == "halving":
        search = HalvingGridSearchCV(model, values, cv=2, random_state=0).fit(X, Y)
        table = pd.DataFrame(search.cv_results_)
        rows = table.assign(c=table["param_alpha"])[["c", "n_resources", "mean_test_score"]]
    else:
        search = HyperbandSearchCV(model, values, max_iter=3, random_state=0).fit(X, Y)
        rows = pd.DataFrame(search.history_)[["candidate", "passes", "mean_test_score"]]
    ax = plots.rungs(search)
    drawn = sorted(point for line in ax.lines for point in _points(line))
    assert drawn == sorted(rows.iloc[:, 1:].itertuples(index=False, name=None))
    assert len(ax.lines) == rows.iloc[:, 0].nunique()
    assert ax.lines[-1].get_label() == "best"


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "remedy"),
    [
        (lambda: plots.learning_curves(_history("a"), "accuracy"), "choose one of"),
        (lambda: plots.learning_curves(_history("a"), "val_score"), "needs early_stopping"),
        (lambda: plots.learning_curves(_history("a"), over="epochs"), "choose one of"),
        (lambda: plots.learning_curves([]), "at least one"),
        (lambda: plots.staleness("model"), "give a fitted estimator"),
        (lambda: plots.lanes(_history("a")), "distributed.Client"),
        (lambda: plots.coefficients(StandardScaler()), "give a fitted linear model"),
        (lambda: plots.coefficients(SimpleNamespace(coef_=[[1.0]]), n=0), ">= 1"),
        (lambda: plots.coefficients(SimpleNamespace(coef_=[[1.0], [2.0]])), "label=None: choose"),
        (lambda: plots.coefficients(SimpleNamespace(coef_=[1.0]), feature_names="ab"), "2 names"),
        (lambda: plots.search_results(StandardScaler()), "a fitted search"),
        (lambda: plots.rungs(StandardScaler()), "a fitted search"),
    ],
)
def test_invalid_plots_are_refused(draw: Any, remedy: str) -> None:
    with pytest.raises(InvalidParameterError, match=remedy):
        draw()


def test_matplotlib_is_loaded_by_the_first_plot_only(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, daskml_dist.diagnostics.plots; print('matplotlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "False\n", found.stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(DaskMLDistError, match=r"plots.traffic needs.*daskml-dist\[viz\]"):
        plots.traffic(_history("a"))


WRONG_AXES = {
    "a word": lambda pyplot: "here",
    "a figure": lambda pyplot: pyplot.figure(),
    "several": lambda pyplot: pyplot.subplots(2)[1],
}


@pytest.mark.parametrize("name", [name for name in plots.__all__ if name != "rungs"])
@pytest.mark.parametrize("wrong", WRONG_AXES)
def test_invalid_axes_are_refused(name: str, wrong: str, pyplot: Any) -> None:
    subject: Any = _history(
        "ssp", extra={"seatings": [{"at": 0.0, "seconds": 0.0, "workers": ["a"]}], "seconds": 1.0}
    )
    if name in ("coefficients", "learning_rates", "search_results"):
        subject = {
            "coefficients": lambda: LogisticRegression().fit(X, Y),
            "learning_rates": lambda: SimpleNamespace(
                rates=[0.1, 1.0], losses=[1.0, 0.5], suggestion=0.1, best=0.1
            ),
            "search_results": lambda: GridSearchCV(
                LogisticRegression(), {"C": [0.1, 1.0]}, cv=2
            ).fit(X, Y),
        }[name]()
    with pytest.raises(InvalidParameterError, match="give matplotlib Axes"):
        getattr(plots, name)(subject, ax=WRONG_AXES[wrong](pyplot))
