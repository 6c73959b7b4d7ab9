"""The cost model's maths on made-up timings, its file, and the words of a plan."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse

import daskml_dist
from daskml_dist import Run
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier, SGDRegressor
from daskml_dist.naive_bayes import GaussianNB
from daskml_dist.planning import Choice, Costs, Plan, Work, advise, measure
from daskml_dist.planning.costs import cache_file, fit_cost_values, load_costs, save_costs
from daskml_dist.planning.families.steps import LinearStepsFamily
from daskml_dist.planning.places import inline_place
from daskml_dist.planning.plan import format_bytes, format_seconds
from daskml_dist.planning.rows import RowsShape, measure_shape
from daskml_dist.policies import FederatedAveraging

STEPS = LinearStepsFamily()
TRUE = Costs(
    {"fit": 0.1, "read": 2e-9, "sample": 6e-8, "pass": 1e-3, "early": 3e-5, "copy": 2e-10,
     "step": 1e-5, "row": 1e-8, "far": 2e-8, "entry": 3e-10},
)  # fmt: skip


def without(*names: str) -> Costs:
    return Costs({name: v for name, v in TRUE.values.items() if name not in names})


def work(n: int, d: int, batch: int, width: int = 1, passes: int = 5) -> Work:
    """The work of a fit of one lane in this process."""
    clf = SGDClassifier(batch_size=batch)
    rows = RowsShape(n, d, width if width > 2 else 2, "float64")
    return STEPS.work(clf, rows, inline_place(None), passes)


def test_costs_are_recovered_exactly() -> None:
    """Times computed from costs give back these costs, including zero ones at the boundary."""
    works = [
        work(20_000, 8, 64), work(20_000, 8, 512), work(20_000, 64, 256), work(1_000, 8, 1000),
        work(4_000, 1000, 256, 3), work(400_000, 16, 1000, 4), work(2_000_000, 8, 1000),
        work(900_000, 64, 256),
    ]  # fmt: skip
    for costs in (TRUE, without("read", "row")):
        equations = []
        for one in works:
            for counts in (one.setup, one.one_pass, {**one.setup, **one.one_pass}):
                seconds = costs.setup_seconds(Work(counts, {}, 0))
                equations.append((counts, seconds))
        stored_costs = {"fit": costs.values["fit"]}
        found = fit_cost_values(equations, stored_costs)
        for name in TRUE.values:
            wanted = costs.values.get(name, 0.0)
            assert found[name] == pytest.approx(wanted, rel=1e-6, abs=1e-15), name


def test_no_cost_is_negative() -> None:
    """Timings that no costs explain, where the larger fit took less time."""
    equations = [(work(n, 8, 64).one_pass, s) for n, s in ((1000, 0.2), (9000, 0.1))]
    assert all(value >= 0 for value in fit_cost_values(equations, {"row": 1.0}).values())


def test_seconds_of_a_fit_are_the_sum_of_its_parts() -> None:
    clf = SGDClassifier(batch_size=100)
    clf.set_params(learning_rate="constant", eta0=0.1)  # no pilot
    rows = RowsShape(10_000, 10, 2, "float64")
    one = STEPS.work(clf, rows, inline_place(None), 20)
    setup = 0.1 + 2e-9 * 100_000 + 1024 * (3e-5 + 2e-10 * 1000)
    a_pass = 1e-3 + 100 * 1e-5 + 10_000 * 1e-8 + 100_000 * 3e-10
    assert TRUE.seconds(one) == pytest.approx(setup + 20 * a_pass)
    slow = TRUE.with_policy("slow", (one.one_pass, a_pass + 100 * 1e-5))
    assert slow.steps["slow"] == pytest.approx(2e-5)
    assert slow.seconds(one, "slow") - TRUE.seconds(one) == pytest.approx(20 * 100 * 1e-5)


def test_passes_are_of_early_steps_or_of_late_ones() -> None:
    """512 steps a pass: after the first the second is early, and the third on are late."""
    one = work(32_768, 8, 64)
    setup, early, late = STEPS.equations(one, 10.0, [9.0, 0.5, 0.1, 0.2, 0.1])
    assert (early[1], late[1]) == (0.5, 0.1)
    assert setup[1] == pytest.approx(0.1)
    assert early[0]["early"] == one.one_pass["step"] == 512
    assert early[0]["copy"] == 512 * 64 * 8
    assert len(STEPS.equations(one, 1.0, [0.5])) == 1


def test_costs_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_costs("here") is None
    save_costs("here", TRUE)
    save_costs("there", dataclasses.replace(TRUE, steps={"async": 0.5}))
    assert load_costs("here") == TRUE
    assert load_costs("there") == dataclasses.replace(TRUE, steps={"async": 0.5})
    path = cache_file()
    assert path is not None
    assert [file.name for file in path.parent.iterdir()] == ["planning.json"]
    for broken in ("{", "[]", '{"here": 1}', path.read_text().replace(": 0.1", ": -0.1")):
        path.write_text(broken)
        assert load_costs("here") is None
    save_costs("here", TRUE)
    assert load_costs("here") == TRUE
    with dask.config.set({"daskml_dist.planning.cache": False}):
        save_costs("off", TRUE)
        assert load_costs("here") is None
    assert load_costs("off") is None


def test_costs_are_measured_again_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have no HOME, and be in no list of users."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    save_costs("here", TRUE)
    assert load_costs("here") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(3e-5, "30 µs"), (0.0123, "12 ms"), (1.5, "1.5 s"), (90, "90 s"), (600, "10 min")],
)
def test_seconds_in_words(value: float, text: str) -> None:
    assert format_seconds(value) == text


def test_bytes_in_words() -> None:
    assert [format_bytes(v) for v in (0, 999, 112e6, 1.5e12)] == [
        "0 B",
        "999 B",
        "112 MB",
        "1.5 TB",
    ]


def choice(place: str, policy: str, seconds: Any, own: bool = True) -> Choice:
    return Choice(SGDClassifier(), place, policy, (6, 20), 0.01, seconds, 1e6, 2e6, own)


def test_a_plan_in_words_and_as_html() -> None:
    quick = choice("cluster", "average", (0.01, 0.02), own=False)
    plan = Plan(
        "SGDClassifier <1>",
        (choice("inline", "sync", (0.1, 0.4)), choice("cluster", "sync", (1.0, 4.0)), quick),
        "It fits.",
        ("A note.",),
    )
    assert plan.best is plan.choices[0]
    lines = str(plan).splitlines()
    assert lines[1].split()[:2] == ["place", "policy"]
    assert "6 to 20" in lines[2]
    assert "100 ms to 400 ms" in lines[2]
    assert lines[-2:] == ["Advice: inline. It fits.", "A note."]
    html = plan._repr_html_()
    assert html.count("<tr>") == 4
    assert "&lt;1&gt;" in html
    assert "<1>" not in html


def test_rows_that_fit_nowhere_are_left_to_the_workers() -> None:
    plan = Plan("", (choice("inline", "sync", None), choice("cluster", "sync", None)), "")
    assert plan.best.place == "cluster"
    assert "unknown" in str(plan)


# --- with real fits --------------------------------------------------------------------------


@pytest.fixture
def stored_costs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide stand-ins for measured costs, and record the requested keys."""
    keys: list[str] = []

    def load(key: str) -> Costs:
        keys.append(key)
        values = {"fit": 1.0} if "workers of" in key else {}
        steps = {"async": 1e-3, "local": 1e-5}
        return dataclasses.replace(TRUE, values={**TRUE.values, **values}, steps=steps)

    monkeypatch.setattr("daskml_dist.planning.advising.load_costs", load)
    return keys


X = np.random.default_rng(0).standard_normal((1000, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def test_small_rows_stay_in_the_process_though_there_is_a_client(
    client: Client, stored_costs: list[str]
) -> None:
    clf = SGDClassifier(max_iter=3, tol=None, random_state=0)
    plan = clf.plan(X, Y)
    assert [(c.place, c.policy) for c in plan.choices] == [
        ("inline", "sync"), ("inline", "async"), ("cluster", "sync"), ("cluster", "async"),
        ("cluster", "local"), ("cluster", "average"),
    ]  # fmt: skip
    assert plan.advice.startswith("Advice: inline. 16 kB fits here; about ")
    assert "against 1 s on 2 workers (1 s start, 10 µs a step there)" in plan.advice
    assert plan.best.fit(X, Y) is clf
    assert clf.history_.extra["n_lanes"] == 1  # on the cluster it would be 2
    assert len(stored_costs) == 2


def test_dask_rows_are_gathered_for_a_fit_inline(client: Client, stored_costs: list[str]) -> None:
    dX, dy = da.from_array(X, chunks=(500, 4)), da.from_array(Y, chunks=500)
    plan = advise(dX, SGDClassifier(max_iter=2, tol=None), dy)
    assert "two classes" in str(plan)
    assert "X is lazy" in str(plan)
    assert plan.best.place == "inline"
    assert plan.best.traffic == X.nbytes
    assert plan.best.fit(dX, dy).history_.extra["n_lanes"] == 1
    with pytest.raises(InvalidParameterError, match="Gather them first"):
        SGDClassifier().fit(dX, dy, client="inline")
    persisted = advise(*(v.persist() for v in (dX,)), SGDClassifier(), da.from_array(Y).persist())
    assert persisted.notes == ()


def test_rows_that_do_not_fit_are_named(
    client: Client, stored_costs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskml_dist.planning.places._available_memory", lambda: 1e3)
    lazy = da.from_array(X, chunks=(500, 4))
    plan = advise(lazy, SGDClassifier(run=Run(memory_budget=1000)), da.from_array(Y, chunks=500))
    assert [c.seconds for c in plan.choices if c.own] == [None, None]
    assert sum(note.startswith("Memory: ") for note in plan.notes) == 2
    assert plan.best.place == "cluster"


@pytest.mark.parametrize("budget", ["auto", "1 GiB"])
def test_budgets_equal_the_needs_of_a_run(
    client: Client, stored_costs: list[str], budget: str
) -> None:
    estimator = SGDClassifier(run=Run(n_lanes=2, memory_budget=budget))
    plan = advise(da.from_array(X, chunks=(500, 4)), estimator, da.from_array(Y, chunks=500))
    assert not any(note.startswith("Memory: ") for note in plan.notes)


@pytest.mark.parametrize(
    ("estimator", "rows", "error", "words"),
    [
        (GaussianNB(), X, InvalidParameterError, "no plans for GaussianNB.*boosting.*part of the"),
        (SGDClassifier(policy="hogwild"), X, InvalidParameterError, "no plans for hogwild"),
        (SGDClassifier(policy=FederatedAveraging()), X, InvalidParameterError, "for federated"),
        (SGDClassifier(run=Run(shard="features")), X, InvalidParameterError, "shard='features'"),
        (GaussianNB(), sparse.csr_matrix(X), InvalidParameterError, "no plans for GaussianNB"),
        (
            Ridge(),
            sparse.csr_matrix(X),
            InvalidParameterError,
            "least squares, PCA cannot be planned",
        ),
        (SGDClassifier(), da.from_array(X)[da.from_array(X)[:, 0] > 0], InvalidDataError, "number"),
    ],
)
def test_fits_without_a_plan(estimator: Any, rows: Any, error: type[Exception], words: str) -> None:
    y = da.from_array(Y)[da.from_array(X)[:, 0] > 0] if isinstance(rows, da.Array) else Y
    with pytest.raises(error, match=words):
        daskml_dist.advise(rows, estimator, y)


def test_parts_of_sparse_rows_are_as_large_as_their_entries_tell() -> None:
    rows = RowsShape(10**6, 10**6, 2, "float64", entries=100.0)
    params = STEPS.sparse_probe_params(SGDClassifier(), rows, inline_place(None))
    # Batch sizes are those of the whole fit, not of its few sampled rows.
    assert params["batch_size"] == 512
    parts = measure._make_sparse_probes(rows, params)
    assert [part.n_rows for part in parts] == [n // 100 for n in measure._DRAWN_ENTRIES]
    assert all(part.params == params for part in parts)
    few = dataclasses.replace(rows, n_rows=1000)
    assert [part.n_rows for part in measure._make_sparse_probes(few, params)] == [1000]


@pytest.mark.parametrize("estimator", [SGDClassifier(), LogisticRegression()])
def test_sparse_rows_are_planned_by_samples(
    estimator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs of sparse rows are valid only for these rows, and not stored in the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = sparse.random(300, 50, 0.1, "csr", rng=0)
    found = []
    fit_cost_values = measure.fit_cost_values
    monkeypatch.setattr(
        measure, "fit_cost_values", lambda e, k: found.extend(e) or fit_cost_values(e, k)
    )
    plan = advise(rows, estimator, np.arange(300) % 2)
    low, high = plan.best.seconds or (0, 0)
    assert 0 < low < high
    assert list(tmp_path.rglob("*.json")) == []
    (setup, _), (one_pass, _) = found
    assert setup["read"] == rows.nnz
    assert one_pass["entry"] == pytest.approx(rows.nnz)
    assert "early" not in setup


@pytest.mark.slow
def test_real_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, without made-up costs: they are measured once and then stored_costs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for estimator, y in ((SGDRegressor(), X[:, 0]), (SGDClassifier(), np.arange(len(X)) % 3)):
        plan = estimator.plan(X, y)
        assert not hasattr(estimator, "coef_")
        low, high = plan.best.seconds or (0, 0)
        assert 0 < low < high
        monkeypatch.setattr("daskml_dist.planning.advising.measure_costs", None)
        assert str(estimator.plan(X, y)) == str(plan)
        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_rows_of_persisted_frames_are_counted(client: Client) -> None:
    numbers = pd.DataFrame({"a": np.arange(30.0), "label": np.arange(30) % 3})
    lazy = dd.from_pandas(numbers, npartitions=3)
    lazy = lazy[lazy["label"] > 0]
    with pytest.raises(InvalidDataError, match="Persist the collection of X and y"):
        measure_shape(SGDClassifier(), lazy[["a"]], lazy["label"])
    frame = lazy.persist()
    shape = measure_shape(SGDClassifier(), frame.drop(columns="label"), frame["label"])
    assert (shape.n_rows, shape.n_classes) == (20, 2)
