"""Drift detection in streams: prompt, rarely false, followed by the requested action."""

import numpy as np
import pytest

from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.streaming import PageHinkley


def _alarms(losses):
    test = PageHinkley()
    return [i for i, loss in enumerate(losses) if test.update(loss).drift_detected]


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_rises_are_detected_and_noise_is_not(scale):
    late = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        losses = 0.45 + rng.normal(0, 0.02, 1500)
        losses[:100] += np.linspace(0.25, 0, 100)  # decreasing losses at first
        losses[1000:] += 0.1
        alarms = _alarms(scale * losses)
        assert alarms[0] >= 1000  # no alarm in 10,000 calls
        late.append(alarms[0] - 1000)
    assert max(late) <= 5


def test_one_outlier_is_no_drift():
    losses = np.random.default_rng(0).normal(1, 0.1, 200)
    losses[100] = 1e9
    assert _alarms(losses) == []


def test_invalid_parameters_are_refused():
    for params in ({"delta": -1}, {"threshold": "x"}, {"min_calls": 1}, {"window": np.inf}):
        with pytest.raises(InvalidParameterError, match="give a number"):
            PageHinkley(**params)


_RNG = np.random.default_rng(0)
_CALLS = []
for _call in range(300):
    _rows = _RNG.standard_normal((100, 5))
    _CALLS.append((_rows, ((_rows[:, 0] > 0) ^ (_call >= 150)).astype(int)))


def _drifting(on_drift):
    with SGDClassifier().stream(classes=[0, 1], drift=PageHinkley(), on_drift=on_drift) as stream:
        found = [(stream.learn(*call), stream.drift) for call in _CALLS]
    assert [100 * (i + 1) for i, (_, drift) in enumerate(found) if drift] == stream.drifts
    return [loss for loss, _ in found], stream


def test_the_requested_action_follows_a_drift():
    plain, stream = _drifting(None)
    (rows,) = stream.drifts
    assert 15_000 < rows <= 16_000
    later = slice(rows // 100, None)
    faster, _ = _drifting("rate")
    assert faster[:151] == plain[:151]
    assert np.mean(faster[later]) < 0.9 * np.mean(plain[later])
    again, _ = _drifting("reset")
    with SGDClassifier().stream(classes=[0, 1]) as new:
        assert again[later] == [new.learn(*call) for call in _CALLS[later]]
    called = []
    _drifting(lambda session: called.append(session.n_rows))
    assert called == stream.drifts


def test_custom_detectors_are_called():
    class Detector:
        drift_detected = False
        losses = ()

        def update(self, x):
            self.losses += (x,)
            self.drift_detected = len(self.losses) == 2

    detector, X = Detector(), np.eye(4)
    with SGDClassifier().stream(classes=[0, 1], drift=detector) as stream:
        losses = [stream.learn(X, np.array([0, 1, 0, 1])) for _ in range(3)]
        assert np.isnan(stream.learn(X, np.array([0, 1, 0, 1]), 0.0))  # no loss reported
    assert detector.losses == tuple(losses)
    assert stream.drifts == [8]
