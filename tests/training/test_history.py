"""The history: a list of records, a table, a drawing."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from daskml_dist.errors import DaskMLDistError, InvalidParameterError
from daskml_dist.training.history import RECORD_KEYS, History


def _record(number: int, **values: Any) -> dict[str, Any]:
    record = {
        "pass": number,
        "loss": 1 / number,
        "rows": 1000,
        "steps": 10,
        "seconds": 0.5,
        "bytes_pushed": 800,
        "bytes_pulled": 1600,
        "staleness_mean": 0.25,
        "staleness_max": 2,
        "val_score": None,
    }
    return record | values


@pytest.fixture
def history() -> History:
    extra = {"policy": "ssp", "n_lanes": 4, "n_servers": 1, "partial_rows": 0}
    return History([_record(1), _record(2), _record(4, val_score=0.75)], extra)


def test_history_behaves_like_the_list_of_its_records(history: History) -> None:
    assert len(history) == 3
    assert list(history) == history.records
    assert history[0]["loss"] == 1.0
    assert history[-1]["pass"] == 4
    assert set(history[0]) == set(RECORD_KEYS)
    assert history[1:] == history.records[1:]
    with pytest.raises(IndexError):
        history[3]


def test_an_empty_history_has_all_methods() -> None:
    history = History()
    assert len(history) == 0
    assert repr(history) == "<History: no whole pass>"
    assert history.rows_per_second == []
    assert list(history.to_frame().columns) == list(RECORD_KEYS)


def test_histories_share_no_state() -> None:
    first, second = History(), History()
    first.records.append(_record(1))
    first.extra["policy"] = "sync"
    assert second == History()


def test_repr_shows_passes_losses_and_time(history: History) -> None:
    assert repr(history) == "<History: 3 passes, loss 1 -> 0.25, 1.5 s>"
    assert repr(History([_record(1)])) == "<History: 1 pass, loss 1, 0.5 s>"


def test_rows_per_second_is_nan_where_no_time_passed() -> None:
    first, second = History([_record(1), _record(2, seconds=0.0)]).rows_per_second
    assert first == 2000.0
    assert math.isnan(second)


def test_history_can_be_pickled_and_copied(history: History) -> None:
    assert pickle.loads(pickle.dumps(history)) == history
    assert copy.deepcopy(history) == history


def test_to_frame_has_a_row_for_each_pass(history: History) -> None:
    frame = history.to_frame()
    assert list(frame.columns) == list(RECORD_KEYS)
    assert frame["pass"].tolist() == [1, 2, 4]
    assert frame["val_score"].isna().tolist() == [True, True, False]
    assert frame["val_score"].dtype == "float64"


def test_to_frame_without_pandas_names_the_remedy(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DaskMLDistError, match=r"pip install 'daskml-dist\[dataframe\]'"):
        history.to_frame()


@pytest.fixture
def pyplot() -> Iterator[Any]:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.mark.parametrize("key", [*RECORD_KEYS, "rows_per_second"])
def test_plot_draws_every_key_against_the_passes(history: History, pyplot: Any, key: str) -> None:
    (line,) = history.plot(key).lines
    assert list(line.get_xdata()) == [1, 2, 4]
    if key == "rows_per_second":
        assert list(line.get_ydata()) == history.rows_per_second
    else:
        drawn = [None if math.isnan(value) else value for value in line.get_ydata()]
        assert drawn == [record[key] for record in history]


def test_plot_draws_on_the_axes_it_is_given(history: History, pyplot: Any) -> None:
    figure, ax = pyplot.subplots()
    assert history.plot(ax=ax) is ax
    assert ax.get_xlabel() == "pass"
    assert ax.get_ylabel() == "mean training loss"
    assert pyplot.get_fignums() == [figure.number]


def test_plot_of_an_unknown_key_lists_the_keys(history: History) -> None:
    with pytest.raises(InvalidParameterError, match=r"'accuracy'.*loss.*rows_per_second"):
        history.plot("accuracy")


def test_plot_of_a_score_that_was_not_recorded_names_the_remedy() -> None:
    with pytest.raises(InvalidParameterError, match="early_stopping=True"):
        History([_record(1)]).plot("val_score")


def test_plot_without_matplotlib_names_the_remedy(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(DaskMLDistError, match=r"pip install 'daskml-dist\[viz\]'"):
        history.plot()


def test_passes_without_a_loss_are_shown_without_one() -> None:
    record = {"pass": 1, "loss": float("nan"), "rows": 10, "seconds": 0.5}
    assert repr(History([record])) == "<History: 1 pass, 0.5 s>"
