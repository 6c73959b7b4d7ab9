"""Streams of ratings on a cluster: the client numbers users and items, and lanes step.

The fixture `client` checks that nothing is left on the cluster.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest

from daskml_dist import Run
from daskml_dist.errors import InvalidDataError
from daskml_dist.policies import POLICIES
from daskml_dist.recommender import MatrixFactorization, _stream_steps
from daskml_dist.recommender._stream_lanes import ClusterRatingSteps
from daskml_dist.training.checkpoint import Checkpoint
from tests.quick import quick
from tests.streaming.troubles import cut_off_next, lose_some

_POLICIES = sorted(name for name, policy in POLICIES.items() if not policy().averages)
#: Policies of the default run: one of each kind of parameters.
_USUAL = {"allreduce", "async", "hogwild"}
_DRAWN = {"implicit": True, "loss": "log_loss", "negatives": 2, "optimizer": "adam"}
_PAIRS = {"implicit": True, "loss": "log_loss", "pairwise": True, "batch_size": 9}


def _calls(n_calls: int = 8, rows: int = 20) -> list[pd.DataFrame]:
    """Return calls with a growing range of users and items."""
    rng = np.random.default_rng(0)
    return [
        pd.DataFrame({
            "user": rng.integers(0, 4 * n + 4, rows),
            "item": np.char.add("i", rng.integers(0, n + 3, rows).astype(str)).astype(object),
            "rating": rng.integers(1, 6, rows).astype(float),
        })
        for n in range(n_calls)
    ]  # fmt: skip


def _made(policy: str = "async", n_lanes: int = 1, **params: Any) -> MatrixFactorization:
    run = Run(n_lanes=n_lanes, n_servers=2)
    options = {"rank": 3, "random_state": 0, "dtype": "float64"} | params
    return MatrixFactorization(policy=policy, run=run, **options)


def _learned(model: Any, calls: Any, client: Any = None, looks: bool = False, **how: Any) -> Any:
    with model.stream(client=client, **how) as stream:
        for number, call in enumerate(calls):
            stream.learn(call, position=number)
            if looks or number == 3:
                assert np.isfinite(model.user_factors_).all()  # reading the factors changes nothing
    return stream


def _check(ours: Any, theirs: Any, found: Any, truth: Any, rtol: float = 0) -> None:
    for name in ("user_ids_", "item_ids_", "mean_", "t_"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("user_factors_", "item_factors_", "user_biases_", "item_biases_"):
        one, other = getattr(ours, name), getattr(theirs, name)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol, err_msg=name)
    assert found.progressive_loss == pytest.approx(truth.progressive_loss, rel=1e-12)
    assert (found.n_rows, found.position) == (truth.n_rows, truth.position)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the initial capacity, so that the parameters grow several times."""
    monkeypatch.setattr(_stream_steps, "_MIN_RESERVED_ROWS", 3)


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        pytest.param(policy, params, marks=() if policy in _USUAL else pytest.mark.slow)
        for policy, params in [
            *zip(_POLICIES, itertools.cycle([{}, _DRAWN, _PAIRS]), strict=False),
            ("hogwild", _DRAWN),
        ]
    ],
)
def test_every_policy_with_one_lane_equals_one_process(
    client: Any, policy: str, params: dict[str, Any]
) -> None:
    theirs, ours = _made(**params), _made(policy, **params)
    truth, found = _learned(theirs, _calls()), _learned(ours, _calls(), client)
    # A change is rounded before it is added on the servers.
    _check(ours, theirs, found, truth, rtol=1e-9 if policy == "hogwild" else 0)


@pytest.mark.parametrize(("policy", "params"), [("sync", _PAIRS), ("allreduce", {})])
def test_synchronous_lanes_equal_one_process(
    client: Any, policy: str, params: dict[str, Any]
) -> None:
    theirs, ours = _made(**params), _made(policy, 3, **params)
    truth, found = _learned(theirs, _calls()), _learned(ours, _calls(), client)
    _check(ours, theirs, found, truth, rtol=1e-9)


@pytest.mark.parametrize("policy", quick(["async", "ssp", "hogwild"], "async", "hogwild"))
def test_free_running_lanes_pull_the_updates_of_others(client: Any, policy: str) -> None:
    plain = {"optimizer": "sgd", "learning_rate": 0.1}
    theirs, ours = _made(**plain), _made(policy, 2, **plain)
    truth = _learned(theirs, _calls())
    # Reading waits for the servers, so that steps are sequential.
    found = _learned(ours, _calls(), client, looks=True)
    _check(ours, theirs, found, truth, rtol=1e-9)


@pytest.mark.parametrize("params", [{}, pytest.param(_DRAWN, marks=pytest.mark.slow)])
def test_stream_continues_after_stops_losses_and_interrupts(
    client: Any, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    theirs = _made(**params)
    truth = _learned(theirs, _calls())
    fetches = lose_some(monkeypatch)
    for number, call in enumerate(_calls()):  # each call in a separate stream
        ours = _made("sync", 2, **params)
        resuming = Checkpoint(tmp_path / "m.npz", resume=True)
        with ours.stream(client=None if number == 4 else client, checkpoint=resuming) as found:
            if number == 5:
                cut_off_next(monkeypatch, "receive")
                with pytest.raises(KeyboardInterrupt):
                    found.learn(call, position=number)
                call[:] = call.iloc[::-1].to_numpy()  # submitted before, so it is learned
            assert (found.learn(call, position=number) is None) == (number == 5)
    assert len(fetches) > 4
    _check(ours, theirs, found, truth, rtol=1e-9)


def test_an_interrupt_while_parameters_grow_loses_nothing(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = _made(), _made("async")
    truth = _learned(theirs, _calls())
    grow, cut = ClusterRatingSteps._grow, []

    def cut_short(lanes: ClusterRatingSteps, *sizes: int) -> None:
        if sizes not in cut and lanes._log.calls:
            cut.append(sizes)
            cut_off_next(monkeypatch, "states")
        grow(lanes, *sizes)

    monkeypatch.setattr(ClusterRatingSteps, "_grow", cut_short)
    n_users = 0
    with ours.stream(client=client) as found:
        for number, call in enumerate(_calls()):
            try:
                found.learn(call, position=number)
            except KeyboardInterrupt:
                assert (found.position, len(ours.user_ids_)) == (number - 1, n_users)
                found.learn(call, position=number)
            n_users = len(found._started.ids[0])
    assert len(cut) > 1
    _check(ours, theirs, found, truth)


def test_a_stream_stays_usable_after_refused_ratings_and_a_reset(client: Any) -> None:
    theirs, ours, (first, second, third, *_) = _made(), _made("sync"), _calls()
    streams = []
    for model, where in ((theirs, None), (ours, client)):
        with model.stream(client=where) as stream:
            stream.learn(first)
            with pytest.raises(InvalidDataError, match="several types"):
                stream.learn(first.assign(user="ann"))
            stream.reset()
            stream.learn(second)
            stream.reset(parameters=True)
            stream.learn(third)
        streams.append(stream)
    _check(ours, theirs, *reversed(streams))
