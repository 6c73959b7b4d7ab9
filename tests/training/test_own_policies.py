"""A custom policy selects each of the training loops by its declared data.

The classes are defined inside the tests, as in a notebook: no worker can import them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import daskml_dist
import daskml_dist.policies
from daskml_dist import Run
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import AllReduce, ArrivalGate, Gate, LocalSGD, Policy

ROOT = Path(__file__).resolve().parents[2]
N_ROWS = 2_000
N_STEPS = 16  # steps of each of the two lanes in a pass


def _fit(policy: str | Policy) -> SGDClassifier:
    """Fit on both workers; if the policy is in lock-step, check that the bits equal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 8))
    y = X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0
    X, y = da.from_array(X, chunks=(250, -1)), da.from_array(y, chunks=250)
    clf = SGDClassifier(
        policy=policy, run=Run(n_lanes=2, deterministic=True), batch_size=63, max_iter=4, tol=None,
        random_state=0,
    )  # fmt: skip
    clf.fit(X, y)
    assert clf.score(X, y) > 0.85
    assert [record["rows"] for record in clf.history_.records] == [N_ROWS] * 4
    return clf


def test_policy_with_an_averaging_interval_of_the_class(client: Client) -> None:
    class EverySeven(Policy):
        name = "every seven"
        loop = "replicas"
        average_every = 7

    clf = _fit(EverySeven())
    assert clf.history_.extra["policy"] == "every seven"
    np.testing.assert_array_equal(clf.coef_, _fit(LocalSGD(7)).coef_)


def test_policy_with_an_averaging_interval_of_the_instance(client: Client) -> None:
    @dataclass(frozen=True)
    class Mine(Policy):
        name = "mine"
        loop = "replicas"
        average_every: int

    np.testing.assert_array_equal(_fit(Mine(7)).coef_, _fit(LocalSGD(7)).coef_)


def test_policy_without_an_interval_averages_once(client: Client) -> None:
    class Alone(Policy):
        name = "alone"
        loop = "replicas"

    np.testing.assert_array_equal(_fit(Alone()).coef_, _fit("average").coef_)


def test_policy_that_sums_gradients(client: Client) -> None:
    class Summed(Policy):
        name = "summed"
        loop = "replicas"
        sums_gradients = True

    np.testing.assert_array_equal(_fit(Summed()).coef_, _fit(AllReduce()).coef_)


def test_policy_with_free_running_lanes(client: Client) -> None:
    @dataclass(frozen=True)
    class Bundled(Policy):
        name = "bundled"
        loop = "free"
        push_every: int = 4
        pull_every: int = 2
        lead: int = 8

        def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
            return ArrivalGate(lanes, clock, staleness=self.lead)

    clf = _fit(Bundled())
    applied = sum(record["steps"] for record in clf.history_.records)
    assert applied == 4 * Bundled().applies_per_pass(N_STEPS, 2) == 4 * 2 * N_STEPS / 4


def test_policy_with_rounds(client: Client) -> None:
    class Lockstep(Policy):
        name = "lockstep"
        loop = "bulk"

    np.testing.assert_array_equal(_fit(Lockstep()).coef_, _fit("sync").coef_)


def test_policy_with_threads_on_one_array(client: Client) -> None:
    class Racing(Policy):
        name = "racing"
        loop = "shared"

    _fit(Racing())


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["push_every", "pull_every", "average_every"])
def test_invalid_cadence_of_a_class_is_refused(name: str) -> None:
    kind: Any = type("Mine", (Policy,), {"name": "mine", "loop": "free", name: -1})
    with pytest.raises(InvalidParameterError, match=rf"Mine\({name}=-1\): give an integer >= "):
        kind()


@pytest.mark.parametrize("data", [{}, {"name": "mine"}, {"name": "mine", "loop": "replica"}])
def test_policy_without_a_training_loop_is_refused(data: dict[str, Any]) -> None:
    kind: Any = type("Mine", (Policy,), data)
    with pytest.raises(InvalidParameterError, match="Mine needs a `name`, and a `loop` out of"):
        kind()


def test_non_integer_fields_of_a_policy_are_not_checked() -> None:
    @dataclass(frozen=True)
    class Mine(Policy):
        name = "mine"
        loop = "free"
        patience: float = 0.5

    assert Mine().patience == 0.5


# --- the package -----------------------------------------------------------------------------


def test_package_never_checks_the_class_of_a_policy() -> None:
    """The package must read a policy's declared data only, so that custom classes work."""
    exports = vars(daskml_dist.policies)
    classes = {n for n, v in exports.items() if isinstance(v, type) and issubclass(v, Policy)}
    classes -= {"Policy"}
    package = Path(daskml_dist.__file__).parent
    class_checks = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        if path.parent.name != "policies"
        if any(name in (text := path.read_text()) for name in classes)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"isinstance", "issubclass"}
        and classes & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    ]
    assert class_checks == []


def test_policy_in_the_documentation_trains(client: Client) -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    section = page.partition("## A policy of your own")[2]
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    rng = np.random.default_rng(0)
    X = da.from_array(rng.normal(size=(N_ROWS, 8)), chunks=(400, -1))
    y = X[:, 0] > 0
    # As in a notebook, whose module no worker has.
    names: dict[str, Any] = {"__name__": "__main__", "X": X, "y": y}
    names["clf"] = SGDClassifier(random_state=0)
    exec(code, names)
    assert names["clf"].history_.extra["policy"] == "bundled"
    assert names["clf"].score(X, y) > 0.9
