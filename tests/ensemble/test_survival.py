"""Boosting of censored times: any chunks and lanes, all forms of y, and helpful errors."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import clone

from daskml_dist import Run
from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.errors import DivergedError, InvalidDataError, InvalidParameterError
from daskml_dist.losses import AFT, Cox, SquaredError
from daskml_dist.metrics import concordance_index
from daskml_dist.model_selection import cross_val_score
from daskml_dist.models.bins import draw_by_hash
from daskml_dist.solvers.boosting_scores import RowBoostLoss
from daskml_dist.solvers.gradient_boosting import _GradientPacker
from daskml_dist.solvers.risk_sets import CoxBoostLoss
from daskml_dist.solvers.row_sampling import draw_rows, make_key
from tests.quick import in_turn

rng = np.random.default_rng(0)
N = 900
X = rng.normal(size=(N, 4))
SCALE = 0.5
TRUE = 1 + X[:, 0] + np.abs(X[:, 1])
#: Log-normal times, some censored; rounded, so that many are equal.
TIME = np.ceil(4 * np.exp(TRUE + SCALE * rng.normal(size=N))) / 4
END = np.ceil(4 * rng.exponential(30, N)) / 4
EVENT = TIME <= END
SEEN = np.minimum(TIME, END)
Y = np.where(EVENT, SEEN, -SEEN)
WEIGHT = rng.integers(1, 4, N).astype(float)
BOUNDS = np.column_stack([SEEN, np.where(EVENT, SEEN, np.inf)])
GIVEN: dict[str, Any] = {"max_iter": 5, "random_state": 0, "early_stopping": False}
LOSSES = (AFT("normal", SCALE), AFT("logistic", 0.3), AFT("extreme", SCALE), Cox())
every = pytest.mark.parametrize("loss", LOSSES, ids=["normal", "logistic", "extreme", "cox"])


def bits(model: Any) -> list[bytes]:
    """All that a fit found."""
    found = [array.tobytes() for array in model._trees.packed().values()]
    return [*found, model.train_score_.tobytes(), model.validation_score_.tobytes()]


def fit(loss: Any, y: Any = Y, weight: Any = None, X: Any = X, **more: Any) -> Any:
    return HistGradientBoostingRegressor(loss, **{**GIVEN, **more}).fit(X, y, weight)


@every
def test_the_same_trees_for_any_chunks_and_lanes(client: Client, loss: Any) -> None:
    options = {"early_stopping": True, "run": Run(n_lanes=1)}
    alone = bits(fit(loss, Y, WEIGHT, **options))
    for n, n_lanes in ((250, None), (177, 5)):
        lazy = [da.from_array(a, chunks=(n, *a.shape[1:])) for a in (Y, WEIGHT, X)]
        found = fit(loss, *lazy, **{**options, "run": Run(n_lanes=n_lanes)})
        assert bits(found) == alone, (n, n_lanes)


DRAWS: dict[str, dict[str, Any]] = {
    "subsample": {"subsample": 0.5, "colsample_bytree": 0.8, "colsample_bylevel": 0.7},
    "goss and dart": {"sampling_method": "goss", "other_rate": 0.2, "drop_rate": 0.5},
}
TWO_LOSSES = {"normal": AFT("normal", SCALE), "cox": Cox()}


@pytest.mark.parametrize(("name", "draws"), in_turn(TWO_LOSSES, DRAWS))
def test_samples_are_the_same_for_any_chunks_and_lanes(
    client: Client, name: str, draws: str
) -> None:
    loss, options = TWO_LOSSES[name], {"early_stopping": True, **DRAWS[draws]}
    alone = bits(fit(loss, Y, WEIGHT, run=Run(n_lanes=1), **options))
    assert alone != bits(fit(loss, Y, WEIGHT, early_stopping=True))
    for n, run in ((250, Run()), (177, Run(n_lanes=5)), (250, Run(memory_budget="40 kB"))):
        lazy = [da.from_array(a, chunks=(n, *a.shape[1:])) for a in (Y, WEIGHT, X)]
        assert bits(fit(loss, *lazy, run=run, **options)) == alone, n
    warm = fit(loss, Y, WEIGHT, warm_start=True, **{**options, "max_iter": 2})
    assert bits(warm.set_params(max_iter=GIVEN["max_iter"]).fit(X, Y, WEIGHT)) == alone


@pytest.mark.parametrize("draws", [{"subsample": 0.5}, {"sampling_method": "goss"}], ids=str)
def test_gradients_of_hazards_are_of_all_rows(draws: dict[str, Any]) -> None:
    """Risk sets do not depend on the sample: a stump of a sample uses gradients over all rows."""
    group = (X[:, :1] > 0).astype(float)
    options = {"max_iter": 1, "learning_rate": 1.0, "min_samples_leaf": 1, "run": Run(n_lanes=1)}
    model = fit(Cox(), X=group, **options, **draws)
    _, g, h = Cox().value_gradient_hessian(Y, np.zeros(N))
    salt = (draw_by_hash(np.arange(N)) >> np.uint64(32)).astype(np.uint32)
    drawn = draw_rows(salt, make_key(model._seed, 11, 0)) / 2.0**32
    times = np.ones(N)
    if "subsample" in draws:
        used = drawn < 0.5
    else:
        n_top = int(0.2 * N)
        ties = draw_rows(salt, make_key(model._seed, 12, 0))
        is_top = np.zeros(N, bool)
        is_top[np.lexsort((ties, np.abs(g.astype(np.float32))))[N - n_top :]] = True
        share = 0.1 * N / (N - n_top)
        used = is_top | (drawn < share)
        times = np.where(is_top, 1.0, 1 / share)
    for value in (0.0, 1.0):
        of_leaf = used & (group[:, 0] == value)
        step = -(g * times)[of_leaf].sum() / (h * times)[of_leaf].sum()
        found = np.log(model.predict(np.array([[value]]))[0])
        assert found == pytest.approx(step, rel=1e-4)


@every
def test_likelihood_and_concordance_increase(loss: Any) -> None:
    model = fit(loss, max_iter=60, early_stopping=True, validation_fraction=None)
    assert model.train_score_[-1] > model.train_score_[0]
    assert model.score(X, Y) > 0.85
    sign = -1 if isinstance(loss, Cox) else 1
    assert model.score(X, Y) == concordance_index(Y, sign * model.predict(X))
    if isinstance(loss, AFT):
        np.testing.assert_allclose(np.log(model.predict(X)), TRUE, atol=2.5)
        raw = model._raw_prediction()(X)
        coded = AFT.join(AFT.encode(*BOUNDS.T), "float64")
        assert model.train_score_[-1] == pytest.approx(-loss.value(coded, raw).mean())
    else:
        raw = model._raw_prediction()(X)
        wanted = loss.value(Y, raw)[EVENT].mean()
        assert model.train_score_[-1] == pytest.approx(-wanted, rel=1e-9)


def test_first_tree_of_cox_has_the_gradients_of_the_likelihood() -> None:
    """One leaf for each of two groups: the Newton step of the partial likelihood."""
    group = (X[:, :1] > 0).astype(float)
    model = fit(Cox(), X=group, max_iter=1, learning_rate=1.0)
    _, g, h = Cox().value_gradient_hessian(Y, np.zeros(N))
    for value in (0.0, 1.0):
        of_leaf = group[:, 0] == value
        step = -g[of_leaf].sum() / h[of_leaf].sum()
        found = np.log(model.predict(np.array([[value]]))[0])
        assert found == pytest.approx(step, rel=1e-5)


def _in_any_form() -> dict[str, tuple[Any, Any]]:
    """Return features and the same times in all forms in which they may be given."""
    pairs = np.empty(N, [("event", bool), ("time", float)])
    pairs["event"], pairs["time"] = EVENT, SEEN
    frame = pd.DataFrame({"event": EVENT, "time": SEEN})
    columns = pd.DataFrame(X, columns=list("abcd"))
    together = columns.assign(event=EVENT, time=SEEN, y=Y)
    lazy = dd.from_pandas(together, npartitions=3, sort=False)
    names = list("abcd")
    return {
        "list": (X, Y.tolist()),
        "pairs": (X, pairs),
        "frame": (X, frame),
        "list of pairs": (X, list(zip(EVENT.tolist(), SEEN.tolist(), strict=True))),
        "objects": (X, frame.to_numpy()),
        "lazy objects": tuple(
            da.from_array(a, chunks=(300, a.shape[1])) for a in (X, frame.to_numpy())
        ),
        "bounds": (X, BOUNDS),
        "column": (X, Y[:, None]),
        "lazy times": tuple(da.from_array(a, chunks=(300, *a.shape[1:])) for a in (X, Y)),
        "lazy pairs": tuple(da.from_array(a, chunks=(300, *a.shape[1:])) for a in (X, pairs)),
        "lazy bounds": (da.from_array(X, chunks=(300, 4)), da.from_array(BOUNDS, chunks=(300, 1))),
        "lazy frames": (lazy[names], lazy[["event", "time"]]),
        "lazy series": (lazy[names], lazy["y"]),
        "names": (together.drop(columns="y"), ["event", "time"]),
        "name": (together[[*names, "y"]], "y"),
        "lazy names": (lazy[[*names, "event", "time"]], ["event", "time"]),
    }


FORMS = _in_any_form()


@cache
def _given_plainly(name: str) -> list[bytes]:
    return bits(fit(TWO_LOSSES[name]))


@pytest.mark.parametrize(("form", "name"), in_turn(FORMS, TWO_LOSSES))
def test_times_are_given_in_any_form(client: Client, form: str, name: str) -> None:
    rows, y = FORMS[form]
    model = fit(TWO_LOSSES[name], y, X=rows)
    assert bits(model) == _given_plainly(name)
    assert model.n_features_in_ == 4


@pytest.mark.parametrize("name", TWO_LOSSES)
def test_scores_do_not_depend_on_the_form(client: Client, name: str) -> None:
    model = fit(TWO_LOSSES[name], *FORMS["lazy pairs"][1:], X=FORMS["lazy pairs"][0])
    found = model.predict(FORMS["lazy pairs"][0])
    assert isinstance(found, da.Array)
    scores = [model.score(*FORMS[form]) for form in ("pairs", "lazy pairs", "lazy bounds")]
    assert scores[0] == scores[1] == scores[2]


def test_intervals_are_used() -> None:
    """Intervals around the true time are nearly as informative as the time."""
    low, high = TIME * 0.9, TIME * 1.1
    exact, in_intervals = (
        fit(AFT(scale=SCALE), y, max_iter=30) for y in (TIME, np.stack([low, high], 1))
    )
    difference = np.log(in_intervals.predict(X)) - np.log(exact.predict(X))
    assert np.abs(difference).mean() < 0.05
    left = fit(AFT(scale=SCALE), np.column_stack([np.where(EVENT, SEEN, 0.0), SEEN]))
    assert np.isfinite(left.predict(X)).all()


def test_weights_equal_repeated_rows() -> None:
    times = np.repeat(np.arange(N), WEIGHT.astype(int))
    options = {"min_samples_leaf": 1, "max_leaf_nodes": 4, "max_iter": 3}
    for loss in (AFT(), Cox()):
        weighted = fit(loss, Y, WEIGHT, **options)
        repeated = fit(loss, Y[times], X=X[times], **options)
        np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-4)


def test_sets_searches_and_copies() -> None:
    train, validation = slice(0, 700), slice(700, N)
    for loss in (AFT(), Cox()):
        model = HistGradientBoostingRegressor(loss, **GIVEN)
        model.fit(X[train], Y[train], eval_set={"held": (X[validation], Y[validation])})
        scores = [record["eval_score_held"] for record in model.history_.records]
        assert len(scores) == 5
        assert scores[-1] > scores[0]
        stopped = HistGradientBoostingRegressor(loss, **{**GIVEN, "early_stopping": True})
        stopped.fit(X[train], Y[train], X_val=X[validation], y_val=Y[validation])
        assert len(stopped.validation_score_) == 6
        warm = HistGradientBoostingRegressor(loss, **{**GIVEN, "max_iter": 2}, warm_start=True)
        warm.fit(X, Y).set_params(max_iter=5).fit(X, Y)
        assert bits(warm) == bits(fit(loss))
        assert clone(model).get_params() == model.get_params()
        assert cross_val_score(model, X, Y, cv=3).mean() > 0.8


def _with(row: int, time: float) -> Any:
    y = Y.copy()
    y[row] = time
    return y


def _bounds(row: int, low: float, high: float) -> Any:
    y = BOUNDS.copy()
    y[row] = low, high
    return y


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (_with(3, 0.0), "0 is neither positive.*row 3"),
        (_with(3, np.nan), "missing.*row 3"),
        (_with(3, np.inf), "infinite time"),
        (-np.abs(Y), "All times of y are censored"),
        (_bounds(3, 2.0, 1.0), "1 is an upper bound below the lower one.*row 3"),
        (_bounds(3, -1.0, 1.0), "negative lower bound"),
        (_bounds(3, 0.0, 0.0), "not positive"),
        (_bounds(3, 0.0, np.inf), "carries no information"),
        (_bounds(3, np.nan, 1.0), "missing"),
        (np.column_stack([SEEN, np.full(N, np.inf)]), "All times of y are censored"),
        (np.column_stack([BOUNDS, SEEN]), "shape"),
        (pd.DataFrame({"event": EVENT, "time": -SEEN}), "is not positive"),
        (np.zeros(N, [("time", float), ("event", bool)]), "must be boolean"),
        (np.zeros(N, [("event", bool), ("time", float), ("more", float)]), "times need two"),
        (Y.astype(str), "not numeric|numbers"),
        (None, "requires y"),
    ],
    ids=str,
)
def test_bad_times_are_named(y: Any, match: str) -> None:
    with pytest.raises(InvalidDataError, match=match):
        fit(AFT(), y)


def test_predictions_that_overflow_name_the_scale() -> None:
    with pytest.raises(DivergedError, match="Raise scale"):
        fit(AFT("extreme", 0.001), max_iter=20)
    model = fit(AFT("logistic", 0.001), max_iter=20)
    assert np.isinf(model.predict(X)).any()
    for rows in (X, da.from_array(X, chunks=(300, 4))):
        with pytest.raises(DivergedError, match="Raise scale"):
            model.score(rows, Y)


def test_scores_of_missing_weights_keep_their_error() -> None:
    with pytest.raises(InvalidDataError, match="sample_weight contains NaN"):
        fit(AFT()).score(X, Y, np.where(np.arange(N) == 3, np.nan, 1.0))


@pytest.mark.parametrize(
    ("loss", "remedy"),
    [
        (RowBoostLoss(SquaredError()), "Scale the targets"),
        (RowBoostLoss(AFT()), "Raise scale"),
        (CoxBoostLoss(Cox()), "raise l2_regularization"),
    ],
)
def test_gradients_that_overflow_have_the_remedy_of_the_loss(loss: Any, remedy: str) -> None:
    rows = SimpleNamespace(max_trainers=lambda values: values)
    gradients = _GradientPacker(rows, [], loss, 0, constant=False, n_rows=1)
    with pytest.raises(DivergedError, match=remedy):
        gradients._find_largest([np.array([[np.inf], [1.0]])])


def test_invalid_settings_are_named() -> None:
    with pytest.raises(InvalidDataError, match="between two bounds"):
        fit(Cox(), _bounds(3, 1.0, 2.0))
    with pytest.raises(InvalidDataError, match="All times of y are censored"):
        fit(Cox(), -np.abs(Y))
    with pytest.raises(InvalidDataError, match="All times of y are censored"):
        fit(Cox(), Y, (Y < 0).astype(float))
    stopping = HistGradientBoostingRegressor(Cox(), early_stopping=True)
    for fit_params in ({"X_val": X, "y_val": -SEEN}, {"eval_set": (X, -SEEN)}):
        with pytest.raises(InvalidDataError, match="scored after each iteration have no events"):
            stopping.fit(X, Y, **fit_params)
    lazy = da.from_array(X, chunks=(300, 4))
    with pytest.raises(InvalidDataError, match="neither positive"):
        fit(AFT(), da.from_array(_with(3, 0.0), chunks=300), X=lazy)
    with pytest.raises(InvalidParameterError, match='Leave scoring="loss"'):
        fit(AFT(), scoring="r2", early_stopping=True)
    with pytest.raises(InvalidParameterError, match='Leave scoring="loss"'):
        HistGradientBoostingRegressor(Cox(), **GIVEN).fit(X, Y, eval_set=(X, Y), scoring="r2")
