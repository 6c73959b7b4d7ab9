"""Ensembles over few rows on a cluster: members are fitted in tasks; callbacks run here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import StackingClassifier, VotingClassifier
from daskml_dist.errors import InvalidDataError
from daskml_dist.linear_model import LogisticRegression, RidgeClassifier
from daskml_dist.meta_estimators.members import has_few_entries
from daskml_dist.training.client.on_cluster import ClusterEngine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 4))
Y = (X[:, 0] + RNG.normal(size=200) > 0).astype(int)
PAIR = [("line", LogisticRegression()), ("ridge", RidgeClassifier())]

MODELS: dict[str, Callable[[], Any]] = {
    "voting": lambda: VotingClassifier(PAIR),
    "stacking": lambda: StackingClassifier(PAIR, LogisticRegression(), cv=3),
    "calibration": lambda: CalibratedClassifierCV(LogisticRegression(), cv=3),
}


def lazy() -> tuple[Any, Any]:
    return da.from_array(X, chunks=(50, 4)), da.from_array(Y, chunks=50)


@pytest.fixture
def n_cluster_fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with an entry for each fit that is spread over the cluster."""
    found: list[int] = []
    train = ClusterEngine.train

    def counted(self: Any, *args: Any) -> Any:
        found.append(1)
        return train(self, *args)

    monkeypatch.setattr(ClusterEngine, "train", counted)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_members_are_fitted_in_tasks(name: str, client: Any, n_cluster_fits: list[int]) -> None:
    rows, labels = lazy()
    model = MODELS[name]().fit(rows, labels)
    assert not n_cluster_fits
    np.testing.assert_array_equal(model.predict(rows), MODELS[name]().fit(X, Y).predict(X))


class Heard:
    """Callback that counts passes in the process in which it is called."""

    n_passes: ClassVar[int] = 0

    def on_pass_end(self, run: Any, record: Any) -> None:
        Heard.n_passes += 1


def test_callbacks_of_members_are_called_in_this_process(
    client: Any, n_cluster_fits: list[int]
) -> None:
    Heard.n_passes = 0
    logistic = LogisticRegression(callbacks=[Heard()])
    VotingClassifier([("logistic", logistic), ("ridge", RidgeClassifier())]).fit(*lazy())
    assert len(n_cluster_fits) == 1
    assert Heard.n_passes


def test_warnings_of_tasks_are_repeated(client: Any) -> None:
    short = VotingClassifier([("short", LogisticRegression(max_iter=1))])
    with pytest.warns(ConvergenceWarning, match="LogisticRegression: lbfgs failed"):
        short.fit(*lazy())


def test_a_block_that_cannot_be_read_is_named(client: Any) -> None:
    def broken(rows: Any, block_info: Any = None) -> Any:
        if block_info and block_info[0]["chunk-location"][0] == 2:
            raise OSError("no such file")
        return rows

    rows, labels = lazy()
    with pytest.raises(InvalidDataError, match=r"Block 2 could not be read: .*no such file"):
        VotingClassifier(PAIR).fit(rows.map_blocks(broken, dtype=rows.dtype), labels)


def test_sparse_rows_with_few_entries_are_fitted_in_tasks() -> None:
    rows, _ = lazy()
    assert has_few_entries(rows)
    assert not has_few_entries(da.zeros((10**6, 4), chunks=(10**5, 4)))
    assert not has_few_entries(rows[rows[:, 0] > 0])  # with unknown chunk sizes
    assert has_few_entries(rows[rows[:, 0] > 0], n_rows=100)
    frame = rows.to_dask_dataframe(columns=list("abcd"))
    assert has_few_entries(frame, n_rows=200)
    assert not has_few_entries(frame)
