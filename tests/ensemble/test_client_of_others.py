"""Meta-estimators take `client=` and compute everything on it, not on the current client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, default_client
from sklearn.naive_bayes import GaussianNB

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from daskml_dist.errors import InvalidParameterError
from daskml_dist.model_selection import GridSearchCV, HalvingGridSearchCV
from daskml_dist.wrappers import Incremental, ParallelPostFit

RNG = np.random.default_rng(0)
X = da.from_array(RNG.standard_normal((90, 3)), chunks=(30, 3))
Y = da.from_array(np.arange(90) % 2, chunks=30)
ONE, GRID = GaussianNB(), {"var_smoothing": [1e-9, 1e-3]}
MODELS: dict[str, Callable[[], Any]] = {
    "bagging": lambda: BaggingClassifier(ONE, n_estimators=2, random_state=0),
    "block by block": lambda: Incremental(ONE),
    "calibration": lambda: CalibratedClassifierCV(ONE, cv=2),
    "halving": lambda: HalvingGridSearchCV(ONE, GRID, cv=2, random_state=0),
    "on one worker": lambda: ParallelPostFit(ONE),
    "search": lambda: GridSearchCV(ONE, GRID, cv=2),
    "stacking": lambda: StackingClassifier([("a", ONE)], GaussianNB(), cv=2),
    "voting": lambda: VotingClassifier([("a", ONE)], voting="soft"),
}


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_computed_by_the_given_client(
    name: str, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[Client] = []
    sent = Client._graph_to_futures

    def spy(self: Client, *args: Any, **more: Any) -> Any:
        clients.append(self)
        return sent(self, *args, **more)

    with Client(client.scheduler.address, set_as_default=False) as other:
        monkeypatch.setattr(Client, "_graph_to_futures", spy)
        model = MODELS[name]().fit(X, Y, client=other)
        assert set(clients) == {other}
        clients.clear()
        assert default_client() is client
        expected = MODELS[name]().fit(X, Y)
        assert set(clients) == {client}
    np.testing.assert_array_equal(np.asarray(model.predict(X)), np.asarray(expected.predict(X)))


@pytest.mark.parametrize("name", MODELS)
def test_invalid_clients_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="is a str"):
        MODELS[name]().fit(X, Y, client="tcp://host:8786")
