"""Requests use the fit's class, whatever other classes of that name are in the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pytest

from daskml_dist.comm.packing import pack_object, unpack_object
from daskml_dist.solvers import Solver, Statistic
from daskml_dist.training.worker.loops.solver import reduce_request_classes


def _notebook(value: float) -> Solver:
    """Return a solver as of a notebook, whose statistic has the same name in all notebooks."""

    @dataclass(frozen=True)
    class Total(Statistic):
        at: Any

        def shape(self, model: Any) -> tuple[int, ...]:
            return (1,)

        def add(self, model: Any, rows: Any, out: Any, backend: Any) -> float:
            out += value
            return 0.0

    class Mean(Solver):
        name = "mean"
        max_passes = 1

        def solve(self, model: Any, sums: Any, start: Any) -> Any:
            return Total(np.ones(2))

    return Mean()


def _value_of(question: Any) -> float:
    out = np.zeros(1)
    question.add(None, None, out, None)
    return float(out[0])


def test_each_fit_uses_its_own_class() -> None:
    one, two = (cloudpickle.loads(cloudpickle.dumps(_notebook(value))) for value in (1.0, 2.0))
    data = {}
    for solver, value in [(one, 1.0), (two, 2.0), (one, 1.0)]:
        kinds = reduce_request_classes(solver)
        data[value] = pack_object(solver.solve(None, None, None), kinds)
        assert _value_of(unpack_object(data[value], kinds)) == value
    assert data[1.0] == data[2.0]  # the name alone does not distinguish them
    with pytest.raises(TypeError, match="another class"):
        pack_object(one.solve(None, None, None), reduce_request_classes(two))


def test_a_class_unpickled_twice_is_recognised() -> None:
    # cloudpickle makes an empty class before it detects that the class exists already.
    packed = cloudpickle.dumps(_notebook(3.0))
    solvers = [cloudpickle.loads(packed) for _ in range(3)]
    for solver in solvers:
        kinds = reduce_request_classes(solver)
        sent = pack_object(solver.solve(None, None, None), kinds)
        assert _value_of(unpack_object(sent, kinds)) == 3.0
